# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two machines with one name: two live nodes whose settings have the same host, and a host that gets a new image."""

from __future__ import annotations

import pytest
from lab.node import Node

from .conftest import MakeFleet
from .fleet import Fleet, wait_for
from .snapshots import PACKAGES

pytestmark = pytest.mark.thorough

# The fleet does not know of the twin, which has a name of its own only in the lab.
ROLES = {"compute1": "compute", "twin1": "spare"}
RULES = {"rolling_rules": {"global": 1}}
SLOW = "#!/bin/sh\ntouch /root/validating\nwhile [ -e /root/slow ]; do sleep 0.1; done\nrm -f /root/validating\n"
RELEASE = "/etc/fleet-release"
MACHINES = {"compute1": "a1" * 16, "twin1": "b2" * 16}
WARNING = "compute1: two machines have reported under this name, "
UNITS = ("convoy-node.path", "convoy-node.service", "convoy-node-run.service")


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """Two nodes that are compute1 by their settings, at v1. Without this, all nodes of the lab have the ID of this machine."""
    fleet = make_fleet(ROLES)
    fleet.consul.put("current_version", "v1")
    fleet.write_inventory(upgrade_roles={"compute": {"plane": "dataplane"}})
    for name, node in fleet.lab.nodes.items():
        node.write("/etc/machine-id", f"{MACHINES[name]}\n")
        node.write("/etc/convoy/validation.d/10-slow", SLOW, 0o755)
        node.write("/root/slow", "")
    return fleet


def enroll(fleet: Fleet, name: str, **options: object) -> None:
    fleet.enroll("--limit", name, puppet_gate_host="compute1", puppet_gate_role="compute", **options)


def status(fleet: Fleet) -> str:
    return " ".join(fleet.play("status", host="compute1").split())


def is_refused(node: Node, version: str) -> bool:
    """Return whether an agent run of the node could not begin an upgrade. The journal has the ID that the machine had at its boot, hence --merge."""
    shown = node.run("journalctl", "--merge", "--no-pager", "-o", "cat", "-u", "convoy-node-run").stdout
    return f"has begun the upgrade to {version} and has not ended it" in " ".join(shown.split())


def is_validating(node: Node) -> bool:
    return node.read("/root/validating") is not None


def test_two_nodes_of_one_name_are_noticed_and_never_upgrade_at_the_same_time(fleet: Fleet) -> None:
    nodes = fleet.lab.nodes
    enroll(fleet, "compute1", puppet_gate_version="v1")
    machine = fleet.record("compute1")["machine"]
    assert WARNING not in status(fleet)
    enroll(fleet, "twin1", puppet_gate_version="v1")
    assert fleet.record("compute1")["other_machine"] == machine
    assert WARNING in status(fleet)
    # Both wait for one key.
    rollout = fleet.start("upgrade", version="v2", instructions=RULES)
    wait_for(lambda: any(map(is_validating, nodes.values())), "one of them upgrades")
    (first,) = (name for name, node in nodes.items() if is_validating(node))
    second = next(name for name in nodes if name != first)
    wait_for(lambda: is_refused(nodes[second], "v2"), "the other one is refused")
    record = fleet.record("compute1")
    assert (record["state"], record["version"]) == ("started", "v2")
    assert {record["machine"] == machine, record["other_machine"] == machine} == {True, False}
    assert (record["machine"] == machine) == (first == "compute1")
    assert (nodes[second].read(RELEASE), fleet.version_of(second)) == (None, "v1")
    assert WARNING in status(fleet)
    nodes[first].run("rm", "/root/slow")
    shown = rollout.end(900)
    assert shown.code == 0, shown.stdout
    assert "1 of 1 host upgraded" in shown.stdout
    # The gate is still open, so the other one upgrades too, after the first one has ended.
    wait_for(lambda: is_validating(nodes[second]), "the other one upgrades")
    record = fleet.record("compute1")
    assert (record["state"], record["machine"] == machine) == ("started", second == "compute1")
    assert WARNING in status(fleet)
    nodes[second].run("rm", "/root/slow")
    wait_for(lambda: fleet.record("compute1")["state"] == "upgraded", "the other one is upgraded")
    assert fleet.version_of(second) == "v2"
    nodes["twin1"].kill()


def test_a_host_with_a_new_image_in_its_upgrade_starts_again_once_the_former_one_is_forgotten(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute1"]
    node.write("/root/slow", "")
    rollout = fleet.start("upgrade", version="v1", instructions=RULES)
    wait_for(lambda: is_validating(node), "it upgrades")
    machine = fleet.record("compute1")["machine"]
    new_image(node, "c3" * 16)
    fleet.enroll("--limit", "compute1")
    wait_for(lambda: is_refused(node, "v1"), "the new image is refused")
    record = fleet.record("compute1")
    assert (record["state"], record["machine"]) == ("started", machine)
    assert record["other_machine"] not in (None, machine)
    assert (node.read(RELEASE), fleet.version_of("compute1")) == (None, None)
    shown = status(fleet)
    assert "compute1 (role compute): upgrading" in shown
    assert WARNING in shown
    fleet.play("forget", host="compute1", force=True)
    # The rollout admits it again, as a host that never reported.
    played = rollout.end(900)
    assert played.code == 0, played.stdout
    assert node.read(RELEASE) == "manifest v1 on v1\n"
    assert (fleet.version_of("compute1"), fleet.reported("v1")) == ("v1", {"compute1"})
    assert WARNING not in status(fleet)


def test_a_host_with_a_new_image_at_rest_upgrades_at_once_with_a_warning(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute1"]
    machine = fleet.record("compute1")["machine"]
    new_image(node, "d4" * 16)
    assert "compute1 (role compute): upgraded" in status(fleet)
    fleet.enroll("--limit", "compute1")
    wait_for(lambda: fleet.version_of("compute1") == "v1", "it upgrades by its open gate")
    wait_for(lambda: fleet.record("compute1")["state"] == "upgraded", "it has reported that")
    assert node.read(RELEASE) == "manifest v1 on v1\n"
    assert fleet.record("compute1")["other_machine"] == machine
    assert WARNING in status(fleet)


def new_image(node: Node, machine: str) -> None:
    """Leave nothing of the agent and of the fleet on a node, and give it another ID, as a new image does."""
    node.run("systemctl", "stop", *UNITS[:2])
    # It is not to report anything.
    node.run("systemctl", "kill", "--signal=KILL", UNITS[2], check=False)
    files = ["/opt/convoy", "/etc/convoy", "/var/lib/convoy", "/run/convoy", "/usr/local/sbin/convoy-node", RELEASE]
    files += [f"/etc/systemd/system/{unit}" for unit in (*UNITS, "convoy-node-job.service")]
    files += [f"/etc/systemd/system/multi-user.target.wants/{unit}" for unit in UNITS]
    files += ["/etc/facter", "/etc/apt/sources.list.d/fleet.list", "/etc/apt/preferences.d/fleet"]
    node.run("rm", "-rf", *files, "/root/slow", "/root/validating")
    node.run("systemctl", "daemon-reload")
    node.run("dpkg", "--purge", *PACKAGES)
    node.write("/etc/machine-id", f"{machine}\n")
