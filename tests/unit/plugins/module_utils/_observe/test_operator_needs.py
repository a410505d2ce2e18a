# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rollout needs from an operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import FAILED, STARTED, UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import (
    ABORTED,
    COMPLETE,
    PAUSED,
    Handover,
    Ledger,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.explain import explain
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import (
    OperatorNeed,
    next_need_at,
    operator_needs,
)
from fleets import NEW, OLD, UNLIMITED, Fleet, fleet

CAPPED = {"rolling_rules": {"global": 1}}
COMMAND = {"by": "ann", "at": 9_000, "reason": "logins fail"}


def rollout(rules: dict[str, Any] | None = None, state: str = "running", **more: Any) -> Fleet:
    site = fleet(compute=3)
    site.ledger = Ledger(3, NEW, OLD, instructions=rules or UNLIMITED, state=state, **more)
    return site


def needs(site: Fleet) -> list[OperatorNeed]:
    assert site.ledger is not None
    found = operator_needs(site.snapshot(), site.plan(site.ledger.instructions))
    assert [OperatorNeed.from_plain(one.plain()) for one in found] == [*found]
    return [*found]


def test_a_rollout_that_goes_on_by_itself_needs_no_one() -> None:
    assert needs(rollout()) == []
    assert needs(rollout().opened("compute1")) == []
    assert needs(rollout().upgraded("compute1", "compute2", "compute3")) == []


def test_gates_that_an_operator_closed_after_a_rollout_are_opened_by_another_run() -> None:
    site = rollout(state=COMPLETE).upgraded("compute1", "compute2", "compute3")
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("gates_closed", "upgrade", {"version": NEW})
    assert found.text.startswith("All gates were closed by hand")
    assert needs(site.gated("True", "global")) == []
    # During a rollout, planners have closed the global gate.
    assert needs(rollout().upgraded("compute1", "compute2", "compute3")) == []


def test_a_pause_is_ended_by_resume_and_an_abort_by_a_restart() -> None:
    (paused,) = needs(rollout(state=PAUSED, command=COMMAND))
    assert (paused.code, paused.playbook, paused.variables, paused.since) == ("paused", "resume", {}, 9_000)
    assert paused.text.endswith(": logins fail.")
    complete = rollout(state=PAUSED, command={**COMMAND, "was": COMPLETE}).upgraded("compute1", "compute2", "compute3")
    (paused,) = needs(complete)
    assert paused.text.endswith(": logins fail.")
    (paused,) = needs(complete.gated("True", "global"))
    assert (
        ": logins fail. The rollout is complete, so the global gate is open, and hosts that join upgrade" in paused.text
    )
    assert paused.text.endswith(" run ansible-playbook convoy.upgrade.global_disable.")
    (aborted,) = needs(rollout(state=ABORTED, command=COMMAND).failed("compute1"))
    assert (aborted.code, aborted.playbook, aborted.variables) == (
        "aborted", "upgrade", {"version": NEW, "restart": "true"},
    )  # fmt: skip
    assert aborted.otherwise == "rollback"
    # As an ordinary rollout, it would go on in the order of an upgrade.
    (back,) = needs(rollout(state=ABORTED, command=COMMAND, rollback=True))
    assert (back.code, back.playbook, back.variables, back.otherwise) == ("aborted", "rollback", {"version": NEW}, "")
    assert back.text.startswith(f"The rollback to {NEW} was aborted by ann")


def test_a_rollback_is_named_only_where_there_is_a_version_to_go_back_to() -> None:
    site = rollout().failed("compute1")
    assert [one.otherwise for one in needs(site)] == ["rollback"]
    assert site.ledger is not None
    for change in ({"rollback": True}, {"previous_version": None}):
        site.ledger = replace(rollout().ledger or site.ledger, **change)
        assert [one.otherwise for one in needs(site)] == ["abort"]
    site.ledger = replace(site.ledger, state=ABORTED, command=COMMAND)
    (aborted,) = needs(site)
    assert aborted.otherwise == ""
    assert aborted.text.endswith(": logins fail. Begin it again.")


