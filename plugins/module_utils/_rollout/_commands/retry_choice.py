# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a retry resets, and which it leaves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ..._common.names import in_order, is_job
from ..._fleet.fleet import STARTED, HostRecord, Snapshot
from ..._fleet.ledger import COMPLETE
from ..._host_states import state_names
from ..._host_states.soak import failing_checks
from ..._planner.explanations import POST_UPGRADE_FAILED
from ..._planner.plan import Plan


@dataclass(frozen=True, slots=True)
class RetryChoice:
    """What a retry does with each host that was asked for.

    :param hosts: it resets them.
    :param final: it leaves them, because they do not run the command of the job again.
    :param silent: it leaves them, because they have started and reported no end, and were not named.
    :param busy: it leaves them, because they have started other work than the rollout's.
    :param well: it leaves them, because they neither failed nor are lost, although they were named.
    """

    hosts: tuple[str, ...]
    final: tuple[str, ...]
    silent: tuple[str, ...]
    busy: tuple[str, ...]
    well: tuple[str, ...]


def choose_hosts(snapshot: Snapshot, plan: Plan, asked: Sequence[str] | None, done: Collection[str]) -> RetryChoice:
    """Return which hosts a retry resets.

    :param asked: the hosts to reset, all of them in the plan; None for all that failed or are lost.
    :param done: hosts that this retry has reset already.
    """
    named = frozenset(asked or ())
    candidates = frozenset(plan.hosts if asked is None else asked).difference(done)
    chosen: list[str] = []
    final: list[str] = []
    silent: list[str] = []
    for host in _hosts_to_retry(snapshot, plan, candidates, named):
        if host not in snapshot.busy and _is_final(snapshot, host):
            # The host would refuse to run the command again.
            final.append(host)
        elif host not in named and started_record(snapshot, host) is not None:
            # Only an operator who names a host that has started says that nothing runs there.
            silent.append(host)
        else:
            chosen.append(host)
    others = candidates.difference(chosen)
    busy = [
        host
        for host in in_order(snapshot.busy)
        if host in others and (host in named or plan.hosts[host].state in state_names.BROKEN)
    ]
    known = {*done, *chosen, *final, *silent, *busy}
    well = [host for host in dict.fromkeys(asked or ()) if host not in known]
    return RetryChoice(tuple(chosen), tuple(final), tuple(silent), tuple(busy), tuple(well))


def _hosts_to_retry(
    snapshot: Snapshot, plan: Plan, candidates: Collection[str], named: Collection[str]
) -> Iterator[str]:
    """Yield the hosts that failed or are lost, and those that only a retry by name resets."""
    is_complete = snapshot.ledger is not None and snapshot.ledger.state == COMPLETE
    for host, view in plan.hosts.items():
        if host not in candidates or (is_complete and not is_down_after_upgrade(snapshot, plan, host)):
            continue
        if host in snapshot.busy:
            is_retried = host in named and _ends_job(snapshot, host)
        elif view.state in state_names.BROKEN:
            is_retried = True
        elif view.cause == POST_UPGRADE_FAILED:
            is_retried = is_down_after_upgrade(snapshot, plan, host)
        else:
            is_retried = host in named and host not in snapshot.leases and _needs_its_name(snapshot, plan, host)
        if is_retried:
            yield host


def _needs_its_name(snapshot: Snapshot, plan: Plan, host: str) -> bool:
    """Return whether a host that neither failed nor is lost keeps a slot that only an operator can end, who knows what runs there."""
    return _is_midway(snapshot, plan, host) or _is_down(snapshot, plan, host) or _is_unwell(plan, host)


def started_record(snapshot: Snapshot, host: str) -> HostRecord | None:
    """Return the record of what a host has started, an upgrade or the command of a job, and not reported the end of, so that it may still run."""
    record = snapshot.busy.get(host) or snapshot.records.get(host)
    return record if record is not None and record.state == STARTED else None


def is_down_after_upgrade(snapshot: Snapshot, plan: Plan, host: str) -> bool:
    """Return whether an upgraded host keeps a slot because its post-upgrade tasks failed or may begin, and no run has a lease on it.

    A retry ends only that: planners admit it to these tasks again.
    """
    return _is_down(snapshot, plan, host) and plan.hosts[host].state == state_names.UPGRADED


def _is_final(snapshot: Snapshot, host: str) -> bool:
    record = snapshot.records.get(host)
    return record is not None and record.is_final(snapshot.current_version)


def _ends_job(snapshot: Snapshot, host: str) -> bool:
    """Return whether a host has started an earlier job and not ended it, and no run has a lease on it.

    Only the run that began it, or the host's agent while the job is under way, reports its end. The run may be gone.
    """
    return not snapshot.is_job and host not in snapshot.leases and is_job(snapshot.busy[host].version)


def _is_midway(snapshot: Snapshot, plan: Plan, host: str) -> bool:
    """Return whether a host that no run has a lease on started an upgrade to another version or without an admission, or its gate was closed since."""
    record, view = snapshot.records.get(host), plan.hosts[host]
    if record is None or host in snapshot.leases:
        return False
    is_closed = view.unadmitted or (plan.fleet is not None and plan.fleet.hosts[host].needs_its_gate)
    elsewhere = record.version != snapshot.current_version
    return view.state == state_names.UPGRADING and record.state == STARTED and (elsewhere or is_closed)


def _is_unwell(plan: Plan, host: str) -> bool:
    """Return whether a check keeps a host that reported from counting as upgraded."""
    fleet = plan.fleet
    if fleet is None or not fleet.hosts[host].is_soaking or fleet.snapshot.checks is None:
        return False
    return bool(failing_checks(fleet.rules.health, fleet.snapshot.checks.get(host, {})))


def _is_down(snapshot: Snapshot, plan: Plan, host: str) -> bool:
    """Return whether a host keeps a slot because it failed or stopped in an earlier upgrade, or in the tasks after it, and no run has a lease on it."""
    return (
        not snapshot.is_job
        and host not in snapshot.leases
        and plan.fleet is not None
        and plan.fleet.hosts[host].is_down
    )
