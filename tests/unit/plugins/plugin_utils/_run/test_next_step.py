# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The next command after a run that stopped."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.next_step import (
    FOLLOW,
    NextStep,
    after_failure,
    first_need,
    next_part,
    next_pass,
    next_run,
)

AGAIN = NextStep()
# Variables that belong only to a run for a part of the fleet.
OF_PART = ("role", "upgrade_limit", "retry_failed", "restart", "replace")


def reasons(**hosts: tuple[str, str]) -> list[dict[str, Any]]:
    """Return reasons of a result: a state and a cause for each host."""
    return [{"state": state, "cause": cause, "hosts": [host], "count": 1} for host, (state, cause) in hosts.items()]


FAILED = reasons(web1=("failed", ""), web2=("pending", "cap"))
CONTINUED = {
    "code": "broken_hosts",
    "playbook": "upgrade",
    "variables": {"version": "v2", "retry_failed": "true"},
}
BROKEN = {"code": "broken_hosts", "playbook": "retry", "variables": {"host": "web1"}}
HELD = reasons(web2=("held", ""))
LOST = [{"state": "lost", "cause": "", "hosts": ["web1", "web2"], "count": 11}]
ADMISSIBLE = reasons(web1=("pending", "admissible"))


@pytest.mark.parametrize(
    ("code", "info", "step"),
    [
        # Ctrl-C, a validation, time-out, lost Consul, a window.
        ("", {}, AGAIN),
        ("bad_instructions", {}, AGAIN),
        ("timeout", {"reasons": FAILED}, AGAIN),
        ("unreachable", {"reasons": FAILED}, AGAIN),
        ("hours", {"blocker": {"code": "hours"}}, AGAIN),
        # An operator's command.
        ("paused", {"blocker": {"code": "paused"}}, NextStep("resume", then_again=True)),
        ("paused", {}, NextStep("resume", then_again=True)),
        ("aborted", {"blocker": {"code": "aborted"}}, NextStep(variables={"restart": "true"})),
        (
            "aborted",
            {"blocker": {"code": "aborted"}, "rollback_order": "reversed", "version": "1.0"},
            NextStep("rollback", {"version": "1.0"}),
        ),
        (
            "stuck",
            {"needs_approval": True, "stage": "canary", "reasons": FAILED},
            NextStep("approve", {"stage": "canary"}, True),
        ),
        # A wait that ends before the operator's command does not only begin again.
        ("timeout", {"needs_approval": True, "stage": "canary"}, NextStep("approve", {"stage": "canary"}, True)),
        ("timeout", {"blocker": {"code": "paused"}}, NextStep("resume", then_again=True)),
        ("timeout", {"blocker": {"code": "hours"}}, AGAIN),
        # Failures and budgets, holds, caps.
        (
            "failure_budget",
            {
                "blocker": {"code": "failure_budget"},
                "reasons": FAILED,
                "needs_operator": [{**BROKEN, "code": "failure_budget"}],
            },
            NextStep("retry", {"host": "web1"}, True),
        ),
        ("stuck", {"reasons": FAILED, "needs_operator": [BROKEN]}, NextStep("retry", {"host": "web1"}, True)),
        ("stuck", {"reasons": FAILED}, NextStep("retry", {}, True)),
        # A run for a part of the fleet does not continue hosts of others.
        ("stuck", {"reasons": FAILED, "needs_operator": [CONTINUED]}, NextStep("retry", {}, True)),
        ("stuck", {"reasons": LOST}, NextStep("retry", {}, True)),
        ("stuck", {"reasons": HELD}, NextStep("status", {"host": "web2"}, True)),
        (
            "stuck",
            {
                "reasons": HELD,
                "needs_operator": [{"code": "stuck", "playbook": "retry", "variables": {"host": "web3"}}],
            },
            NextStep("retry", {"host": "web3"}, True),
        ),
        (
            "stuck",
            {
                "reasons": HELD,
                "needs_operator": [{"code": "unadmitted", "playbook": "status", "variables": {"host": "web3"}}],
            },
            NextStep("status", {"host": "web3"}, True),
        ),
        (
            "timeout",
            {
                "reasons": HELD,
                "needs_operator": [{"code": "unadmitted", "playbook": "status", "variables": {"host": "web3"}}],
            },
            NextStep("status", {"host": "web3"}, True),
        ),
        # As in a run of one plane, after which the other can be upgraded.
        ("stuck", {"reasons": ADMISSIBLE}, AGAIN),
        ("overtaken", {}, NextStep("status")),
        ("rollout_under_way", {}, NextStep("status")),
    ],
)
def test_each_failure_has_its_next_step(code: str, info: dict[str, Any], step: NextStep) -> None:
    assert after_failure("upgrade", code, info) == step


