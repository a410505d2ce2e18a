# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host on which another kernel comes up than the one of the reboot, with a boot loader that is a copied file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from devkit.agent import ROOT

OLD, NEW, OTHER = "6.1.0-9-amd64", "6.1.0-10-amd64", "6.1.0-8-cloud-amd64"


class Host:
    """A folder with kernels, and the role kernel_reboot whose reboot takes the default kernel."""

    def __init__(self, folder: Path) -> None:
        """Install kernels of two flavours; the old one runs."""
        self.folder, self.running, self.noted = folder, folder / "osrelease", folder / "state/kernel_reboot"
        self.boots = folder / "boots"
        (folder / "boot").mkdir()
        for release in (OLD, NEW, OTHER):
            self.kernel(release).touch()
        self.running.write_text(f"{OLD}\n")
        role = folder / "roles/kernel_reboot"
        shutil.copytree(ROOT / "roles/kernel_reboot", role)
        tasks = yaml.safe_load((role / "tasks/reboot.yml").read_text())
        (reboot,) = (one for task in tasks for one in task.get("block", ()) if "ansible.builtin.reboot" in one)
        del reboot["ansible.builtin.reboot"]
        loader = f"cp {folder}/default {self.running}; echo >>{self.boots}"
        reboot.update({"ansible.builtin.shell": loader, "when": "not ansible_check_mode"})
        (role / "tasks/reboot.yml").write_text(yaml.safe_dump(tasks))
        task = {"ansible.builtin.include_role": {"name": "kernel_reboot", "tasks_from": "reboot"}}
        play = {"hosts": "localhost", "gather_facts": False, "tasks": [task]}
        (folder / "play.yml").write_text(yaml.safe_dump([play]))
        variables = {
            "ansible_python_interpreter": sys.executable,
            "kernel_reboot_kernels": [f"{folder}/boot/vmlinuz-*"],
            "kernel_reboot_running_file": str(self.running),
            "kernel_reboot_expected_file": str(self.noted),
        }
        (folder / "variables.json").write_text(json.dumps(variables))

    def kernel(self, release: str) -> Path:
        """Return the file of a kernel."""
        return self.folder / f"boot/vmlinuz-{release}"

    def run(self, *arguments: str, default: str = OTHER, code: int = 0) -> str:
        """Run the role; return what Ansible printed.

        :param default: the kernel that the boot loader takes.
        """
        (self.folder / "default").write_text(f"{default}\n")
        program = Path(sys.executable).with_name("ansible-playbook")
        command = [program, "-i", "localhost,", "-c", "local", "play.yml", "-e", "@variables.json", *arguments]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return " ".join(ended.stdout.split())

    @property
    def boot_count(self) -> int:
        """How often it was rebooted."""
        return len(self.boots.read_text().splitlines()) if self.boots.exists() else 0


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host with a newer kernel than the one that runs."""
    return Host(tmp_path)


def test_a_host_that_comes_back_with_another_flavour_fails_until_the_kernel_of_its_reboot_runs(host: Host) -> None:
    shown = host.run(code=2)
    assert f"it was rebooted and runs {OTHER}, though {NEW} is installed. The boot loader" in shown
    assert f"If the running kernel is right, remove {host.noted} on the host first." in shown
    assert host.noted.read_text() == f"{NEW}\n"
    # The kernels look right among those of the flavour that runs.
    assert "changed=0 " not in host.run("--check")
    assert f"runs {OTHER}, though {NEW} is installed" in host.run(code=2)
    assert host.boot_count == 2
    host.run(default=NEW)
    assert (host.running.read_text(), host.boot_count, host.noted.exists()) == (f"{NEW}\n", 3, False)
    assert "changed=0 " in host.run()


@pytest.mark.thorough
def test_a_noted_kernel_that_is_gone_is_refused_unless_a_newer_one_of_its_flavour_is_there(host: Host) -> None:
    host.run(code=2)
    host.kernel(NEW).unlink()
    for arguments in (["--check"], []):
        shown = host.run(*arguments, code=2)
        assert f"it was rebooted for {NEW}, which did not come up and is no longer installed. It runs {OTHER}." in shown
    assert host.boot_count == 1
    newer = "6.1.0-11-amd64"
    host.kernel(newer).touch()
    host.run(default=newer)
    assert (host.boot_count, host.noted.exists()) == (2, False)


@pytest.mark.thorough
def test_a_newer_kernel_of_the_flavour_that_runs_without_a_file_counts(host: Host) -> None:
    host.run(code=2)
    newest = "6.1.0-12-amd64"
    host.running.write_text(f"{newest}\n")
    host.run()
    assert (host.boot_count, host.noted.exists()) == (1, False)


@pytest.mark.thorough
def test_an_operator_who_accepts_the_kernel_that_runs_removes_the_note(host: Host) -> None:
    host.run(code=2)
    host.noted.unlink()
    assert "changed=0 " in host.run()
    assert host.boot_count == 1
