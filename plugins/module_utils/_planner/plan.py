# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan: what a pass writes, the state of every host with its reason, and the forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.names import is_job, listing
from .._fleet.health_marks import HealthMark
from .._host_states import state_names
from .._host_states.failure_budgets import ExhaustedBudget
from .blockers import RolloutBlocker
from .fleet_state import FleetState
from .stage_progress import StageProgress

# How many reasons of one kind a result has. Hosts that fail may each have an error of their own.
MOST_REASONS = 100
# The hosts of each wave, in order.
Waves = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class HostView:
    """A host as operators see it.

    :param reason: why it is in its state.
    :param soaking: whether it reported the version and its health is not proven yet.
    :param started: whether it reported the start of an upgrade and no end.
    :param held: whether a hold applies to it, in any state.
    :param holds_itself: whether it is held only because it reported so. Its next report may end that.
    :param cause: a stable code for the reason; empty for states other than pending.
    :param rule: the key in the rules because of which it waits; empty for none.
    :param origin: the version that it upgrades from, once Ansible has begun to upgrade it and until it reports.
    :param begun: the version of an upgrade that it began and did not finish, such as one that failed.
    :param done: the task groups that it has finished, such as ``stop/nginx``, until it is upgraded. After an upgrade to another version,
        only those of checkpoints, such as ``upgrade/nginx@2.4``.
    :param steps: the steps that it has begun, such as ``stop``, in any attempt and to any version, until it is upgraded.
    :param unadmitted: whether it reported a start while its gate was closed, and no planner admitted it.
    :param busy: whether it has started other work than the rollout's, and not ended it: a job, or an upgrade while the rollout is a job.
    :param services: the ID of the tasks of services that it has; None if it has none.
    :param release: the release of the node agent that reported last; None if none did.
    :param stage: index of its stage, in the order of stages; 0 for the first one, and without stages.
    :param blocks: whether other roles and later stages wait for it.
    :param outside: whether it counts as upgraded only because a job is not for it.
    """

    role: str
    group: str | None
    state: str
    version: str | None
    reason: str
    soaking: bool = False
    started: bool = False
    held: bool = False
    holds_itself: bool = False
    cause: str = ""
    rule: str = ""
    origin: str | None = None
    begun: str | None = None
    done: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    unadmitted: bool = False
    busy: bool = False
    stage: int = 0
    blocks: bool = False
    services: str | None = None
    release: str | None = None
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """A host that a plan admits.

    :param before: its state before that: ``pending``, or ``upgrading`` or ``lost`` if its gate is opened again.
    :param reason: why it is admitted.
    :param slot: the slot that it gets, such as ``slot 1 of 3`` of the cap with the fewest free slots; empty if it has one, or nothing limits it.
    """

    host: str
    role: str
    before: str
    reason: str
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass writes, the state of every host with its reason, and the forecast.

    :param hosts: every host, in its state **before** the admissions.
    :param admissions: the hosts that this pass admits.
    :param role_gates: the roles whose gate is opened for that, because nothing limits them.
    :param host_gates: the hosts whose own gate is opened for that.
    :param role_gates_to_close: the roles whose open gate has to be closed first.
    :param waves: the admissions, then the waves of the forecast; empty if no host is expected to be admitted.
    :param wave_seconds: how many seconds each wave may take; 0 if no host is known to have finished.
    :param complete: whether every host is upgraded, and the rollout is neither paused nor aborted.
    :param scope_done: the same for the hosts in scope.
    :param can_move: whether the rollout can still go on: hosts are upgrading or admitted, or only time, an approval or a command is missing.
    :param unfinished: the hosts in scope that are not upgraded.
    :param missing: sentences about roles of which this pass has fewer hosts than the ledger; then a pass writes nothing.
    :param blocker: what blocks the whole rollout now; None for nothing.
    :param exhausted: role -> its exhausted failure budget.
    :param exhausted_keys: the keys in the rules of all exhausted failure budgets.
    :param stage: name of the current stage; None without stages.
    :param stage_mark: the value of ``stage`` to write to the ledger.
    :param needs_approval: whether the stage is done and waits for an operator's approval.
    :param waits: whether only time, an approval or a command is missing.
    :param post_upgrade: hosts that still have to run their post-upgrade tasks.
    :param order: role -> the roles that go before it, for roles that wait for any.
    :param rollback_order: the order of roles and stages in a rollback, ``reversed`` or ``forward``; empty in other rollouts.
    :param marks: host -> health mark to store, for marks that have changed.
    :param wake_at: when a pass may have another result without a write (unix seconds); None if only a write changes it.
    :param stages: where the rollout is in its stages.
    :param fleet: the fleet that the plan is made for; None for no fleet. The explanations and the forecast are computed from it when they are
        used first.
    """

    version: str | None = None
    hosts: Mapping[str, HostView] = field(default_factory=dict)
    admissions: tuple[Admission, ...] = ()
    role_gates: tuple[str, ...] = ()
    host_gates: tuple[str, ...] = ()
    role_gates_to_close: tuple[str, ...] = ()
    waves: Waves = ()
    wave_seconds: Sequence[float] = ()
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
    needs_approval: bool = False
    waits: bool = False
    post_upgrade: tuple[str, ...] = ()
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rollback_order: str = ""
    marks: Mapping[str, HealthMark] = field(default_factory=dict)
    wake_at: float | None = None
    stages: StageProgress = field(default_factory=StageProgress)
    fleet: FleetState | None = field(default=None, compare=False, repr=False)

    def status(self) -> dict[str, list[str]]:
        """Return state -> hosts in natural order, for all six states."""
        found: dict[str, list[str]] = {state: [] for state in state_names.STATES}
        for host, view in self.hosts.items():
            found[view.state].append(host)
        return found


def grouped_reasons(by_reason: Mapping[tuple[str, str, str], list[str]]) -> dict[tuple[str, str, str], list[str]]:
    """Return reasons with their hosts. Of each state and cause, those after the first 100 become one, at the end.

    :param by_reason: state, reason and cause -> hosts.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    left: dict[tuple[str, str], list[str]] = {}
    counts: dict[tuple[str, str], int] = {}
    for (state, reason, cause), hosts in by_reason.items():
        counts[state, cause] = counts.get((state, cause), 0) + 1
        if counts[state, cause] <= MOST_REASONS:
            found[state, reason, cause] = hosts
        else:
            left.setdefault((state, cause), []).extend(hosts)
    for (state, cause), hosts in left.items():
        others = f"{counts[state, cause] - MOST_REASONS} other reasons"
        text = f"{others}; ansible-playbook convoy.upgrade.status -e host=HOST shows that of a host"
        found[state, text, cause] = hosts
    return found


