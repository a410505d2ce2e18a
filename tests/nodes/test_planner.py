# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two planner services on real nodes carry a rollout to its end, although one of them is killed on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.node import ROOT, Node

from .conftest import MakeFleet
from .fleet import Fleet, download_wheels, enrolled, wait_for

ROLES = {"controller1": "controller", "controller2": "controller", "compute1": "compute", "compute2": "compute"}
PLANNERS = ("controller1", "controller2")
RULES = {"rolling_rules": {"global": 1}}
UNIT = "convoy-planner.service"
# systemd separates words at spaces, and replaces what follows a percent sign.
PAGE = Path("/var/lib/convoy page 100%n")


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """Enrolled hosts that run v1."""
    return enrolled(make_fleet, ROLES)


def install(fleet: Fleet, *arguments: str, code: int = 0, **more: Any) -> str:
    """Run the role on the planners, as an operator's playbook does."""
    file = fleet.folder / "planner.yml"
    # The service runs as a user of its own, who may not read the environment of the tests everywhere.
    wheels = download_wheels(fleet.lab.nodes[PLANNERS[0]], "planner")
    messages = fleet.folder / "messages.yml"
    messages.write_text(
        "targets: [{url: 'mailto://user:secret@mail.example.com?to=ops@example.com', events: [failure]}]\n"
    )
    variables = {
        "planner_notify": str(messages),
        "planner_pip_arguments": f"--no-index --find-links {wheels}",
        "planner_page": str(PAGE),
        **more,
    }
    role = {"role": "convoy.upgrade.planner", "vars": variables}
    file.write_text(yaml.safe_dump([{"hosts": ":".join(PLANNERS), "gather_facts": False, "roles": [role]}]))
    return fleet.play(os.path.relpath(file, ROOT / "playbooks").removesuffix(".yml"), *arguments, code=code)


def shown(node: Node, name: str) -> str:
    return node.run("systemctl", "show", "--value", f"--property={name}", UNIT).stdout.strip()


def services(fleet: Fleet) -> set[str]:
    return {key.rpartition("/")[2] for key in fleet.consul.tree("upgrade/planners/")}


@pytest.mark.thorough
def test_the_role_installs_a_hardened_service_and_a_second_run_changes_nothing(fleet: Fleet) -> None:
    # An operator has made it.
    made = fleet.lab.nodes[PLANNERS[1]]
    made.run("useradd", "--system", "--home-dir", "/srv/convoy", "--shell", "/bin/sh", "convoy-planner")
    user = made.run("getent", "passwd", "convoy-planner").stdout
    install(fleet, "--check")
    assert services(fleet) == set()
    install(fleet)
    wait_for(lambda: services(fleet) == set(PLANNERS), "both services run")
    for name in PLANNERS:
        node = fleet.lab.nodes[name]
        assert (shown(node, "ActiveState"), shown(node, "Type"), shown(node, "NRestarts")) == ("active", "notify", "0")
        assert shown(node, "User") == "convoy-planner"
        assert shown(node, "StatusText") == "Stands by: no rollout has begun."
        verified = node.run("systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}")
        assert verified.stdout + verified.stderr == ""
        settings = json.loads(node.read("/etc/convoy-planner/planner.json") or "")
        assert settings["name"] == name
        assert json.loads(node.read("/etc/convoy-planner/fleet.json") or "") == ROLES
    assert made.run("getent", "passwd", "convoy-planner").stdout == user
    releases = {name: fleet.lab.nodes[name].run("ls", "-l", "/opt/convoy-planner").stdout for name in PLANNERS}
    refused = install(fleet, code=2, planner_consul={"token": "s3cret"})
    assert "planner_consul has a token" in refused
    # With another release, which replaces none.
    refused = install(fleet, code=2, planner_metrics_file="/root/convoy.prom", planner_requirements=["ansible-core"])
    assert "convoy-planner may not write /root on controller1" in refused
    assert "setfacl -m u:convoy-planner:rwx /root" in refused
    # A folder that every user may write, but that the unit hides.
    fleet.lab.nodes[PLANNERS[0]].run("install", "-d", "-m", "0777", "/home/page")
    refused = install(fleet, "--limit", PLANNERS[0], code=2, planner_page="/home/page")
    assert "convoy-planner may not write /home/page on controller1" in refused
    assert "outside of /home, /root," in refused
    for name in PLANNERS:
        assert fleet.lab.nodes[name].run("ls", "-l", "/opt/convoy-planner").stdout == releases[name]
    # As after a run that was cut off before it had started the service with what it had written.
    before = {name: shown(fleet.lab.nodes[name], "MainPID") for name in PLANNERS}
    fleet.lab.nodes[PLANNERS[0]].write("/opt/convoy-planner/started", "another\n")
    install(fleet)
    assert [shown(fleet.lab.nodes[name], "MainPID") == before[name] for name in PLANNERS] == [False, True]
    again = install(fleet)
    counts = [line for line in again.splitlines() if "changed=" in line]
    assert len(counts) == len(PLANNERS)
    assert all("changed=0 " in line for line in counts), again


@pytest.mark.thorough
def test_a_rollout_that_was_handed_over_ends_although_the_service_that_acts_is_killed(fleet: Fleet) -> None:
    begun = fleet.play("upgrade", version="v2", instructions=RULES, wait=False)
    assert "Handed over: 2 planner services carry the rollout to its end (controller1, controller2)." in begun
    wait_for(lambda: len(fleet.reported("v2")) >= 2, "the first hosts are upgraded")
    acting = next(name for name in PLANNERS if shown(fleet.lab.nodes[name], "StatusText").startswith("Acts. "))
    fleet.lab.nodes[acting].run("systemctl", "kill", "--kill-who=main", "--signal=KILL", UNIT)
    wait_for(lambda: fleet.reported("v2") == set(ROLES), "all nodes run v2")
    wait_for(lambda: fleet.consul.get("config_state/enable_puppet/global") == b"True", "the gates are open")
    # systemd has started it again.
    node = fleet.lab.nodes[acting]
    wait_for(lambda: shown(node, "ActiveState") == "active", "it runs again")
    assert shown(node, "NRestarts") == "1"
    for name in PLANNERS:
        log = fleet.lab.nodes[name].run("journalctl", "-o", "cat", "-u", UNIT).stdout.splitlines()
        events = [json.loads(line) for line in log if line.startswith("{")]
        assert {one["event"] for one in events} >= {"started", "standing_by", "carrying"}
        wait_for(
            lambda node=fleet.lab.nodes[name]: '"complete"' in (node.read(str(PAGE / "state.json")) or ""),
            "the page has the end",
        )


@pytest.mark.thorough
def test_a_service_that_hangs_is_started_again(fleet: Fleet) -> None:
    node = fleet.lab.nodes["controller2"]
    node.write(f"/etc/systemd/system/{UNIT}.d/watchdog.conf", "[Service]\nWatchdogSec=10\n")
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", UNIT)
    node.run("systemctl", "kill", "--kill-who=main", "--signal=STOP", UNIT)
    wait_for(lambda: (shown(node, "NRestarts"), shown(node, "ActiveState")) == ("1", "active"), "it is started again")
    assert "Watchdog timeout" in node.run("journalctl", "-o", "cat", "-u", UNIT).stdout
    wait_for(lambda: services(fleet) == set(PLANNERS), "both services run")


@pytest.mark.thorough
def test_a_service_that_is_stopped_is_gone_at_once(fleet: Fleet) -> None:
    node = fleet.lab.nodes["controller1"]
    node.run("systemctl", "stop", UNIT)
    assert shown(node, "Result") == "success"
    assert "controller1" not in services(fleet)