def test_if_ansible_upgrades_hosts_the_same_command_retries_failed_ones() -> None:
    step = after_failure("upgrade", "stuck", {"reasons": FAILED}, pushes=True, pushed=["web1", "web2"])
    assert step == NextStep(variables={"retry_failed": "true"})


def test_beside_hosts_that_ansible_upgrades_a_pull_host_is_retried_by_name() -> None:
    info = {"reasons": FAILED, "needs_operator": [BROKEN]}
    step = after_failure("upgrade", "stuck", info, pushes=True, pushed=["web2"])
    assert step == NextStep("retry", {"host": "web1"}, then_again=True)


@pytest.mark.parametrize(("playbook", "is_limited"), [("upgrade", True), ("role", False)])
def test_what_stops_a_run_for_a_part_may_be_outside_of_it(playbook: str, is_limited: bool) -> None:
    def step(**info: Any) -> NextStep:
        return after_failure(playbook, "stuck", info, pushes=True, is_limited=is_limited)

    assert step(reasons=FAILED, needs_operator=[BROKEN]) == NextStep("retry", {"host": "web1"}, True)
    own = after_failure(playbook, "stuck", {"reasons": FAILED}, pushes=True, pushed=["web1"], is_limited=is_limited)
    assert own == NextStep(variables={"retry_failed": "true"})
    held = {"code": "interrupted", "playbook": "unhold", "variables": {"host": "web3"}}
    assert step(reasons=HELD, needs_operator=[held]) == NextStep("unhold", {"host": "web3"}, then_again=True)
    # It may be in this part, or outside of it. No command for more hosts is proposed.
    left = {"code": "interrupted", "playbook": "upgrade", "variables": {"version": "2"}}
    assert step(reasons=HELD, needs_operator=[left]) == NextStep("status", {"host": "web2"}, then_again=True)


def test_an_aborted_rollback_begins_again_with_the_same_command() -> None:
    info = {"blocker": {"code": "aborted"}, "rollback_order": "reversed", "version": "1.0"}
    assert after_failure("rollback", "aborted", info) == NextStep(variables={"version": "1.0"})


def test_other_playbooks_are_run_again() -> None:
    assert after_failure("hold", "stuck", {"reasons": FAILED}) == AGAIN


def test_hosts_that_can_be_admitted_need_a_run() -> None:
    info: dict[str, Any] = {"version": "2", "blocker": {}, "reasons": ADMISSIBLE}
    upgrade = NextStep("upgrade", {"version": "2"})
    assert next_run("status", info) == ("Hosts can be admitted now. If no run is in progress, start one.", upgrade)
    assert next_run("upgrade", info) is None
    assert next_run("status", {**info, "blocker": {"code": "paused"}}) is None
    assert next_run("status", {**info, "reasons": HELD}) is None
    assert next_run("status", {}) is None
    # As an upgrade, it would not go on as a rollback.
    back = {**info, "ledger": {"state": "running", "rollback": True}}
    assert next_run("status", back) == (ANY, NextStep("rollback", {"version": "2"}))
    carried = "Hosts can be admitted now. Planner services carry it."
    assert next_run("status", {**info, "carried_by": ["p1"]}) == (carried, FOLLOW)
    # They carry it only for a limit, whose hosts are done.
    limited = {"carried_by": ["p1"], "needs_operator": [{"code": "no_planner", "playbook": "upgrade", "variables": {}}]}
    assert next_run("status", {**info, **limited}) == (
        "Hosts can be admitted now. If no run is in progress, start one.",
        upgrade,
    )


def test_a_rollout_whose_hosts_are_all_upgraded_needs_a_run_that_completes_it() -> None:
    info: dict[str, Any] = {
        "version": "2",
        "blocker": {},
        "reasons": [],
        "complete": True,
        "ledger": {"state": "running"},
    }
    why = "Every host is upgraded, and no run has completed this yet. If no run is in progress, start one."
    assert next_run("status", info) == (why, NextStep("upgrade", {"version": "2"}))
    assert next_run("status", {**info, "ledger": {"state": "complete"}}) is None
    # The status names the command for these.
    assert next_run("status", {**info, "post_upgrade": ["web1"]}) is None
    of_job = {**info, "version": "job/a-1"}
    done = "Every host is done, and no run has completed this yet. If no run is in progress, start one."
    assert next_run("status", of_job) == (done, NextStep("command", {"job": "a-1"}))


