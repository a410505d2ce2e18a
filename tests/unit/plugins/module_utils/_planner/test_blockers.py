# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Blockers of a rollout that is paused, aborted or rolled back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import FAILED, STARTED, UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import ABORTED, PAUSED, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.blockers import (
    Blockers,
    RolloutBlocker,
    find_blockers,
    rollout_blocker,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.stage_progress import StageProgress
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry_records import put_back_record
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import Instructions
from fleets import NEW, OLD, UNLIMITED, Fleet, fleet

COMMAND = {"by": "ann", "at": 1_700_000_000, "reason": "logins fail"}
ONE = {"rolling_rules": {"global": 1}}


def test_an_aborted_rollback_begins_again_as_one() -> None:
    site = fleet(compute=1)
    site.ledger = Ledger(3, NEW, OLD, state=ABORTED, rollback=True)
    blocker = site.plan().blocker
    assert blocker is not None
    assert (
        blocker.reason
        == f"the rollback was aborted; begin it again with ansible-playbook convoy.upgrade.rollback -e version={NEW}"
    )


@pytest.mark.parametrize(("state", "goes_on"), [(PAUSED, True), (ABORTED, False)])
def test_an_operators_command_stops_all_and_lets_hosts_finish(state: str, goes_on: bool) -> None:
    site = fleet(compute=3).opened("compute1").started("compute1")
    site.ledger = Ledger(1, NEW, state=state, command=COMMAND)
    plan = site.plan({})
    assert plan.admissions == ()
    assert plan.can_move
    assert plan.hosts["compute2"].reason.startswith(
        f"the rollout {'is paused' if goes_on else 'was aborted'} by ann at 20"
    )
    assert ": logins fail; " in plan.hosts["compute2"].reason
    site.upgraded("compute1")
    assert site.plan({}).can_move is goes_on


def test_a_time_in_a_reason_has_its_zone_because_pages_that_are_in_utc_show_it_too(
    live_in: Callable[[str], None],
) -> None:
    live_in("Europe/Berlin")
    site = fleet(compute=2)
    site.ledger = Ledger(1, NEW, state=PAUSED, command=COMMAND)
    assert "is paused by ann at 2023-11-14 23:13:20 +0100: logins fail" in site.plan().hosts["compute1"].reason
    site = fleet(compute=2).upgraded("compute1")
    stages = {"stages": [{"name": "canary", "hosts": 1, "soak": "1m"}]}
    assert site.plan(stages).hosts["compute2"].reason == "stage canary soaks until 1970-01-01 03:47:40 +0100"
    snapshot = replace(site.snapshot(), current_version="job/j1", ledger=Ledger(1, "job/j1", expires=1_000))
    expired = rollout_blocker(snapshot, Instructions(), None)
    assert expired is not None
    assert expired.reason.startswith("the job expired at 1970-01-01 01:16:40 +0100, so ")


def test_a_command_for_another_rollout_stops_nothing() -> None:
    site = fleet(compute=1)
    site.ledger = Ledger(1, OLD, state=PAUSED)
    assert len(site.plan({}).admissions) == 1


def rollback(site: Fleet, *broken: str) -> Fleet:
    """Begin a rollback; the given hosts were broken before it."""
    site.ledger = Ledger(9, OLD, previous_version=NEW, rollback=True, broken=broken)
    site.current = OLD
    return site


def order(site: Fleet, rules: dict[str, Any]) -> list[str]:
    return [host for wave in site.plan(rules).waves for host in wave]


def test_a_rollback_begins_with_the_hosts_that_changed_last() -> None:
    site = fleet(compute=4).upgraded("compute1", "compute2", "compute3")
    site.reported_at = {"compute1": 100.0, "compute2": 300.0, "compute3": 200.0}
    assert order(rollback(site), ONE) == ["compute2", "compute3", "compute1"]


def test_hosts_that_failed_during_the_upgrade_are_rolled_back_last_and_no_host_waits_for_them() -> None:
    site = fleet(compute=4).upgraded("compute1", "compute3")
    site.records["compute2"] = HostRecord(NEW, FAILED, error="no disk", times={FAILED: 500})
    plan = rollback(site, "compute2").plan({**ONE, "failure_rules": {"fleet": 1}})
    assert plan.waves == (("compute1",), ("compute3",), ("compute2",))
    assert plan.hosts["compute2"].state == "pending"
    assert plan.hosts["compute2"].reason.startswith(
        "was broken before this rollback, and is admitted after all other hosts"
    )
    assert plan.hosts["compute4"].state == "upgraded"


