# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package sources of a version: up, back, interrupted, and names that are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._node import sources
from ansible_collections.convoy.upgrade.plugins.module_utils._node.sources import (
    for_version,
    read_folder,
    write_sources,
)

V1 = {"fleet.list": "deb http://packages/v1 ./\n", "fleet.pref": "Pin-Priority: 1001\n"}
V2 = {
    "fleet.list": "deb http://packages/v2 ./\n",
    "extra.sources": "URIs: http://extra\n",
    "fleet.pref": V1["fleet.pref"],
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folders = {end: f"{tmp_path}{folder}" for end, folder in sources._FOLDERS.items()}
    monkeypatch.setattr(sources, "_FOLDERS", folders)
    return tmp_path


def state(root: Path) -> str:
    return f"{root}/var/sources.json"


def present(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (root / "etc").rglob("*") if path.is_file()}


def test_a_rollback_restores_the_previous_ones_and_removes_the_others(root: Path) -> None:
    write_sources(V1, state(root))
    (root / "etc/apt/sources.list.d/mine.list").write_text("deb http://mine ./\n")
    assert write_sources(V1, state(root)) == []
    changes = write_sources(V2, state(root))
    assert [(Path(one.path).name, one.before is None, one.after is None) for one in changes] == [
        ("extra.sources", True, False),
        ("fleet.list", False, False),
    ]
    assert present(root) == {**V2, "mine.list": "deb http://mine ./\n"}
    changes = write_sources(V1, state(root))
    assert [(Path(one.path).name, one.after is None) for one in changes] == [
        ("extra.sources", True),
        ("fleet.list", False),
    ]
    assert present(root) == {**V1, "mine.list": "deb http://mine ./\n"}
    assert (root / "etc/apt/preferences.d/fleet.pref").stat().st_mode & 0o777 == 0o644


def test_check_mode_reports_the_same_and_writes_nothing(root: Path) -> None:
    write_sources(V1, state(root))
    before = present(root)
    dry = write_sources(V2, state(root), dry=True)
    assert present(root) == before
    assert dry == write_sources(V2, state(root))


def test_a_call_that_was_interrupted_leaves_no_file_for_good(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sources(V1, state(root))
    written = sources._write

    def full(path: Path, content: str) -> None:
        if path.name == "fleet.list":
            raise OSError(28, "No space left on device", str(path))
        written(path, content)

    monkeypatch.setattr(sources, "_write", full)
    with pytest.raises(UpgradeError, match=r"fleet\.list: No space left on device") as caught:
        write_sources(V2, state(root))
    assert caught.value.code == "unwritten_sources"
    assert "extra.sources" in present(root)
    monkeypatch.setattr(sources, "_write", written)
    write_sources(V1, state(root))
    assert present(root) == V1


def test_files_are_on_disk_before_they_have_their_names_and_names_before_the_next_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_sync = os.fsync

    def sync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.is_file():
            assert path.read_text()
            assert path.name.startswith(".")
            synced.append(path.name[1:].removesuffix(".convoy"))
        else:
            assert (path / synced[-1]).exists()
            synced.append("folder")
        real_sync(file)

    monkeypatch.setattr(os, "fsync", sync)
    write_sources({"fleet.list": V1["fleet.list"]}, state(root))
    listed = ["sources.json", "folder"]
    assert synced == [*listed, "fleet.list", "folder", *listed]


@pytest.mark.parametrize(
    "name", ["fleet.txt", "../../x.list", "a b.list", ".list", "x.list/", "fleet.list\n", "a{{1}}.list", "é.list"]
)
def test_other_names_are_refused_before_anything_is_changed(name: str, root: Path) -> None:
    with pytest.raises(UpgradeError) as caught:
        write_sources({**V1, name: ""}, state(root))
    assert caught.value.code == "bad_sources"
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("text", ["nonsense", '{"a": 1}', "[1]", '["/etc/passwd"]'])
def test_a_state_file_that_can_t_be_read_changes_nothing(text: str, root: Path) -> None:
    write_sources(V1, state(root))
    Path(state(root)).write_text(text)
    with pytest.raises(UpgradeError, match="it is not known which package sources belong to the version before"):
        write_sources(V2, state(root))
    assert present(root) == V1


def test_a_state_file_names_only_files_of_package_sources(root: Path) -> None:
    precious = root / "precious.list"
    precious.write_text("mine")
    (root / "var").mkdir()
    Path(state(root)).write_text(json.dumps([str(precious)]))
    write_sources(V1, state(root))
    assert precious.exists()


def test_a_folder_is_read_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(UpgradeError, match=r"nowhere: No such file or directory\. Put them there\."):
        read_folder(str(tmp_path / "nowhere"))
    with pytest.raises(UpgradeError, match="has no package sources"):
        read_folder(str(tmp_path))
    (tmp_path / "fleet.list").write_text("{{ version }}")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "folder").mkdir()
    assert read_folder(str(tmp_path)) == {"fleet.list": "{{ version }}"}
    (tmp_path / "fleet.list").write_bytes(b"\xff")
    with pytest.raises(
        UpgradeError, match=r"fleet.list is not UTF-8 text of at most 1000000 bytes\. Correct or remove it\."
    ):
        read_folder(str(tmp_path))


@pytest.mark.parametrize("mark", ["{{ version }}", "{{version}}", "{{  version }}"])
def test_the_version_is_all_that_is_evaluated(mark: str) -> None:
    others = "{{ version.x }} {{ versions }} {{ 7 * 7 }} {% if version %} {version} ${version} {# version #}"
    found = for_version({"fleet.list": f"deb http://packages/{mark} ./ {mark} {others}\n"}, r"2.10\1")
    assert found == {"fleet.list": f"deb http://packages/2.10\\1 ./ 2.10\\1 {others}\n"}


@pytest.mark.parametrize("version", ["a/b", "2.10\ndeb http://other", "True", ""])
def test_what_can_be_no_version_is_not_written(version: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        for_version({"fleet.list": ""}, version)
    assert caught.value.code == "bad_name"
