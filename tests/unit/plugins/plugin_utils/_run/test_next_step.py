# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The next command after a run that stopped."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.next_step import (
    NextStep,
    after_failure,
    next_part,
    next_to_admit,
)

AGAIN = NextStep()
FAILED = {"web1": {"state": "failed"}, "web2": {"state": "pending", "cause": "cap"}}
HELD = {"web1": {"state": "upgraded"}, "web2": {"state": "held", "cause": ""}}


@pytest.mark.parametrize(
    ("code", "info", "step"),
    [
        # Ctrl-C, a validation, time-out, lost Consul, a window.
        ("", {}, AGAIN),
        ("bad_instructions", {}, AGAIN),
        ("timeout", {"hosts": FAILED}, AGAIN),
        ("unreachable", {"hosts": FAILED}, AGAIN),
        ("hours", {"blocker": {"code": "hours"}}, AGAIN),
        # An operator's command.
        ("paused", {"blocker": {"code": "paused"}}, NextStep("resume", then_again=True)),
        ("paused", {}, NextStep("resume", then_again=True)),
        ("aborted", {"blocker": {"code": "aborted"}}, NextStep(variables={"restart": "true"})),
        (
            "stuck",
            {"needs_approval": True, "stage": "canary", "hosts": FAILED},
            NextStep("approve", {"stage": "canary"}, True),
        ),
        # Failures and budgets, holds, caps.
        (
            "failure_budget",
            {"blocker": {"code": "failure_budget"}, "hosts": FAILED},
            NextStep("retry", {"host": "web1"}, True),
        ),
        ("stuck", {"hosts": FAILED}, NextStep("retry", {"host": "web1"}, True)),
        ("stuck", {"hosts": {f"web{one}": {"state": "lost"} for one in range(11)}}, NextStep("retry", {}, True)),
        ("stuck", {"hosts": HELD}, NextStep("status", {"host": "web2"}, True)),
        # As in a run of one plane, after which the other can be upgraded.
        ("stuck", {"hosts": {"web1": {"state": "pending", "cause": "may_go"}}}, AGAIN),
        ("overtaken", {}, NextStep("status")),
        ("rollout_under_way", {}, NextStep("status")),
    ],
)
def test_each_failure_has_its_next_step(code: str, info: dict[str, Any], step: NextStep) -> None:
    assert after_failure("upgrade", code, info) == step


def test_if_ansible_upgrades_hosts_the_same_command_retries_failed_ones() -> None:
    assert after_failure("upgrade", "stuck", {"hosts": FAILED}, pushes=True) == NextStep(
        variables={"retry_failed": "true"}
    )


def test_other_playbooks_are_run_again() -> None:
    assert after_failure("hold", "stuck", {"hosts": FAILED}) == AGAIN


def test_hosts_that_can_be_admitted_need_a_run() -> None:
    info: dict[str, Any] = {"version": "2", "blocker": {}, "hosts": {"web1": {"state": "pending", "cause": "may_go"}}}
    assert next_to_admit("status", info) == NextStep("upgrade", {"version": "2"})
    assert next_to_admit("upgrade", info) is None
    assert next_to_admit("status", {**info, "blocker": {"code": "paused"}}) is None
    assert next_to_admit("status", {**info, "hosts": HELD}) is None
    assert next_to_admit("status", {}) is None


@pytest.mark.parametrize(
    ("playbook", "is_limited", "state", "step"),
    [
        ("upgrade", True, "pending", NextStep(without=("upgrade_limit",))),
        ("rollback", True, "failed", NextStep(without=("upgrade_limit",))),
        ("controlplane", False, "pending", NextStep("upgrade", {"version": "v2"})),
        ("upgrade", False, "pending", None),
        ("upgrade", True, "held", None),
        ("status", True, "pending", None),
    ],
)
def test_after_a_run_for_a_part_comes_the_rest(
    playbook: str, is_limited: bool, state: str, step: NextStep | None
) -> None:
    info = {"version": "v2", "hosts": {"web1": {"state": "upgraded"}, "web2": {"state": state}}}
    assert next_part(playbook, info, is_limited=is_limited) == step


@pytest.mark.parametrize("code", ["unknown_limit", "limit_waits"])
def test_a_refused_limit_is_not_repeated(code: str) -> None:
    assert after_failure("upgrade", code, {}) == NextStep("status")