def test_a_host_that_was_midway_keeps_its_slot_in_a_rollback_and_gets_its_gate_back() -> None:
    site = fleet(compute=3).upgraded("compute1")
    site.records["compute2"] = HostRecord(NEW, STARTED, times={STARTED: int(site.now) - 600})
    plan = rollback(site).admitted("compute2").plan(ONE)
    assert plan.hosts["compute2"].state == "upgrading"
    assert [one.host for one in plan.admissions] == ["compute2"]
    assert "taken by compute2" in plan.hosts["compute1"].reason


def test_no_host_waits_for_one_that_was_midway_and_is_silent_in_a_rollback() -> None:
    site = fleet(compute=3).upgraded("compute1").opened("compute2")
    site.records["compute2"] = HostRecord(NEW, STARTED, times={STARTED: 600})
    site.gated_at, site.now = 1000, 1200.0
    plan = rollback(site).plan({**ONE, "health": {"progress_deadline": 100}, "failure_rules": {"fleet": 1}})
    assert plan.hosts["compute2"].state == "lost"
    assert (plan.blocker, [one.host for one in plan.admissions]) == (None, ["compute1"])


def test_no_host_waits_for_one_that_was_midway_and_fails_there_and_it_goes_last() -> None:
    site = fleet(controller=1, compute=3).upgraded("compute1")
    site.records["controller1"] = HostRecord(NEW, FAILED, error="no disk", times={FAILED: 600})
    rules = {**ONE, "role_order": {"compute": "controller"}, "failure_rules": {"fleet": 1}}
    plan = rollback(site).plan(rules)
    assert (plan.blocker, plan.waves) == (None, (("compute1",), ("controller1",)))
    # Its record is older than its report of the target version, so it does not count.
    site.reported_at["controller1"] = 700.0
    assert site.plan(rules).hosts["controller1"].state == "upgraded"


def test_hosts_that_were_broken_stop_neither_a_rollback_nor_the_roles_that_wait() -> None:
    rules = {**ONE, "role_order": {"compute": "controller"}, "failure_rules": {"fleet": 1}}
    site = fleet(controller=2, compute=2).upgraded("controller2", "compute1").opened("controller1")
    site.records["controller1"] = HostRecord(OLD, FAILED, error="no disk", times={FAILED: 700})
    forward = {**rules, "rollback_order": "forward"}
    assert [one.host for one in rollback(site, "controller1").plan(forward).admissions] == ["controller2"]
    site.running(OLD, "controller2")
    plan = site.plan(forward)
    assert [one.host for one in plan.admissions] == ["compute1"]
    assert not plan.complete


def test_a_rollback_reverses_the_order_between_roles_and_says_so() -> None:
    rules = {**ONE, "role_order": {"compute": "controller", "web": "compute"}}
    site = rollback(fleet(controller=1, compute=1, web=1).upgraded("controller1", "compute1", "web1"))
    plan = site.plan(rules)
    assert plan.waves == (("web1",), ("compute1",), ("controller1",))
    assert (plan.order, plan.rollback_order) == ({"compute": ("web",), "controller": ("compute",)}, "reversed")
    view = plan.hosts["controller1"]
    assert view.reason.endswith("as role_order says, reversed in a rollback")
    assert view.rule == "role_order.compute"
    assert (plan.hosts["compute1"].stage, plan.hosts["compute1"].blocks) == (0, True)
    plan = site.plan({**rules, "rollback_order": "forward"})
    assert plan.waves == (("controller1",), ("compute1",), ("web1",))
    assert plan.rollback_order == "forward"


