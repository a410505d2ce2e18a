# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instructions: which are valid, which are refused with which message, and how they are stored."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import strategies
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.caps import Cap
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import (
    Instructions,
    find_cycle,
    merge,
    parse,
    with_order,
)
from hypothesis import given
from hypothesis import strategies as st

EVERYTHING = {
    "rolling_rules": {
        "global": "2",
        "roles": {"controller": 1, "ceph": "25%", "bastion": 0},
        "fleet": 30,
        "complete_sets": True,
    },
    "role_order": {"compute": ["controller", "network"], "network": "controller"},
    "group_mappings": {"ceph": ["ceph_mon", "ceph_osd$"], "web": "web"},
}


def refusal(raw: dict[Any, Any]) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        parse(raw)
    assert caught.value.code == "bad_instructions"
    return caught.value


def test_no_instructions_limit_nothing() -> None:
    assert parse({}) == Instructions()


def test_every_key_is_read() -> None:
    assert parse(EVERYTHING) == Instructions(
        default_cap=Cap(2),
        caps={"controller": Cap(1), "ceph": Cap(25, is_percent=True), "bastion": Cap(0)},
        fleet_cap=Cap(30),
        complete_sets=True,
        order={"compute": ("controller", "network"), "network": ("controller",)},
        groups={"ceph": ("ceph_mon", "ceph_osd$"), "web": ("web",)},
    )


@pytest.mark.parametrize(
    "raw",
    [
        {"rolling_rules": None, "role_order": None, "role_dependencies": None, "group_mappings": None},
        {"rolling_rules": {"global": None, "roles": None, "fleet": None}},
        {"rolling_rules": {"roles": {}, "complete_sets": False}, "role_order": {}, "group_mappings": {}},
    ],
)
def test_a_key_without_a_value_counts_as_missing(raw: dict[str, Any]) -> None:
    assert parse(raw) == Instructions()


def test_the_other_name_of_role_order_has_the_same_meaning() -> None:
    order = {"compute": "controller"}

    assert parse({"role_dependencies": order}) == parse({"role_order": order})


def test_both_names_of_role_order_may_be_given_with_the_same_value() -> None:
    both = {
        "role_order": {"compute": ["network", "controller"]},
        "role_dependencies": {"compute": ["controller", "network"]},
    }

    assert parse(both).order == {"compute": ("network", "controller")}


def test_a_name_that_occurs_twice_in_a_list_counts_once() -> None:
    assert parse({"role_order": {"compute": ["network", "network"]}}).order == {"compute": ("network",)}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"rolling_rule": {"global": 1}},
            "instructions: rolling_rule: unknown key; did you mean 'rolling_rules'? "
            "Known are: rolling_rules, group_mappings, role_order, role_dependencies, rollback_order, failure_rules, health, stages, "
            "windows, freezes, history, optional_names.",
        ),
        (
            {"roleorder": {"compute": "controller"}},
            "instructions: roleorder: unknown key; did you mean 'role_order'? "
            "Known are: rolling_rules, group_mappings, role_order, role_dependencies, rollback_order, failure_rules, health, stages, "
            "windows, freezes, history, optional_names.",
        ),
        (
            {"zebra": 1},
            "instructions: zebra: unknown key. "
            "Known are: rolling_rules, group_mappings, role_order, role_dependencies, rollback_order, failure_rules, health, stages, "
            "windows, freezes, history, optional_names.",
        ),
        (
            {1: 2},
            "instructions: 1: unknown key. "
            "Known are: rolling_rules, group_mappings, role_order, role_dependencies, rollback_order, failure_rules, health, stages, "
            "windows, freezes, history, optional_names.",
        ),
        (
            {"rolling_rules": {"globel": 1}},
            "instructions: rolling_rules.globel: unknown key; did you mean 'global'? "
            "Known are: rolling_rules.global, rolling_rules.roles, rolling_rules.fleet, rolling_rules.complete_sets.",
        ),
        (
            {"rolling_rules": {"complete_set": True}},
            "instructions: rolling_rules.complete_set: unknown key; did you mean 'complete_sets'? "
            "Known are: rolling_rules.global, rolling_rules.roles, rolling_rules.fleet, rolling_rules.complete_sets.",
        ),
    ],
)
def test_an_unknown_key_is_refused_and_the_closest_suggested(raw: dict[Any, Any], message: str) -> None:
    assert refusal(raw).message == message


