# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan: what is written now, in which state every host is, and what is expected after that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.names import listing
from .._fleet.health_marks import HealthMark
from .._host_states import states
from .._host_states.failure_budgets import SpentBudget
from .blockers import RolloutBlocker


@dataclass(frozen=True, slots=True)
class HostView:
    """A host as an operator sees it.

    :param reason: why it is in its state, or why it waits.
    :param origin: the version that it came from, once Ansible has begun to upgrade it and until it reports.
    :param begun: the version to which it has begun to go and has not got, as where it failed midway.
    :param done: the units of paths that it has behind it, such as ``upgrade/nginx@2.4``, until it reports.
    :param cause: the same as a stable word; empty where the state says it all.
    :param rule: the key of the instructions that keeps it waiting; empty where none does.
    :param soaking: whether it reported the version, and its health is still to be seen.
    :param started: whether it said that it began an upgrade, and not that it ended.
    :param held: whether a hold is over it, whatever its state.
    :param unadmitted: whether it says that it has started, behind a closed gate, and no planner has admitted it.
    :param stage: number of the stage that it belongs to, in the order in which they go; 0 for the first, and without stages.
    :param blocks: whether hosts that come after it have to wait for it.
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
    """A host that this plan lets through."""

    host: str
    role: str
    before: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write now, where every host is, why the others wait, and what comes after.

    :param hosts: every host, as it is **before** the openings.
    :param openings: the hosts let through now.
    :param open_roles: roles to open by one key, because nothing limits them.
    :param open_hosts: hosts to open by a key of their own.
    :param waves: the hosts let through now, then the forecast; empty where nothing is left to open.
    :param wave_seconds: how long each wave may take, by what hosts took the last time; 0 where none has told.
    :param complete: whether every host is upgraded, and nobody has paused or aborted the rollout.
    :param scope_done: whether every host that the call may open is, likewise.
    :param can_move: whether anything may still change without an operator.
    :param unfinished: the hosts in scope that are not upgraded.
    :param missing: roles of which fewer hosts are known here than the rollout has; nothing may be opened then.
    :param brake: what stops the whole rollout now.
    :param spent: role -> its budget of failure, where that is used up.
    :param stopped: keys of the budgets that are used up.
    :param stage: name of the stage that the fleet is in, None without stages; ``stage_mark`` is what the ledger has to say
        of it.
    :param wants_approval: whether that stage is done but for somebody's approval.
    :param waits: whether time or somebody's word is all that is missing.
    :param post_upgrade: hosts whose tasks after the upgrade are still to be run.
    :param order: role -> the roles that go before it, for those that wait for any.
    :param rollback_order: whether a rollback goes through roles and stages ``reversed`` or ``forward``; empty in other rollouts.
    :param marks: host -> what is to be remembered of its health, where that is something new; None to forget it.
    :param wake_at: when a pass may find something else though nothing was written (unix seconds).
    """

    version: str | None = None
    hosts: Mapping[str, HostView] = field(default_factory=dict)
    openings: tuple[Admission, ...] = ()
    open_roles: tuple[str, ...] = ()
    open_hosts: tuple[str, ...] = ()
    waves: tuple[tuple[str, ...], ...] = ()
    wave_seconds: tuple[float, ...] = ()
    complete: bool = False
    scope_done: bool = False
    can_move: bool = False
    unfinished: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    brake: RolloutBlocker | None = None
    spent: Mapping[str, SpentBudget] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()
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
    """Return why hosts in scope are not upgraded: a sentence for each reason, with its hosts."""
    if not plan.unfinished and plan.brake is not None:
        return [plan.brake.reason]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for host in plan.unfinished:
        view = hosts[host]
        by_reason.setdefault((view.state, view.reason), []).append(host)
    return [f"{listing(found)} ({state}): {reason}" for (state, reason), found in by_reason.items()]


def rollout_blockers(plan: Plan) -> dict[str, Any]:
    """Return what keeps a plan from opening more as plain data: the stage, whether it wants approval, the brake, the order."""
    brake = plan.brake
    return {
        "stage": plan.stage or "",
        "wants_approval": plan.wants_approval,
        "brake": {} if brake is None else {"code": brake.code, "reason": brake.reason, "until": brake.until or 0},
        "order": {role: list(firsts) for role, firsts in plan.order.items()},
        "rollback_order": plan.rollback_order,
        "post_upgrade": list(plan.post_upgrade),
    }
