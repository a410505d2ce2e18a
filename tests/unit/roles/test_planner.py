# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit of a planner service keeps what systemd itself counts as its sandbox. The role leaves what it finds, also if it is refused."""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from devkit.agent import ROOT
from jinja2 import Environment, StrictUndefined
from systemd_exposure import exposure, without

# The highest exposure that systemd-analyze may find. Releases of systemd differ a little: release 252 finds 1.7.
THRESHOLD = 2.0
# Without any of these, systemd finds more.
OPTIONS = (
    "CapabilityBoundingSet",
    "NoNewPrivileges",
    "ProtectHome",
    "ProtectSystem",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "SystemCallFilter",
    "User",
)


def unit() -> str:
    """Return the unit as the role writes it."""
    role = ROOT / "roles/planner"
    variables = yaml.safe_load((role / "vars/main.yml").read_text())
    environment = Environment(trim_blocks=True, undefined=StrictUndefined)
    return environment.from_string((role / "templates/convoy-planner.service.j2").read_text()).render(
        **yaml.safe_load((role / "defaults/main.yml").read_text())
        | {"planner_folders": ["/var/www/convoy"], "planner_sandbox": variables["planner_sandbox"]},
        ansible_managed="",
        puppet_gate_new_release="1",
    )


def test_its_exposure_is_not_above_the_threshold(tmp_path: Path) -> None:
    level, shown = exposure(tmp_path, unit())
    assert level <= THRESHOLD, shown


@pytest.mark.parametrize("option", OPTIONS)
def test_each_of_its_options_counts(tmp_path: Path, option: str) -> None:
    assert exposure(tmp_path, without(unit(), option))[0] > exposure(tmp_path, unit())[0]


def checked(
    folder: Path, tasks: list[dict[str, Any]], *arguments: str, **variables: Any
) -> subprocess.CompletedProcess[str]:
    """Run tasks on this machine in check mode."""
    file = folder / "site.yml"
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    file.write_text(yaml.safe_dump([play]))
    program = Path(sys.executable).with_name("ansible-playbook")
    variables["ansible_python_interpreter"] = sys.executable
    command = [program, "--check", file, "-e", json.dumps(variables), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "changed"), [(getpass.getuser(), 0), ("convoy-unknown", 1)])
def test_a_user_that_exists_keeps_its_home_and_its_shell(tmp_path: Path, name: str, changed: int) -> None:
    tasks = [{"ansible.builtin.include_role": {"name": "convoy.upgrade.planner", "tasks_from": "user"}}]
    done = checked(tmp_path, tasks, planner_user=name)
    assert done.returncode == 0, done.stdout
    assert f"changed={changed} " in done.stdout


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"planner_consul": {"token": "s3cret"}}, "planner_consul has a token"),
        ({"planner_notify": "none.yml"}, "none.yml"),
        ({"planner_maintenance": "none.yml"}, "none.yml"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_installed(
    tmp_path: Path, mistake: dict[str, Any], message: str
) -> None:
    role = tmp_path / "roles/planner"
    shutil.copytree(ROOT / "roles/planner", role)
    main = role / "tasks/main.yml"
    tasks = yaml.safe_load(main.read_text())
    # This machine may have no systemd.
    main.write_text(yaml.safe_dump(tasks[2:]))
    done = checked(tmp_path, [{"ansible.builtin.include_role": {"name": "planner"}}], **mistake)
    assert done.returncode == 2, done.stdout
    assert message in done.stdout
    assert "Find a Python" not in done.stdout
    # What only a host can refuse comes before the release too.
    names = [task["name"] for task in tasks]
    assert names.index("Check the folders of the service") < names.index("Install the release")


def test_files_of_the_settings_that_can_be_read_are_not_in_the_output(tmp_path: Path) -> None:
    (tmp_path / "messages.yml").write_text("targets: [{url: 'slack://s3cret'}]\n")
    (check,) = (
        task
        for task in yaml.safe_load((ROOT / "roles/planner/tasks/main.yml").read_text())
        if "ansible.builtin.assert" in task
    )
    files = yaml.safe_load((ROOT / "roles/planner/vars/main.yml").read_text())["planner_copied_files"]
    given = {"planner_copied_files": files, "planner_notify": "messages.yml", "planner_maintenance": ""}
    done = checked(tmp_path, [check], "-vvv", **given)
    assert done.returncode == 0, done.stdout
    assert "(item=notify)" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
