# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that fails after its packages moved is rolled back with the rest of the fleet, packages, sources and fact included."""

from __future__ import annotations

import signal

import pytest
from lab.node import Node

from .conftest import MakeFleet
from .fleet import wait_for
from .snapshots import publish

ROLES = {"compute1": "compute", "compute2": "compute"}
RULES = {"rolling_rules": {"roles": {"compute": 2}}}


def installed(node: Node) -> str:
    return node.run("dpkg-query", "-W", "-f", "${Version}", "fleet-service").stdout


@pytest.mark.thorough
def test_a_half_upgraded_host_is_brought_back_by_a_rollback(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(ROLES)
    broken = fleet.lab.nodes["compute1"]
    fleet.consul.put("current_version", "v1")
    fleet.enroll()
    wait_for(lambda: all(fleet.version_of(name) == "v1" for name in ROLES), "all nodes run v1")
    publish(fleet.lab.shared, "v2", broken="compute1")
    upgrade = fleet.start("upgrade", version="v2", instructions=RULES)
    wait_for(lambda: fleet.record("compute1").get("state") == "failed", "compute1 fails")
    wait_for(lambda: fleet.reported("v2") == {"compute2"}, "compute2 is upgraded")
    upgrade.process.send_signal(signal.SIGINT)
    upgrade.end(60)
    assert installed(broken) == "2.0"
    assert fleet.lab.nodes["compute1"].read("/etc/convoy/version") == ""
    shown = fleet.play("rollback")
    assert "2 of 2 hosts upgraded" in shown
    for name, node in fleet.lab.nodes.items():
        wait_for(lambda name=name: fleet.version_of(name) == "v1", f"{name} remembers its version")
        assert installed(node) == "1.0"
        assert node.read("/etc/apt/sources.list.d/fleet.list") == "deb [trusted=yes] file:/srv/lab/v1 ./\n"
        assert node.read("/etc/facter/facts.d/convoy.txt") == "convoy_version=v1\n"
        assert node.read("/etc/fleet-release") == "manifest v1 on v1\n"
        assert (fleet.record(name)["state"], fleet.record(name)["version"]) == ("upgraded", "v1")


@pytest.mark.thorough
def test_services_of_a_host_go_back_before_those_that_they_require(make_fleet: MakeFleet) -> None:
    fleet = make_fleet({"compute1": "compute"})
    node, log = fleet.lab.nodes["compute1"], "/var/log/services"
    for name, requires in (("cart", "[stock]"), ("stock", "[]")):
        role = fleet.folder / "roles" / name
        for folder in ("tasks", "meta"):
            (role / folder).mkdir(parents=True)
        (role / "meta/upgrade.yml").write_text(f"requires: {requires}\nallow_downgrade: true\n")
        (role / "tasks/upgrade_tasks.yml").write_text(
            f"- name: Note\n  ansible.builtin.shell: {{cmd: echo {name} >>{log}}}\n  tags: [upgrade]\n"
        )
    fleet.consul.put("current_version", "v1")
    fleet.write_inventory(upgrade_roles={"compute": {"pull": True, "services": ["cart", "stock"]}})
    fleet.enroll(puppet_gate_version="v1")
    fleet.play("upgrade", version="v2", instructions={"rolling_rules": {"roles": {"compute": 1}}})
    fleet.play("rollback", reason="logins fail")
    assert (node.read(log) or "").split() == ["stock", "cart", "cart", "stock"]
    # Another order is read by the next run.
    fleet.play("upgrade", version="v2")
    fleet.play("rollback", rollback_order="forward", reason="logins fail")
    assert (node.read(log) or "").split()[-2:] == ["stock", "cart"]
