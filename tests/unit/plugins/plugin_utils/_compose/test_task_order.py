# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of services within a role, and of roles."""

from __future__ import annotations

from itertools import pairwise

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.task_order import (
    RoleNeeds,
    composition_of_rollback,
    inverted,
    order_among_roles,
    order_within_role,
    refuse_cycle,
)
from hypothesis import given
from hypothesis import strategies as st

NAMES = "abcdefg"


@st.composite
def requirements(draw: st.DrawFn) -> dict[str, list[str]]:
    """Return what each service requires, without cycles."""
    found = {
        name: draw(st.lists(st.sampled_from(NAMES[:at]), unique=True)) if at else [] for at, name in enumerate(NAMES)
    }
    return {name: found[name] for name in draw(st.permutations(NAMES))}


def all_required(name: str, requires: dict[str, list[str]]) -> set[str]:
    """Return all services that a service requires, directly or through others."""
    return {each for first in requires[name] for each in (first, *all_required(first, requires))}


@given(st.lists(st.sampled_from(NAMES), unique=True), requirements())
def test_each_service_comes_after_all_that_it_requires_wherever_that_leads(
    services: list[str], requires: dict[str, list[str]]
) -> None:
    found = order_within_role(services, requires)
    assert sorted(found) == sorted(services)
    for at, name in enumerate(found):
        assert all_required(name, requires) & set(services) <= set(found[:at])


@given(st.lists(st.sampled_from(NAMES), unique=True), requirements())
def test_services_that_need_no_change_stay_as_they_are_listed(
    services: list[str], requires: dict[str, list[str]]
) -> None:
    assert order_within_role(services, {}) == services
    once = order_within_role(services, requires)
    assert order_within_role(once, requires) == once


@given(requirements())
def test_a_rollback_has_each_service_before_all_that_it_requires(requires: dict[str, list[str]]) -> None:
    found = order_within_role(list(requires), inverted(requires))
    for at, name in enumerate(found):
        assert all_required(name, requires) <= {*found[at + 1 :]}


def test_only_roles_with_another_order_are_reversed() -> None:
    groups = [{"name": "stop/db", "tasks": 1}, {"name": "stop/web", "tasks": 2}]
    both = {"task_groups": groups, "reversed_task_groups": ["stop/web", "stop/db"]}
    composition = {"roles": {"node": both, "old": {"task_groups": groups}}, "lockstep": []}
    turned = {"task_groups": groups[::-1], "is_reversed": True}
    found = composition_of_rollback(composition, is_reversed=True)
    assert found == {**composition, "roles": {**composition["roles"], "node": turned}}
    pulled = {"roles": {}, "pull_roles": {"node": both}}
    assert composition_of_rollback(pulled, is_reversed=True)["pull_roles"] == {"node": turned}
    # A rollback that keeps the order has no other one to announce.
    kept = composition_of_rollback(pulled, is_reversed=False)["pull_roles"]
    assert kept == {"node": {"task_groups": groups}}


@given(requirements())
def test_no_circle_is_seen_where_there_is_none(requires: dict[str, list[str]]) -> None:
    refuse_cycle(requires, {})
    assert set(order_within_role(list(requires), requires)) == set(NAMES)


@given(requirements(), st.data())
def test_every_circle_is_found_and_is_one(requires: dict[str, list[str]], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    first = data.draw(st.sampled_from(sorted({name, *all_required(name, requires)})))
    requires = {**requires, first: [*requires[first], name]}
    with pytest.raises(UpgradeError) as caught:
        refuse_cycle(requires, dict.fromkeys(NAMES, "f:1"))
    cycle = caught.value.details["cycle"]
    assert cycle[0] == cycle[-1]
    assert all(after in requires[before] for before, after in pairwise(cycle))
    assert caught.value.message == (f"f:1: requires has a cycle: {' -> '.join(cycle)}. Remove one of these.")


def test_stages_and_requirements_make_the_order() -> None:
    found = order_among_roles(
        {
            "data": RoleNeeds("dataplane", ["a"], {"a": ["b"]}),
            "more": RoleNeeds("dataplane", ["b"], {}),
            "control": RoleNeeds("controlplane", ["c"], {}),
            "other": RoleNeeds(None, ["d"], {}),
        }
    )
    assert found.order == {"data": ["control", "more"], "more": ["control"]}
    assert found.reasons["data"] == {
        "control": "data is in the data plane, and control in the control plane",
        "more": "a requires b, which more has",
    }


def test_a_role_that_has_what_it_needs_waits_for_no_other() -> None:
    assert (
        order_among_roles({"x": RoleNeeds(None, ["a", "b"], {"a": ["b"]}), "y": RoleNeeds(None, ["b"], {})}).order == {}
    )


def test_who_waits_for_one_of_a_group_waits_for_all_of_it_and_the_group_waits_together() -> None:
    control = "controlplane"
    requires = {"a": ["b"], "b": ["a2"], "b2": ["c"], "d": ["a"]}
    found = order_among_roles(
        {
            "x": RoleNeeds(control, ["a", "a2"], requires),
            "y": RoleNeeds(control, ["b", "b2"], requires),
            "first": RoleNeeds(control, ["c"], requires),
            "last": RoleNeeds(control, ["d"], requires),
        }
    )
    assert found.lockstep == (("x", "y"),)
    assert found.order == {"x": ["first"], "y": ["first"], "last": ["x", "y"]}


def test_the_control_plane_can_not_wait_for_the_data_plane() -> None:
    requires = {"a": ["b"]}
    with pytest.raises(UpgradeError) as caught:
        order_among_roles(
            {"control": RoleNeeds("controlplane", ["a"], requires), "data": RoleNeeds("dataplane", ["b"], requires)}
        )
    assert caught.value.code == "bad_service"
    assert caught.value.message.startswith(
        "upgrade_roles: roles wait for each other, control -> data -> control: a requires b, which data has; data is in "
        "the data plane, and control in the control plane. Only roles of the control plane without pull can be upgraded together."
    )
    assert caught.value.details["cycle"] == ["control", "data", "control"]


EDGES = st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES)), max_size=7)


def reach(name: str, edges: dict[str, set[str]]) -> set[str]:
    """Return all roles that a role waits for, directly or through others."""
    found: set[str] = set()
    left = [name]
    while left:
        new = edges.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


@given(EDGES)
def test_roles_go_together_exactly_if_they_wait_for_each_other_and_else_in_an_order(edges: dict[str, set[str]]) -> None:
    edges = {role: firsts - {role} for role, firsts in edges.items()}
    roles = {
        role: RoleNeeds(
            "controlplane", [f"s{role}"], {f"s{role}": [f"s{first}" for first in sorted(edges.get(role, ()))]}
        )
        for role in NAMES
    }
    found = order_among_roles(roles)
    mates = {role: {other for other in reach(role, edges) if role in reach(other, edges)} | {role} for role in NAMES}
    assert {frozenset(group) for group in found.lockstep} == {
        frozenset(group) for group in mates.values() if len(group) > 1
    }
    order = {role: set(firsts) for role, firsts in found.order.items()}
    for role in NAMES:
        assert role not in reach(role, order)
        assert edges.get(role, set()) - mates[role] <= order.get(role, set())
        assert order.get(role, set()) <= reach(role, edges) - mates[role]