def test_a_rollback_reverses_the_stages_without_soak_and_approval() -> None:
    rules = {
        **ONE,
        "role_order": {"compute": "controller"},
        "stages": [{"name": "canary", "hosts": 1, "soak": 3600, "approve": True}],
    }
    hosts = ("controller1", "controller2", "compute1", "compute2")
    site = rollback(fleet(controller=2, compute=2).upgraded(*hosts))
    plan = site.plan(rules)
    assert plan.waves == (("compute2",), ("controller2",), ("compute1",), ("controller1",))
    assert (plan.stage, plan.hosts["compute1"].rule, plan.stage_mark) == ("rest", "stages[1]", {})
    assert plan.hosts["compute1"].reason == (
        "waits for stage rest (2 hosts to go: compute2, controller2), as stages are reversed in a rollback"
    )
    site.running(OLD, "compute2", "controller2")
    plan = site.plan(rules)
    assert (plan.stage, plan.waves) == ("canary", (("compute1",), ("controller1",)))


def test_hosts_that_were_broken_come_after_the_last_stage_of_a_rollback() -> None:
    rules = {**ONE, "stages": [{"name": "canary", "hosts": 1}]}
    site = rollback(fleet(compute=3).upgraded("compute1", "compute2", "compute3"), "compute3")
    plan = site.plan(rules)
    assert plan.waves == (("compute2",), ("compute1",), ("compute3",))
    assert plan.hosts["compute3"].cause == "rollback"
    assert not plan.hosts["compute3"].blocks


def test_hosts_that_fail_in_a_rollback_count_as_in_any_rollout() -> None:
    site = fleet(compute=4).upgraded("compute1", "compute2", "compute3")
    site.records["compute3"] = HostRecord(OLD, FAILED, error="no disk", times={FAILED: 700})
    assert rollback(site).plan(ONE).admissions == ()
    plan = site.plan({"rolling_rules": {"global": 2}, "failure_rules": {"fleet": 1}})
    assert plan.blocker is not None
    assert (plan.blocker.code, plan.exhausted_keys, plan.admissions) == ("failure_budget", ("failure_rules.fleet",), ())


def test_a_rollback_that_goes_forward_has_no_stages() -> None:
    site = fleet(compute=3).upgraded("compute1", "compute2")
    site.reported_at = {"compute1": 100.0, "compute2": 300.0}
    rules = {
        **ONE,
        "stages": [{"name": "canary", "hosts": 1, "soak": 3600, "approve": True}],
        "rollback_order": "forward",
    }
    assert order(rollback(site), rules) == ["compute2", "compute1"]
    assert site.plan(rules).stage is None


def test_checks_are_read_all_the_time_while_a_stage_soaks() -> None:
    rules = {"stages": [{"name": "canary", "hosts": 1, "soak": 3600}], "health": {"consul_checks": ["validation"]}}
    site = fleet(compute=2).upgraded("compute1")
    site.checks = {host: {"validation": "passing"} for host in site.members}
    site.ledger = Ledger(3, NEW, OLD, stage={"number": 0, "done_at": int(site.now) - 60})
    assert site.plan(rules).wake_at == site.now + 5
    del rules["health"]
    assert site.plan(rules).wake_at == site.now + 3540


def test_a_host_that_left_the_version_is_not_upgraded_to_it() -> None:
    site = fleet(compute=1)
    site.records["compute1"] = HostRecord(NEW, FAILED, times={FAILED: 500})
    site.current = OLD
    assert site.plan({}).hosts["compute1"].state == "pending"
    site.records["compute1"] = HostRecord(NEW, FAILED, times={FAILED: 0})
    assert site.plan({}).hosts["compute1"].state == "upgraded"


def test_a_fleet_without_a_blocker_may_admit() -> None:
    found = find_blockers(fleet(compute=2).read())

    assert found == Blockers()
    assert (found.allow_admissions, found.allow_forecast, found.end_by_waiting) == (True, True, False)


def test_without_a_version_nothing_is_admitted_or_forecast() -> None:
    site = fleet(compute=1)
    site.current = None
    found = find_blockers(site.read())

    assert (found.has_version, found.allow_admissions, found.allow_forecast) == (False, False, False)


