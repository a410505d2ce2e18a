# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan: what to write now, in which state every host is and why, and what is expected after that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.names import listing
from .._fleet.health_marks import HealthMark
from .._host_states import states
from .._host_states.failure_budgets import ExhaustedBudget
from .blockers import RolloutBlocker


@dataclass(frozen=True, slots=True)
class HostView:
    """A host as an operator sees it.

    :param reason: why it is in its state, or why it waits.
    :param soaking: whether it reported the version, and its health is still to be seen.
    :param started: whether it reported that it began an upgrade, and not that it ended.
    :param held: whether a hold is over it, whatever its state.
    :param cause: the reason as a stable word; empty if the state says it all.
    :param rule: the key of the rules that keeps it waiting; empty for none.
    :param origin: the version that it came from, once Ansible has begun to upgrade it and until it reports.
    :param begun: the version that it has begun to upgrade to and does not run, as when it failed midway.
    :param done: the task groups of its upgrade path that it has finished, such as ``upgrade/nginx@2.4``, until it reports.
    :param unadmitted: whether it reported a start behind a closed gate, and no planner has admitted it.
    :param stage: index of its stage, in the order in which stages go; 0 for the first one, and without stages.
    :param blocks: whether other roles and later stages have to wait for it.
    """

    role: str
    group: str | None
    state: str
    version: str | None
    reason: str
    soaking: bool = False
    started: bool = False
    held: bool = False
    cause: str = ""
    rule: str = ""
    origin: str | None = None
    begun: str | None = None
    done: tuple[str, ...] = ()
    unadmitted: bool = False
    stage: int = 0
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """A host that a plan admits.

    :param before: its state before that: ``pending``, or ``upgrading`` if it gets its gate back.
    :param reason: what lets it go.
    """

    host: str
    role: str
    before: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write now, in which state every host is and why, and what is expected after that.

    :param hosts: every host, as it is **before** the admissions.
    :param admissions: the hosts that are admitted now.
    :param role_gates: the roles whose gate is opened for that, because nothing limits them.
    :param host_gates: the hosts whose own gate is opened for that.
    :param waves: the hosts admitted now, then the forecast; empty if none can be expected.
    :param wave_seconds: how many seconds each wave may take; 0 if no host is known to have finished.
    :param complete: whether every host is upgraded, and the rollout is neither paused nor aborted.
    :param scope_done: whether every host in scope is upgraded, likewise.
    :param can_move: whether anything may still change without an operator.
    :param unfinished: the hosts in scope that are not upgraded.
    :param missing: sentences on roles of which fewer hosts are known here than the rollout has; nothing may be written then.
    :param blocker: what blocks the whole rollout now; None for nothing.
    :param exhausted: role -> the failure budget over it, if that is used up.
    :param exhausted_keys: keys of all failure budgets that are used up.
    :param stage: name of the current stage; None without stages.
    :param stage_mark: what the ledger is to remember of that stage.
    :param wants_approval: whether the stage is done and waits for an operator's approval.
    :param waits: whether time, an approval or a command is all that is missing.
    :param post_upgrade: hosts whose tasks after the upgrade are still to be run.
    :param order: role -> the roles that go before it, for roles that wait for any.
    :param rollback_order: whether a rollback takes roles and stages ``reversed`` or ``forward``; empty in other rollouts.
    :param marks: host -> what is to be remembered of its health, if that is new.
    :param wake_at: when a pass may find something else though nothing was written (unix seconds).
    """

    version: str | None = None
    hosts: Mapping[str, HostView] = field(default_factory=dict)
    admissions: tuple[Admission, ...] = ()
    role_gates: tuple[str, ...] = ()
    host_gates: tuple[str, ...] = ()
    waves: tuple[tuple[str, ...], ...] = ()
    wave_seconds: tuple[float, ...] = ()
    complete: bool = False
    scope_done: bool = False
    can_move: bool = False
    unfinished: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    blocker: RolloutBlocker | None = None
    exhausted: Mapping[str, ExhaustedBudget] = field(default_factory=dict)
    exhausted_keys: tuple[str, ...] = ()
    stage: str | None = None
    stage_mark: Mapping[str, int] = field(default_factory=dict)
    wants_approval: bool = False
    waits: bool = False
    post_upgrade: tuple[str, ...] = ()
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rollback_order: str = ""
    marks: Mapping[str, HealthMark] = field(default_factory=dict)
    wake_at: float | None = None

    def status(self) -> dict[str, list[str]]:
        """Return state -> hosts in natural order, for all six states."""
        found: dict[str, list[str]] = {state: [] for state in states.STATES}
        for host, view in self.hosts.items():
            found[view.state].append(host)
        return found


def blocked_hosts(plan: Plan, hosts: Mapping[str, HostView]) -> list[str]:
    """Return why hosts in scope are not upgraded: a sentence for each reason, with its hosts.

    :param hosts: every host as it is shown, before or after the plan's admissions.
    """
    if not plan.unfinished and plan.blocker is not None:
        return [plan.blocker.reason]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for host in plan.unfinished:
        view = hosts[host]
        by_reason.setdefault((view.state, view.reason), []).append(host)
    return [f"{listing(found)} ({state}): {reason}" for (state, reason), found in by_reason.items()]


def rollout_blockers(plan: Plan) -> dict[str, Any]:
    """Return what keeps a plan from admitting more, as plain data: the stage, its approval, the rollout's blocker, the order."""
    blocker = plan.blocker
    return {
        "stage": plan.stage or "",
        "wants_approval": plan.wants_approval,
        "blocker": {}
        if blocker is None
        else {"code": blocker.code, "reason": blocker.reason, "until": blocker.until or 0},
        "order": {role: list(firsts) for role, firsts in plan.order.items()},
        "rollback_order": plan.rollback_order,
        "post_upgrade": list(plan.post_upgrade),
    }
