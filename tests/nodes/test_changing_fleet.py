# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet that changes during rollouts: hosts are off for two versions, join, get another role, lose their token, and die in an upgrade."""

from __future__ import annotations

import json
import threading

import pytest

from .conftest import MakeFleet
from .fleet import Fleet, wait_for
from .snapshots import publish

pytestmark = pytest.mark.thorough

MANAGEMENT = "7a5e2a51-4c6f-4a8e-9d40-0c5b1ef2a9d3"
# Who has no token may do everything, and a revoked token nothing, as it is unknown.
ACCESS = {"acl": {"enabled": True, "default_policy": "allow", "tokens": {"master": MANAGEMENT}}}
ROLES = {"compute1": "compute", "compute2": "compute", "compute3": "compute"}
RULES = {"rolling_rules": {"global": "unlimited", "roles": {"compute": 1}}}
SETTINGS = "/etc/convoy/node.json"
SLOW = "#!/bin/sh\ntouch /root/validating\nwhile [ -e /root/slow ]; do sleep 0.1; done\n"


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """Two hosts at v1, and one that is not enrolled."""
    fleet = make_fleet(ROLES, consul=ACCESS)
    for version in ("v3", "v4", "v5", "v6"):
        publish(fleet.lab.shared, version)
    fleet.consul.put("current_version", "v1")
    fleet.enroll("--limit", "compute1,compute2")
    wait_for(lambda: fleet.reported("v1") == {"compute1", "compute2"}, "two nodes run v1")
    return fleet


class Watched:
    """Notes how many hosts of the fleet are upgrading, from its start to its end."""

    def __init__(self, fleet: Fleet) -> None:
        """Keep the fleet."""
        self.most = 0
        self.looked = 0
        self._fleet, self._ends = fleet, threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ends.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _look(self) -> None:
        try:
            while not self._ends.wait(0.5):
                self.most = max(self.most, [*self._fleet.states().values()].count("upgrading"))
                self.looked += 1
        except Exception as error:
            self._failure = error


def test_a_host_that_was_off_for_two_versions_and_one_that_joins_take_part_under_the_cap(fleet: Fleet) -> None:
    nodes = fleet.lab.nodes
    nodes["compute2"].kill()
    fleet.play("upgrade", version="v2", instructions=RULES, upgrade_limit=["compute1"])
    assert fleet.version_of("compute1") == "v2"
    rollout = fleet.start("upgrade", version="v3", replace="v2", instructions=RULES)
    wait_for(lambda: fleet.consul.get("current_version") == b"v3", "the rollout to v3 has begun")
    with Watched(fleet) as watched:
        nodes["compute2"].boot()
        fleet.enroll("--limit", "compute3")
        played = rollout.end(900)
    assert played.code == 0, played.stdout
    assert fleet.reported("v3") == set(ROLES)
    assert (watched.most, watched.looked > 10) == (1, True)
    for name, node in nodes.items():
        assert fleet.version_of(name) == "v3"
        assert node.read("/etc/fleet-release") == "manifest v3 on v3\n"
    # It went straight to the version of the fleet.
    assert "compute2" not in fleet.reported("v2")


def test_a_host_whose_settings_get_another_role_starts_nothing_until_they_agree(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute2"]
    good = node.read(SETTINGS) or ""
    node.write(SETTINGS, json.dumps({**json.loads(good), "puppet_gate_role": "controller"}))
    rollout = fleet.start("upgrade", version="v4", instructions=RULES)
    wait_for(lambda: fleet.states()["compute2"] == "upgrading", "it is admitted as the fleet knows it")
    why = (
        "its settings have the role controller, and it reported compute before; if that is right, enroll it again "
        "(ansible-playbook convoy.upgrade.enroll --limit compute2)"
    )
    # The run of its agent may have the lock.
    wait_for(lambda: why in " ".join(fleet.agent_run("compute2").stdout.split()), "it says why it starts nothing")
    assert (fleet.record("compute2")["version"], fleet.version_of("compute2")) == ("v3", "v3")
    node.write(SETTINGS, good)
    played = rollout.end(600)
    assert played.code == 0, played.stdout
    assert fleet.reported("v4") == set(ROLES)


def test_a_node_whose_token_is_revoked_starts_nothing_until_it_has_another_one(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute1"]
    tokens = [new_token(fleet) for _each in range(2)]
    fleet.enroll("--limit", "compute1", puppet_gate_token=tokens[0]["SecretID"])
    wait_for(lambda: node.run("convoy-node", "check", check=False).returncode == 0, "it may run Puppet")
    fleet.consul.call("DELETE", f"acl/token/{tokens[0]['AccessorID']}?token={MANAGEMENT}")
    wait_for(lambda: node.run("convoy-node", "check", check=False).returncode, "the gate can't be read")
    rollout = fleet.start("upgrade", version="v5", instructions=RULES)
    # It has the slot, and begins nothing.
    wait_for(lambda: fleet.states()["compute1"] == "upgrading", "it is admitted")
    refused = fleet.agent_run("compute1")
    assert refused.returncode == 2, refused.stdout
    assert "ACL not found" in refused.stdout + refused.stderr
    assert fleet.record("compute1")["version"] == "v4"
    assert fleet.version_of("compute1") == "v4"
    node.write("/etc/convoy/token", f"{tokens[1]['SecretID']}\n", 0o600)
    played = rollout.end(600)
    assert played.code == 0, played.stdout
    assert fleet.reported("v5") == set(ROLES)


def test_a_host_that_dies_in_its_upgrade_is_lost_at_the_deadline_and_upgraded_when_it_is_back(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute1"]
    node.write("/etc/convoy/validation.d/10-slow", SLOW, 0o755)
    node.write("/root/slow", "")
    # Twice as long as a whole upgrade takes here.
    rules = {**RULES, "health": {"progress_deadline": 120}}
    rollout = fleet.start("upgrade", version="v6", instructions=rules)
    wait_for(lambda: node.read("/root/validating") is not None, "it is nearly upgraded")
    node.kill()
    played = rollout.end(600)
    # It may still be at work, so it keeps its slot, and nothing else goes on.
    assert played.code == 2
    assert "compute1 lost: silent for 120 s, and health.progress_deadline is 120 s" in played.stdout
    assert fleet.states() == {"compute1": "lost", "compute2": "pending", "compute3": "pending"}
    node.boot()
    node.wait(22)
    node.run("rm", "-f", "/root/slow", "/root/validating", "/etc/convoy/validation.d/10-slow")
    wait_for(lambda: fleet.reported("v6") == {"compute1"}, "it carries on by itself")
    assert fleet.record("compute1")["attempt"] == 1
    fleet.play("upgrade", version="v6", instructions=rules)
    assert fleet.reported("v6") == set(ROLES)


def new_token(fleet: Fleet) -> dict[str, str]:
    """Create a token in Consul; return it as Consul tells it."""
    _code, _headers, body = fleet.consul.call("PUT", f"acl/token?token={MANAGEMENT}", {"Description": "a node"})
    found: dict[str, str] = json.loads(body)
    return found
