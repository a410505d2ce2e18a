# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``failure_rules``: what is read, what is refused, and which budgets the broken hosts of a fleet use up."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.failure_budgets import spent_budgets
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.caps import Cap
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.failure_rules import (
    FailureRules,
    parse_failure_rules,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import resolve
from fleets import fleet

EVERYTHING = {"global": 2, "roles": {"compute": "10%"}, "fleet": 5}


def test_every_key_is_read_and_written_back() -> None:
    rules = parse_failure_rules(EVERYTHING)
    assert rules == FailureRules(Cap(2), {"compute": Cap(10, is_percent=True)}, Cap(5))
    assert rules.plain() == EVERYTHING
    assert parse_failure_rules(None).plain() == {}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (3, "instructions: failure_rules: 3 is not a mapping of names to values."),
        (
            {"flet": 1},
            "instructions: failure_rules.flet: unknown key; did you mean 'fleet'? Known are: failure_rules.global,",
        ),
        (
            {"fleet": 0},
            "failure_rules.fleet: 0 would stop a rollout before it begins; 1 stops it at the first failure.",
        ),
        ({"roles": {"web": "0%"}}, "failure_rules.roles.web: '0%' would stop a rollout before it begins"),
        ({"global": -1}, "failure_rules.global: -1 is no cap."),
    ],
)
def test_what_makes_no_sense_is_refused(raw: Any, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        parse_failure_rules(raw)
    assert message in caught.value.message


def spent(raw: dict[str, Any], groups: dict[str, str] | None = None, **broken: list[str]) -> tuple[Any, dict[str, Any]]:
    order = resolve(parse({"group_mappings": groups or {}}), ["compute", "web", "db"])
    members = {"compute": 20, "web": 4, "db": 2}
    return spent_budgets(parse_failure_rules(raw), order, members, broken)


def test_a_budget_is_spent_when_as_many_hosts_are_broken_as_it_says() -> None:
    assert spent({"fleet": 2}, web=["web1"]) == (None, {})
    everywhere, by_role = spent({"fleet": 2}, web=["web1"], db=["db2"])
    assert everywhere.hosts == ("db2", "web1")
    assert everywhere.reason() == (
        "the fleet has 2 failed or lost hosts (db2, web1), and failure_rules.fleet stops at 2: mend and retry them, or give "
        "all rules again with failure_rules.fleet raised"
    )
    assert by_role == {}


def test_a_percent_is_taken_of_the_role_and_is_one_host_at_least() -> None:
    assert spent({"roles": {"compute": "10%"}}, compute=["compute1"])[1] == {}
    assert set(spent({"roles": {"compute": "10%"}}, compute=["compute1", "compute2"])[1]) == {"compute"}
    assert set(spent({"global": "10%"}, db=["db1"])[1]) == {"db"}


def test_roles_of_a_group_share_a_budget() -> None:
    _everywhere, by_role = spent({"global": 2}, {"front": "web|db"}, web=["web1"], db=["db1"])
    assert set(by_role) == {"web", "db"}
    assert by_role["web"].what == "group front"
    assert by_role["web"].hosts == ("db1", "web1")


def test_a_role_with_a_spent_budget_stops_and_others_go_on() -> None:
    site = fleet(compute=4, web=2).failed("compute1")
    plan = site.plan({"rolling_rules": {"global": 2}, "failure_rules": {"global": 1}})
    assert [one.host for one in plan.openings] == ["web1", "web2"]
    assert plan.hosts["compute2"].reason == (
        "no more of role compute go: role compute has 1 failed or lost host (compute1), and failure_rules.global stops at 1: "
        "mend and retry it, or give all rules again with failure_rules.global raised"
    )


def test_a_spent_budget_of_the_fleet_stops_everybody_and_lets_hosts_finish() -> None:
    site = fleet(compute=4, web=2).failed("compute1").opened("web1").started("web1")
    plan = site.plan({"failure_rules": {"fleet": 1}})
    assert plan.openings == ()
    assert plan.can_move
    assert plan.brake is not None
    assert (plan.brake.code, plan.brake.passes) == ("budget_spent", False)
    site.upgraded("web1")
    assert not site.plan({"failure_rules": {"fleet": 1}}).can_move