@pytest.mark.parametrize("playbook", ["resume", "approve"])
def test_after_a_resume_and_an_approval_the_rollout_goes_on(playbook: str) -> None:
    info: dict[str, Any] = {"version": "2", "blocker": {}, "reasons": HELD, "ledger": {"state": "running"}}
    why = "The rollout goes on. If no run is in progress, start one."
    assert next_run(playbook, info) == (why, NextStep("upgrade", {"version": "2"}))
    assert next_run("status", info) is None
    assert next_run(playbook, {**info, "carried_by": ["p1"]}) == (
        "The rollout goes on. Planner services carry it.",
        FOLLOW,
    )
    # What is needed first is in the status.
    assert next_run(playbook, {**info, "needs_operator": [BROKEN]}) is None
    assert next_run(playbook, {**info, "ledger": {"state": "complete"}}) is None


@pytest.mark.parametrize(
    ("playbook", "is_limited", "state", "step"),
    [
        ("upgrade", True, "pending", NextStep(without=("upgrade_limit",))),
        ("rollback", True, "failed", NextStep(without=("upgrade_limit",))),
        (
            "controlplane",
            False,
            "pending",
            NextStep("upgrade", {"version": "v2"}, without=OF_PART, keeps_variables=True),
        ),
        ("upgrade", False, "pending", None),
        ("upgrade", True, "held", None),
        ("status", True, "pending", None),
    ],
)
def test_after_a_run_for_a_part_comes_the_rest(
    playbook: str, is_limited: bool, state: str, step: NextStep | None
) -> None:
    info = {
        "version": "v2",
        "counts": {"upgraded": 1, **{one: int(one == state) for one in ("pending", "failed", "held")}},
    }
    assert next_part(playbook, info, is_limited=is_limited) == step


def test_after_a_limit_come_the_post_upgrade_tasks_that_it_left_out() -> None:
    info = {"version": "v2", "counts": {"upgraded": 2}, "post_upgrade": ["web2"]}
    for playbook in ("upgrade", "post_upgrade"):
        assert next_part(playbook, info, is_limited=True) == NextStep(without=("upgrade_limit",))
        assert next_part(playbook, info, is_limited=False) is None


@pytest.mark.parametrize(
    ("info", "step"),
    [
        ({"can_move": True, "counts": {"upgrading": 1, "upgraded": 1}}, AGAIN),
        ({"can_move": True, "counts": {"pending": 1}, "needs_approval": True, "stage": "canary"},
         NextStep("approve", {"stage": "canary"}, then_again=True)),
        ({"can_move": True, "counts": {"pending": 1}, "blocker": {"code": "paused"}}, NextStep("resume", then_again=True)),
        ({"can_move": False, "counts": {"pending": 1}, "reasons": reasons(web2=("pending", "cap"))},
         NextStep("status", {"host": "web2"}, then_again=True)),
        ({"can_move": False, "counts": {"upgraded": 2, "held": 1}}, None),
        ({"counts": {}}, None),
    ],
)  # fmt: skip
def test_after_a_single_pass_comes_the_next_one_unless_an_operator_is_needed(
    info: dict[str, Any], step: NextStep | None
) -> None:
    assert next_pass("upgrade", {"version": "v2", **info}) == step
    assert next_pass("status", {"version": "v2", **info}) is None


def test_after_a_single_pass_of_a_job_the_job_goes_on() -> None:
    info = {"version": "job/j1", "can_move": True, "counts": {"upgrading": 1, "pending": 1}}
    step = next_pass("command", info)
    assert step is not None
    assert (step.playbook, step.variables) == ("", {"job": "j1"})
    assert "run" in step.without
    assert next_pass("command", {**info, "counts": {"upgraded": 2}}) is None


@pytest.mark.parametrize("blocker", [{}, {"code": "failure_budget"}])
def test_post_upgrade_tasks_that_failed_are_retried_by_the_same_command_if_it_runs_them(
    blocker: dict[str, str],
) -> None:
    found = reasons(web1=("upgraded", "post_upgrade_failed"))
    variables = {"version": "v2", "retry_failed": "true"}
    need = {"code": "post_upgrade", "playbook": "post_upgrade", "variables": variables}
    info = {"complete": True, "reasons": found, "needs_operator": [need], "blocker": blocker}
    for playbook in ("upgrade", "post_upgrade"):
        assert after_failure(playbook, "stuck", info, pushes=True) == NextStep(variables={"retry_failed": "true"})
    # It has no plays for these tasks, or not on this host.
    assert after_failure("role", "stuck", info, pushes=True) == NextStep(
        "post_upgrade", variables, without=(*OF_PART, "wait_for_other"), keeps_variables=True
    )
    # A host that joined waits for its slot.
    info = {"complete": False, "reasons": found, "needs_operator": [BROKEN], "blocker": blocker}
    assert after_failure("upgrade", "stuck", info, pushes=True) == NextStep("retry", {"host": "web1"}, True)


