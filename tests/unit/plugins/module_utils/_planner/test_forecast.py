# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The forecast: the waves that follow if all upgrades succeed, and how long they may take."""

from __future__ import annotations

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import FAILED, UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.admission import (
    Position,
    StageQueue,
    admit,
    begin_stage,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.forecast import finish, forecast, next_wave
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.slots import AppliedCap, Slots
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import RoleOrder
from fleets import OLD, Fleet, fleet

# Role a has three hosts and a cap of two. Role b has one host and waits for role a.
ORDER = RoleOrder(("a", "b"), {}, {"a": (), "b": ("a",)})
FLEET = StageQueue({"a": ("a1", "a2", "a3"), "b": ("b1",)}, {"a": 3, "b": 1})


def position(*stages: StageQueue, slots: int = 2) -> Position:
    caps = {role: (AppliedCap(f"role {role}", "rolling_rules.global", slots),) for role in ("a", "b")}
    return begin_stage(ORDER, stages, Slots(caps))


def test_the_forecast_goes_on_from_the_hosts_in_flight() -> None:
    wave, after = admit(position(FLEET))

    assert wave == {"a": ("a1", "a2")}
    assert forecast(after, {}, wave) == (("a3",), ("b1",))


def test_the_forecast_does_not_count_on_hosts_that_are_stuck() -> None:
    stuck = position(StageQueue(FLEET.waiting, {"a": 4, "b": 1}))
    busy = Position(ORDER, stuck.stages, stuck.next, stuck.unfinished, stuck.slots.take({"a": 1}))

    assert forecast(busy, {}, {}) == (("a1",), ("a2",), ("a3",))


def test_a_host_in_flight_counts_in_its_own_stage() -> None:
    # New rules put a2, which is upgrading, into the second stage. In the first one, a1 failed.
    canary = StageQueue({"a": (), "b": ()}, {"a": 1, "b": 0})
    rest = StageQueue({"a": ("a3",), "b": ()}, {"a": 2, "b": 0}, {"a": 1})
    begun = position(canary, rest)
    busy = Position(ORDER, begun.stages, begun.next, begun.unfinished, begun.slots.take({"a": 2}))

    assert forecast(busy, {"a": 1}, {}) == ()
    after = position(StageQueue({"a": (), "b": ()}, {"a": 0, "b": 0}), rest)
    assert forecast(after, {"a": 1}, {}) == (("a3",),)


def test_the_forecast_of_a_fleet_that_can_not_move_is_empty() -> None:
    assert forecast(position(FLEET, slots=0), {}, {}) == ()


def test_the_next_stage_begins_once_no_host_of_this_one_is_unfinished() -> None:
    canary = StageQueue({"a": ("a1",), "b": ()}, {"a": 1, "b": 0})
    nothing = StageQueue({"a": (), "b": ()}, {"a": 0, "b": 0})
    rest = StageQueue({"a": ("a2", "a3"), "b": ()}, {"a": 2, "b": 0})
    start = position(canary, nothing, rest)

    assert forecast(start, {}, {}) == (("a1",), ("a2", "a3"))
    _wave, after = next_wave(start)
    assert next_wave(after)[0] == {}
    assert next_wave(finish(after, {"a": 1}))[0] == {"a": ("a2", "a3")}


def took(one: Fleet, seconds: int, *hosts: str, state: str = UPGRADED) -> Fleet:
    one.records.update({host: HostRecord(OLD, state, times={"started": 100, state: 100 + seconds}) for host in hosts})
    return one


def test_a_wave_takes_as_long_as_the_middle_host_of_its_slowest_role() -> None:
    one = fleet(compute=3, web=1)
    for seconds, host in ((10, "compute1"), (1000, "compute2"), (20, "compute3"), (15, "web1")):
        took(one, seconds, host)
    plan = one.plan({"rolling_rules": {"roles": {"compute": 1}}, "health": {"soak": 5}})
    assert plan.waves == (("compute1", "web1"), ("compute2",), ("compute3",))
    assert plan.wave_seconds == (25.0, 25.0, 25.0)


def test_a_role_of_which_nothing_is_known_takes_as_long_as_the_others() -> None:
    one = took(took(fleet(compute=2, web=1), 30, "compute1"), 50, "compute2")
    assert one.plan({"role_order": {"web": "compute"}}).wave_seconds == (40.0, 40.0)


def test_where_no_host_has_reported_no_time_is_given() -> None:
    one = took(fleet(compute=2), 30, "compute1", state=FAILED)
    one.records["compute2"] = HostRecord(OLD, UPGRADED, times={"started": 100, "upgraded": 90})
    assert one.plan({"rolling_rules": {"global": 1}}).wave_seconds == (0.0, 0.0)


def test_a_wave_without_hosts_takes_no_time() -> None:
    one = took(fleet(compute=3), 30, "compute2").opened("compute1")
    plan = one.plan({"rolling_rules": {"global": 1}})
    assert plan.waves == ((), ("compute2",), ("compute3",))
    assert plan.wave_seconds == (0.0, 30.0, 30.0)
