# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The next command after a run that stopped, or after a command that made hosts admissible."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...module_utils._common.names import is_job, job_id
from ...module_utils._fleet.ledger import RUNNING
from ...module_utils._host_states.state_names import FAILED, HELD, LOST, UPGRADED, state_text
from ...module_utils._observe.operator_needs import (
    BROKEN_HOSTS,
    INTERRUPTED,
    NO_PLANNER,
    POST_UPGRADE,
    STUCK,
    UNADMITTED,
)
from ...module_utils._planner.blocker_codes import ABORT, BUDGET, EXPIRED, PAUSE
from ...module_utils._planner.explanations import POST_UPGRADE_FAILED

# Playbooks that upgrade the fleet. Once a blocker is removed, the same command continues.
UPGRADES = ("upgrade", "controlplane", "dataplane", "role", "rollback", "post_upgrade")
# The playbook that begins jobs, its variables that only a new job has, and those that a command which continues the job leaves out.
COMMAND = "command"
OF_NEW_JOB = ("run", "args", "only", "expires", "sign_with")
_LEFT_OUT = (*OF_NEW_JOB, "reason", "by", "wait_for_other", "instructions", "instructions_file")
# Failures of a rollout itself, not of its options or rules.
_STOPPED = ("stuck", "paused", "aborted", "expired", "failure_budget", "hours", "approval", "role_budget")
# The operator has to look before the same command may run again. After Consul was restored, a new run would trust what it finds.
_LOOK_FIRST = ("went_back", "overtaken", "foreign_version", "rollout_under_way", "job_under_way")
# Failures of a limit. The status shows the names of hosts and roles.
_OF_LIMITS = ("unknown_limit", "limit_waits")
_UNKNOWN_JOB = "unknown_job"
# Failures of commands that would fail again. Without its host, convoy.upgrade.retry would retry all hosts.
_NOT_AGAIN = ("not_running", "unknown_host", "no_rollout", "nothing_to_approve")
# Failures of the names that these commands were given. Elsewhere, the names are in rules, and the same command follows once they are corrected.
_OF_NAMES = ("unknown_names", "no_target")
_BY_NAME = ("hold", "unhold", "forget")
_ADMISSIBLE = "admissible"
# These let a rollout go on without a change of hosts.
_ONLY_GO_ON = ("resume", "approve")
# What belongs only to a run for a part of the fleet: which part, what had failed in it, and how it began the rollout.
_OF_PART = ("role", "upgrade_limit", "retry_failed", "restart", "replace")
# Variables of such a run that convoy.upgrade.post_upgrade does not have.
_NOT_OF_POST_UPGRADE = ("wait_for_other",)


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next command.

    :param playbook: the name of its playbook, empty for the one of this run.
    :param then_again: whether the command of this run follows.
    :param without: variables of this run that it leaves out.
    :param then_with: variables of the command of this run that follows.
    :param keeps_variables: whether another playbook takes the variables of this run. Others keep only those that describe the fleet.
    """

    playbook: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)
    then_again: bool = False
    without: Sequence[str] = ()
    then_with: Mapping[str, str] = field(default_factory=dict)
    keeps_variables: bool = False


FOLLOW = NextStep("status", {"follow": "true"})


def after_failure(
    playbook: str,
    code: str,
    info: Mapping[str, Any],
    *,
    pushes: bool = False,
    pushed: Collection[str] = (),
    has_lost_host: bool = False,
    is_limited: bool = False,
) -> NextStep:
    """Return the next command after a run that did not succeed.

    :param playbook: the name of its playbook, such as ``upgrade``.
    :param code: the code of its last failure, empty if it had none or was interrupted.
    :param info: its last result of ``consul_upgrade_info`` or ``consul_upgrade_plan``, empty for none.
    :param pushes: whether Ansible upgrades hosts in this run.
    :param pushed: those hosts, also the ones that failed before.
    :param has_lost_host: whether an unreachable host was recorded as failed.
    :param is_limited: whether it had ``upgrade_limit``. What stops it may be outside of that then.
    """
    is_part = _is_part(playbook, is_limited=is_limited)
    if playbook == COMMAND:
        return _after_job(code, info)
    if code in _NOT_AGAIN or (code in _OF_NAMES and playbook in _BY_NAME):
        return NextStep(without=("host",)) if playbook == "status" else NextStep("status")
    if code == _UNKNOWN_JOB:
        return NextStep(variables={"job": "last"})
    if playbook not in UPGRADES:
        return NextStep()
    if has_lost_host and not code:
        return NextStep(variables={"retry_failed": "true"})
    if code in (*_LOOK_FIRST, *_OF_LIMITS):
        return NextStep("status")
    unadmitted = _need(info, UNADMITTED)
    if code == "timeout" and unadmitted:
        return NextStep(unadmitted["playbook"], dict(unadmitted["variables"]), then_again=True)
    blocker = (info.get("blocker") or {}).get("code") or code
    # Another wait for what only an operator can give would end in the same way.
    waits_for_operator = code == "timeout" and (blocker == PAUSE or info.get("needs_approval"))
    if code not in _STOPPED and not waits_for_operator:
        return NextStep()
    if blocker == PAUSE:
        return NextStep("resume", then_again=True)
    if blocker == ABORT and info.get("rollback_order"):
        # An aborted rollback begins again with the same command, which keeps its variables. Rules of an upgrade are not those of a rollback.
        return NextStep("" if playbook == "rollback" else "rollback", {"version": str(info.get("version"))})
    if blocker == ABORT:
        return NextStep(variables={"restart": "true"})
    if info.get("needs_approval"):
        return NextStep("approve", {"stage": str(info.get("stage"))}, then_again=True)
    reasons: Sequence[Mapping[str, Any]] = info.get("reasons") or ()
    broken = [one for one in reasons if one["state"] in (FAILED, LOST)]
    if any(host in pushed for one in broken for host in one["hosts"]):
        # A run retries only its own hosts, and none that upgrade themselves.
        return NextStep(variables={"retry_failed": "true"})
    if broken:
        # It knows which of them may still be at work.
        need = _need(info, BUDGET, BROKEN_HOSTS)
        if need is None or need["playbook"] in UPGRADES:
            # A run for a part of the fleet does not continue the other hosts.
            need = {"playbook": "retry", "variables": {}}
        return NextStep(need["playbook"], dict(need["variables"]), then_again=need["playbook"] != "abort")
    if any(one["cause"] == POST_UPGRADE_FAILED for one in reasons):
        if pushes and not is_part and info.get("complete"):
            return NextStep(variables={"retry_failed": "true"})
        # While hosts are left to upgrade, only a retry frees the slot.
        if failed := _need(info, BUDGET, BROKEN_HOSTS, POST_UPGRADE):
            step = NextStep(failed["playbook"], dict(failed["variables"]), then_again=failed["code"] != POST_UPGRADE)
            if step.playbook == "post_upgrade":
                step = replace(step, without=(*_OF_PART, *_NOT_OF_POST_UPGRADE), keeps_variables=True)
            return step
    if unadmitted:
        return NextStep(unadmitted["playbook"], dict(unadmitted["variables"]), then_again=True)
    interrupted = _need(info, INTERRUPTED)
    if code == "stuck" and interrupted and interrupted["playbook"] not in (*UPGRADES, COMMAND):
        # Only the end of a hold lets these hosts go on.
        return NextStep(interrupted["playbook"], dict(interrupted["variables"]), then_again=True)
    stuck = _need(info, STUCK)
    if code == "stuck" and stuck and stuck["playbook"] == "retry":
        return NextStep("retry", dict(stuck["variables"]), then_again=True)
    waiting = [host for one in reasons if one["cause"] != _ADMISSIBLE for host in one["hosts"]]
    if code == "stuck" and waiting:
        # The status of a host explains what would change its state.
        return NextStep("status", {"host": waiting[0]}, then_again=True)
    return NextStep()


def _need(info: Mapping[str, Any], *codes: str) -> Mapping[str, Any] | None:
    """Return what an operator is needed for, of one of these codes; None for nothing."""
    needs: Sequence[Mapping[str, Any]] = info.get("needs_operator") or ()
    return next((one for one in needs if one["code"] in codes), None)


def _after_job(code: str, info: Mapping[str, Any]) -> NextStep:
    """Return the next command after a run of a job. It continues the job, and does not begin another one."""
    target = str(info.get("version") or "")
    # A job that was aborted does not begin again.
    if code in (*_LOOK_FIRST, *_OF_LIMITS, _UNKNOWN_JOB, "aborted"):
        return NextStep("status")
    if not is_job(target):
        return NextStep()
    step = after_failure(UPGRADES[0], code, info)
    if (info.get("blocker") or {}).get("code") == EXPIRED:
        return NextStep("abort")
    if (info.get("blocker") or {}).get("code") == ABORT:
        return NextStep("status")
    if step.playbook == "abort":
        # A command that is not repeatable has failed, so only a new job runs it again.
        return step
    continues = {"job": job_id(target)}
    if not step.playbook:
        return NextStep(variables=continues, without=_LEFT_OUT)
    return replace(step, without=_LEFT_OUT, then_with=continues)


def next_part(playbook: str, info: Mapping[str, Any], *, is_limited: bool) -> NextStep | None:
    """Return the command that upgrades the rest of the fleet after a run for a part of it, or runs its post-upgrade tasks; None if no host is left.

    :param is_limited: whether the run had ``upgrade_limit``. Then the same command without it is next.
    """
    if playbook not in UPGRADES or not _is_part(playbook, is_limited=is_limited) or not info.get("version"):
        return None
    if not _has_hosts_left(info) and not (is_limited and info.get("post_upgrade")):
        return None
    if is_limited:
        return NextStep(without=("upgrade_limit",))
    return NextStep("upgrade", {"version": str(info["version"])}, without=_OF_PART, keeps_variables=True)


def next_pass(playbook: str, info: Mapping[str, Any]) -> NextStep | None:
    """Return the command that follows a single pass of a rollout or a job; None if no host is left.

    :param info: its last result of ``consul_upgrade_info``.
    """
    if playbook not in (*UPGRADES, COMMAND) or not info.get("version") or not _has_hosts_left(info):
        return None
    # As after a wait that ends here.
    return after_failure(playbook, "timeout" if info.get("can_move") else "stuck", info)


def _has_hosts_left(info: Mapping[str, Any]) -> bool:
    counts: Mapping[str, int] = info.get("counts") or {}
    return any(count for state, count in counts.items() if state not in (UPGRADED, HELD))


def _is_part(playbook: str, *, is_limited: bool) -> bool:
    """Return whether a run is for a part of the fleet."""
    return is_limited or playbook in ("controlplane", "dataplane", "role")


def first_need(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the rollout needs most from an operator; None for nothing, and for what the status names above its table."""
    needs = info.get("needs_operator") or ()
    return next(
        (one for one in needs if not (info.get("complete") and one["code"] == POST_UPGRADE == one["playbook"])), None
    )


