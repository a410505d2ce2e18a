# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Scripts of the role puppet_gate, run by a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.failure_text import failure_text
from devkit.agent import ROOT
from systemd_exposure import exposure, without

ROLE = ROOT / "roles/puppet_gate"
VARS = yaml.safe_load((ROLE / "vars/main.yml").read_text())
# The highest exposure that systemd-analyze may find for the agent. It may read and write Puppet's locks and start units, which no option allows by itself.
THRESHOLD = 5.0
# Without any of these, systemd finds more.
OPTIONS = (
    "CapabilityBoundingSet",
    "NoNewPrivileges",
    "PrivateDevices",
    "ProtectSystem",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
)


def test_the_python_of_a_release_is_found_without_the_links_that_lead_to_it(tmp_path: Path) -> None:
    old, link = tmp_path / "python2", tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    base = os.path.realpath(sys.executable)
    link.symlink_to(base)
    command = ["sh", "-c", VARS["puppet_gate_find_python"], "sh", str(tmp_path / "none"), str(old), str(link)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # The name of a release is made of both.
    assert found.splitlines() == [f"{sys.version_info[0]}.{sys.version_info[1]}", base]


def test_if_no_python_fits_each_is_named_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\n')
    old.chmod(0o755)
    command = ["sh", "-c", VARS["puppet_gate_find_python"], "sh", str(old), str(tmp_path / "none")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, f"{old} is Python 3.9.2.\n")


def test_enrolling_a_host_without_a_python_that_fits_says_what_to_install(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\n')
    old.chmod(0o755)
    inventory = tmp_path / "inventory.yml"
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {"web1": variables}}}))
    program = Path(sys.executable).with_name("ansible-playbook")
    # This machine stays as it is also if no Python is refused.
    command = [program, "convoy.upgrade.enroll", "--check", "-i", inventory, "-e"]
    for path, shown in ((old, f"{old} is Python 3.9.2."), (Path("/bin/false"), "")):
        done = subprocess.run(
            [*command, f"puppet_gate_python={path}"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stdout
        message = f"web1 has no Python 3.10 or later, which Ansible needs. Tried: {path}. {shown} Install one, such as the package python3.11, "
        assert f"{message}or set puppet_gate_python to its path." in done.stdout
        assert "failed=1 " in done.stdout


def test_hooks_that_could_not_run_are_found_before_the_node_is_touched() -> None:
    (block,) = (
        task["block"]
        for task in yaml.safe_load((ROLE / "tasks/run.yml").read_text())
        if task["name"] == "Run all steps"
    )
    names = [task["name"] for task in block]
    check = block[names.index("Check that the hooks and the validations can run")]
    assert check["check_mode"] is True
    assert check["when"] == "puppet_gate_update"
    assert check["loop"] == ["drain", "before", "after", "undrain", "validation"]
    assert names.index(check["name"]) < names.index("Report the start of the upgrade")


def unit() -> str:
    """Return the unit of the agent as the role writes it."""
    template = jinja2.Template(
        (ROLE / "templates/convoy-node.service.j2").read_text(), undefined=jinja2.StrictUndefined
    )
    return template.render(
        ansible_managed="test", puppet_gate_home="/opt/convoy", puppet_gate_settings_dir="/etc/convoy"
    )


def test_the_exposure_of_the_agent_is_not_above_the_threshold(tmp_path: Path) -> None:
    level, shown = exposure(tmp_path, unit())
    assert level <= THRESHOLD, shown


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_of_its_sandbox_counts(tmp_path: Path, option: str) -> None:
    assert exposure(tmp_path, without(unit(), option))[0] > exposure(tmp_path, unit())[0]


def test_a_release_whose_python_is_gone_says_so(tmp_path: Path) -> None:
    template = jinja2.Template((ROLE / "templates/convoy-node.sh.j2").read_text())
    program = tmp_path / "bin/convoy-node"
    program.parent.mkdir()
    program.write_text(template.render(ansible_managed="test", puppet_gate_release_python="venv/bin/python"))
    done = subprocess.run(["sh", str(program), "agent"], capture_output=True, text=True, check=False)
    # The unit is not started again and again.
    assert done.returncode == 78
    assert f"{tmp_path}/venv/bin/python, the Python of this release, is gone." in done.stderr


def test_a_reboot_asks_for_the_kernels_that_the_role_kernel_reboot_asks_for() -> None:
    def found(path: str) -> dict[str, object]:
        tasks = yaml.safe_load((ROOT / "roles" / path).read_text())
        every = [one for task in tasks for one in task.get("block", [task])]
        return next(one["ansible.builtin.find"] for one in every if "ansible.builtin.find" in one)

    mine, theirs = found("puppet_gate/tasks/run/reboot.yml"), found("kernel_reboot/tasks/kernels.yml")
    assert (mine["excludes"], mine["file_type"]) == (theirs["excludes"], theirs["file_type"])


@pytest.mark.parametrize("name", ["failed", "services/upgrade", "services/post_upgrade"])
def test_a_failure_without_a_failed_result_is_reported(name: str) -> None:
    # As if a role is not found. The tests of agent runs have that with a real Ansible.
    text = (ROLE / f"tasks/{name}.yml").read_text()
    expression = next(line for line in text.splitlines() if "ansible_failed_result" in line).partition(": ")[2]
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["convoy.upgrade.failure_text"] = failure_text
    found = environment.from_string(yaml.safe_load(expression)).render()
    assert found.startswith("Ansible failed it without a result")
