# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The opener: who goes next under the rules, and the forecast that it makes."""

from __future__ import annotations

from collections import deque
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._planner.admission import Admissions, forecast
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.slots import limits_by_role
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import merge, parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import resolve
from fleets import UNLIMITED


def opener(roles: dict[str, int], **rules: Any) -> Admissions:
    """Return an opener of a fleet in which every host waits: a1, a2, b1, ..."""
    parsed = parse(merge(UNLIMITED, rules))
    order = resolve(parsed, roles)
    queues = {role: deque(f"{role}{number}" for number in range(1, count + 1)) for role, count in roles.items()}
    return Admissions(order, queues, dict(roles), limits_by_role(parsed, order, roles), parsed.complete_sets)


def test_without_rules_all_go_at_once() -> None:
    assert opener({"a": 2, "b": 1}).next_set() == [("a", ["a1", "a2"]), ("b", ["b1"])]


def test_hosts_leave_their_queue_from_its_head() -> None:
    found = opener({"a": 3}, rolling_rules={"global": 2})

    assert found.next_set() == [("a", ["a1", "a2"])]
    assert found.next_set() == []
    found.finish("a", 1)
    assert found.next_set() == [("a", ["a3"])]


def test_a_slot_is_taken_from_every_limit_over_the_role() -> None:
    found = opener({"a": 5}, rolling_rules={"global": 4, "fleet": 5})
    found.take("a", 2)

    assert [(limit.what, limit.taken, limit.free) for limit in found.limits["a"]] == [
        ("role a", 2, 2),
        ("the fleet", 2, 3),
    ]
    assert found.busy == 2


def test_a_cap_of_0_stops_a_role() -> None:
    found = opener({"a": 1, "b": 1}, rolling_rules={"roles": {"a": 0}})

    assert (found.is_stopped("a"), found.is_stopped("b")) == (True, False)
    assert found.next_set() == [("b", ["b1"])]


def test_those_that_others_wait_for_come_first_under_the_fleets_cap() -> None:
    found = opener({"a": 1, "b": 1, "c": 1}, rolling_rules={"fleet": 2}, role_order={"a": "c"})

    assert found.next_set() == [("c", ["c1"]), ("b", ["b1"])]
    assert found.waits_for("a") == ["c"]


def test_a_role_waits_until_the_last_host_of_another_is_done() -> None:
    found = opener({"a": 1, "b": 2}, role_order={"a": "b"})
    assert found.next_set() == [("b", ["b1", "b2"])]

    found.finish("b", 1)
    assert found.next_set() == []

    found.finish("b", 1)
    assert found.next_set() == [("a", ["a1"])]


def test_complete_sets_let_nobody_through_while_one_is_busy() -> None:
    found = opener({"a": 3}, rolling_rules={"global": 2, "complete_sets": True})
    assert found.next_set() == [("a", ["a1", "a2"])]

    found.finish("a", 1)
    assert found.next_set() == []

    found.finish("a", 1)
    assert found.next_set() == [("a", ["a3"])]


def test_roles_whose_queue_is_empty_are_never_looked_at_again() -> None:
    found = opener({"a": 1, "b": 2, "c": 0}, rolling_rules={"global": 1})
    assert found.waiting == ["a", "b"]

    found.next_set()

    assert found.waiting == ["b"]


def test_the_forecast_goes_on_from_the_hosts_in_flight() -> None:
    found = opener({"a": 3, "b": 1}, rolling_rules={"global": 2}, role_order={"b": "a"})
    found.next_set()

    assert forecast(found, [("a", 2)]) == [["a3"], ["b1"]]


def test_the_forecast_does_not_count_on_hosts_that_are_stuck() -> None:
    found = opener({"a": 3, "b": 1}, rolling_rules={"global": 2}, role_order={"b": "a"})
    found.unfinished["a"] += 1
    found.take("a", 1)

    assert forecast(found, []) == [["a1"], ["a2"], ["a3"]]


def test_the_forecast_of_a_fleet_that_can_not_move_is_empty() -> None:
    assert forecast(opener({"a": 3}, rolling_rules={"global": 0}), []) == []
