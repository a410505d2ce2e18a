# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does after a run that stopped, or where hosts may go and no run may be there to let them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils._host_states.states import FAILED, LOST, UPGRADED
from ...module_utils._planner.blockers import ABORT, PAUSE

# Playbooks that move the fleet: after what is in their way is gone, they go on where they were.
MOVES = ("upgrade", "controlplane", "dataplane", "role", "rollback", "post_upgrade")
# Failures of a rollout itself, and not of what it was given.
_STOPPED = ("stuck", "paused", "aborted", "budget_spent", "hours", "approval", "role_budget")
_SOMEBODY_ELSES = ("overtaken", "foreign_version", "rollout_under_way")
_MAY_GO = "may_go"
# More are not named, and all that are broken are tried again.
_MOST_HOSTS = 10


@dataclass(frozen=True, slots=True)
class NextStep:
    """One command.

    :param playbook: its name, empty for the one that was run.
    :param then_again: whether the one that was run comes after it.
    """

    playbook: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    then_again: bool = False


def after_failure(playbook: str, code: str, info: Mapping[str, Any], *, pushes: bool = False) -> NextStep:
    """Return what comes after a run that did not get to its end.

    :param playbook: its name, such as ``upgrade``.
    :param code: of its last failure, empty where it had none or was interrupted.
    :param info: the last result of ``consul_upgrade_info`` or ``consul_upgrade_plan`` in it, empty without one.
    :param pushes: whether Ansible upgrades hosts in it.
    """
    if playbook not in MOVES:
        return NextStep()
    if code in _SOMEBODY_ELSES:
        return NextStep("status")
    if code not in _STOPPED:
        return NextStep()
    stops = (info.get("blocker") or {}).get("code") or code
    if stops == PAUSE:
        return NextStep("resume", then_again=True)
    if stops == ABORT:
        return NextStep(variables={"restart": "true"})
    if info.get("wants_approval"):
        return NextStep("approve", {"stage": str(info.get("stage"))}, then_again=True)
    hosts: Mapping[str, Mapping[str, Any]] = info.get("hosts") or {}
    broken = [host for host, view in hosts.items() if view["state"] in (FAILED, LOST)]
    if broken and pushes:
        return NextStep(variables={"retry_failed": "true"})
    if broken:
        return NextStep("retry", {"host": ",".join(broken)} if len(broken) <= _MOST_HOSTS else {}, then_again=True)
    waiting = [host for host, view in hosts.items() if view["state"] != UPGRADED and view.get("cause") != _MAY_GO]
    if code == "stuck" and waiting:
        # Its story tells who could change what.
        return NextStep("status", {"host": waiting[0]}, then_again=True)
    return NextStep()


def next_to_admit(playbook: str, info: Mapping[str, Any]) -> NextStep | None:
    """Return what lets hosts go that may go now, where no run does; None where none may, or this run was to."""
    hosts: Mapping[str, Mapping[str, Any]] = info.get("hosts") or {}
    if playbook in MOVES or not info.get("version") or info.get("blocker"):
        return None
    if any(view.get("cause") == _MAY_GO for view in hosts.values()):
        return NextStep("upgrade", {"version": str(info["version"])})
    return None
