# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings, a token or a lock that can't be used: they are reported, and the failed service is started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from convoy_node import agent_run, bad_settings, command_line
from convoy_node.gate_reading import GateReading
from convoy_node.machine.errors import LockError


@pytest.mark.parametrize(("fails", "tries"), [(0, 1), (1, 2), (9, 3)])
def test_the_timer_is_tried_again_while_the_one_before_is_there(
    fails: int, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "systemd-run"
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n[ "$(wc -l <{tmp_path}/calls)" -gt {fails} ]\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(bad_settings.time, "sleep", lambda _seconds: None)
    bad_settings.start_again()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == tries
    assert "--unit=convoy-node-again" in calls[0]


def test_without_systemd_nothing_starts_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bad_settings.time, "sleep", None)
    bad_settings.start_again()


@pytest.mark.parametrize("stored", ["{}", '{"puppet_gate_host": "web', '{"puppet_gate_other": 1}'])
def test_a_node_that_is_left_keeps_no_token_although_its_last_settings_do_not_parse(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, runtime = tmp_path / "state", tmp_path / "runtime"
    for file, text in {state / "node.json": stored, runtime / "last_token": "5ec2e7"}.items():
        file.parent.mkdir()
        file.write_text(text)
    monkeypatch.setattr("convoy_node.node.settings.FOLDER", str(state))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(runtime))
    bad_settings.forget_good()
    assert list(tmp_path.glob("*/*")) == []
    # There is nothing left, which is no error.
    bad_settings.forget_good()


def test_a_node_that_is_left_keeps_no_token_in_the_default_folder_or_beside_its_own_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, default, state = (tmp_path / name for name in ("own", "default", "state"))
    for folder in (own, default, state):
        folder.mkdir()
    (own / "last_token").write_text("5ec2e7")
    (default / "last_token").write_text("5ec2e7")
    (state / "node.json").write_text(json.dumps({"puppet_gate_host": "web1", "puppet_gate_lock_file": f"{own}/lock"}))
    (state / "node-0123abcd.json").write_text("{")
    monkeypatch.setattr("convoy_node.node.settings.FOLDER", str(state))
    monkeypatch.setattr("convoy_node.agent_run.LOCK_FILE", f"{default}/node.lock")
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    bad_settings.forget_good()
    assert list(tmp_path.glob("*/*")) == []


@pytest.fixture
def untrusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the settings of a node with a lock that any user could replace, and a default place for locks."""
    folder, file = tmp_path / "all", tmp_path / "node.json"
    folder.mkdir()
    folder.chmod(0o777)
    file.write_text(json.dumps({"puppet_gate_host": "compute7", "puppet_gate_lock_file": f"{folder}/node.lock"}))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setattr("convoy_node.agent_run.LOCK_FILE", f"{tmp_path}/default/node.lock")
    monkeypatch.setattr(agent_run, "runtime_problem", lambda _release, _settings: None)
    monkeypatch.setattr(GateReading, "read_keys", lambda _reading: {})
    return file


@pytest.mark.parametrize("command", ["run", "once", "check"])
def test_a_lock_that_can_not_be_used_is_an_error_and_reported(
    command: str, untrusted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "ansible"
    program.write_text(f'#!/bin/sh\necho "$ANSIBLE_LOCAL_TEMP" >{tmp_path}/folder\necho "$@" >{tmp_path}/words\n')
    program.chmod(0o755)
    monkeypatch.setattr(agent_run, "own_release", lambda: agent_run.Release(tmp_path, "r1", str(program)))
    assert command_line.main(["--settings", str(untrusted), command]) == 1
    error = f"Locks in {tmp_path}/all can't be trusted"
    assert error in capsys.readouterr().err
    if command == "check":
        assert not (tmp_path / "words").exists()
        return
    words = (tmp_path / "words").read_text()
    assert f'"puppet_gate_unusable": "{error}' in words
    assert f'"puppet_gate_lock_file": "{tmp_path}/default/node.lock"' in words
    assert (tmp_path / "folder").read_text() == f"{tmp_path}/default/tmp\n"
    # The same is not reported again at once.
    (tmp_path / "words").unlink()
    assert command_line.main(["--settings", str(untrusted), command]) == 1
    assert not (tmp_path / "words").exists()


def test_a_lock_that_no_place_can_have_is_not_reported(untrusted: Path, tmp_path: Path) -> None:
    (tmp_path / "default").mkdir(mode=0o777)
    (tmp_path / "default").chmod(0o777)
    with pytest.raises(LockError):
        bad_settings.report_bad_settings(LockError("it can't be trusted"), str(untrusted))
