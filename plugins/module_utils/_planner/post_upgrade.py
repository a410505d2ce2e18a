# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The post-upgrade tasks, planned as a rollout of their own. A host counts as upgraded once it has finished these tasks.

Hosts may be down during these tasks. So the planner admits them under the same caps, order and failure budgets as the upgrade.

Health counts as in the upgrade, with two exceptions. It is not checked while a host runs these tasks: the host may be rebooting, and
it has a slot. A host that has finished them and is not healthy yet keeps its slot and does not count as failed, because services need
time after a reboot. A host whose tasks fail counts as failed. So does a host that became unhealthy before it began them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from .._fleet.fleet import (
    FAILED,
    POST_DONE,
    POST_FAILED,
    POST_OPEN,
    POST_STARTED,
    STARTED,
    TASKS_FAILED,
    HostRecord,
    Snapshot,
    VersionReport,
)
from .._fleet.fleet import UPGRADED as RECORDED_UPGRADED
from .._fleet.gates import CLOSED, OPEN, Gates, GateValue
from .._host_states.host_state import HostState
from .._host_states.state_names import UPGRADED
from .._host_states.states import reported_version


def without_post_upgrade(hosts: Mapping[str, HostState]) -> list[str]:
    """Return the hosts that have not been upgraded in this rollout. Hosts that were, and are unhealthy now, are left out."""
    return [host for host, one in hosts.items() if _is_still_to_upgrade(one)]


def _is_still_to_upgrade(one: HostState) -> bool:
    return one.state != UPGRADED and not _has_been_well(one)


def _has_been_well(one: HostState) -> bool:
    return one.mark is not None and one.mark.upgraded


def post_upgrade_hosts(snapshot: Snapshot, members: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that have not finished their post-upgrade tasks.

    :param members: host -> role.
    """
    ledger = snapshot.ledger
    if ledger is None or ledger.version != snapshot.current_version or not ledger.post_upgrade:
        return ()
    roles = frozenset(ledger.post_upgrade)
    records = snapshot.records

    def is_done(host: str) -> bool:
        record = records.get(host)
        return record is not None and record.version == ledger.version and record.post == POST_DONE

    return tuple(host for host, role in members.items() if role in roles and not is_done(host))


def begun_post_upgrade(snapshot: Snapshot) -> set[str]:
    """Return the hosts that were admitted to their post-upgrade tasks and have not finished them, by their records."""
    return {
        host
        for host, record in snapshot.records.items()
        if record.version == snapshot.current_version and record.post in (POST_OPEN, POST_STARTED)
    }


def _report_of(snapshot: Snapshot, host: str, current: str) -> VersionReport | None:
    """Return a host's report that it runs the version; None if it does not. Its record counts too, before planners have published it."""
    report = snapshot.reports.get(host)
    if reported_version(snapshot, host) != current:
        return None
    if report is not None and report.version == current:
        return report
    return VersionReport(current, index=report.index if report is not None else 0)


def post_upgrade_snapshot(
    snapshot: Snapshot,
    members: Mapping[str, str],
    roles: Collection[str],
    global_gate: str,
    hosts: Mapping[str, HostState],
    admitted: Mapping[str, int] | None = None,
) -> Snapshot:
    """Return a copy of the snapshot in which a host counts as upgraded once it has finished its post-upgrade tasks.

    :param members: host -> role.
    :param roles: the roles that have such tasks.
    :param global_gate: key of the global gate.
    :param hosts: host -> its state in the upgrade itself.
    :param admitted: the hosts that planners have admitted to these tasks in this rollout -> when (unix seconds). A host record is no proof,
        because the host may write it.
    """
    current = snapshot.current_version
    if current is None:
        return snapshot
    reports: dict[str, VersionReport] = {}
    records: dict[str, HostRecord] = {}
    marks = dict(snapshot.marks)
    gates: dict[str, GateValue] = {}
    for host, role in members.items():
        report = _report_of(snapshot, host, current)
        record = snapshot.records.get(host)
        post = record.post if record is not None and record.version == current else None
        if report is None:
            continue
        is_unwell = hosts[host].state != UPGRADED and _has_been_well(hosts[host])
        if role not in roles or post == POST_DONE or (post is None and is_unwell):
            reports[host] = report
            # A health mark refers to the time of the report in this record.
            if record is not None:
                records[host] = record
            if role in roles and post == POST_DONE and host in marks:
                marks[host] = replace(marks[host], upgraded=False, lost=False)
        else:
            reports[host] = replace(report, version=f"{current}, with the post-upgrade tasks to be done")
        if record is not None and post in (POST_OPEN, POST_STARTED):
            records[host] = replace(record, state=STARTED)
            if post == POST_STARTED and TASKS_FAILED in record.times:
                # Its agent repeats them by itself, and the failure counts until they are done.
                failed = record.times.get(RECORDED_UPGRADED, 0) + 1
                records[host] = replace(records[host], times={**record.times, FAILED: failed})
            if admitted and host in admitted:
                # Its time is that from which the host may be silent, as its upgrade may have ended long ago.
                gates[host] = GateValue(global_gate, OPEN, admitted[host])
        elif record is not None and post == POST_FAILED:
            records[host] = replace(record, state=FAILED)
    # Records of hosts that have not begun are left out above, and holds of their former roles are found by these.
    former = {host: hold for host in members if (hold := snapshot.hold_of_former_role(host)) is not None}
    holds = replace(snapshot.holds, hosts={**former, **snapshot.holds.hosts}) if former else snapshot.holds
    closed = GateValue(global_gate, CLOSED)
    # These tasks are those that each host was upgraded with, also if a later command has others. A host that a rollback has brought back is not broken
    # any more: if its tasks fail, it is down as any other one.
    ledger = snapshot.ledger
    if ledger is not None:
        broken = tuple(host for host in ledger.broken if host in hosts and _is_still_to_upgrade(hosts[host]))
        ledger = replace(ledger, services={}, broken=broken)
    return replace(
        snapshot,
        ledger=ledger,
        reports=reports,
        records=records,
        marks=marks,
        gates=Gates(closed, hosts=gates),
        holds=holds,
    )
