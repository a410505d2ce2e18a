# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that is removed from the fleet, or loses the package of the agent, runs Puppet again as something else says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from convoy_node.machine import puppet
from devkit.agent import ROOT

ROLE = ROOT / "roles/puppet_gate"
LOCK = "agent_disabled.lock"


def scripts() -> dict[str, str]:
    """Return what removes the lock: in the role, and in the package."""
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    return {"role": variables["puppet_gate_let_puppet_in"], "package": (ROOT / "tools/deb/prerm").read_text()}


def at(root: Path, folder: str) -> Path:
    return root / folder.lstrip("/")


def run(root: Path, script: str, *words: str) -> str:
    """Run a script as if its folders were below another root."""
    for folder in puppet.FOLDERS:
        assert f" {folder}" in script
        script = script.replace(f" {folder}", f" {at(root, folder)}")
    tools = root / "bin"
    tools.mkdir(exist_ok=True)
    for name in ("grep", "rm"):
        if not (tools / name).exists():
            (tools / name).symlink_to(str(shutil.which(name)))
    # Not the one of the machine that runs the tests.
    (tools / "systemctl").write_text("#!/bin/sh\n")
    (tools / "systemctl").chmod(0o755)
    command = ["/bin/sh", "-c", script, "script", *words]
    return subprocess.run(command, env={"PATH": str(tools)}, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", ["role", "package"])
def test_the_agent_s_own_lock_is_removed_and_an_operator_s_stays(name: str, tmp_path: Path) -> None:
    folders = [str(at(tmp_path, folder)) for folder in puppet.FOLDERS]
    for folder in folders[:3]:
        Path(folder).mkdir(parents=True)
    puppet.keep_out("closed: a gate", folders[:2])
    operator = Path(folders[2]) / LOCK
    operator.write_text('{"disabled_message": "its disk"}')
    shown = run(tmp_path, scripts()[name], "remove")
    assert [(Path(folder) / LOCK).exists() for folder in folders] == [False, False, True, False]
    if name == "role":
        # So that Ansible knows whether it changed anything.
        assert shown.splitlines() == [f"{folder}/{LOCK}" for folder in folders[:2]]
    assert run(tmp_path, scripts()[name], "remove") == ""


def test_an_upgrade_of_the_package_keeps_puppet_out(tmp_path: Path) -> None:
    folder = at(tmp_path, puppet.FOLDERS[0])
    folder.mkdir(parents=True)
    puppet.keep_out("closed: a gate", [str(folder)])
    run(tmp_path, scripts()["package"], "upgrade", "0.2.0")
    assert (folder / LOCK).exists()


def test_leaving_removes_the_lock_even_if_consul_is_away() -> None:
    first, checks = yaml.safe_load((ROLE / "tasks/leave.yml").read_text())
    assert first["ansible.builtin.command"]["argv"] == ["sh", "-c", "{{ puppet_gate_let_puppet_in }}"]
    assert "convoy.upgrade.consul_health" in checks
