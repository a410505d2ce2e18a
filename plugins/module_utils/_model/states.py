# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which of the six states a host is: every host is in exactly one, tested in the order given here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import UpgradeError
from .fleet import FAILED as RECORDED_FAILED
from .fleet import STARTED, Record, Snapshot
from .gates import GateAnswer
from .holds import Hold

UPGRADED, FAILED, LOST, UPGRADING, HELD, PENDING = "upgraded", "failed", "lost", "upgrading", "held", "pending"
STATES = (UPGRADED, FAILED, LOST, UPGRADING, HELD, PENDING)

# The states in which a host is down, or may be, and so takes a slot of every cap over it.
TAKES_A_SLOT = frozenset((FAILED, LOST, UPGRADING))


@dataclass(frozen=True, slots=True)
class HostState:
    """A host, its state, and the facts that the state was read from."""

    host: str
    role: str
    state: str
    version: str | None
    gate: GateAnswer
    hold: Hold | None
    record: Record | None

    @property
    def has_started(self) -> bool:
        """Whether it said that it began an upgrade, to any version, and not that it ended."""
        return self.record is not None and self.record.state == STARTED

    @property
    def can_finish(self) -> bool:
        """Whether an upgrading host can be expected to go on by itself: a hold closes one that has not started."""
        return self.state == UPGRADING and (self.has_started or self.hold is None)

    @property
    def needs_its_gate(self) -> bool:
        """Whether it is upgrading behind a closed gate, as after a start that a new rollout or a reset overtook."""
        return self.state == UPGRADING and not self.gate.is_open and self.hold is None


def read_states(snapshot: Snapshot, members: Mapping[str, str]) -> dict[str, HostState]:
    """Return the state of every host, in the order of ``members``.

    A host without any gate is open: a fleet that nobody is upgrading runs Puppet as usual. A gate that can't
    be read counts as closed here, because the lookup on the node gives an error and never a yes.
    """
    current = snapshot.current_version
    shared: dict[str, GateAnswer] = {}
    states = {}
    for host, role in members.items():
        if host in snapshot.gates.hosts or role not in shared:
            gate = _answer(snapshot, host, role)
            if host not in snapshot.gates.hosts:
                shared[role] = gate
        else:
            gate = shared[role]
        hold = snapshot.holds.covering(host, role)
        record = snapshot.records.get(host)
        report = snapshot.reports.get(host)
        version = report.version if report else None
        state = _state(current, version, record, gate, hold)
        states[host] = HostState(host, role, state, version, gate, hold, record)
    return states


def _answer(snapshot: Snapshot, host: str, role: str) -> GateAnswer:
    try:
        answer = snapshot.gates.answer(host, role, snapshot.current_version)
    except UpgradeError as error:
        return GateAnswer(False, "unreadable", str(error.details.get("key")), error.message)
    return GateAnswer(True) if answer.is_open is None else answer


def _state(current: str | None, version: str | None, record: Record | None, gate: GateAnswer, hold: Hold | None) -> str:
    if current is None:
        return HELD if hold else PENDING
    if version == current:
        return UPGRADED
    if record is not None and record.state == RECORDED_FAILED and (record.version == current or not record.readable):
        return FAILED
    if gate.is_open or (record is not None and record.state == STARTED):
        return UPGRADING
    return HELD if hold else PENDING