def test_an_approval_is_awaited_since_the_soak_was_over() -> None:
    rules = {**UNLIMITED, "stages": [{"name": "canary", "hosts": 1, "soak": 600, "approve": True}]}
    (found,) = needs(rollout(rules, stage={"number": 0, "done_at": 9_000}).upgraded("compute1"))
    assert (found.code, found.playbook, found.variables, found.since) == (
        "approval", "approve", {"stage": "canary"}, 9_600,
    )  # fmt: skip
    assert found.text == "Stage canary is done and needs an approval."


def test_failed_hosts_are_retried_by_name_and_an_exhausted_budget_says_so() -> None:
    (found,) = needs(rollout().failed("compute2"))
    assert (found.code, found.playbook, found.variables) == ("broken_hosts", "retry", {"host": "compute2"})
    assert found.text == "1 host failed: compute2. Fix it, then retry."
    (budget,) = needs(rollout({**UNLIMITED, "failure_rules": {"fleet": 1}}).failed("compute2", "compute3"))
    assert (budget.code, budget.variables) == ("failure_budget", {"host": "compute2,compute3"})
    assert "The failure budget is exhausted, so no more hosts are admitted. Fix them, then retry." in budget.text


def test_failed_hosts_that_ansible_has_begun_are_continued_as_their_run_and_their_status_say() -> None:
    site = rollout().failed("compute2")
    site.records["compute2"] = replace(site.records["compute2"], origin=OLD)
    (found,) = needs(site)
    assert (found.code, found.playbook) == ("broken_hosts", "upgrade")
    assert found.variables == {"version": NEW, "retry_failed": "true"}
    assert found.text == "1 host failed: compute2. Fix it, then continue."
    details = " ".join(explain("compute2", site.plan(UNLIMITED), site.snapshot()))
    assert f"convoy.upgrade.upgrade -e version={NEW} -e retry_failed=true. " in details
    # No run continues a held host, nor one that upgrades itself, now or since it has an agent.
    assert needs(site.held("host/compute2"))[0].variables == {"host": "compute2"}
    site = rollout().failed("compute2", "compute3")
    site.records["compute2"] = replace(site.records["compute2"], origin=OLD)
    assert needs(site)[0].variables == {"host": "compute2,compute3"}
    site = rollout().failed("compute2")
    site.records["compute2"] = replace(site.records["compute2"], origin=OLD, release="1.0.0")
    assert needs(site)[0].variables == {"host": "compute2"}


def test_a_host_on_which_an_upgrade_may_still_run_is_not_named_in_a_command_to_paste() -> None:
    site = rollout({**UNLIMITED, "health": {"progress_deadline": 60}}).opened("compute1", "compute2")
    for host in ("compute1", "compute2"):
        site.records[host] = HostRecord(NEW, STARTED, times={STARTED: 1}, index=99)
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("broken_hosts", "status", {"host": "compute1"})
    assert found.text == (
        "2 hosts are lost: compute1, compute2. What has begun there may still run. Make sure that it does not. The status of the host names the "
        "next command."
    )
    # The other one failed, and is retried without a name.
    site.records["compute2"] = HostRecord(NEW, FAILED, error="disk full", index=99)
    (found,) = needs(site)
    assert (found.playbook, found.variables) == ("retry", {})


def test_a_host_that_fails_after_the_rollout_is_not_retried_as_nothing_would_admit_it() -> None:
    site = rollout(state="complete").upgraded("compute1", "compute2", "compute3")
    site.records["compute2"] = HostRecord(NEW, FAILED, error="disk full", index=99)
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("broken_hosts", "status", {"host": "compute2"})
    assert found.text == "1 host failed: compute2. Fix it. The next run that succeeds there ends this."


