# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab.node import Node

from ..conftest import MakeFleet
from ..fleet import Fleet, wait_for
from ..snapshots import publish
from .one_node import GATE, NODE, SLOW, stop_agent


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """One host, enrolled while its gate is closed."""
    fleet = make_fleet({NODE: "compute"}, packages=["faketime"])
    fleet.consul.put(GATE, "False")
    fleet.enroll(puppet_gate_interval=100000)
    node = fleet.lab.nodes[NODE]
    wait_for(lambda: fleet.consul.get(f"upgrade/wake/{NODE}"), "its agent waits")
    stop_agent(node)
    node.write("/etc/convoy/validation.d/10-slow", SLOW, 0o755)
    publish(fleet.lab.shared, "v3", service="v2.9")
    return fleet


@pytest.fixture
def node(fleet: Fleet) -> Iterator[Node]:
    """The node, at rest, its gate open and nothing else in Consul."""
    fleet.consul.delete("", tree=True)
    yield fleet.lab.nodes[NODE]
    if fleet.lab.nodes[NODE].is_up:
        hooks = [f"/etc/convoy/hooks/{name}.d/50-consul" for name in ("drain", "undrain")]
        fleet.lab.nodes[NODE].run("rm", "-f", "/root/slow", "/root/validating", *hooks)