def test_the_need_of_post_upgrade_tasks_is_left_out_only_if_the_status_names_its_command() -> None:
    tasks = {"code": "post_upgrade", "playbook": "post_upgrade", "variables": {"version": "v2"}}
    held = {"code": "post_upgrade", "playbook": "unhold", "variables": {"host": "web1"}}
    for needs, found in (([tasks], None), ([held], held), ([tasks, BROKEN], BROKEN)):
        assert first_need({"complete": True, "needs_operator": needs}) == found
    assert first_need({"complete": False, "needs_operator": [tasks]}) == tasks


@pytest.mark.parametrize("code", ["unknown_limit", "limit_waits"])
def test_a_refused_limit_is_not_repeated(code: str) -> None:
    assert after_failure("upgrade", code, {}) == NextStep("status")


def test_a_command_that_would_fail_again_is_not_repeated() -> None:
    assert after_failure("resume", "not_running", {}) == NextStep("status")
    assert after_failure("status", "unknown_host", {}) == NextStep(without=("host",))
    # Without its host, it would retry all hosts.
    assert after_failure("retry", "unknown_host", {}) == NextStep("status")
    for playbook in ("hold", "unhold", "forget"):
        assert after_failure(playbook, "unknown_names", {}) == NextStep("status")
        assert after_failure(playbook, "no_target", {}) == NextStep("status")
    # The file of rules is corrected, and the command is the same.
    for playbook in ("upgrade", "check_instructions"):
        assert after_failure(playbook, "unknown_names", {}) == NextStep()


def test_a_job_that_ansible_runs_goes_on_with_its_tasks() -> None:
    info = {
        "version": "job/a-1",
        "reasons": [{"cause": "admissible", "hosts": ["web1"], "count": 1, "state": "pending"}],
    }
    assert next_run("retry", info) == (ANY, NextStep("command", {"job": "a-1"}))
    by_ansible = {**info, "ledger": {"by_ansible": True}}
    assert next_run("retry", by_ansible) == (ANY, NextStep("command", {"job": "a-1", "run_tasks": "FILE"}))


def test_lost_hosts_that_may_still_upgrade_are_looked_at_first() -> None:
    lost = {"cause": "lost", "hosts": ["web1"], "count": 1, "state": "lost"}
    need = {"code": "broken_hosts", "playbook": "status", "variables": {"host": "web1"}}
    found = after_failure("upgrade", "stuck", {"version": "v2", "reasons": [lost], "needs_operator": [need]})
    assert (found.playbook, found.variables, found.then_again) == ("status", {"host": "web1"}, True)


def test_hosts_of_a_job_are_retried_as_the_need_says_and_the_job_goes_on() -> None:
    info = {"version": "job/a-1", "blocker": {"code": "failure_budget"}, "reasons": FAILED, "needs_operator": [BROKEN]}
    found = after_failure("command", "stuck", info)
    assert (found.playbook, found.variables, found.then_with) == ("retry", {"host": "web1"}, {"job": "a-1"})

    # A command that is not repeatable runs again only in another job.
    final = {**BROKEN, "playbook": "abort", "variables": {}}
    found = after_failure("command", "stuck", {**info, "needs_operator": [final]})
    assert (found.playbook, found.variables, found.then_again, found.then_with) == ("abort", {}, False, {})


@pytest.mark.parametrize("playbook", ["upgrade", "post_upgrade", "command"])
def test_after_a_restore_of_consul_the_hosts_are_looked_at_first(playbook: str) -> None:
    assert after_failure(playbook, "went_back", {"version": "job/a-1" if playbook == "command" else "2"}) == NextStep(
        "status"
    )


def test_a_job_that_can_not_go_on_is_not_continued() -> None:
    info = {"version": "job/a-1", "blocker": {"code": "expired"}}
    assert after_failure("command", "stuck", info) == NextStep("abort")
    assert after_failure("command", "aborted", info) == NextStep("status")
    assert after_failure("command", "stuck", {**info, "blocker": {"code": "aborted"}}) == NextStep("status")


def test_a_job_that_is_not_the_last_one_is_read() -> None:
    assert after_failure("command", "unknown_job", {}) == NextStep("status")
    assert after_failure("status", "unknown_job", {}) == NextStep(variables={"job": "last"})
