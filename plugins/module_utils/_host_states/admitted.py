# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts planners have admitted, also after their gates were removed."""

from __future__ import annotations

from collections.abc import Mapping

from .._common.errors import UpgradeError
from .._fleet.fleet import STARTED, Snapshot
from .._fleet.gates import GateAnswer, GateValue
from .._fleet.ledger import names_that_fit

# The bytes of an index in a ledger.
_INDEX = len(": 1234567890")


def gate_of(snapshot: Snapshot, host: str, role: str) -> GateAnswer:
    """Return the gate that decides for a host. One that can't be read is closed, and without any gate, the host may run."""
    try:
        answer = snapshot.gates.answer(host, role, snapshot.current_version)
    except UpgradeError as error:
        return GateAnswer(False, "unreadable", str(error.details.get("key")), error.message)
    return GateAnswer(True) if answer.is_open is None else answer


def admits(snapshot: Snapshot, host: str, gate: GateAnswer) -> bool:
    """Return whether the gate that decides for a host lets it start.

    If its role has changed since it last started, planners may have known it with the former one when they opened the gate of the present one.
    """
    is_by_role = gate.scope == "role" and bool(gate.at)
    return bool(gate.is_open) and not (is_by_role and snapshot.former_role(host) is not None)


def gate_is_open(gate: GateValue, current_version: str | None) -> bool:
    """Return whether a gate admits hosts. One that can't be read does not."""
    try:
        return gate.is_open(current_version)
    except UpgradeError:
        return False


def still_admitted(snapshot: Snapshot, members: Mapping[str, str], room: int) -> dict[str, int]:
    """Return host -> index of its last report, for hosts that planners have admitted and that have not ended, started or not.

    A host that has not started may do so between the read of the snapshot and the write that removes its gate. The ledger stores
    them, so they are as many as fit: those that have started come first.

    :param room: the bytes that the ledger has for them.
    """
    started, others = [], []
    for host, role in members.items():
        if _has_started(snapshot, host):
            if was_admitted(snapshot, host, role):
                started.append(host)
        elif _has_gate_of_planner(snapshot, host, role):
            others.append(host)
    return {host: _reported_index(snapshot, host) for host in names_that_fit((*started, *others), room, _INDEX)}


def without_unstarted(snapshot: Snapshot, admitted: Mapping[str, int]) -> dict[str, int]:
    """Return ``admitted`` of the ledger without the hosts that have not started. They can't start any more, as their gates are closed.

    A host may write anything into its record. So it must not get its gate back for a start that it reports later.
    """
    return {host: index for host, index in admitted.items() if _has_started(snapshot, host)}


def _has_started(snapshot: Snapshot, host: str) -> bool:
    record = snapshot.records.get(host)
    return record is not None and record.readable and record.state == STARTED


def was_admitted(snapshot: Snapshot, host: str, role: str) -> bool:
    """Return whether an admission of a host by planners is still valid, whether or not it has started."""
    return _has_gate_of_planner(snapshot, host, role) or is_listed(snapshot, host)


def _has_gate_of_planner(snapshot: Snapshot, host: str, role: str) -> bool:
    """Return whether a gate that planners opened admits a host, and it has not reported the version since then.

    A planner stores the time in each gate that it opens. A report of another version does not end an admission: the host fell back, and
    its gate admits it again.
    """
    gate = gate_of(snapshot, host, role)
    if not gate.is_open or not gate.at or gate.scope not in ("host", "role"):
        return False
    report = snapshot.reports.get(host)
    return report is None or gate.index > report.index or report.version != snapshot.current_version


def is_listed(snapshot: Snapshot, host: str) -> bool:
    """Return whether the ledger lists a host as admitted when the rollout began, and it has not reported since."""
    ledger = snapshot.ledger
    return ledger is not None and ledger.admitted.get(host) == _reported_index(snapshot, host)


def _reported_index(snapshot: Snapshot, host: str) -> int:
    report = snapshot.reports.get(host)
    return report.index if report is not None else 0
