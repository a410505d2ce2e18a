# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a rollout may still take, judged by the hosts that are done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from .._common.errors import UpgradeError
from .._fleet.fleet import STARTED, HostRecord, Snapshot
from .._host_states.states import UPGRADED, UPGRADING
from .._planner.plan import Plan


def admitted_at(snapshot: Snapshot, host: str, role: str) -> float | None:
    """Return when a host was let through in the rollout under way, or else when it said that it began (unix seconds).

    The gate is the planner's word and the start is the host's: where they contradict each other, a clock is wrong, and the
    host's own times at least have one clock.
    """
    record = snapshot.records.get(host)
    started = None
    if record is not None and record.readable and record.version == snapshot.current_version:
        started = record.times.get(STARTED)
    try:
        gate = snapshot.gates.answer(host, role, snapshot.current_version)
    except UpgradeError:
        return started
    let_through = gate.at if gate.is_open and gate.at else None
    return let_through if started is None or (let_through is not None and let_through <= started) else started


def seconds_left(
    snapshot: Snapshot, plan: Plan, soak: int, moving: Mapping[str, float | None]
) -> tuple[float | None, int]:
    """Return how many seconds the rest may take, and by how many hosts that is judged; None where none has shown it yet.

    A host takes as long as the middle one of those of its role that are done, or of all where its role has none. The waves
    that the planner expects go one after the other. What no one can know is not in it: approvals, soaks of stages, hosts
    that fail, and the hours outside of windows.

    :param soak: seconds that a host has to be well before it counts.
    :param moving: the hosts on their way, and since when.
    """
    took: dict[str, list[float]] = {}
    for host, view in plan.hosts.items():
        record = snapshot.records.get(host)
        if view.state == UPGRADED and record is not None:
            seconds = _took(snapshot, host, view.role, record)
            if seconds is not None:
                took.setdefault(view.role, []).append(seconds + soak)
    count = sum(map(len, took.values()))
    if not count:
        return None, 0
    if plan.blocker is not None or not (moving or plan.waves):
        return None, count
    typical = {role: median(found) for role, found in took.items()}
    of_all = median(seconds for found in took.values() for seconds in found)

    def longest(hosts: Iterable[str]) -> float:
        return max((typical.get(plan.hosts[host].role, of_all) for host in hosts), default=0.0)

    left = 0.0
    for host, since in moving.items():
        whole = typical.get(plan.hosts[host].role, of_all)
        gone = max(0.0, snapshot.now - since) if since is not None else 0.0
        if plan.hosts[host].state == UPGRADING:
            left = max(left, whole - gone)
    return left + sum(map(longest, plan.waves)), count


def _took(snapshot: Snapshot, host: str, role: str, record: HostRecord) -> float | None:
    """Return how long a host had its slot, None where it was done before the rollout began or no time is known."""
    ended, ledger = record.times.get(UPGRADED), snapshot.ledger
    if ended is None or not record.readable or record.version != snapshot.current_version or ledger is None:
        return None
    began = admitted_at(snapshot, host, role)
    # Without the index of its beginning, one that is from before it can't be told.
    if began is None or ended < began or (ledger.begun_index is not None and record.index <= ledger.begun_index):
        return None
    return float(ended - began)
