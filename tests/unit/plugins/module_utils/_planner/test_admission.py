# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Admission: the hosts that the rules admit from a position, the position after that, and the gates to open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import UPGRADED, WITH_VERSION, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.admission import (
    Position,
    StageQueue,
    admit,
    admitted_hosts,
    begin_stage,
    first_position,
    gates_to_open,
    reopened_hosts,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.blockers import find_blockers
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.forecast import finish
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.slots import Slots, caps_by_role, fleet_slots
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import merge, parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import resolve
from fleets import NEW, OLD, UNLIMITED, Fleet, fleet


def position(roles: dict[str, int], **rules: Any) -> Position:
    """Return the position of a fleet whose hosts are all waiting: a1, a2, b1, ..."""
    parsed = parse(merge(UNLIMITED, rules))
    order = resolve(parsed, roles)
    waiting = {role: tuple(f"{role}{number}" for number in range(1, count + 1)) for role, count in roles.items()}
    slots = Slots(caps_by_role(parsed, order, roles), parsed.complete_sets)
    return begin_stage(order, (StageQueue(waiting, roles),), slots)


def test_without_rules_all_go_at_once() -> None:
    wave, after = admit(position({"a": 2, "b": 1}))

    assert wave == {"a": ("a1", "a2"), "b": ("b1",)}
    assert admit(after) == ({}, after)


def test_a_position_is_not_changed_by_admitting() -> None:
    start = position({"a": 3, "b": 1}, rolling_rules={"global": 2, "fleet": 2})

    assert admit(start) == admit(start)
    assert start == position({"a": 3, "b": 1}, rolling_rules={"global": 2, "fleet": 2})


def test_hosts_leave_their_queue_from_its_head() -> None:
    wave, after = admit(position({"a": 3}, rolling_rules={"global": 2}))

    assert (wave, after.next) == ({"a": ("a1", "a2")}, {"a": 2})
    assert admit(after)[0] == {}
    assert admit(finish(after, {"a": 1}))[0] == {"a": ("a3",)}


def test_a_cap_of_0_holds_a_role() -> None:
    start = position({"a": 1, "b": 1}, rolling_rules={"roles": {"a": 0}})

    assert (start.may_go_on("a"), start.may_go_on("b")) == (False, True)
    assert admit(start)[0] == {"b": ("b1",)}


def test_those_that_others_wait_for_come_first_under_the_fleets_cap() -> None:
    start = position({"a": 1, "b": 1, "c": 1}, rolling_rules={"fleet": 2}, role_order={"a": "c"})

    assert list(admit(start)[0].items()) == [("c", ("c1",)), ("b", ("b1",))]
    assert (start.waits_for("a"), start.may_go_on("a")) == (["c"], False)


def test_a_role_waits_until_the_last_host_of_another_is_done() -> None:
    wave, after = admit(position({"a": 1, "b": 2}, role_order={"a": "b"}))
    assert wave == {"b": ("b1", "b2")}

    one_left = finish(after, {"b": 1})
    assert admit(one_left)[0] == {}
    assert admit(finish(one_left, {"b": 1}))[0] == {"a": ("a1",)}


def test_complete_sets_admit_no_one_while_a_host_is_busy() -> None:
    wave, after = admit(position({"a": 3}, rolling_rules={"global": 2, "complete_sets": True}))
    assert wave == {"a": ("a1", "a2")}

    one_left = finish(after, {"a": 1})
    assert admit(one_left)[0] == {}
    assert admit(finish(one_left, {"a": 1}))[0] == {"a": ("a3",)}


def test_roles_without_a_waiting_host_are_not_examined_again() -> None:
    start = position({"a": 1, "b": 2, "c": 0}, rolling_rules={"global": 1})

    assert start.next == {"a": 0, "b": 0}
    assert admit(start)[1].next == {"b": 1}


def first(site: Fleet, rules: dict[str, Any] | None = None, limit: list[str] | None = None) -> Position:
    state = site.read(rules, limit)
    return first_position(state, find_blockers(state), fleet_slots(state))


def test_the_first_position_queues_pending_hosts_in_scope_and_counts_the_others() -> None:
    site = fleet(compute=5).upgraded("compute1").opened("compute2").failed("compute3")
    start = first(site, {"rolling_rules": {"global": 3}}, ["compute1", "compute4"])

    assert start.stages == (StageQueue({"compute": ("compute4",)}, {"compute": 4}, {"compute": 1}),)
    assert (start.next, start.slots.busy, start.slots.taken) == ({"compute": 0}, 2, {"role compute": 2})


def test_a_role_whose_failure_budget_is_exhausted_does_not_queue_and_is_waited_for() -> None:
    start = first(fleet(compute=3).failed("compute1"), {"failure_rules": {"global": 1}})

    assert (start.next, start.unfinished) == ({}, {"compute": 3})


