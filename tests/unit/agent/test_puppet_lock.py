# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puppet's lock against its own runs: an operator's is respected, the agent's own is removed again and holds nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._node import puppet as collection
from convoy_node.machine import puppet

LOCK = "agent_disabled.lock"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of two kinds of packages, of which one is installed; the collection looks there too."""
    found = [str(tmp_path / "none/state"), str(tmp_path / "puppet/state")]
    Path(found[1]).mkdir(parents=True)
    monkeypatch.setattr(collection, "_LOCKS", tuple(f"{folder}/agent_catalog_run.lock" for folder in found))
    return found


def disable(folders: list[str], text: str) -> Path:
    path = Path(folders[1]) / LOCK
    path.write_text(text)
    return path


def test_the_folders_are_those_of_the_collection() -> None:
    assert tuple(f"{folder}/agent_catalog_run.lock" for folder in puppet.FOLDERS) == collection._LOCKS
    assert puppet.OWN == collection._KEPT_OUT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({"disabled_message": "its disk"}), "its disk"),
        ("{}", "reason not specified"),
        ("", "reason not specified"),
        ("not JSON", "not JSON"),
        (json.dumps({"disabled_message": "a\nb"}), "a b"),
    ],
)
def test_an_operator_s_lock_is_seen_and_never_touched(text: str, reason: str, folders: list[str]) -> None:
    path = disable(folders, text)
    assert puppet.disabled_by_operator(folders) == reason
    assert not puppet.keep_out("closed", folders)
    assert not puppet.let_in(folders)
    assert path.read_text() == text
    assert collection.disabled_for() is not None


def test_the_agent_s_own_lock_keeps_puppet_out_and_holds_no_one(folders: list[str]) -> None:
    assert not puppet.let_in(folders)
    assert puppet.keep_out("closed: a gate", folders)
    assert json.loads((Path(folders[1]) / LOCK).read_text()) == {"disabled_message": "convoy.upgrade: closed: a gate"}
    # The second time changes nothing.
    assert not puppet.keep_out("closed: another gate", folders)
    assert puppet.disabled_by_operator(folders) is None
    assert collection.disabled_for() is None
    assert puppet.let_in(folders)
    assert not (Path(folders[1]) / LOCK).exists()


def test_an_agent_run_lets_its_own_puppet_in_and_keeps_others_out_again(folders: list[str]) -> None:
    puppet.keep_out("closed", folders)
    path = Path(folders[1]) / LOCK
    before = path.read_bytes()
    with collection._let_in():
        assert not path.exists()
    assert path.read_bytes() == before
    # An operator who disables Puppet meanwhile wins.
    with collection._let_in():
        path.write_text("mine")
    assert path.read_text() == "mine"
    with collection._let_in():
        assert path.read_text() == "mine"


def test_a_first_run_is_kept_out_too(folders: list[str]) -> None:
    Path(folders[1]).rmdir()
    assert puppet.keep_out("closed", folders)
    assert (Path(folders[1]) / LOCK).exists()
    assert not Path(folders[0]).exists()


def test_without_puppet_nothing_is_created(tmp_path: Path) -> None:
    nowhere = [str(tmp_path / "none/state")]
    assert not puppet.keep_out("closed", nowhere)
    assert puppet.disabled_by_operator(nowhere) is None
    assert not (tmp_path / "none").exists()