@pytest.mark.parametrize("cap", [-1, 1.5, True, "101%", "many", [1], {"compute": 1}])
@pytest.mark.parametrize(
    ("key", "around"),
    [
        ("rolling_rules.global", lambda cap: {"rolling_rules": {"global": cap}}),
        ("rolling_rules.fleet", lambda cap: {"rolling_rules": {"fleet": cap}}),
        ("rolling_rules.roles.compute", lambda cap: {"rolling_rules": {"roles": {"compute": cap}}}),
    ],
)
def test_an_invalid_cap_is_refused_under_every_key(key: str, around: Any, cap: object) -> None:
    error = refusal(around(cap))

    assert error.message.startswith(f"{key}: {cap!r} is not a cap.")
    assert error.details == {"key": key, "value": str(cap)}


def test_a_cap_of_a_role_can_not_be_left_empty() -> None:
    assert refusal({"rolling_rules": {"roles": {"compute": None}}}).message.startswith(
        "rolling_rules.roles.compute: None is not a cap."
    )


@pytest.mark.parametrize(
    ("raw", "key", "value", "why"),
    [
        ({"rolling_rules": [1]}, "rolling_rules", [1], "is not a mapping of names to values"),
        ({"rolling_rules": 3}, "rolling_rules", 3, "is not a mapping of names to values"),
        ({"rolling_rules": {"roles": ["a"]}}, "rolling_rules.roles", ["a"], "is not a mapping of names to values"),
        ({"rolling_rules": {"roles": {7: 1}}}, "rolling_rules.roles", 7, "is not a name; put it in quotes"),
        ({"rolling_rules": {"roles": {"": 1}}}, "rolling_rules.roles", "", "is not a name; put it in quotes"),
        (
            {"rolling_rules": {"complete_sets": "yes"}},
            "rolling_rules.complete_sets",
            "yes",
            "is neither true nor false",
        ),
        ({"rolling_rules": {"complete_sets": 1}}, "rolling_rules.complete_sets", 1, "is neither true nor false"),
        ({"role_order": ["a", "b"]}, "role_order", ["a", "b"], "is not a mapping of names to values"),
        ({"role_order": {True: "a"}}, "role_order", True, "is not a name; put it in quotes"),
        ({"role_order": {"a": 3}}, "role_order.a", 3, "is neither a text nor a list of texts"),
        ({"role_order": {"a": None}}, "role_order.a", None, "is neither a text nor a list of texts"),
        ({"role_order": {"a": ""}}, "role_order.a", "", "is neither a text nor a list of texts"),
        ({"role_order": {"a": []}}, "role_order.a", [], "is neither a text nor a list of texts"),
        ({"role_order": {"a": ["b", 3]}}, "role_order.a", ["b", 3], "is neither a text nor a list of texts"),
        ({"role_order": {"a": {"b": 1}}}, "role_order.a", {"b": 1}, "is neither a text nor a list of texts"),
        ({"role_dependencies": {"a": [""]}}, "role_dependencies.a", [""], "is neither a text nor a list of texts"),
        ({"group_mappings": "ceph"}, "group_mappings", "ceph", "is not a mapping of names to values"),
        ({"group_mappings": {3: "ceph"}}, "group_mappings", 3, "is not a name; put it in quotes"),
        ({"group_mappings": {"ceph": 3}}, "group_mappings.ceph", 3, "is neither a text nor a list of texts"),
        ({"group_mappings": {"ceph": []}}, "group_mappings.ceph", [], "is neither a text nor a list of texts"),
        (
            {"group_mappings": {"ceph": "(ceph"}},
            "group_mappings.ceph",
            "(ceph",
            "is not a valid regular expression: missing ), unterminated subpattern at position 0",
        ),
        (
            {"group_mappings": {"ceph": ["ceph_mon", "*"]}},
            "group_mappings.ceph",
            "*",
            "is not a valid regular expression: nothing to repeat at position 0",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(raw: dict[str, Any], key: str, value: object, why: str) -> None:
    error = refusal(raw)

    assert error.message == f"instructions: {key}: {value!r} {why}."
    assert error.details == {"key": key, "value": str(value)}


@pytest.mark.parametrize(
    ("order", "shown"),
    [
        ({"a": "a"}, "a waits for a"),
        ({"b": "a", "a": "b"}, "a waits for b waits for a"),
        ({"a": "b", "b": ["x", "c"], "c": ["y", "d"], "d": "b"}, "b waits for c waits for d waits for b"),
    ],
)
def test_a_cycle_is_printed(order: dict[str, Any], shown: str) -> None:
    error = refusal({"role_order": order})

    assert error.message == f"instructions: role_order: a cycle, so none of these can begin: {shown}."
    assert error.details == {"key": "role_order", "cycle": shown.split(" waits for ")}


@pytest.mark.parametrize(
    ("by_name", "by_old_name", "key", "value", "other"),
    [
        ({"compute": "controller"}, {"compute": "network"}, "compute", ["controller"], ["network"]),
        ({"compute": "controller"}, {"network": "controller"}, "compute", ["controller"], []),
        ({}, {"compute": "network"}, "compute", [], ["network"]),
        ({"compute": ["a", "b"]}, {"compute": ["a"]}, "compute", ["a", "b"], ["a"]),
    ],
)
def test_two_orders_that_disagree_are_refused(
    by_name: dict[str, Any], by_old_name: dict[str, Any], key: str, value: list[str], other: list[str]
) -> None:
    assert refusal({"role_order": by_name, "role_dependencies": by_old_name}).message == (
        f"instructions: role_order.{key}: {value!r} disagrees with role_dependencies.{key}, which is {other!r}; "
        "the two are names of one rule, so keep one of them."
    )


def test_the_stored_form_has_one_name_and_one_order_for_everything() -> None:
    assert parse(EVERYTHING).plain() == {
        "rolling_rules": {
            "global": 2,
            "roles": {"bastion": 0, "ceph": "25%", "controller": 1},
            "fleet": 30,
            "complete_sets": True,
        },
        "role_order": {"compute": ["controller", "network"], "network": ["controller"]},
        "group_mappings": {"ceph": ["ceph_mon", "ceph_osd$"], "web": ["web"]},
    }
    assert parse({}).plain() == {}


@given(strategies.rules())
def test_the_stored_form_means_the_same(raw: dict[str, Any]) -> None:
    rules = parse(raw)

    assert parse(rules.plain()) == rules


def test_merging_goes_key_by_key_and_the_upper_wins() -> None:
    base = {"rolling_rules": {"global": 1, "roles": {"compute": 5, "network": 1}}, "role_order": {"compute": "network"}}
    over = {"rolling_rules": {"roles": {"compute": "10%"}, "fleet": 9}, "role_order": {"compute": ["controller"]}}

    assert merge(base, over) == {
        "rolling_rules": {"global": 1, "roles": {"compute": "10%", "network": 1}, "fleet": 9},
        "role_order": {"compute": ["controller"]},
    }
    assert base["rolling_rules"]["roles"] == {"compute": 5, "network": 1}


def test_an_empty_value_of_the_upper_mapping_removes_a_rule() -> None:
    assert parse(merge({"rolling_rules": {"global": 1}}, {"rolling_rules": {"global": None}})) == Instructions()


def test_further_order_is_added_and_replaces_nothing() -> None:
    rules = {"rolling_rules": {"global": "3"}, "role_order": {"compute": "network"}}

    assert with_order(rules, {"compute": ["controller", "network"], "network": "controller"}) == {
        "rolling_rules": {"global": 3},
        "role_order": {"compute": ["network", "controller"], "network": ["controller"]},
    }


def test_further_order_is_checked_too() -> None:
    with pytest.raises(UpgradeError, match=r"role_order\.compute: 3 is neither a text nor a list of texts"):
        with_order({}, {"compute": 3})


@given(strategies.rules(), strategies.rules())
def test_adding_the_same_order_again_changes_nothing(raw: dict[str, Any], more: dict[str, Any]) -> None:
    order = parse(more).plain().get("role_order", {})
    once = with_order(raw, order)

    assert with_order(once, order) == once


NODES = st.sampled_from("abcdef")


@given(st.dictionaries(NODES, st.lists(NODES, max_size=3)))
def test_a_cycle_is_found_if_and_only_if_there_is_one(graph: dict[str, list[str]]) -> None:
    cycle = find_cycle(graph)

    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(after in graph[before] for before, after in pairwise(cycle))
    else:
        assert not any(node in reachable(graph, node) for node in graph)


def reachable(graph: dict[str, list[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = list(graph.get(start, ()))
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left.extend(graph.get(node, ()))
    return found


def test_a_very_long_chain_does_not_overflow_the_stack() -> None:
    chain = {f"r{number}": [f"r{number + 1}"] for number in range(20_000)}

    assert find_cycle(chain) == []
    assert len(find_cycle({**chain, "r20000": ["r0"]})) == 20_002


@pytest.mark.parametrize("value", [None, "", "reversed", "forward"])
def test_a_rollback_reverses_the_order_unless_the_rules_say_otherwise(value: str | None) -> None:
    found = parse({"rollback_order": value})
    assert found.forward_rollback is (value == "forward")
    assert found.plain() == ({"rollback_order": "forward"} if value == "forward" else {})


@pytest.mark.parametrize("value", ["backward", True, ["reversed"]])
def test_another_order_of_a_rollback_is_refused(value: object) -> None:
    assert refusal({"rollback_order": value}).details["key"] == "rollback_order"
