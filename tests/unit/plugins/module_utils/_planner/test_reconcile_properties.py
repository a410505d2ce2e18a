# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Properties of every plan, for generated fleets and rules."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import strategies
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.state_names import STATES, TAKES_A_SLOT
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.caps import parse_cap
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import resolve
from fleets import Fleet, opened
from hypothesis import given
from hypothesis import strategies as st

Rules = dict[str, Any]

FLEETS = strategies.any_fleets()
CALM_FLEETS = strategies.calm_fleets()
RULES = strategies.rules()
RULES_THAT_STOP_NO_HOST = strategies.rules(caps=strategies.CAPS_ABOVE_0)


def domains(site: Fleet, rules: Rules) -> list[tuple[set[str], int]]:
    """Return the hosts and the number of slots of every cap, computed from the rules without the planner."""
    rolling = rules.get("rolling_rules", {})
    own = rolling.get("roles", {})
    grouped = strategies.GROUP in rules.get("group_mappings", {})

    def is_in_group(role: str) -> bool:
        return grouped and role.startswith("ceph_")

    found = []
    roles = set(site.members.values())
    for role in roles:
        cap = own.get(role, None if is_in_group(role) else rolling.get("global"))
        found.append(({host for host, its in site.members.items() if its == role}, cap))
    group = {host for host, role in site.members.items() if is_in_group(role)}
    if group:
        found.append((group, own.get(strategies.GROUP, rolling.get("global"))))
    found.append((set(site.members), rolling.get("fleet")))
    return [(hosts, parse_cap(cap, "a cap").hosts_of(len(hosts))) for hosts, cap in found if cap is not None]


def down(site: Fleet) -> set[str]:
    return {host for host, one in site.states().items() if one.state in TAKES_A_SLOT or one.is_down}


def after(site: Fleet, plan: Plan) -> Fleet:
    found = replace(site, gates=dict(site.gates), reports=dict(site.reports), records=dict(site.records))
    found.open(plan)
    return found


@given(FLEETS, RULES)
def test_no_cap_is_exceeded_that_was_not_exceeded_before(site: Fleet, rules: Rules) -> None:
    before = down(site)
    now = down(after(site, site.plan(rules)))

    for hosts, slots in domains(site, rules):
        assert len(hosts & now) <= max(slots, len(hosts & before))


@given(FLEETS, RULES)
def test_slots_are_not_left_free_without_a_reason(site: Fleet, rules: Rules) -> None:
    plan = site.plan(rules)
    now = down(after(site, plan))
    busy = rules.get("rolling_rules", {}).get("complete_sets") and now
    waits = resolve(parse(rules), set(site.members.values())).waits
    unfinished = {site.members[host] for host in plan.unfinished}

    for host in set(plan.status()["pending"]) - set(opened(plan)):
        full = any(host in hosts and len(hosts & now) >= slots for hosts, slots in domains(site, rules))
        assert full or busy or unfinished & set(waits[site.members[host]])


@given(FLEETS, RULES)
def test_no_host_goes_before_a_role_that_its_own_role_waits_for(site: Fleet, rules: Rules) -> None:
    plan = site.plan(rules)
    waits = resolve(parse(rules), set(site.members.values())).waits
    unfinished = {site.members[host] for host in plan.unfinished}

    for one in plan.admissions:
        assert not unfinished & set(waits[one.role])


@given(FLEETS, RULES)
def test_every_host_is_in_exactly_one_of_six_states(site: Fleet, rules: Rules) -> None:
    plan = site.plan(rules)
    status = plan.status()

    assert tuple(status) == STATES
    assert sorted(host for hosts in status.values() for host in hosts) == sorted(site.members)
    assert all(view.reason for view in plan.hosts.values())
    assert plan.complete == (len(status["upgraded"]) == len(site.members) > 0)


@given(FLEETS, RULES)
def test_no_host_is_admitted_that_is_held_is_done_or_has_failed(site: Fleet, rules: Rules) -> None:
    states = site.states()

    for one in site.plan(rules).admissions:
        found = states[one.host]
        assert found.hold is None
        assert found.state == one.before
        assert found.state == "pending" or (found.state == "upgrading" and not found.gate.is_open)


