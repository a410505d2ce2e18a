# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimates how long a rollout may still take, from the hosts that are done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from .._common.errors import UpgradeError
from .._fleet.fleet import STARTED, HostRecord, Snapshot
from .._host_states.state_names import UPGRADED, UPGRADING
from .._planner.plan import Plan


def admitted_at(snapshot: Snapshot, host: str, role: str) -> float | None:
    """Return when a host was admitted in the current rollout, else when it reported its start (unix seconds); None if unknown.

    The gate's time is from a planner's clock, the start from the host's clock. If the gate is later than the start, one clock is wrong.
    Then the start is returned, so that both times of a duration are from the host's clock.
    """
    record = snapshot.records.get(host)
    started = None
    if record is not None and record.readable and record.version == snapshot.current_version:
        started = record.times.get(STARTED)
    try:
        gate = snapshot.gates.answer(host, role, snapshot.current_version)
    except UpgradeError:
        return started
    opened = gate.at if gate.is_open and gate.at else None
    return opened if started is None or (opened is not None and opened <= started) else started


def seconds_left(
    snapshot: Snapshot, plan: Plan, soak: int, moving: Mapping[str, float | None]
) -> tuple[float | None, int]:
    """Return how many seconds the rest may take, and from how many finished hosts that is estimated; None if unknown.

    A host takes the median time of the finished hosts of its role, or of all finished hosts if its role has none. The waves of the
    forecast run one after another. Approvals, soaks of stages, failures and closed windows are not included.

    :param soak: seconds for which a host has to be healthy before it counts as upgraded.
    :param moving: host in flight -> since when (unix seconds); None if unknown.
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
    """Return for how many seconds a host had its slot; None if it was done before the rollout began, or a time is unknown."""
    ended, ledger = record.times.get(UPGRADED), snapshot.ledger
    if ended is None or not record.readable or record.version != snapshot.current_version or ledger is None:
        return None
    began = admitted_at(snapshot, host, role)
    # A ledger without the index of its beginning can't tell older records from newer ones.
    if began is None or ended < began or (ledger.begun_index is not None and record.index <= ledger.begun_index):
        return None
    return float(ended - began)