def test_a_host_that_began_without_an_admission_is_retried_by_name_once_nothing_runs_there() -> None:
    site = rollout().gated("False", "global").started("compute2").opened("compute1")
    (found,) = needs(site)
    # A retry frees the slot, whatever runs there.
    assert (found.code, found.playbook, found.variables) == ("unadmitted", "status", {"host": "compute2"})
    assert (
        found.text
        == "1 host reported a start and was not admitted: compute2. Make sure that nothing runs there, then retry by name."
    )


def test_a_host_of_an_interrupted_run_needs_the_same_command_again() -> None:
    site = rollout().opened("compute2", "compute3")
    site.records["compute2"] = HostRecord(NEW, STARTED, done=("stop/nginx",))
    # A pull host continues its services by itself.
    site.records["compute3"] = HostRecord(NEW, STARTED, done=("stop/nginx",), services="a1")
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("interrupted", "upgrade", {"version": NEW})
    assert (
        found.text
        == "1 host is in the middle of the upgrade, and no Ansible run works there: compute2. Continue the upgrade."
    )
    site.leases.add("compute2")
    assert needs(site) == []


def test_hosts_that_report_their_steps_themselves_need_no_run() -> None:
    site = rollout().opened("compute2")
    site.records["compute2"] = HostRecord(NEW, STARTED, "nova", "upgrade", trail=(StepStart(9_000, "nova", "upgrade"),))
    assert needs(site) == []
    # Before the first task group of a run has ended.
    site.records["compute2"] = replace(site.records["compute2"], origin=OLD)
    assert [one.code for one in needs(site)] == ["interrupted"]


def test_a_host_in_the_middle_of_the_upgrade_that_is_held_needs_an_operator_once_nothing_else_goes_on() -> None:
    site = rollout().upgraded("compute1").opened("compute2", "compute3")
    site.records["compute2"] = HostRecord(NEW, STARTED, done=("stop/nginx",), held="its disk is being replaced")
    assert needs(site) == []
    site.upgraded("compute3")
    (own,) = needs(site)
    assert (own.code, own.playbook, own.variables) == ("interrupted", "status", {"host": "compute2"})
    assert own.text == (
        "1 host is in the middle of the upgrade, and is held, so no run continues there: compute2. Nothing else goes on. End the hold, then continue."
    )
    site.records["compute2"] = replace(site.records["compute2"], held=None)
    (ended,) = needs(site.held("host/compute2"))
    assert (ended.code, ended.playbook, ended.variables) == ("interrupted", "unhold", {"host": "compute2"})


def test_what_is_needed_of_a_rollback_is_the_same_playbook_again() -> None:
    site = rollout(rollback=True).opened("compute2")
    site.records["compute2"] = HostRecord(NEW, STARTED, done=("stop/nginx",))
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("interrupted", "rollback", {"version": NEW})
    unanswered = Handover(NEW, 0, None, "h1", "ann@desk", 9_000)
    (found,) = _needs_of(rollout(rollback=True), unanswered, {})
    assert (found.code, found.playbook, found.variables) == ("no_planner", "rollback", {"version": NEW})


def test_the_time_of_the_next_need_is_known_though_nothing_is_written() -> None:
    site = rollout()
    plan, snapshot = site.plan(UNLIMITED), site.snapshot()
    assert next_need_at(snapshot, plan) is None
    now = snapshot.now
    fresh = replace(snapshot, handover=Handover(NEW, 0, None, "h1", "ann@desk", int(now) - 5))
    at = next_need_at(fresh, plan)
    assert at == int(now) + 15
    assert operator_needs(fresh, plan) == ()
    (found,) = operator_needs(replace(fresh, now=at), plan)
    assert found.code == "no_planner"
    assert next_need_at(replace(fresh, now=at + 1), plan) is None


def test_hosts_that_soak_during_a_hold_need_no_operator() -> None:
    rules = {"rolling_rules": {"roles": {"compute": 3}}, "health": {"soak": 60}}
    assert needs(rollout(rules).upgraded("compute1", "compute2", "compute3").held("global")) == []


