# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts whose tasks run as root or as another user, and a controller that may not become root."""

from __future__ import annotations

import pytest
import yaml

from .site import Site

# Each command that becomes root fails. The command line, ansible.cfg and the inventory all ask for it.
# Root may be the user of these tests.
BECOMES = {"ANSIBLE_BECOME": "true", "ANSIBLE_BECOME_EXE": "/bin/false", "ANSIBLE_BECOME_ALLOW_SAME_USER": "true"}
COMMANDS = {
    "pause": {"reason": "lunch"},
    "status": {},
    "resume": {},
    "hold": {"host": "web1", "reason": "its disk"},
    "unhold": {"host": "web1"},
    "abort": {"reason": "a test"},
    "report": {"version": "v1"},
    "global_disable": {},
}


@pytest.fixture
def fleet(site: Site) -> Site:
    site.service("app", ["validate", "upgrade"], after=["after"], meta="---\nallow_downgrade: true\n")
    site.inventory(
        {"web": {"plane": "dataplane", "services": ["app"]}}, {"web": ["web1"]}, web1={"ansible_become": False}
    )
    file = site.folder / "inventory.yml"
    content = yaml.safe_load(file.read_text())
    content["all"]["vars"]["ansible_become"] = True
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return site


def test_a_run_becomes_root_on_no_planner_host(fleet: Site) -> None:
    fleet.play("upgrade", "--become", version="v1", environ=BECOMES)
    assert fleet.reported("v1") == {"web1"}


def test_the_tasks_of_services_run_as_the_user_of_the_command_line(site: Site) -> None:
    steps = [
        "validate",
        "prepare",
        "may_stop",
        "drain",
        "stop",
        "upgrade",
        "upgrade,once",
        "start",
        "verify",
        "undrain",
    ]
    roles = {plane: {"plane": plane, "services": [f"{plane}_app"]} for plane in ("controlplane", "dataplane")}
    for plane in roles:
        site.service(f"{plane}_app", steps, after=["after"])
        for file in (site.folder / "roles" / f"{plane}_app" / "tasks").iterdir():
            tasks = yaml.safe_load(file.read_text())
            for task in tasks:
                task["ansible.builtin.shell"] = {"cmd": 'echo "runs as $(id -un)"; test "$(id -un)" = nobody'}
            file.write_text(yaml.safe_dump(tasks))
    site.inventory(roles, {plane: [f"{plane}1"] for plane in roles})
    arguments = ("-v", "--become", "--become-user", "nobody", "--become-method", "su")
    # The account has no shell of its own.
    printed = site.play("upgrade", *arguments, version="v1", environ={"ANSIBLE_BECOME_FLAGS": "-s /bin/sh"})
    assert site.reported("v1") == {"controlplane1", "dataplane1"}
    # All tasks of two services, and their post-upgrade tasks.
    assert printed.count('"stdout": "runs as nobody"') == 2 * (len(steps) + 1)
    assert "runs as root" not in printed


@pytest.mark.thorough
def test_no_command_becomes_root_on_the_planner_host(fleet: Site) -> None:
    for version in ("v1", "v2"):
        fleet.play("upgrade", "--become", version=version, environ=BECOMES)
    fleet.play("rollback", "--become", reason="it is slow", environ=BECOMES)
    fleet.fail("web1", "app/upgrade")
    fleet.play("upgrade", "--become", version="v3", environ=BECOMES, code=2)
    fleet.play("retry", "--become", host="web1", environ=BECOMES)
    for playbook, given in COMMANDS.items():
        fleet.play(playbook, "--become", environ=BECOMES, **given)
    fleet.play("metrics", "--become", metrics_file=str(fleet.folder / "convoy.prom"), environ=BECOMES)
