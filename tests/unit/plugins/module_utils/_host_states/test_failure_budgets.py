# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failure budgets: which of them the broken hosts of a fleet use up, and what that blocks."""

from __future__ import annotations

from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.failure_budgets import (
    ExhaustedBudgets,
    exhausted_budgets,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.failure_rules import parse_failure_rules
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import resolve
from fleets import fleet


def exhausted(raw: dict[str, Any], groups: dict[str, str] | None = None, **broken: list[str]) -> ExhaustedBudgets:
    order = resolve(parse({"group_mappings": groups or {}}), ["compute", "web", "db"])
    sizes = {"compute": 20, "web": 4, "db": 2}
    return exhausted_budgets(parse_failure_rules(raw), order, sizes, broken)


def test_a_budget_is_exhausted_when_as_many_hosts_are_broken_as_it_says() -> None:
    assert exhausted({"fleet": 2}, web=["web1"]) == ExhaustedBudgets()
    found = exhausted({"fleet": 2}, web=["web1"], db=["db2"])
    assert found.fleet is not None
    assert found.fleet.hosts == ("db2", "web1")
    assert found.fleet.reason() == (
        "the fleet has 2 failed or lost hosts (db2, web1), and failure_rules.fleet stops it at 2; fix them, or give "
        "all rules again with failure_rules.fleet raised"
    )
    assert (found.by_role, found.keys) == ({}, ("failure_rules.fleet",))


def test_a_percent_is_taken_of_the_role_and_is_one_host_at_least() -> None:
    assert exhausted({"roles": {"compute": "10%"}}, compute=["compute1"]).by_role == {}
    assert set(exhausted({"roles": {"compute": "10%"}}, compute=["compute1", "compute2"]).by_role) == {"compute"}
    assert set(exhausted({"global": "10%"}, db=["db1"]).by_role) == {"db"}


def test_roles_of_a_group_share_a_budget() -> None:
    found = exhausted({"global": 2}, {"front": "web|db"}, web=["web1"], db=["db1"])
    assert set(found.by_role) == {"web", "db"}
    assert found.by_role["web"].what == "group front"
    assert found.by_role["web"].hosts == ("db1", "web1")
    assert found.keys == ("failure_rules.global",)


def test_a_role_with_an_exhausted_budget_stops_and_others_go_on() -> None:
    site = fleet(compute=4, web=2).failed("compute1")
    plan = site.plan({"rolling_rules": {"global": 2}, "failure_rules": {"global": 1}})
    assert [one.host for one in plan.admissions] == ["web1", "web2"]
    assert plan.hosts["compute2"].reason == (
        "no more hosts of role compute are admitted: role compute has 1 failed or lost host (compute1), and failure_rules.global stops it at 1; "
        "fix it, or give all rules again with failure_rules.global raised"
    )


def test_an_exhausted_budget_of_the_fleet_stops_all_roles_and_lets_hosts_finish() -> None:
    site = fleet(compute=4, web=2).failed("compute1").opened("web1").started("web1")
    plan = site.plan({"failure_rules": {"fleet": 1}})
    assert plan.admissions == ()
    assert plan.can_move
    assert plan.blocker is not None
    assert (plan.blocker.code, plan.blocker.is_temporary) == ("failure_budget", False)
    site.upgraded("web1")
    assert not site.plan({"failure_rules": {"fleet": 1}}).can_move