def test_more_hosts_than_fit_into_a_command_are_retried_together() -> None:
    site = fleet(compute=12).failed(*(f"compute{number}" for number in range(1, 13)))
    site.ledger = Ledger(3, NEW, OLD, instructions=UNLIMITED)
    (found,) = needs(site)
    assert found.variables == {}
    assert "compute1, compute2, compute3 and 9 more" in found.text


def test_a_rollout_of_which_only_held_hosts_are_left_needs_their_end() -> None:
    site = rollout().upgraded("compute1", "compute2").held("host/compute3")
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("stuck", "unhold", {"host": "compute3"})
    # So does one of the role that it had before.
    site = rollout().upgraded("compute1", "compute2").held("role/spare")
    site.records["compute3"] = HostRecord(OLD, UPGRADED, role="compute", former_role="spare")
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("stuck", "unhold", {"host": "compute3"})
    # A hold on a role needs a look.
    (found,) = needs(rollout().upgraded("compute1").held("role/compute"))
    assert (found.code, found.playbook) == ("stuck", "status")


def test_hosts_that_wait_for_a_held_one_need_the_end_of_its_hold() -> None:
    site = fleet(controller=1, compute=2).held("host/controller1")
    site.ledger = Ledger(3, NEW, OLD, instructions={**UNLIMITED, "role_order": {"compute": ["controller"]}})
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("stuck", "unhold", {"host": "controller1"})
    assert found.text == "No host can be admitted. controller1 is held, and others may wait for it."
    # It was admitted before the hold.
    assert needs(site.opened("controller1")) == [found]


def test_a_held_host_that_has_started_needs_the_end_of_its_hold_once_nothing_else_goes_on() -> None:
    site = rollout().upgraded("compute1").started("compute2").admitted("compute2").held("host/compute2")
    assert needs(site) == []
    (found,) = needs(site.upgraded("compute3"))
    assert (found.code, found.playbook, found.variables) == ("stuck", "unhold", {"host": "compute2"})
    assert found.text.startswith("Nothing goes on beside a held host: compute2. An agent run goes on")


def test_a_rollout_that_can_admit_no_host_is_stuck() -> None:
    (found,) = needs(rollout({"rolling_rules": {"global": 0}}))
    assert (found.code, found.playbook, found.variables) == ("stuck", "status", {"host": "compute1"})


def test_without_a_rollout_no_one_is_needed() -> None:
    site = fleet(compute=3)
    assert operator_needs(site.snapshot(), site.plan(UNLIMITED)) == ()
    # A version that another tool has set.
    site.ledger = Ledger(3, "7.0", OLD, state=PAUSED)
    assert operator_needs(site.snapshot(), site.plan(UNLIMITED)) == ()


def _needs_of(site: Fleet, handover: Handover | None, answers: dict[str, str]) -> list[OperatorNeed]:
    assert site.ledger is not None
    snapshot = replace(site.snapshot(), handover=handover, answers=answers)
    return [*operator_needs(snapshot, site.plan(site.ledger.instructions))]


def test_a_rollout_that_was_handed_over_and_that_no_service_carries_needs_one_or_a_run() -> None:
    site = rollout(since=8_000)
    own = Handover(NEW, 8_000, None, "h1", "ann@desk", 9_000)
    for answers in ({}, {"one": "No host is admitted: role web has too few."}):
        (found,) = _needs_of(site, own, answers)
        assert (found.code, found.playbook, found.variables) == ("no_planner", "upgrade", {"version": NEW})
        assert (found.since, "systemctl start convoy-planner" in found.text) == (9_000, True)
        assert ("one refuses it: No host is admitted: role web has too few." in found.text) == bool(answers)
    assert _needs_of(site, own, {"one": "too few", "two": ""}) == []
    assert _needs_of(site, replace(own, since=7_000), {}) == []
    assert _needs_of(site, None, {}) == []
    # A command without the limit of the handover would admit other hosts.
    (limited,) = _needs_of(site, replace(own, limit=("compute1",)), {})
    assert (limited.playbook, "(compute1)" in limited.text) == ("status", True)
    site.ledger = replace(site.ledger, state="complete") if site.ledger else None
    assert _needs_of(site, own, {}) == []


