# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``health``: soaking, checks, and hosts that are silent for too long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import UPGRADED as RECORDED_UPGRADED
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import HealthMark
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, next_record
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.health_rules import HealthRules, parse_health_rules
from fleets import NEW, OLD, Fleet, fleet, opened

SOAK = {"health": {"soak": 60}}
CHECKED = {"health": {"soak": 60, "consul_checks": ["nova"]}, "rolling_rules": {"global": 1}}


def test_every_key_is_read_and_written_back() -> None:
    rules = parse_health_rules({"soak": "15m", "progress_deadline": "3h", "consul_checks": "nova"})
    assert rules == HealthRules(900, 10800, ("nova",))
    assert rules.plain() == {"soak": 900, "progress_deadline": 10800, "consul_checks": ["nova"]}
    assert parse_health_rules(None).plain() == {}


def test_a_silent_host_is_lost_after_two_hours_unless_the_rules_say_otherwise() -> None:
    assert parse_health_rules(None).progress_deadline == parse_health_rules({"soak": 1}).progress_deadline == 7200
    never = parse_health_rules({"progress_deadline": "never"})
    assert (never.progress_deadline, never.plain()) == (None, {"progress_deadline": "never"})
    assert parse_health_rules(never.plain()) == never
    # It was admitted and never started.
    site = fleet(compute=2).opened("compute1")
    site.gated_at = 1000
    for now, rules, state in (
        (8200.0, {}, "upgrading"),
        (8201.0, {}, "lost"),
        (99999.0, {"health": {"progress_deadline": "never"}}, "upgrading"),
        (8201.0, {"health": {"progress_deadline": "3h"}}, "upgrading"),
    ):
        site.now = now
        assert site.plan({**rules, "rolling_rules": {"global": 1}}).hosts["compute1"].state == state


def test_a_host_that_joins_a_fleet_long_after_all_gates_were_opened_is_not_lost_for_that() -> None:
    site = fleet(compute=2).upgraded("compute1").gated("True", "global")
    site.gated_at, site.now = 1000, 99999.0
    assert site.plan().hosts["compute2"].state == "upgrading"
    # It counts from its start.
    site.records["compute2"] = HostRecord(NEW, STARTED, times={STARTED: 99999 - 7201})
    assert site.plan().hosts["compute2"].state == "lost"


