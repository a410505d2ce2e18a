# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides after each pass whether a host may begin or resume its upgrade in this run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...module_utils._fleet.ledger import ABORTED, PAUSED, RUNNING
from ...module_utils._host_states import state_names
from ...module_utils._host_states.host_state import HostState
from ...module_utils._passes.planner_pass import PassResult
from ...module_utils._planner.blocker_codes import BUDGET
from ...module_utils._planner.plan import HostView, Plan
from ...module_utils._planner.reconcile import make_plan
from ...module_utils._rollout._commands.retry_records import snapshot_after_retry
from .host_run import interrupted_at
from .run import POST_UPGRADE_PHASE, PushRun

# The state of a host whose lease another run holds, in results of push_host.
LEASED_ELSEWHERE = "leased"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a host is admitted in this run.

    :param state: its state, or :data:`LEASED_ELSEWHERE`.
    """

    admitted: bool
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class PassView:
    """A pass, and every host as it is after the pass.

    :param position: the watch's position before the pass, to wait for later changes.
    """

    outcome: PassResult
    hosts: Mapping[str, HostView]
    position: int

    @property
    def is_aborted(self) -> bool:
        """Return whether the rollout is aborted, so that no further host is admitted."""
        return self.outcome.ledger is not None and self.outcome.ledger.state == ABORTED

    @property
    def is_stopped(self) -> bool:
        """Return whether an operator has paused or aborted the rollout, so that it does not end, even if every host is upgraded."""
        return self.outcome.ledger is not None and self.outcome.ledger.state in (PAUSED, ABORTED)

    @property
    def upgrading(self) -> list[str]:
        """Return the hosts that are upgrading."""
        return [host for host, view in self.hosts.items() if view.state == state_names.UPGRADING]

    def plan_for(self, limit: Collection[str] | None, retried: Collection[str] = ()) -> Plan:
        """Return what another pass on the same keys would admit.

        :param limit: the hosts that it may admit, None for all.
        :param retried: hosts that were retried before it.
        """
        outcome, snapshot = self.outcome, self.outcome.snapshot
        if retried and outcome.ledger is not None:
            snapshot = snapshot_after_retry(snapshot, retried, outcome.ledger.version)
        return make_plan(
            snapshot, outcome.members, outcome.rules, None if limit is None else [*limit], before=outcome.plan
        )


def decide(run: PushRun, latest: PassView, host: str) -> Decision | None:
    """Return the decision on a host; None if it has to wait.

    A host that is no longer at the start of its upgrade path is not admitted.
    """
    decision, view = _decide_by_state(run, latest, host), latest.hosts[host]
    if decision is not None and not decision.admitted:
        return decision
    version = interrupted_at(run, host, view)
    if not version:
        return decision
    return Decision(
        admitted=False,
        state=view.state,
        reason=f"it is at {version} now, but the upgrade path of this run begins at {run.origins[host]}; run the same command again",
    )


def decide_finally(run: PushRun, latest: PassView, host: str) -> Decision:
    """Return the decision on a host; one that would have to wait is not admitted."""
    view = latest.hosts[host]
    return decide(run, latest, host) or Decision(admitted=False, state=view.state, reason=view.reason)


def _decide_by_state(run: PushRun, latest: PassView, host: str) -> Decision | None:
    view, blocker = latest.hosts[host], latest.outcome.plan.blocker
    if view.busy:
        # It runs a job. Its end is a change.
        return None
    if view.soaking:
        return Decision(admitted=False, state=view.state, reason=view.reason)
    # A held host does not resume an upgrade that was interrupted. The run that upgrades it has asked before.
    if view.state == state_names.UPGRADING and not view.held and not view.unadmitted:
        if blocker is not None and not view.started:
            # Nothing has begun on it, so it begins no sooner than other hosts do.
            return None if blocker.is_temporary else Decision(admitted=False, state=view.state, reason=blocker.reason)
        budget = latest.outcome.plan.exhausted.get(view.role)
        if budget is not None and not view.started:
            return Decision(admitted=False, state=view.state, reason=budget.reason())
        if _waits_for_gate(run, latest, host):
            return None
        if not view.started and _joined_later(run, latest, host):
            reason = (
                "no planner admitted it, only the open gate of the whole fleet, as for a host that joins after the rollout; to upgrade it under the "
                "rules, begin the rollout again with -e restart=true"
            )
            return Decision(admitted=False, state=view.state, reason=reason)
        return Decision(admitted=True, state=view.state, reason=view.reason)
    # A broken host still has its slot, so only a blocker of the whole rollout keeps it from a retry. It may have exhausted the failure
    # budget itself, so that one does not.
    if view.state in state_names.BROKEN and run.retry_failed and not view.held:
        is_blocked = blocker is not None and blocker.code != BUDGET
        if is_blocked or needs_slot(run, latest, host):
            return None
        return Decision(admitted=True, state=view.state, reason=view.reason)
    if view.state == state_names.PENDING:
        return None
    hint = "; once it is fixed, retry it with -e retry_failed=true" if view.state in state_names.BROKEN else ""
    return Decision(admitted=False, state=view.state, reason=f"{view.reason}{hint}")


def needs_slot(run: PushRun, latest: PassView, host: str) -> bool:
    """Return whether a broken host that is retried has no slot, so that it has to be admitted again.

    Its gate may have been closed since it failed, as by an abort. One that was broken before a rollback takes no slot.
    """
    one, view = _state_of(run, latest, host), latest.hosts[host]
    if one is None or one.state not in state_names.BROKEN or view.held or interrupted_at(run, host, view):
        return False
    # A retry would replace a record that can't be read, and what is known of the host would be lost.
    is_readable = one.record is None or one.record.readable
    return is_readable and not (one.gate.is_open and one.takes_a_slot)


def to_retry(run: PushRun, latest: PassView, hosts: Collection[str]) -> list[str]:
    """Return the broken hosts among these that this run has to retry before they can be admitted again; none while the rollout is blocked."""
    outcome = latest.outcome
    blocker = outcome.plan.blocker
    is_blocked = blocker is not None and blocker.code != BUDGET
    if not run.retry_failed or is_blocked or outcome.ledger is None or outcome.ledger.state != RUNNING:
        return []
    return [host for host in hosts if needs_slot(run, latest, host)]


def chosen_to_retry(latest: PassView, broken: Sequence[str], waiting: Collection[str]) -> Sequence[str]:
    """Return which of the broken hosts are retried now.

    One that could not be admitted after that keeps its failure and its slot, unless just these keep the others from being admitted.

    :param broken: those that wait, and that need a retry before they can be admitted.
    :param waiting: all hosts that wait, with these.
    """

    def admitted(hosts: Collection[str], retried: Collection[str]) -> set[str]:
        return {one.host for one in latest.plan_for(hosts, retried).admissions}

    possible = admitted(broken, broken)
    chosen = [host for host in broken if host in possible]
    are_in_the_way = (
        not possible <= admitted(chosen, chosen) if chosen else bool(admitted(waiting, broken) - admitted(waiting, ()))
    )
    return broken if are_in_the_way else chosen


def _joined_later(run: PushRun, latest: PassView, host: str) -> bool:
    """Return whether only the global gate admits a host, which planners open when a rollout is complete, or no gate at all."""
    one = _state_of(run, latest, host)
    return one is not None and bool(one.gate.is_open) and one.gate.scope not in ("host", "role")


def _waits_for_gate(run: PushRun, latest: PassView, host: str) -> bool:
    """Return whether a host in the middle of its upgrade has a closed gate, which the last pass did not open again."""
    one = _state_of(run, latest, host)
    return one is not None and one.needs_its_gate and all(host != found.host for found in latest.outcome.admissions)


def _state_of(run: PushRun, latest: PassView, host: str) -> HostState | None:
    """Return the state that the last pass has read; None for post-upgrade tasks, and on pull hosts, because those depend on no gate here."""
    fleet = latest.outcome.plan.fleet
    return None if fleet is None or run.phase == POST_UPGRADE_PHASE or run.on_host else fleet.hosts.get(host)
