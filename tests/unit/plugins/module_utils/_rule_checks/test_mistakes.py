# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All mistakes of instructions at once, each with its key, and no others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_checks.mistakes import mistakes_of
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from hypothesis import given
from hypothesis import strategies as st

GOOD: dict[str, Any] = {
    "rolling_rules": {"global": 2, "roles": {"a.b": 1, "web": "10%"}, "fleet": 30, "complete_sets": True},
    "role_order": {"web": ["db", "mq"], "cache": "db"},
    "group_mappings": {"ceph": ["ceph_mon", "ceph_osd"]},
    "failure_rules": {"fleet": 3, "roles": {"web": 1}},
    "health": {"soak": "5m", "progress_deadline": 60, "consul_checks": ["a", "b"]},
    "stages": [{"name": "one", "hosts": 1, "soak": 60}, {"name": "two", "hosts": ["x", "y"], "roles": "web"}],
    "windows": [{"days": ["mon", "tue-thu"], "from": "22:00", "to": "05:00", "timezone": "Europe/Berlin"}],
    "freezes": [
        {"from": "2026-12-20", "to": "2027-01-06", "reason": "holidays"},
        {"from": "2027-05-01", "to": "2027-05-02"},
    ],
}

# The path, the value that is written there, and the key of the mistake.
WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (("rolling_rulez",), 1, "rolling_rulez"),
    (("rolling_rules", "flet"), 1, "rolling_rules.flet"),
    (("rolling_rules", "global"), "two", "rolling_rules.global"),
    (("rolling_rules", "roles", "a.b"), -1, "rolling_rules.roles.a.b"),
    (("rolling_rules", "roles", "web"), "110%", "rolling_rules.roles.web"),
    (("rolling_rules", "complete_sets"), "yes", "rolling_rules.complete_sets"),
    (("role_order", "web"), 7, "role_order.web"),
    (("role_order", "db"), "cache", "role_order"),
    (("group_mappings", "ceph", 1), "(", "group_mappings.ceph"),
    (("group_mappings", ""), "x", "group_mappings"),
    (("failure_rules", "roles", "web"), 0, "failure_rules.roles.web"),
    (("failure_rules", "fleet"), [], "failure_rules.fleet"),
    (("health", "soak"), "1y", "health.soak"),
    (("health", "progress_deadline"), 0, "health.progress_deadline"),
    (("health", "consul_checks", 0), 'a"b', "health.consul_checks"),
    (("stages", 0, "name"), "a/b", "stages[0].name"),
    (("stages", 0, "hosts"), 0, "stages[0].hosts"),
    (("stages", 0, "soak"), "soon", "stages[0].soak"),
    (("stages", 1, "hosts"), [], "stages[1].hosts"),
    (("stages", 1, "roles"), {}, "stages[1].roles"),
    (("stages", 1, "approve"), "no", "stages[1].approve"),
    (("windows", 0, "days", 1), "fry", "windows[0].days"),
    (("windows", 0, "from"), 22, "windows[0].from"),
    (("windows", 0, "to"), "26:00", "windows[0].to"),
    (("windows", 0, "timezone"), "Mars/Olympus", "windows[0].timezone"),
    (("freezes", 0, "from"), "tomorrow", "freezes[0].from"),
    (("freezes", 0, "reason"), 3, "freezes[0].reason"),
    (("freezes", 1), 5, "freezes[1]"),
]


def with_mistakes(*chosen: tuple[tuple[Any, ...], Any, str]) -> dict[str, Any]:
    """Return valid rules with these values written into them."""
    rules = copy.deepcopy(GOOD)
    for path, value, _key in chosen:
        node: Any = rules
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = value
    return rules


def keys(rules: dict[str, Any]) -> list[str]:
    return [one.key for one in mistakes_of(rules)]


def test_valid_rules_have_no_mistakes() -> None:
    assert mistakes_of(GOOD) == []


@given(st.sets(st.sampled_from(range(len(WRONG)))))
def test_each_mistake_is_reported_once_with_its_key(chosen: set[int]) -> None:
    wrong = [WRONG[at] for at in sorted(chosen)]
    rules = with_mistakes(*wrong)
    before = copy.deepcopy(rules)

    assert sorted(keys(rules)) == sorted(key for _path, _value, key in wrong)
    assert rules == before


@pytest.mark.parametrize("wrong", WRONG, ids=[key for _path, _value, key in WRONG])
def test_the_message_is_the_parsers(wrong: tuple[tuple[Any, ...], Any, str]) -> None:
    rules = with_mistakes(wrong)

    with pytest.raises(UpgradeError) as caught:
        parse(rules)
    assert [one.message for one in mistakes_of(rules)] == [caught.value.message]


def test_the_path_ends_where_the_rules_do() -> None:
    rules = with_mistakes(WRONG[3], WRONG[-2])
    del rules["windows"][0]["to"]

    assert {one.key: one.path for one in mistakes_of(rules)} == {
        "rolling_rules.roles.a.b": ("rolling_rules", "roles", "a.b"),
        "freezes[0].reason": ("freezes", 0, "reason"),
        "windows[0].to": ("windows", 0),
    }


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ({"role_order": {"a": "b", "b": "a", "c": ["d"], "d": ["x", "c"]}}, ["role_order", "role_order"]),
        ({"role_dependencies": {"a": "a", "b": 3}}, ["role_dependencies.b", "role_order"]),
        ({"role_order": {"a": "b", "c": "d"}, "role_dependencies": {"a": "x", "c": "y"}}, ["role_order.a", "role_order.c"]),
        ({"stages": [{}, {"hosts": 1}, 3]}, ["stages[2]", "stages[0]"]),
        ({"stages": [{"hosts": 1, "name": "a"}, {"hosts": 1, "name": "a"}]}, ["stages[1].name"]),
        ({"stages": [{"soak": 5, "approve": True}]}, ["stages[0].soak", "stages[0].approve"]),
        ({"freezes": [{}, {"from": "2027-01-02", "to": "2027-01-01"}]}, ["freezes[0].from", "freezes[0].to", "freezes[1].to"]),
        ({"freezes": [{"from": "5000-01-01", "to": "4000-01-01"}]}, ["freezes[0].to", "freezes[0].to"]),
        ({"windows": 5, "stages": "x", "health": []}, ["health", "stages", "windows"]),
        ({"group_mappings": {"x": ["("], 7: "y"}}, ["group_mappings", "group_mappings.x"]),
    ],
)  # fmt: skip
def test_mistakes_that_concern_several_places(rules: dict[str, Any], found: list[str]) -> None:
    assert keys(rules) == found