def test_each_stage_has_a_queue_and_the_current_one_has_what_is_left_of_those_before_it() -> None:
    rules = {"stages": [{"hosts": 1}, {"hosts": ["compute3"]}]}
    assert [queue.waiting["compute"] for queue in first(fleet(compute=4), rules).stages] == [
        ("compute1",),
        ("compute3",),
        ("compute2", "compute4"),
    ]

    later = first(fleet(compute=4).upgraded("compute1"), rules)
    assert [queue.waiting["compute"] for queue in later.stages] == [("compute3",), ("compute2", "compute4")]
    assert (later.unfinished, later.is_last_stage) == ({"compute": 1}, False)


def test_a_host_gets_its_gate_back_only_if_it_was_admitted_and_no_rule_holds_its_role() -> None:
    site = fleet(compute=3).started("compute1", "compute2").admitted("compute2")
    state = site.read()
    start = first(site)

    assert [one.host for one in reopened_hosts(state, start)] == ["compute2"]
    held = replace(start, slots=Slots(caps_by_role(parse({}), state.order, state.sizes)))
    assert reopened_hosts(state, held) == ()


def test_an_admission_names_the_limit_with_the_fewest_free_slots_after_it() -> None:
    _wave, after = admit(position({"a": 4}, rolling_rules={"global": 2, "fleet": 3}))

    (admission,) = admitted_hosts({"a": ("a1",)}, after)
    assert admission.reason == "rolling_rules.global admits 2 of role a at once"


def gates(site: Fleet, rules: dict[str, Any] | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    state, start = site.read(rules), first(site, rules)
    return gates_to_open(state, start, admit(start)[0], reopened_hosts(state, start))


def test_a_role_opens_by_its_gate_only_in_the_last_stage() -> None:
    rules = {"stages": [{"hosts": ["compute1"]}]}

    assert gates(fleet(compute=2), rules) == ((), ("compute1",))
    assert gates(fleet(compute=2).upgraded("compute1"), rules) == (("compute",), ())


@pytest.mark.parametrize(
    "rules",
    [
        {"failure_rules": {"global": 1}},
        {"windows": [{"days": "mon-sun", "from": "00:00", "to": "24:00"}]},
        {"freezes": [{"from": "1960-01-01", "to": "1960-01-02"}]},
    ],
)
def test_a_role_opens_host_by_host_if_the_rules_may_stop_a_host_that_joins(rules: dict[str, Any]) -> None:
    assert gates(fleet(compute=1)) == (("compute",), ())
    assert gates(fleet(compute=1), rules) == ((), ("compute1",))


def test_a_role_with_a_host_that_was_not_admitted_and_says_it_has_started_opens_host_by_host() -> None:
    assert gates(fleet(compute=2).started("compute2", version=NEW)) == ((), ("compute1",))


def test_a_host_without_the_tasks_of_its_services_is_not_admitted_and_is_waited_for() -> None:
    site = fleet(compute=5, web=1)
    site.ledger = Ledger(1, NEW, services={"compute": "a1"})
    for host, services in (("compute1", "a1"), ("compute2", "a0"), ("compute3", None), ("compute4", WITH_VERSION)):
        site.records[host] = HostRecord(OLD, UPGRADED, services=services)
    plan = site.plan({"role_order": {"web": "compute"}})

    # compute5 never reported which tasks it has.
    assert [one.host for one in plan.admissions] == ["compute1", "compute4"]
    # A role's gate would admit the others too.
    assert (plan.role_gates, plan.host_gates) == ((), ("compute1", "compute4"))
    assert {host: view.cause for host, view in plan.hosts.items()} == {
        "compute1": "admissible",
        "compute2": "other_services",
        "compute3": "other_services",
        "compute4": "admissible",
        "compute5": "other_services",
        "web1": "order",
    }
    assert plan.hosts["compute2"].reason == (
        "it has no tasks of services, or not those of this rollout: enroll it again (ansible-playbook convoy.upgrade.enroll --limit HOST)"
    )
    left = site.upgraded("compute1", "compute4").plan({"role_order": {"web": "compute"}})
    assert (left.complete, left.can_move, left.admissions) == (False, False, ())
    # Without that order, nothing waits for them.
    assert [one.host for one in site.plan().admissions] == ["web1"]


def test_a_host_that_has_started_gets_its_gate_again_only_with_the_tasks_that_count_now() -> None:
    site = fleet(compute=1).started("compute1").admitted("compute1")
    assert site.ledger is not None
    site.ledger = replace(site.ledger, services={"compute": "a1"})
    waits = site.plan()
    assert waits.admissions == ()
    view = waits.hosts["compute1"]
    assert (view.state, view.cause) == ("upgrading", "other_services")
    assert "its gate is closed, because it has no tasks of services, or not those of this rollout" in view.reason
    site.records["compute1"] = replace(site.records["compute1"], services="a1")
    assert [one.host for one in site.plan().admissions] == ["compute1"]
