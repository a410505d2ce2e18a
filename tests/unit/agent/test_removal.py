# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that is removed from the fleet, or loses the package of the agent, runs Puppet again on its own schedule."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from convoy_node.command_line import main
from convoy_node.machine import puppet
from convoy_node.node import settings
from devkit.agent import ROOT

LOCK = "agent_disabled.lock"
PROGRAM = "/opt/convoy/current/bin/convoy-node"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = [str(tmp_path / name) for name in ("debian", "agent", "operator")]
    for folder in found:
        Path(folder).mkdir()
    monkeypatch.setattr(puppet, "FOLDERS", found)
    monkeypatch.setattr(settings, "FOLDER", str(tmp_path))
    return found


def test_leaving_removes_the_agent_s_own_lock_and_keeps_an_operator_s(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    puppet.keep_out("closed: a gate", folders[:2])
    for name in ("node.json", "node-0a1b2c3d.json"):
        (tmp_path / name).write_text("{}")
    (Path(folders[2]) / LOCK).write_text('{"disabled_message": "its disk"}')
    assert main(["--settings", "/no/settings", "leave"]) == 0
    assert [(Path(folder) / LOCK).exists() for folder in folders] == [False, False, True]
    assert capsys.readouterr().out == "Puppet's own runs are let in again\n"
    # With the last settings that could be used, an agent that cron still starts would keep Puppet out again.
    assert not [*tmp_path.glob("*.json")]
    # Ansible reads from the output that nothing was changed.
    assert main(["leave"]) == 0
    assert capsys.readouterr().out == ""


def test_a_lock_that_can_t_be_removed_is_reported(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    puppet.keep_out("closed: a gate", folders)

    def refuse(_path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert main(["leave"]) == 1
    assert (
        "the lock of Puppet's own runs can't be removed: [Errno 1] Operation not permitted" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("words", "called"), [(["remove"], "leave\n"), (["upgrade", "0.2.0"], "")])
def test_the_package_lets_puppet_in_when_it_is_removed_and_not_when_it_is_upgraded(
    words: list[str], called: str, tmp_path: Path
) -> None:
    script = (ROOT / "tools/deb/prerm").read_text()
    assert PROGRAM in script
    program = tmp_path / "convoy-node"
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    # Not the one of the machine that runs the tests.
    (tmp_path / "systemctl").write_text("#!/bin/sh\n")
    for file in (program, tmp_path / "systemctl"):
        file.chmod(0o755)
    (tmp_path / "calls").touch()
    script = script.replace(PROGRAM, str(program)).replace("/run/convoy/", f"{tmp_path}/run/")
    subprocess.run(["/bin/sh", "-c", script, "script", *words], env={"PATH": str(tmp_path)}, check=True)
    assert (tmp_path / "calls").read_text() == called


def test_leaving_lets_puppet_in_even_if_consul_is_away() -> None:
    first, checks = yaml.safe_load((ROOT / "roles/puppet_gate/tasks/leave.yml").read_text())
    assert first["ansible.builtin.command"]["argv"] == ["{{ puppet_gate_home }}/current/bin/convoy-node", "leave"]
    assert "convoy.upgrade.consul_health" in checks