@given(FLEETS, RULES)
def test_the_gates_open_for_exactly_the_admissions(site: Fleet, rules: Rules) -> None:
    plan = site.plan(rules)
    before, now = site.states(), after(site, plan).states()
    done = {"upgraded", "failed"}

    newly_open = {
        host
        for host, found in now.items()
        if found.gate.is_open and not before[host].gate.is_open and found.state not in done
    }
    assert newly_open == set(opened(plan))
    assert len(opened(plan)) == len(newly_open)
    assert len(set(plan.host_gates)) == len(plan.host_gates)
    assert len(set(plan.role_gates)) == len(plan.role_gates)


@given(FLEETS, RULES)
def test_the_key_of_a_role_is_for_roles_without_a_cap_and_without_a_hold(site: Fleet, rules: Rules) -> None:
    plan = site.plan(rules)
    states = site.states()

    for role in plan.role_gates:
        hosts = {host for host, its in site.members.items() if its == role}
        assert not any(hosts & capped for capped, _slots in domains(site, rules))
        assert not any(states[host].hold for host in hosts)


@given(FLEETS, RULES, st.data())
def test_a_limit_admits_no_host_outside_of_it_and_none_that_would_not_be_admitted_without_it(
    site: Fleet, rules: Rules, data: st.DataObject
) -> None:
    names = sorted({*site.members, *site.members.values()})
    limit = data.draw(st.lists(st.sampled_from(names), unique=True) if names else st.just([]))
    plan = site.plan(rules, limit)
    inside = {host for host, role in site.members.items() if host in limit or role in limit}

    assert set(opened(plan)) <= inside
    assert {host for wave in plan.waves for host in wave} <= inside
    before, now = site.states(), after(site, plan).states()
    assert all(now[host].state == before[host].state for host in set(site.members) - inside)
    for hosts, slots in domains(site, rules):
        assert len(hosts & down(after(site, plan))) <= max(slots, len(hosts & down(site)))


@given(strategies.calm_fleets(), RULES)
def test_the_plan_of_a_finished_fleet_is_empty(site: Fleet, rules: Rules) -> None:
    plan = site.upgraded(*site.members).plan(rules)

    assert (plan.admissions, plan.role_gates, plan.host_gates, plan.waves, plan.unfinished) == ((), (), (), (), ())
    assert (plan.complete, plan.scope_done, plan.can_move) == (bool(site.members), True, False)


@given(CALM_FLEETS, RULES_THAT_STOP_NO_HOST)
def test_where_nothing_is_in_the_way_all_hosts_get_there(site: Fleet, rules: Rules) -> None:
    site.run(rules)

    assert site.plan(rules).complete == bool(site.members)


@given(FLEETS, RULES)
def test_the_passes_that_follow_are_those_of_the_forecast(site: Fleet, rules: Rules) -> None:
    forecast = site.plan(rules).waves

    passes = site.run(rules)

    assert tuple(passes) == (forecast or ((),))


@given(FLEETS, RULES)
def test_a_plan_says_whether_anything_can_still_move(site: Fleet, rules: Rules) -> None:
    plan = site.plan(rules)
    before = {host: one.state for host, one in site.states().items()}

    site.open(plan)
    site.finish()

    assert plan.can_move == (before != {host: one.state for host, one in site.states().items()})


@given(FLEETS, RULES, st.integers(0, 2**32))
def test_the_order_of_the_reads_does_not_matter(site: Fleet, rules: Rules, seed: int) -> None:
    chance = random.Random(seed)
    mixed = Fleet(
        members=shuffled(site.members, chance),
        current=site.current,
        reports=shuffled(site.reports, chance),
        records=shuffled(site.records, chance),
        gates=shuffled(site.gates, chance),
        holds=shuffled(site.holds, chance),
        ledger=site.ledger,
    )
    plan = site.plan(parse(rules).plain())
    other = mixed.plan(parse(shuffled(rules, chance)).plain())

    assert other == plan
    assert list(other.hosts) == list(plan.hosts)


def shuffled(data: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    items = list(data.items())
    chance.shuffle(items)
    return {key: shuffled(value, chance) if isinstance(value, dict) else value for key, value in items}