def test_a_rollout_that_was_handed_over_for_a_part_needs_a_run_for_the_rest() -> None:
    site = rollout(since=8_000)
    limited = Handover(NEW, 8_000, ("compute1",), "h1", "ann@desk", 9_000)
    assert _needs_of(site, limited, {"one": ""}) == []
    site.upgraded("compute1")
    assert _needs_of(site, replace(limited, limit=None), {"one": ""}) == []
    (found,) = _needs_of(site, limited, {"one": ""})
    assert (found.code, found.playbook, found.variables) == ("no_planner", "upgrade", {"version": NEW})
    assert "only for compute1, which is done" in found.text
    assert _needs_of(site.upgraded("compute2", "compute3"), limited, {"one": ""}) == []


def test_post_upgrade_tasks_that_failed_are_retried_with_their_playbook_or_by_name_while_hosts_are_left() -> None:
    site = rollout(post_upgrade=("compute",)).upgraded("compute1", "compute2", "compute3")
    site.records["compute1"] = HostRecord(NEW, UPGRADED, post="failed", error="no kernel")
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == (
        "post_upgrade", "post_upgrade", {"version": NEW, "retry_failed": "true"},
    )  # fmt: skip
    assert found.text == (
        "Post-upgrade tasks failed on 1 host, and have not run on others: compute1. Fix it, then run them again."
    )
    # compute4 has joined.
    site.members = {**site.members, "compute4": "compute"}
    site.reports["compute4"] = OLD
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("broken_hosts", "retry", {"host": "compute1"})


def test_a_host_that_was_left_in_its_post_upgrade_tasks_is_retried_if_one_that_joined_waits_for_its_slot() -> None:
    site = rollout(CAPPED, post_upgrade=("compute",), state="complete").upgraded("compute1", "compute2")
    site.records["compute1"] = HostRecord(NEW, UPGRADED, post="started")
    # Until then, a run of the tasks would be refused.
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("stuck", "retry", {"host": "compute1"})
    assert found.text.startswith("No host can be admitted. compute1 keeps its slot, because of post-upgrade tasks")


def test_a_complete_rollout_goes_on_before_a_host_that_it_has_not_upgraded_is_retried() -> None:
    site = rollout(CAPPED, post_upgrade=("compute",), state="complete").upgraded("compute1").held("host/compute3")
    site.records["compute3"] = HostRecord("1.5", FAILED, index=50)
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("stuck", "upgrade", {"version": NEW})
    assert found.text == "2 hosts are not upgraded: compute2, compute3. Continue the rollout."


def test_post_upgrade_tasks_to_which_a_planner_service_admits_all_hosts_need_no_one() -> None:
    site = rollout(since=8_000, post_upgrade=("compute",), state="complete").upgraded(
        "compute1", "compute2", "compute3"
    )
    own = Handover(NEW, 8_000, None, "h1", "ann@desk", 9_000)
    assert _needs_of(site, own, {"one": ""}) == []
    others = [(None, ""), (replace(own, since=7_000), ""), (replace(own, limit=("compute1",)), ""), (own, "denied")]
    for handover, answer in others:
        (found,) = _needs_of(site, handover, {"one": answer})
        assert (found.playbook, found.variables) == ("post_upgrade", {"version": NEW})
    site.records["compute1"] = HostRecord(NEW, UPGRADED, post="failed", error="no kernel")
    (found,) = _needs_of(site, own, {"one": ""})
    assert "failed on 1 host" in found.text