def next_run(playbook: str, info: Mapping[str, Any]) -> tuple[str, NextStep] | None:
    """Return the command that lets a rollout or a job go on, and why it is needed; None if nothing is left, or if this playbook admits hosts itself.

    Whether a run is in progress is not known, except for planner services.
    """
    ledger: Mapping[str, Any] = info.get("ledger") or {}
    if playbook in (*UPGRADES, COMMAND) or not info.get("version") or info.get("blocker"):
        return None
    if any(one["cause"] == _ADMISSIBLE for one in info.get("reasons") or ()):
        why = "Hosts can be admitted now."
    elif ledger.get("state") == RUNNING and info.get("complete") and not info.get("post_upgrade"):
        why = (
            f"Every host is {state_text(UPGRADED, of_job=is_job(info['version']))}, and no run has completed this yet."
        )
    elif ledger.get("state") == RUNNING and playbook in _ONLY_GO_ON and not info.get("needs_operator"):
        why = f"The {'job' if is_job(info['version']) else 'rollout'} goes on."
    else:
        return None
    # They may carry it for some hosts only.
    if info.get("carried_by") and _need(info, NO_PLANNER) is None:
        return f"{why} Planner services carry it.", FOLLOW
    return f"{why} If no run is in progress, start one.", _same_again(info, ledger)


def _same_again(info: Mapping[str, Any], ledger: Mapping[str, Any]) -> NextStep:
    if not is_job(info["version"]):
        return NextStep("rollback" if ledger.get("rollback") else "upgrade", {"version": str(info["version"])})
    # Only a run with the tasks of the job admits hosts to it.
    tasks = {"run_tasks": "FILE"} if ledger.get("by_ansible") else {}
    return NextStep(COMMAND, {"job": job_id(str(info["version"])), **tasks})
