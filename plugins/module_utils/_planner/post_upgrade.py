# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks after the upgrade, for the planner: the same fleet and the same rules, with another question.

While hosts go through them, they are down or may be, just as in the upgrade. So the planner lets them through under
the same caps, in the same order and within the same budgets of failure; only what counts as done is another thing.

Their health is looked at as in the upgrade, but for two things. Of a host that is at these tasks nothing is asked: it may be
rebooting, and has its slot. One that has done them and is not well yet keeps its slot and spends no budget, as services take
their time after a reboot. So one that never gets well again stops as many others as the caps say, and its own failing tasks
spend the budget. A host that lost its health before its turn has failed, and is not let through.
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
    HostRecord,
    Snapshot,
    VersionReport,
)
from .._fleet.gates import CLOSED, Gates, GateValue
from .._host_states.states import UPGRADED, HostState


def without_post_upgrade(hosts: Mapping[str, HostState]) -> list[str]:
    """Return the hosts that are not upgraded and have never been; those that lost their health since then are not among them."""
    return [host for host, one in hosts.items() if one.state != UPGRADED and not _has_been_well(one)]


def _has_been_well(one: HostState) -> bool:
    return one.mark is not None and one.mark.upgraded


def post_upgrade_hosts(snapshot: Snapshot, members: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts whose tasks after the upgrade are still to be run before the rollout is over.

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


def post_upgrade_snapshot(
    snapshot: Snapshot,
    members: Mapping[str, str],
    roles: Collection[str],
    global_gate: str,
    hosts: Mapping[str, HostState],
) -> Snapshot:
    """Return a snapshot in which a host is upgraded once its tasks after the upgrade are done.

    :param members: host -> role.
    :param roles: those that have such tasks.
    :param global_gate: key of the global gate.
    :param hosts: the state of each, as of the upgrade itself.
    """
    current = snapshot.current_version
    if current is None:
        return snapshot
    reports: dict[str, VersionReport] = {}
    records: dict[str, HostRecord] = {}
    marks = dict(snapshot.marks)
    for host, role in members.items():
        report = snapshot.reports.get(host)
        record = snapshot.records.get(host)
        post = record.post if record is not None and record.version == current else None
        if report is None or report.version != current:
            continue
        is_unwell = hosts[host].state != UPGRADED and _has_been_well(hosts[host])
        if role not in roles or post == POST_DONE or (post is None and is_unwell):
            reports[host] = report
            # What was remembered of its health goes by the time of its report.
            if record is not None:
                records[host] = record
            if role in roles and post == POST_DONE and host in marks:
                marks[host] = replace(marks[host], upgraded=False, lost=False)
        else:
            reports[host] = replace(report, version=f"{current}, with the tasks after the upgrade to be done")
        if record is not None and post in (POST_OPEN, POST_STARTED):
            records[host] = replace(record, state=STARTED)
        elif record is not None and post == POST_FAILED:
            records[host] = replace(record, state=FAILED)
    gates = Gates(GateValue(global_gate, CLOSED))
    return replace(snapshot, reports=reports, records=records, marks=marks, gates=gates)