def blocked_hosts(plan: Plan, hosts: Mapping[str, HostView]) -> list[str]:
    """Return a sentence for each reason why hosts in scope are not upgraded, with those hosts. Of each state, those after the first 100 share one.

    :param hosts: host -> view, before or after the plan's admissions.
    """
    if not plan.unfinished and plan.blocker is not None:
        return [plan.blocker.reason]
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    for host in plan.unfinished:
        view = hosts[host]
        by_reason.setdefault((view.state, view.reason, ""), []).append(host)
    of_job = is_job(plan.version)
    return [
        f"{listing(found)} ({state_names.state_text(state, of_job=of_job)}): {reason}"
        for (state, reason, _cause), found in grouped_reasons(by_reason).items()
    ]


def rollout_blockers(plan: Plan) -> dict[str, Any]:
    """Return what keeps a plan from admitting more hosts, as plain data: the stage, its approval, the blocker, the order."""
    blocker = plan.blocker
    return {
        "stage": plan.stage or "",
        "needs_approval": plan.needs_approval,
        "blocker": {}
        if blocker is None
        else {"code": blocker.code, "reason": blocker.reason, "until": blocker.until or 0},
        "order": {role: list(firsts) for role, firsts in plan.order.items()},
        "rollback_order": plan.rollback_order,
    }