@pytest.mark.parametrize("answers", [{}, {"one": ""}])
@pytest.mark.parametrize("post", ["open", "started"])
def test_a_host_whose_gate_was_closed_in_its_post_upgrade_tasks_is_retried_by_name(
    post: str, answers: dict[str, str]
) -> None:
    site = rollout(since=8_000, post_upgrade=("compute",), state="complete").upgraded(
        "compute1", "compute2", "compute3"
    )
    own = Handover(NEW, 8_000, None, "h1", "ann@desk", 9_999) if answers else None
    site.records["compute1"] = HostRecord(NEW, UPGRADED, post=post, times={UPGRADED: 8_500, "open": 9_950})
    site.opened("compute1")
    assert "behind a closed gate" not in str(_needs_of(site, own, answers))
    # The rollout began again, which removes all gates.
    site.gated(None, "host/compute1")
    (found,) = _needs_of(site, own, answers)
    assert (found.code, found.playbook, found.variables) == ("broken_hosts", "status", {"host": "compute1"})
    assert found.text.startswith("1 host stopped in post-upgrade tasks behind a closed gate: compute1.")
    assert site.ledger is not None
    assert (
        "To change this: make sure that nothing runs there, then run ansible-playbook convoy.upgrade.retry -e host=compute1."
        in explain("compute1", site.plan(site.ledger.instructions), site.snapshot())
    )
    # A run that works there goes on.
    site.leases.add("compute1")
    assert "behind a closed gate" not in str(_needs_of(site, own, answers))


def test_a_host_that_came_later_and_that_no_planner_service_admits_needs_a_run() -> None:
    site = rollout(since=8_000, post_upgrade=("compute",), state="complete").upgraded("compute1", "compute2")
    own = Handover(NEW, 8_000, None, "h1", "ann@desk", 9_000)
    (found,) = _needs_of(site, own, {"one": "1 of 3 hosts are not upgraded, such as compute3."})
    assert (found.code, found.playbook, found.variables) == ("no_planner", "upgrade", {"version": NEW})
    assert "such as compute3." in found.text


def test_a_planner_service_hides_neither_a_host_that_is_lost_in_its_post_upgrade_tasks_nor_a_held_one() -> None:
    rules = {**UNLIMITED, "health": {"progress_deadline": 60}}
    site = rollout(rules, since=8_000, post_upgrade=("compute",), state="complete").upgraded(
        "compute1", "compute2", "compute3"
    )
    own, answers = Handover(NEW, 8_000, None, "h1", "ann@desk", 9_000), {"one": ""}
    site.records["compute1"] = HostRecord(NEW, UPGRADED, post="started", times={UPGRADED: 8_500, "open": 9_950})
    site.opened("compute1")
    assert _needs_of(site, own, answers) == []
    # No write comes then.
    assert site.plan(rules).wake_at == 10_010
    site.now = 10_011
    site.leases.add("compute1")
    assert _needs_of(site, own, answers) == []
    site.leases.clear()
    (lost,) = _needs_of(site, own, answers)
    assert (lost.code, lost.playbook, lost.variables) == ("broken_hosts", "status", {"host": "compute1"})
    assert lost.text == (
        "1 host is lost in its post-upgrade tasks: compute1. Make sure that nothing runs there, then retry by name."
    )
    (details,) = (line for line in explain("compute1", site.plan(rules), site.snapshot()) if "retry" in line)
    assert (
        "make sure that nothing runs there, then run ansible-playbook convoy.upgrade.retry -e host=compute1" in details
    )
    del site.records["compute1"]
    (held,) = _needs_of(site.held("host/compute2"), own, answers)
    assert (held.code, held.playbook, held.variables) == ("post_upgrade", "unhold", {"host": "compute2"})
    assert "do not run on 1 host because of holds: compute2." in held.text
    (held,) = _needs_of(site.held("role/compute"), own, answers)
    assert (held.playbook, held.variables) == ("status", {"host": "compute1"})


def test_a_host_that_no_run_brings_to_its_post_upgrade_tasks_is_named_if_nothing_else_goes_on() -> None:
    site = rollout(CAPPED).upgraded("compute1", "compute2")
    site.records["compute1"] = HostRecord(NEW, UPGRADED, post="open")
    (found,) = needs(site)
    assert (found.code, found.playbook, found.variables) == ("stuck", "retry", {"host": "compute1"})
    assert "compute1 keeps its slot, because of post-upgrade tasks that failed or have not run" in found.text
