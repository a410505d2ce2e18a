# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan that keeps what has not changed since an earlier one is the plan that would be made without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED, HostRecord, Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import HealthMark
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.host_state import HostState
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.reconcile import make_plan
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from fleets import NEW, Fleet, fleet
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_fleets, rules

_HEALTH = {"health": {"soak": 30, "progress_deadline": 60}}


def with_same_objects(new: Snapshot, old: Snapshot) -> Snapshot:
    """Return a snapshot in which values that have not changed are the objects of the old one, as in a cache."""

    def same(now: Any, was: Any) -> Any:
        return {name: was[name] if was.get(name) == value else value for name, value in now.items()}

    gates = replace(
        new.gates, hosts=same(new.gates.hosts, old.gates.hosts), roles=same(new.gates.roles, old.gates.roles)
    )
    if gates.everywhere == old.gates.everywhere:
        gates = replace(gates, everywhere=old.gates.everywhere)
    return replace(
        new,
        reports=same(new.reports, old.reports),
        records=same(new.records, old.records),
        marks=same(new.marks, old.marks),
        gates=gates,
        holds=replace(
            new.holds, hosts=same(new.holds.hosts, old.holds.hosts), roles=same(new.holds.roles, old.holds.roles)
        ),
    )


def whole(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in Plan.__slots__ if name != "fleet"} | {"hosts": dict(plan.hosts)}


def states_kept(plan: Plan, before: Plan) -> list[HostState]:
    assert plan.fleet is not None and before.fleet is not None
    return [one for host, one in plan.fleet.hosts.items() if one is before.fleet.hosts.get(host)]


@given(any_fleets(), any_fleets(), rules(), st.booleans(), st.integers(-90, 90))
def test_a_plan_does_not_depend_on_the_one_before(
    first: Fleet, second: Fleet, given_rules: dict[str, Any], health: bool, later: int
) -> None:
    parsed = parse({**given_rules, **(_HEALTH if health else {})})
    members = {**first.members, **second.members}
    old = first.snapshot()
    new = with_same_objects(replace(second.snapshot(), now=old.now + later), old)
    before = make_plan(old, members, parsed)
    assert whole(make_plan(new, members, parsed, before=before)) == whole(make_plan(new, members, parsed))


def test_only_the_states_of_changed_hosts_are_worked_out_again() -> None:
    site = fleet(web=5).opened("web1", "web2")
    old = site.snapshot()
    before = make_plan(old, site.members, parse({"rolling_rules": {"global": 2}}))
    new = with_same_objects(site.upgraded("web1").snapshot(), old)
    after = make_plan(new, site.members, parse({"rolling_rules": {"global": 2}}), before=before)
    assert [one.host for one in states_kept(after, before)] == ["web2", "web3", "web4", "web5"]
    assert after.hosts["web1"].state == "upgraded"


def test_nothing_is_kept_if_the_rollout_is_another_one() -> None:
    site = fleet(web=2)
    old = replace(site.snapshot(), ledger=Ledger(1, NEW))
    plain = parse({"rolling_rules": {"global": 2}})
    before = make_plan(old, site.members, plain)
    for ledger in (Ledger(2, "3.0"), Ledger(2, NEW, rollback=True), Ledger(2, NEW, admitted={"web1": 5})):
        assert states_kept(make_plan(replace(old, ledger=ledger), site.members, plain, before=before), before) == []
    assert (
        len(states_kept(make_plan(replace(old, ledger=Ledger(9, NEW)), site.members, plain, before=before), before))
        == 2
    )


def test_a_host_that_may_have_become_admissible_is_examined_again() -> None:
    site = fleet(web=2).opened("web1")
    old = replace(site.snapshot(), now=100.0)
    old = replace(old, records={"web1": HostRecord(NEW, STARTED, times={STARTED: 90})})
    parsed = parse({"rolling_rules": {"global": 2}, **_HEALTH})
    before = make_plan(old, site.members, parsed)
    assert before.hosts["web1"].state == "upgrading"
    later = make_plan(replace(old, now=old.now + 3600), site.members, parsed, before=before)
    assert later.hosts["web1"].state == "lost"
    assert [one.host for one in states_kept(later, before)] == ["web2"]


def test_a_host_that_was_upgraded_by_a_clock_that_is_set_back_has_not_soaked() -> None:
    site = fleet(web=2).upgraded("web1")
    site.marks["web1"] = HealthMark(NEW, 5000, upgraded=True)
    parsed = parse({"rolling_rules": {"global": 1}, **_HEALTH})
    ahead = replace(site.snapshot(), now=5030.0)
    before = make_plan(ahead, site.members, parsed)
    assert before.hosts["web1"].state == "upgraded"
    later = make_plan(replace(ahead, now=1000.0), site.members, parsed, before=before)
    assert later.hosts["web1"].state == "upgrading"
    assert not later.admissions


def test_a_time_in_the_future_of_a_host_without_a_gate_counts_once_it_has_come() -> None:
    site = fleet(web=1)
    old = replace(site.snapshot(), now=100.0, records={"web1": HostRecord(NEW, STARTED, times={STARTED: 200})})
    parsed = parse({"rolling_rules": {"global": 1}, **_HEALTH})
    before = make_plan(old, site.members, parsed)
    assert before.hosts["web1"].state == "upgrading"
    later = make_plan(replace(old, now=3700.0), site.members, parsed, before=before)
    assert later.hosts["web1"].state == "lost"
