# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reboot in an agent run, with files that stand for the kernels, for what runs, and for what the boot loader takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from devkit.agent import ROOT

OLD, NEW, NEWER, OTHER = "6.1.0-9-amd64", "6.1.0-10-amd64", "6.1.0-11-amd64", "6.1.0-8-cloud-amd64"


class Host:
    """A folder with kernels, and the tasks of puppet_gate whose reboot takes the default kernel."""

    def __init__(self, folder: Path) -> None:
        """Install kernels of two flavours; the old one runs."""
        self.folder, self.boots, self.boot_id = folder, 1, folder / "boot_id"
        self.note, self.asks = folder / "version.reboot", folder / "reboot-required"
        self.install(OLD, NEW, OTHER)
        self.boot(OLD)
        role = folder / "roles/puppet_gate"
        shutil.copytree(ROOT / "roles/puppet_gate", role)
        tasks = role / "tasks/run/reboot.yml"
        text = tasks.read_text()
        places = {
            "/proc/sys/kernel/osrelease": folder / "osrelease",
            "/proc/sys/kernel/random/boot_id": self.boot_id,
            "/boot": folder / "boot",
        }
        for place, path in places.items():
            assert place in text
            text = text.replace(f" {place}\n", f" {path}\n")
        tasks.write_text(text)
        include = {"ansible.builtin.include_role": {"name": "puppet_gate", "tasks_from": "run/reboot"}}
        show = {"ansible.builtin.debug": {"msg": "may_run={{ puppet_gate_may_run }} {{ puppet_gate_why }}"}}
        play = {"hosts": "localhost", "gather_facts": False, "tasks": [include, show]}
        play["vars"] = {"puppet_gate_may_run": True, "puppet_gate_why": ""}
        (folder / "play.yml").write_text(yaml.safe_dump([play]))
        variables = {
            "ansible_python_interpreter": sys.executable,
            "puppet_gate_host": "web1",
            "puppet_gate_target": "v2",
            "puppet_gate_version_file": str(folder / "version"),
            "puppet_gate_reboot_file": str(self.asks),
            "puppet_gate_reboot_command": ["touch", str(folder / "rebooting")],
        }
        (folder / "variables.json").write_text(json.dumps(variables))

    def install(self, *kernels: str) -> None:
        for kernel in kernels:
            (self.folder / "boot").mkdir(exist_ok=True)
            (self.folder / f"boot/vmlinuz-{kernel}").touch()

    def boot(self, kernel: str) -> None:
        """Let a kernel come up."""
        self.boots += 1
        self.boot_id.write_text(f"boot-{self.boots}\n")
        (self.folder / "osrelease").write_text(f"{kernel}\n")
        (self.folder / "rebooting").unlink(missing_ok=True)

    @property
    def is_rebooting(self) -> bool:
        return (self.folder / "rebooting").exists()

    def run(self, kind: str = "kernel", code: int = 0) -> str:
        """Run the tasks; return what Ansible printed."""
        program = Path(sys.executable).with_name("ansible-playbook")
        more = ["-e", "@variables.json", "-e", f"puppet_gate_reboot={kind}"]
        command = [program, "-i", "localhost,", "-c", "local", "play.yml", *more]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return " ".join(ended.stdout.split())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host with a newer kernel than the one that runs."""
    return Host(tmp_path)


def test_a_newer_kernel_asks_for_one_reboot_and_another_one_that_comes_up_is_refused(host: Host) -> None:
    shown = host.run()
    assert f"may_run=False the node reboots, because the kernel {NEW} is installed and does not run, and goes" in shown
    assert (host.is_rebooting, host.note.read_text().split()) == (True, ["v2", NEW, "boot-2"])
    for kernel in (OTHER, OLD):
        host.boot(kernel)
        shown = host.run(code=2)
        assert f"web1 was rebooted in the upgrade to v2, and runs {kernel}, though {NEW} was to run." in shown
        assert f"reboot it, and remove {host.note}." in shown
        assert not host.is_rebooting
    host.boot(NEW)
    assert "may_run=True" in host.run()
    assert not host.is_rebooting


@pytest.mark.thorough
def test_a_kernel_that_came_after_the_reboot_is_no_wrong_one_but_takes_a_reboot_by_an_operator(host: Host) -> None:
    host.run()
    host.boot(NEW)
    # A retry has upgraded the packages once more.
    host.install(NEWER)
    shown = host.run(code=2)
    assert f"web1 was rebooted in the upgrade to v2, and needs it again: the kernel {NEWER} is installed and" in shown
    assert not host.is_rebooting
    host.boot(NEWER)
    assert "may_run=True" in host.run()
    assert not host.is_rebooting


@pytest.mark.thorough
def test_a_file_that_asks_again_after_the_reboot_is_refused(host: Host) -> None:
    assert "may_run=True" in host.run("file")
    host.asks.touch()
    assert f"the node reboots, because {host.asks} exists" in host.run("file")
    host.boot(OLD)
    assert f"needs it again: {host.asks} exists. Find out why" in host.run("file", code=2)