def test_a_host_that_tags_left_between_steps_is_not_lost_until_it_begins_the_next_one() -> None:
    site = fleet(compute=1).opened("compute1")
    prepared = HostRecord(NEW, STARTED, times={STARTED: 1000}, done=("prepare/nova",), next_step="stop")
    for record, since, state in (
        (prepared, 1000, "upgrading"),
        # The run that goes on with it is killed.
        (next_record(prepared, HostReport("compute1", NEW, STARTED, "nova", "stop"), 90000), 90000, "lost"),
    ):
        site.records["compute1"] = record
        for seconds, found in ((7200.0, "upgrading"), (7201.0, state)):
            site.now = since + seconds
            assert site.plan().hosts["compute1"].state == found


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"soak": "soon"}, "health.soak: 'soon' is not a duration: give whole seconds, or a number with s, m, h or d"),
        ({"soak": -1}, "health.soak: -1 is not a duration"),
        ({"progress_deadline": 0}, "health.progress_deadline: 0 would make every host lost at once"),
        ({"consul_checks": [1]}, "health.consul_checks: [1] is neither a text nor a list of texts"),
        ({"sok": 1}, "health.sok: unknown key; did you mean 'soak'?"),
    ],
)
def test_invalid_values_are_refused(raw: Any, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        parse_health_rules(raw)
    assert message in caught.value.message


def remember(site: Fleet, rules: dict[str, Any]) -> str:
    """Make a pass, store its health marks, and return state and reason of the first host."""
    plan = site.plan(rules)
    site.marks.update(plan.marks)
    view = next(iter(plan.hosts.values()))
    return f"{view.state}: {view.reason}"


def test_a_host_that_reported_soaks_from_the_moment_at_which_a_planner_saw_it() -> None:
    site = fleet(compute=2).opened("compute1").upgraded("compute1")
    assert remember(site, SOAK) == f"upgrading: reported {NEW} and soaks for 60 s more"
    site.now += 59
    assert remember(site, SOAK) == f"upgrading: reported {NEW} and soaks for 1 s more"
    assert site.plan(SOAK).wake_at == site.now + 1
    site.now += 1
    assert remember(site, SOAK) == f"upgraded: runs {NEW}"
    assert site.marks["compute1"] == HealthMark(NEW, 10_000, upgraded=True)


def test_it_keeps_its_slot_while_it_soaks() -> None:
    site = fleet(compute=2).opened("compute1").upgraded("compute1")
    rules = {**SOAK, "rolling_rules": {"global": 1}}
    assert site.plan(rules).admissions == ()
    remember(site, rules)
    site.now += 60
    assert [one.host for one in site.plan(rules).admissions] == ["compute2"]


def test_a_host_whose_check_is_missing_or_not_passing_is_not_healthy() -> None:
    site = fleet(compute=2).opened("compute1").upgraded("compute1")
    site.checks = {}
    assert remember(site, CHECKED) == f"upgrading: reported {NEW}, and has no check nova in Consul"
    site.checks = {"compute1": {"nova": "critical"}}
    assert remember(site, CHECKED) == f"upgrading: reported {NEW}, and its check nova is critical"
    assert site.marks == {"compute1": HealthMark(NEW, None)}
    site.checks["compute1"]["nova"] = "passing"
    assert remember(site, CHECKED) == f"upgrading: reported {NEW} and soaks for 60 s more"


def test_a_check_that_fails_while_the_host_soaks_restarts_the_soak() -> None:
    site = fleet(compute=1).upgraded("compute1")
    site.checks = {"compute1": {"nova": "passing"}}
    remember(site, CHECKED)
    site.now += 50
    site.checks = {"compute1": {"nova": "warning"}}
    assert remember(site, CHECKED) == f"upgrading: reported {NEW}, and its check nova is warning"
    site.checks = {"compute1": {"nova": "passing"}}
    assert remember(site, CHECKED) == f"upgrading: reported {NEW} and soaks for 60 s more"


def test_a_host_whose_health_is_lost_again_has_failed_until_it_has_soaked_again() -> None:
    site = fleet(compute=2).upgraded("compute1")
    site.checks = {"compute1": {"nova": "passing"}, "compute2": {}}
    remember(site, CHECKED)
    site.now += 60
    assert remember(site, CHECKED) == f"upgraded: runs {NEW}"
    site.checks["compute1"] = {"nova": "critical"}
    exhausted = {**CHECKED, "failure_rules": {"fleet": 1}}
    assert remember(site, exhausted) == "failed: was upgraded, and now its check nova is critical"
    assert site.plan(exhausted).blocker is not None
    site.checks["compute1"] = {"nova": "passing"}
    # A check that passes for a moment does not free the budget.
    assert remember(site, exhausted) == "failed: was unhealthy and soaks for 60 s more"
    assert site.plan(exhausted).blocker is not None
    site.now += 59
    assert remember(site, exhausted) == "failed: was unhealthy and soaks for 1 s more"
    site.now += 1
    assert remember(site, exhausted) == f"upgraded: runs {NEW}"
    assert site.plan(exhausted).blocker is None


def reported(site: Fleet, at: int, **more: Any) -> None:
    site.records["compute1"] = HostRecord(NEW, RECORDED_UPGRADED, times={RECORDED_UPGRADED: at}, **more)


@pytest.mark.parametrize("saw_it_pass", [True, False])
def test_a_host_whose_check_fails_for_too_long_after_its_report_is_lost_until_it_passes(saw_it_pass: bool) -> None:
    rules: dict[str, Any] = {
        "health": {"soak": 60, "consul_checks": ["nova"], "progress_deadline": 300},
        "rolling_rules": {"global": 2},
        "failure_rules": {"fleet": 1},
    }
    site = fleet(compute=2).upgraded("compute1")
    reported(site, 10_000)
    site.checks = {"compute1": {"nova": "passing" if saw_it_pass else "critical"}, "compute2": {}}
    remember(site, rules)
    site.checks["compute1"] = {"nova": "critical"}
    site.now = 10_030
    remember(site, rules)
    if saw_it_pass:
        # As planners store it.
        site.marks["compute1"] = replace(site.marks["compute1"], written_at=10_030)
    died_at = 10_030 if saw_it_pass else 10_000
    site.now = died_at + 300
    assert remember(site, rules) == f"upgrading: reported {NEW}, and its check nova is critical"
    assert opened(site.plan(rules)) == ["compute2"]
    site.now += 1
    assert remember(site, rules) == (
        f"lost: reported {NEW}, and its check nova is critical, for 301 s, and health.progress_deadline is 300 s"
    )
    plan = site.plan(rules)
    assert plan.blocker is not None
    assert (plan.blocker.code, plan.admissions, plan.hosts["compute1"].soaking) == ("failure_budget", (), False)
    never = {**rules, "health": {**rules["health"], "progress_deadline": "never"}}
    assert remember(site, never).startswith("upgrading: ")
    site.checks["compute1"] = {"nova": "passing"}
    assert remember(site, rules) == f"upgrading: reported {NEW} and soaks for 60 s more"
    # One that has just begun to fail has all of its time.
    site.checks["compute1"] = {"nova": "critical"}
    assert site.plan(rules).hosts["compute1"].state == "upgrading"


def test_a_check_that_planners_see_fail_for_the_first_time_has_all_of_its_time() -> None:
    rules = {"health": {"soak": 60, "consul_checks": ["nova"], "progress_deadline": 300}}
    site = fleet(compute=1).upgraded("compute1")
    # No planner has looked since, or the rules had no check until now.
    reported(site, 1_000)
    site.checks = {"compute1": {"nova": "critical"}}
    assert remember(site, rules) == f"upgrading: reported {NEW}, and its check nova is critical"
    site.marks["compute1"] = replace(site.marks["compute1"], written_at=10_000)
    site.now = 10_300
    assert remember(site, rules).startswith("upgrading: ")
    site.now = 10_301
    assert remember(site, rules).startswith("lost: ")


def test_a_host_is_not_lost_by_its_checks_after_its_post_upgrade_tasks() -> None:
    rules = {"health": {"soak": 60, "consul_checks": ["nova"], "progress_deadline": 300}}
    site = fleet(compute=1).upgraded("compute1")
    reported(site, 1_000, post="done")
    site.checks = {"compute1": {"nova": "critical"}}
    assert remember(site, rules).startswith("upgrading: ")


def test_a_longer_time_to_soak_is_no_loss_of_health() -> None:
    site = fleet(compute=1).upgraded("compute1")
    site.marks["compute1"] = HealthMark(NEW, 9_990, upgraded=True)
    assert remember(site, SOAK) == f"upgrading: reported {NEW} and soaks for 50 s more"


def test_a_planner_that_waits_for_a_check_reads_again_soon() -> None:
    site = fleet(compute=1).opened("compute1").upgraded("compute1")
    site.checks = {"compute1": {"nova": "critical"}}
    assert site.plan(CHECKED).wake_at == site.now + 5
    site.checks = {"compute1": {"nova": "passing"}}
    remember(site, CHECKED)
    assert site.plan(CHECKED).wake_at == site.now + 5
    site.now += 58
    assert site.plan(CHECKED).wake_at == site.now + 2


def there_before(**roles: int) -> Fleet:
    """A rollout to a version that all hosts except the last one had already reported when it began."""
    site = fleet(**roles)
    *most, last = site.members
    site.upgraded(*most)
    site.reported_at = dict.fromkeys(most, 500.0)
    site.ledger = Ledger(1, NEW, OLD, begun_index=600)
    return site.running(OLD, last)


def test_hosts_that_reported_the_version_before_the_rollout_do_not_soak() -> None:
    site = there_before(compute=3)
    rules = {**SOAK, "rolling_rules": {"global": 1}}
    assert remember(site, rules) == f"upgraded: runs {NEW}"
    assert [one.host for one in site.plan(rules).admissions] == ["compute3"]
    site.reported_at["compute1"] = 601.0
    site.marks.clear()
    assert remember(site, rules) == f"upgrading: reported {NEW} and soaks for 60 s more"


def test_a_host_that_reported_before_the_rollout_fails_if_its_checks_fail() -> None:
    site = there_before(compute=3)
    site.checks = {"compute1": {"nova": "critical"}, "compute2": {"nova": "passing"}}
    assert remember(site, CHECKED) == "failed: was upgraded, and now its check nova is critical"
    # No host waits for one that was broken before a rollback began.
    assert site.plan(CHECKED).admissions == ()
    site.ledger = Ledger(1, NEW, OLD, begun_index=600, rollback=True, broken=("compute1",))
    assert [one.host for one in site.plan(CHECKED).admissions] == ["compute3"]


def test_health_marks_of_another_version_are_ignored() -> None:
    site = fleet(compute=1).upgraded("compute1")
    site.marks["compute1"] = HealthMark(OLD, 1, upgraded=True)
    assert remember(site, SOAK).startswith("upgrading: ")


def test_without_checks_the_health_marks_count() -> None:
    site = fleet(compute=1).upgraded("compute1")
    assert remember(site, CHECKED) == f"upgrading: reported {NEW}; its checks are not known yet"
    site.marks["compute1"] = HealthMark(NEW, 1, upgraded=True)
    assert remember(site, CHECKED) == f"upgraded: runs {NEW}"


def test_an_open_host_that_is_silent_for_too_long_is_lost_and_keeps_its_slot() -> None:
    rules = {"health": {"progress_deadline": 300}, "rolling_rules": {"global": 1}}
    site = fleet(compute=2).opened("compute1")
    site.gated_at = 9_900
    assert remember(site, rules).startswith("upgrading: ")
    assert site.plan(rules).wake_at == 10_200
    site.now = 10_201
    assert remember(site, rules) == "lost: silent for 301 s, and health.progress_deadline is 300 s"
    assert site.plan(rules).admissions == ()
    # It reports a step, then the end.
    site.records["compute1"] = HostRecord(NEW, STARTED, times={STARTED: 10_150})
    assert remember(site, rules).startswith("upgrading: ")
    site.now = 11_000
    assert remember(site, rules).startswith("lost: ")
    site.upgraded("compute1")
    assert remember(site, rules) == f"upgraded: runs {NEW}"


def test_report_times_in_the_future_do_not_count() -> None:
    rules = {"health": {"progress_deadline": 300}}
    site = fleet(compute=1).opened("compute1")
    site.gated_at = 9_900
    site.records["compute1"] = HostRecord(NEW, STARTED, times={"retried": 9_950, STARTED: 99_999})
    assert site.plan(rules).wake_at == 10_250
    site.now = 10_251
    assert remember(site, rules) == "lost: silent for 301 s, and health.progress_deadline is 300 s"
    site.records["compute1"] = HostRecord(NEW, STARTED, times={STARTED: 99_999})
    assert remember(site, rules) == "lost: silent for 351 s, and health.progress_deadline is 300 s"


def test_without_any_time_no_host_is_lost() -> None:
    site = fleet(compute=1).opened("compute1")
    assert remember(site, {"health": {"progress_deadline": 1}}).startswith("upgrading: ")


def test_a_planner_whose_clock_is_behind_ends_no_soak_early_for_the_others() -> None:
    site = fleet(compute=2).opened("compute1").upgraded("compute1")
    remember(site, SOAK)
    site.now -= 900
    assert remember(site, SOAK) == f"upgrading: reported {NEW} and soaks for 60 s more"
    assert site.plan(SOAK).wake_at == site.now + 60
    site.now += 901
    assert remember(site, SOAK) == f"upgrading: reported {NEW} and soaks for 59 s more"
    # Both have written what they have to.
    assert site.plan(SOAK).marks == {}
    site.now -= 900
    assert site.plan(SOAK).marks == {}
    # By either clock, it is over after its time, and the other one sees that.
    site.now += 59
    assert remember(site, SOAK) == f"upgraded: runs {NEW}"
    site.now += 900
    assert remember(site, SOAK) == f"upgraded: runs {NEW}"


def test_clocks_that_differ_a_little_share_no_time_with_one_that_is_far_behind() -> None:
    site = fleet(compute=2).opened("compute1").upgraded("compute1")
    remember(site, SOAK)
    site.now -= 86_400
    remember(site, SOAK)
    site.now += 86_400 - 2
    assert remember(site, SOAK) == f"upgrading: reported {NEW} and soaks for 62 s more"
    assert site.plan(SOAK).marks == {}


def test_a_time_hours_in_the_future_makes_no_soak_longer() -> None:
    site = fleet(compute=2).opened("compute1").upgraded("compute1")
    site.now += 7200
    remember(site, SOAK)
    site.now -= 7200
    assert remember(site, SOAK) == f"upgrading: reported {NEW} and soaks for 60 s more"
    site.now += 60
    assert remember(site, SOAK) == f"upgraded: runs {NEW}"
    assert site.marks["compute1"] == HealthMark(NEW, 10_000, upgraded=True)
