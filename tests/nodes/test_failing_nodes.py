# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rollout in which everything goes wrong: each bad node reports it and keeps its slot, and comes good when repaired."""

from __future__ import annotations

import re

import pytest

from .conftest import MakeFleet
from .fleet import Fleet, wait_for
from .snapshots import publish

ROLES = {f"compute{n}": "compute" for n in range(1, 6)}
RULES = {"rolling_rules": {"global": "unlimited", "roles": {"compute": 4}}}

# A check that takes its time once it is asked to, and one that fails while the node is broken.
SLOW = "#!/bin/sh\nif [ -e /root/slow ]; then rm /root/slow; sleep 40; fi\n"
BROKEN = "#!/bin/sh\nif [ -e /root/broken ]; then echo the disk is full; exit 3; fi\n"


@pytest.mark.thorough
def test_bad_nodes_stop_the_rest_from_following_until_they_are_repaired(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(ROLES)
    fleet.consul.put("current_version", "v1")
    fleet.enroll()
    wait_for(lambda: fleet.reported("v1") == set(ROLES), "all nodes run v1")
    nodes = fleet.lab.nodes
    for node in nodes.values():
        node.write("/etc/convoy/validation.d/10-slow", SLOW, 0o755)
        node.write("/etc/convoy/validation.d/20-disk", BROKEN, 0o755)

    publish(fleet.lab.shared, "v2", broken="compute1")
    nodes["compute2"].write("/root/broken", "")
    for name in ("compute3", "compute4"):
        wait_for(lambda name=name: fleet.version_of(name) == "v1", f"{name} is at rest")
        nodes[name].write("/root/slow", "")
    upgrade = fleet.start("upgrade", version="v2", instructions=RULES)
    # A node whose daily run took the slow check before is given another one. Each is struck while its own check lasts.
    for name, strike in (("compute3", nodes["compute3"].cut), ("compute4", nodes["compute4"].kill)):
        wait_for(lambda name=name: fleet.record(name).get("version") == "v2", f"{name} has started")
        nodes[name].write("/root/slow", "")
        wait_for(
            lambda name=name: nodes[name].read("/etc/fleet-release") == "manifest v2 on v2\n", f"{name} is half done"
        )
        strike()

    # Those that fail try again, and are upgrading while they do; nothing else is ever seen of any of the nodes.
    expected, failed = expected_states(), set[str]()

    def all_have_failed() -> bool:
        found = fleet.states()
        for name, state in expected.items():
            assert found[name] in ((state, "upgrading") if state == "failed" else (state,)), found
        failed.update(name for name in expected if found[name] == "failed")
        return failed == {name for name, state in expected.items() if state == "failed"}

    wait_for(all_have_failed, "the nodes that can fail have failed")
    each_shows_its_reason(fleet)
    # The nodes' agents go on trying; whatever they do, no one follows.
    wait_for(lambda: fleet.record("compute1")["attempt"] > 2, "compute1 tries again")
    assert fleet.states()["compute5"] == "pending"
    assert fleet.reported("v2") == set()

    publish(fleet.lab.shared, "v2")
    # The same version once more does not show apt that the package changed; an operator would give it another number.
    nodes["compute1"].run("apt-get", "-q", "update")
    nodes["compute1"].run("apt-get", "-q", "-y", "install", "--reinstall", "fleet-manifests")
    nodes["compute2"].run("rm", "/root/broken")
    nodes["compute3"].reconnect()
    nodes["compute4"].boot()
    played = upgrade.end(600)
    assert played.code == 0, played.stdout
    assert fleet.reported("v2") == set(ROLES)
    for name, node in nodes.items():
        assert fleet.record(name)["state"] == "upgraded"
        assert "error" not in {key for key, value in fleet.record(name).items() if value}
        wait_for(lambda name=name: fleet.version_of(name) == "v2", f"{name} remembers its version")
        assert node.read("/etc/fleet-release") == "manifest v2 on v2\n"
        assert fleet.checks(name)["puppet"][0] == "passing"


def expected_states() -> dict[str, str]:
    return {
        "compute1": "failed",
        "compute2": "failed",
        "compute3": "upgrading",
        "compute4": "upgrading",
        "compute5": "pending",
    }


def each_shows_its_reason(fleet: Fleet) -> None:
    # Their agents try again, and while they do they are upgrading.
    reasons = {
        "compute1": r"failed, step puppet.*the manifest of this host is broken",
        "compute2": r"failed, step validation.*20-disk ended with 3: the disk is full",
    }
    for name, reason in reasons.items():
        wait_for(
            lambda name=name, reason=reason: re.search(reason, fleet.play("status", host=name), re.DOTALL),
            f"the status of {name} says {reason}",
        )
    for name in ("compute3", "compute4"):
        assert "Why: started." in fleet.play("status", host=name)
    shown = fleet.play("status")
    assert "rolling_rules.roles.compute admits 4 of role compute at once" in shown
    checks = fleet.checks("compute1")
    assert checks["puppet"][0] == "warning"
    assert "the manifest of this host is broken" in checks["puppet"][1]
    assert fleet.checks("compute2")["validation"][0] == "warning"
    assert fleet.checks("compute2")["puppet"][0] == "passing"
    for name in ("compute3", "compute4"):
        wait_for(lambda name=name: fleet.checks(name)["serfHealth"][0] == "critical", f"Consul misses {name}")
