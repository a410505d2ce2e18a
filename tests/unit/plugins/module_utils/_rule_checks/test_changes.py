# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of a rollout's rules."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_checks.changes import (
    changed_keys,
    refuse_left_out,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import KEYS, parse

STORED: dict[str, Any] = {"rolling_rules": {"global": 1}, "failure_rules": {"fleet": 1}, "stages": [{"hosts": 1}]}


def refuse(given: dict[str, Any], stored: dict[str, Any] | None = None) -> None:
    refuse_left_out(STORED if stored is None else stored, given, "2", "upgrade/ledger")


def test_left_out_rules_are_refused_with_both_solutions() -> None:
    with pytest.raises(UpgradeError) as caught:
        refuse({"failure_rules": {"fleet": 3}})
    assert caught.value.code == "rules_left_out"
    assert caught.value.details == {"missing": ["rolling_rules", "stages"], "instructions": STORED}
    assert caught.value.message == (
        "instructions: rolling_rules, stages are missing, but the rollout to 2 has them in upgrade/ledger. Instructions "
        "replace all rules of the rollout, so nothing is changed. Give all rules again; the current ones are "
        f"{json.dumps(STORED, sort_keys=True)}. To remove the missing ones, give empty values: "
        "rolling_rules: {}, stages: []."
    )


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, [*STORED]),
        ({**STORED, "stages": None}, ["stages"]),
        ({**STORED, "stages": []}, []),
        ({"rolling_rules": {}, "failure_rules": {}, "stages": []}, []),
        ({**STORED, "health": {"soak": 5}}, []),
    ],
)
def test_only_what_is_not_given_is_missing_and_a_null_gives_nothing(given: dict[str, Any], missing: list[str]) -> None:
    if not missing:
        return refuse(given)
    with pytest.raises(UpgradeError) as caught:
        refuse(given)
    assert caught.value.details["missing"] == missing
    return None


def test_both_names_of_the_order_count_and_unknown_stored_keys_are_not_required() -> None:
    refuse({"role_dependencies": {}}, {"role_order": {"a": ["b"]}})
    refuse({"role_order": {}}, {"role_dependencies": {"a": ["b"]}, "rolling": 1, "health": {}})


CAPS = {"rolling_rules": {"global": 1, "fleet": 3, "complete_sets": True, "roles": {"db": 1, "web": 2}}}
BUDGETS = {"failure_rules": {"global": 1, "fleet": 3, "roles": {"db": 1}}}
HEALTH = {"health": {"soak": 5, "progress_deadline": 60, "consul_checks": ["ok"]}}


@pytest.mark.parametrize(
    ("given", "stored", "missing"),
    [
        (
            {"rolling_rules": {"global": 5}},
            CAPS,
            ["rolling_rules.fleet", "rolling_rules.complete_sets", "rolling_rules.roles"],
        ),
        ({"failure_rules": {"fleet": 3}}, BUDGETS, ["failure_rules.global", "failure_rules.roles"]),
        ({"health": {"soak": 5}}, HEALTH, ["health.progress_deadline", "health.consul_checks"]),
    ],
)
def test_caps_budgets_and_health_rules_are_left_out_one_by_one(
    given: dict[str, Any], stored: dict[str, Any], missing: list[str]
) -> None:
    with pytest.raises(UpgradeError) as caught:
        refuse(given, stored)
    assert sorted(caught.value.details["missing"]) == sorted(missing)


@pytest.mark.parametrize("stored", [CAPS, BUDGETS, HEALTH])
def test_each_rule_of_a_key_can_be_removed_with_the_empty_value_in_the_message(stored: dict[str, Any]) -> None:
    ((key, rules),) = stored.items()
    for kept in rules:
        with pytest.raises(UpgradeError) as caught:
            refuse({key: {kept: rules[kept]}}, stored)
        empty = dict(re.findall(rf"{key}\.(\w+): ([^,.]+)", caught.value.message.rpartition(" empty values: ")[2]))
        given = {key: {kept: rules[kept], **{name: json.loads(value) for name, value in empty.items()}}}
        assert set(given[key]) == set(rules)
        refuse(given, stored)
        assert parse(given).plain() == {key: {kept: rules[kept]}}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_can_be_removed_with_the_empty_value_in_the_message(key: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        refuse({}, {key: {"x": 1}})
    _name, empty = caught.value.message.removesuffix(".").rpartition(": ")[::2]
    given = {key: json.loads(empty)}
    assert parse(given).plain() == {}
    refuse(given, {key: {"x": 1}})


def test_changed_keys_have_before_and_after_truncated() -> None:
    after = {**STORED, "failure_rules": {"fleet": 3}, "group_mappings": {"a": "b" * 9000}}
    del after["stages"]
    found = changed_keys(STORED, after)
    assert found["failure_rules"] == {"before": '{"fleet": 1}', "after": '{"fleet": 3}'}
    assert found["stages"] == {"before": '[{"hosts": 1}]', "after": ""}
    assert (found["group_mappings"]["before"], len(found["group_mappings"]["after"])) == ("", 500)
    assert set(found) == {"failure_rules", "stages", "group_mappings"}
