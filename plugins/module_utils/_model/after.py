# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks after the upgrade, for the planner: the same fleet and the same rules, with another question.

While hosts go through them, they are down or may be, just as in the upgrade. So the planner lets them through under
the same caps and in the same order; only what counts as done is another thing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from .fleet import FAILED, POST_DONE, POST_FAILED, POST_OPEN, POST_STARTED, STARTED, Record, Report, Snapshot
from .gates import CLOSED, Gates, GateValue


def after_view(snapshot: Snapshot, members: Mapping[str, str], roles: Collection[str], global_gate: str) -> Snapshot:
    """Return a snapshot in which a host is upgraded once its tasks after the upgrade are done.

    :param members: host -> role.
    :param roles: those that have such tasks.
    :param global_gate: key of the global gate.
    """
    current = snapshot.current_version
    if current is None:
        return snapshot
    reports: dict[str, Report] = {}
    records: dict[str, Record] = {}
    for host, role in members.items():
        report = snapshot.reports.get(host)
        record = snapshot.records.get(host)
        post = record.post if record is not None and record.version == current else None
        if report is None or report.version != current:
            continue
        if role not in roles or post == POST_DONE:
            reports[host] = report
        else:
            reports[host] = replace(report, version=f"{current}, with the tasks after the upgrade to be done")
        if record is not None and post in (POST_OPEN, POST_STARTED):
            records[host] = replace(record, state=STARTED)
        elif record is not None and post == POST_FAILED:
            records[host] = replace(record, state=FAILED)
    return replace(snapshot, reports=reports, records=records, gates=Gates(GateValue(global_gate, CLOSED)))
