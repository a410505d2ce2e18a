# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner's work is linear in hosts. The tests count Python instructions, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import roles_of_hosts
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.reconcile import make_plan
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from fleets import Fleet, fleet

FEW, MANY = 60, 600


def instructions_run(work: Callable[[], object]) -> int:
    """Return how many Python instructions a call takes, including everything that it calls."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        # Python 3.12 and later instrument code as it runs, so the count is complete only for code that has run before.
        work()
        count = 0
        work()
    finally:
        sys.settrace(before)
    return count


def cost_of_a_plan(site: Fleet, rules: dict[str, Any]) -> int:
    snapshot, members, parsed = site.snapshot(), roles_of_hosts(site.members, ()), parse(rules)
    return instructions_run(lambda: make_plan(snapshot, members, parsed))


def waiting(hosts: int) -> Fleet:
    return fleet(compute=hosts // 2, ceph_mon=hosts // 4, ceph_osd=hosts // 4)


def half_done(hosts: int) -> Fleet:
    site = waiting(hosts)
    names = list(site.members)
    return (
        site.upgraded(*names[: hosts // 4])
        .opened(*names[hosts // 4 : hosts // 2])
        .failed(*names[hosts // 2 : hosts // 2 + 3])
        .started(*names[-4:])
        .held("host/compute1", "host/ceph_osd1")
    )


@pytest.mark.parametrize("site", [waiting, half_done])
@pytest.mark.parametrize(
    "rules",
    [
        pytest.param({}, id="no rules"),
        pytest.param({"rolling_rules": {"global": 1}}, id="one by one, so as many waves as hosts"),
        pytest.param({"rolling_rules": {"fleet": 1}}, id="one by one in the whole fleet"),
        pytest.param({"rolling_rules": {"global": "5%", "complete_sets": True}}, id="sets"),
        pytest.param({"rolling_rules": {"global": 0}}, id="everything is stopped"),
        pytest.param(
            {
                "rolling_rules": {"roles": {"ceph": 3, "ceph_osd": 2}, "fleet": "10%"},
                "role_order": {"compute": "ceph"},
                "group_mappings": {"ceph": "ceph_"},
            },
            id="groups and order",
        ),
    ],
)
def test_ten_times_the_hosts_take_ten_times_the_work(site: Callable[[int], Fleet], rules: dict[str, Any]) -> None:
    few, many = cost_of_a_plan(site(FEW), rules), cost_of_a_plan(site(MANY), rules)

    assert few > FEW
    assert many < few * (MANY / FEW) * 1.2


def test_the_hosts_of_a_fleet_are_placed_with_work_in_proportion() -> None:
    def cost(count: int) -> int:
        return instructions_run(lambda: roles_of_hosts({}, [f"compute{number}" for number in range(count)]))

    few, many = cost(FEW), cost(MANY)

    assert many < few * (MANY / FEW) * 1.2