@pytest.mark.parametrize(
    ("state", "failed", "code", "is_temporary"),
    [
        (PAUSED, [], "paused", True),
        (ABORTED, [], "aborted", False),
        ("", ["compute1"], "failure_budget", False),
        (PAUSED, ["compute1"], "paused", True),
    ],
)
def test_what_blocks_a_rollout_allows_a_forecast_only_if_it_is_temporary(
    state: str, failed: list[str], code: str, is_temporary: bool
) -> None:
    site = fleet(compute=3).failed(*failed)
    if state:
        site.ledger = Ledger(1, NEW, state=state)
    found = find_blockers(site.read({"failure_rules": {"fleet": 1}}))

    assert found.rollout is not None
    assert (found.rollout.code, found.rollout.is_temporary) == (code, is_temporary)
    assert (found.allow_admissions, found.allow_forecast, found.end_by_waiting) == (False, is_temporary, is_temporary)
    assert (found.is_paused, found.is_aborted) == (state == PAUSED, state == ABORTED)
    assert bool(found.budgets.keys) == bool(failed)


def test_a_stage_that_waits_ends_by_waiting_unless_the_rollout_is_blocked() -> None:
    waiting = StageProgress(waits=True)

    assert Blockers(stages=waiting).end_by_waiting
    assert not Blockers(rollout=RolloutBlocker("aborted", "", is_temporary=False), stages=waiting).end_by_waiting
    assert waiting.needs_approval
    assert not StageProgress(waits=True, until=5.0).needs_approval


def test_a_host_that_tries_again_by_itself_counts_under_the_budget_until_it_is_upgraded_or_put_back() -> None:
    rules = {"rolling_rules": {"global": 3}, "failure_rules": {"fleet": 1}}
    site = fleet(compute=3).opened("compute1").started("compute1")
    record = site.records["compute1"]
    assert len(site.plan(rules).admissions) == 2
    site.records["compute1"] = replace(record, times={FAILED: 9_990, STARTED: 9_995})
    plan = site.plan(rules)
    assert (plan.hosts["compute1"].state, plan.admissions) == ("upgrading", ())
    assert plan.exhausted_keys == ("failure_rules.fleet",)
    # It may still succeed, so a run that waits goes on.
    assert plan.can_move
    # A failure that it has recovered from does not count.
    site.records["compute1"] = replace(record, times={FAILED: 9_980, UPGRADED: 9_990, STARTED: 9_995})
    assert len(site.plan(rules).admissions) == 2
    put_back = put_back_record(replace(record, state=FAILED, times={STARTED: 9_980, FAILED: 9_990}), NEW, OLD, 9_992)
    site.records["compute1"] = replace(put_back, state=STARTED, times={**put_back.times, STARTED: 9_995})
    assert len(site.plan(rules).admissions) == 2
    assert len(site.upgraded("compute1").plan(rules).admissions) == 2


def test_a_failure_counts_until_the_checks_and_the_soak_of_the_next_try_have_passed() -> None:
    rules = {
        "rolling_rules": {"global": 3},
        "failure_rules": {"fleet": 1},
        "health": {"consul_checks": ["validation"], "soak": 600},
    }
    site = fleet(compute=3).opened("compute1").upgraded("compute1")
    site.checks = {host: {"validation": "passing"} for host in site.members}
    site.checks["compute1"] = {"validation": "critical"}
    site.reported_at["compute1"] = 9_995
    failed = {STARTED: 9_980, FAILED: 9_970, UPGRADED: 9_995}
    site.records["compute1"] = HostRecord(NEW, UPGRADED, times=failed, reported=NEW)
    plan = site.plan(rules)
    assert (plan.hosts["compute1"].state, plan.admissions) == ("upgrading", ())
    assert plan.exhausted_keys == ("failure_rules.fleet",)
    # One that has not failed is only not upgraded yet.
    del failed[FAILED]
    assert len(site.plan(rules).admissions) == 2


@pytest.mark.parametrize("key", ["fleet", "compute"])
def test_an_exhausted_budget_opens_no_gate_again(key: str) -> None:
    budget = {"fleet": 1} if key == "fleet" else {"roles": {"compute": 1}}
    site = fleet(compute=3).admitted("compute2").started("compute2")
    assert "compute2" in [one.host for one in site.plan(UNLIMITED).admissions]
    plan = site.failed("compute1").plan({**UNLIMITED, "failure_rules": budget})
    assert (plan.admissions, plan.host_gates) == ((), ())
    assert "1 failed or lost host (compute1)" in plan.hosts["compute2"].reason
