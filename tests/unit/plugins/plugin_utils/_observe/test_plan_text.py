# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as text."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import (
    blocked_summary,
    fleet_summary,
    forecast_summary,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView, Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_checks.rule_text import rule_line
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.plan_text import (
    duration_in_words,
    plan_lines,
    rule_lines,
)

PAUSED = {
    "code": "paused",
    "reason": "the rollout is paused by ann; continue with ansible-playbook convoy.upgrade.resume",
    "until": 0,
}


def view(state: str, reason: str = "because") -> HostView:
    return HostView("compute", None, state, "v1", reason)


def result(
    hosts: dict[str, HostView], waves: list[list[str]], wave_seconds: list[float] | None = None, **more: Any
) -> dict[str, Any]:
    plan = Plan(waves=[tuple(wave) for wave in waves], wave_seconds=wave_seconds or [0.0] * len(waves))
    found = {"version": "v2", "previous_version": "v1", **fleet_summary(hosts), "forecast": forecast_summary(plan)}
    return {**found, "blocked": blocked_summary(plan, hosts), "instructions": {}, **more}


def test_a_plan_shows_its_rules_its_waves_and_blocked_hosts() -> None:
    hosts = {"c1": view("upgrading", "open"), "c2": view("pending"), "c3": view("held", "held by ann")}
    rules = {"rolling_rules": {"global": 1, "roles": {"compute": "10%"}}, "stages": [{"name": "canary"}]}
    assert plan_lines(result(hosts, [["c1"], ["c2"]], instructions=rules)) == [
        "Plan: to v2 from v1: 0 of 3 hosts upgraded",
        "Rules:",
        "  rolling_rules.global: 1",
        "  rolling_rules.roles.compute: 10%",
        "  stages[0]: canary, all that are left",
        "",
        "wave  hosts  who",
        " now      1  c1",
        "   2      1  c2",
        "",
        "Blocked, and needs an operator:",
        "held:",
        "  c3: held by ann",
    ]


def test_each_rule_has_its_source() -> None:
    rules = {"rolling_rules": {"global": 1}, "role_order": {"web": ["db"]}}
    sources = {"rolling_rules.global": "rules.yml", "role_order.web": "upgrade_roles"}
    assert plan_lines(result({}, [], instructions=rules, sources=sources))[1:4] == [
        "Rules:",
        '  role_order.web: ["db"] (from upgrade_roles)',
        "  rolling_rules.global: 1 (from rules.yml)",
    ]


def test_a_plan_names_the_rollout_that_it_replaces() -> None:
    replaces = {"version": "v0", "state": "paused", "who": "ann@admin1", "since": 7}
    assert plan_lines(result({}, [], replaces=replaces))[1] == (
        "It replaces the rollout to v0, which ann@admin1 began and which is paused. Its stages, approvals and failure budgets end with it."
    )


def test_times_are_shown_if_durations_are_known() -> None:
    hosts = {f"c{number}": view("pending") for number in range(1, 4)}
    assert plan_lines(result(hosts, [["c1"], ["c2"], ["c3"]], wave_seconds=[90.0, 3700.0, 45.0]))[2:] == [
        "",
        "wave  hosts   begins   takes  who",
        " now      1      +0s  1m 30s  c1",
        "   2      1  +1m 30s   1h 1m  c2",
        "   3      1   +1h 3m     45s  c3",
        "About 1h 3m in all, if each host takes as long as its role did last time.",
    ]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, ""),
        ({"stages": [{"name": "canary"}], "windows": []}, ""),
        ({"stages": [{"name": "canary", "soak": 60}]}, ", besides soak of stages"),
        (
            {
                "stages": [{"name": "canary", "soak": 60}, {"name": "tenth", "approve": True}],
                "windows": [{"days": "mon"}],
            },
            ", besides soak and approval of stages, closed windows",
        ),
    ],
)
def test_a_plan_says_what_its_times_leave_out(rules: dict[str, Any], expected: str) -> None:
    lines = plan_lines(result({"c1": view("pending")}, [["c1"]], wave_seconds=[90.0], instructions=rules))
    assert lines[-1] == f"About 1m 30s in all{expected}, if each host takes as long as its role did last time."


def test_the_stages_of_a_rollback_take_no_time_besides() -> None:
    rules = {"stages": [{"name": "canary", "soak": 60, "approve": True}], "freezes": [{"from": "2020-01-01"}]}
    found = result(
        {"c1": view("pending")}, [["c1"]], wave_seconds=[90.0], instructions=rules, rollback_order="reversed", order={}
    )
    assert plan_lines(found)[-1].startswith("About 1m 30s in all, besides freezes, if each")


def test_a_long_plan_is_truncated() -> None:
    waves: list[list[str]] = [[], *([f"c{number}"] for number in range(20))]
    lines = plan_lines(result({f"c{number}": view("pending") for number in range(20)}, waves))
    assert lines[1] == "Rules: none"
    assert lines[4] == " now      0  none: because"
    assert lines[-1] == "and 9 waves more with 9 hosts"


def test_a_finished_plan_admits_no_host() -> None:
    assert plan_lines(result({"c1": view("upgraded")}, []))[-1] == "No host is left to admit."


def test_stage_and_blocker_follow_the_rules() -> None:
    shown = plan_lines(
        result({"c1": view("pending")}, [[], ["c1"]], stage="canary", needs_approval=False, blocker=PAUSED)
    )
    assert shown == [
        "Plan: to v2 from v1: 0 of 1 host upgraded",
        "Rules: none",
        "Stage canary",
        "No host is admitted: the rollout is paused by ann; continue with ansible-playbook convoy.upgrade.resume",
        "",
        "wave  hosts  who",
        " now      0  none: the rollout is paused by ann; continue with ansible-playbook convoy.upgrade.resume",
        "   2      1  c1",
    ]


def test_after_an_abort_the_remaining_hosts_are_blocked() -> None:
    reason = (
        "the rollout was aborted by ann; begin another one, or roll back with ansible-playbook convoy.upgrade.rollback"
    )
    hosts = {"c1": view("upgrading", "open"), "c2": view("pending", reason)}
    stopped = {"blocker": {"code": "aborted", "reason": reason, "until": 0}, "stage": "", "needs_approval": False}
    assert plan_lines(result(hosts, [], **stopped)) == [
        "Plan: to v2 from v1: 0 of 2 hosts upgraded",
        "Rules: none",
        f"No host is admitted: {reason}",
        "No host is left to admit.",
        "",
        "Blocked, and needs an operator:",
        "pending:",
        f"  c2: {reason}",
    ]


def test_a_rule_is_shown_with_the_key_of_messages() -> None:
    rules = {
        "role_order": {"compute": ["controller"]},
        "rolling_rules": {"roles": {"a.b": 1}, "complete_sets": True},
        "freezes": [{"from": "2026-12-24", "to": "2026-12-27"}, {"from": "2027-01-01", "to": "2027-01-02"}],
        "windows": [],
    }
    lines = rule_lines(rules)
    assert [line.partition(":")[0] for line in lines] == [
        *("freezes[0]", "freezes[1]", "role_order.compute", "rolling_rules.complete_sets", "rolling_rules.roles.a.b"),
        "windows",
    ]
    assert lines == [rule_line(rules, line.partition(":")[0]) for line in lines]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.6, "1m"), (61, "1m 1s"), (3600, "1h"), (3661, "1h 1m"), (90_000, "1d 1h"), (86_460, "1d")],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_in_words(seconds) == text
