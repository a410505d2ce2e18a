# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which of the six states a host is: every host is in exactly one, tested in the order given here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .._common.errors import UpgradeError
from .._fleet.fleet import FAILED as RECORDED_FAILED
from .._fleet.fleet import STARTED, HostRecord, Snapshot
from .._fleet.fleet import UPGRADED as RECORDED_UPGRADED
from .._fleet.gates import GateAnswer
from .._fleet.health_marks import HealthMark
from .._fleet.holds import Hold
from .._rules.health_rules import HealthRules
from .soak import HealthState, health_state, silent_since

UPGRADED, FAILED, LOST, UPGRADING, HELD, PENDING = "upgraded", "failed", "lost", "upgrading", "held", "pending"
STATES = (UPGRADED, FAILED, LOST, UPGRADING, HELD, PENDING)

# The ledger has to stay far below the half megabyte that Consul takes.
MOST_ADMITTED = 5000

# The states in which a host is down, or may be, and so takes a slot of every cap over it.
TAKES_A_SLOT = frozenset((FAILED, LOST, UPGRADING))
# Those of them that an operator has to see to.
BROKEN = frozenset((FAILED, LOST))


@dataclass(frozen=True, slots=True)
class HostState:
    """A host, its state, and the facts that the state was read from.

    :param trouble: why it is lost, or why it is not upgraded though it reported; empty for the other states.
    :param wake_at: when its state may change if nothing happens meanwhile (unix seconds).
    :param mark: what is to be remembered of its health; None for nothing.
    :param in_rollback: whether the rollout goes back to where the fleet was.
    :param was_broken: whether it had failed or was lost when that rollback began.
    :param was_admitted: whether planners had admitted it before its gate was removed, and it has not reported since.
    """

    host: str
    role: str
    state: str
    version: str | None
    gate: GateAnswer
    hold: Hold | None
    record: HostRecord | None
    trouble: str = ""
    wake_at: float | None = None
    mark: HealthMark | None = None
    in_rollback: bool = False
    was_broken: bool = False
    current: str | None = None
    was_admitted: bool = False

    @property
    def has_started(self) -> bool:
        """Whether it said that it began an upgrade, to any version, and not that it ended."""
        return self.record is not None and self.record.state == STARTED

    @property
    def begun(self) -> str | None:
        """The version to which it has begun to go and has not got: it is midway, or failed there, retried or not."""
        record = self.record
        return record.version if record is not None and record.readable and record.state != RECORDED_UPGRADED else None

    @property
    def is_soaking(self) -> bool:
        """Whether it reported the version, and its health is still to be seen."""
        return self.state == UPGRADING and bool(self.trouble)

    @property
    def can_finish(self) -> bool:
        """Whether an upgrading host can be expected to go on by itself: a hold closes one that has not started."""
        return self.state == UPGRADING and (self.has_started or self.hold is None) and not self.is_unadmitted

    @property
    def needs_its_gate(self) -> bool:
        """Whether it is upgrading behind a closed gate, as after a start that a new rollout overtook.

        Its own record is no reason to open that: a host may write there whatever it wants.
        """
        is_closed = not self.is_soaking and not self.gate.is_open
        return self.state == UPGRADING and is_closed and self.hold is None and self.was_admitted

    @property
    def is_unadmitted(self) -> bool:
        """Whether it says that it has started, behind a closed gate, and no planner has admitted it."""
        begun = self.state in (UPGRADING, LOST) and self.has_started and not self.is_soaking
        return begun and not self.gate.is_open and not self.was_admitted

    @property
    def takes_a_slot(self) -> bool:
        """Whether it is down, or may be, so that fewer others may go."""
        return self.state in TAKES_A_SLOT and not (self.is_excused and self.state in BROKEN)

    @property
    def is_excused(self) -> bool:
        """Whether others do not wait for it, as it was broken before the rollback that is under way.

        So is one that was midway then, and has failed there, or was not heard of since.
        """
        return self.was_broken or (self.in_rollback and self._has_broken_elsewhere)

    @property
    def _has_broken_elsewhere(self) -> bool:
        record = self.record
        if record is None or not record.readable or record.version == self.current:
            return False
        if self.state == LOST:
            return record.state == STARTED
        return record.state == RECORDED_FAILED and self.state in (PENDING, HELD)

    @property
    def blocks_others(self) -> bool:
        """Whether roles that wait for its role have to wait for it."""
        return self.state != UPGRADED and not self.is_excused


def read_states(
    snapshot: Snapshot, members: Mapping[str, str], rules: HealthRules | None = None
) -> dict[str, HostState]:
    """Return the state of every host, in the order of ``members``.

    A host without any gate is open: a fleet that nobody is upgrading runs Puppet as usual. A gate that can't
    be read counts as closed here, because the lookup on the node gives an error and never a yes.

    :param rules: what is asked of hosts beyond their own word; None for nothing.
    """
    rules = rules or HealthRules(progress_deadline=None)
    current = snapshot.current_version
    goes_back = in_rollback(snapshot)
    were_broken = frozenset(snapshot.ledger.broken if snapshot.ledger is not None and goes_back else ())
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
        one = HostState(
            host,
            role,
            PENDING,
            reported_version(snapshot, host),
            gate,
            hold,
            record,
            in_rollback=goes_back,
            was_broken=host in were_broken,
            current=current,
            was_admitted=_was_admitted(snapshot, host),
        )
        states[host] = _with_state(snapshot, one, rules)
    return states


def admitted_and_started(snapshot: Snapshot, members: Mapping[str, str]) -> dict[str, int]:
    """Return the hosts that planners have admitted and that have started and not ended, each with the index of its last report.

    Planners note in a gate when they opened it; what the host reported after that has used it up. Of very many, the first in the
    order of ``members`` are returned, as the ledger keeps them.
    """
    found: dict[str, int] = {}
    for host, role in members.items():
        record = snapshot.records.get(host)
        if record is None or not record.readable or record.state != STARTED:
            continue
        if was_admitted(snapshot, host, role):
            found[host] = _reported_index(snapshot, host)
        if len(found) == MOST_ADMITTED:
            break
    return found


def was_admitted(snapshot: Snapshot, host: str, role: str) -> bool:
    """Return whether planners have admitted a host since it reported last, whether or not it has started."""
    gate = _answer(snapshot, host, role)
    by_planner = gate.is_open and gate.at and gate.scope in ("host", "role")
    return bool(by_planner and gate.index > _reported_index(snapshot, host)) or _was_admitted(snapshot, host)


def _was_admitted(snapshot: Snapshot, host: str) -> bool:
    ledger = snapshot.ledger
    return ledger is not None and ledger.admitted.get(host) == _reported_index(snapshot, host)


def _reported_index(snapshot: Snapshot, host: str) -> int:
    report = snapshot.reports.get(host)
    return report.index if report is not None else 0


def in_rollback(snapshot: Snapshot) -> bool:
    """Return whether the rollout under way goes back to where the fleet was."""
    ledger = snapshot.ledger
    return ledger is not None and ledger.rollback and ledger.version == snapshot.current_version


def reported_version(snapshot: Snapshot, host: str) -> str | None:
    """Return the version that a host said last that it runs, None where it never did.

    A host that may write its own record alone says it there, and planners publish it. What was written last counts, by
    Consul's index: hosts' clocks may be wrong.
    """
    report, record = snapshot.reports.get(host), snapshot.records.get(host)
    version = report.version if report is not None else None
    if record is None or not record.readable or record.state != RECORDED_UPGRADED or record.version == version:
        return version
    return record.version if report is None or record.index > report.index else version


def _answer(snapshot: Snapshot, host: str, role: str) -> GateAnswer:
    try:
        answer = snapshot.gates.answer(host, role, snapshot.current_version)
    except UpgradeError as error:
        return GateAnswer(False, "unreadable", str(error.details.get("key")), error.message)
    return GateAnswer(True) if answer.is_open is None else answer


def _with_state(snapshot: Snapshot, one: HostState, rules: HealthRules) -> HostState:
    current, record = snapshot.current_version, one.record
    waiting = HELD if one.hold else PENDING
    if current is None:
        return replace(one, state=waiting)
    if one.version == current and not _has_left(snapshot, one):
        if not rules.asks_more:
            return replace(one, state=UPGRADED)
        mark, checks = snapshot.marks.get(one.host), _checks(snapshot, one.host)
        reported, was_there = _reported_at(record, current), _was_there(snapshot, one)
        return _with_health(
            one, health_state(rules, snapshot.now, current, mark, checks, reported, was_there=was_there)
        )
    if one.was_broken and not one.gate.is_open and (record is None or record.version != current):
        return replace(one, state=waiting)
    if record is not None and record.state == RECORDED_FAILED and (record.version == current or not record.readable):
        return replace(one, state=FAILED)
    if one.gate.is_open or one.has_started:
        return _upgrading_or_lost(snapshot, one, rules)
    return replace(one, state=waiting)


def _has_left(snapshot: Snapshot, one: HostState) -> bool:
    """Return whether a newer record outweighs a host's report: it has started or failed since then, or was put back.

    It does not matter to which version. One that starts or fails where it reported is no longer known to run that version, and one
    that comes back from elsewhere is not there yet. A newer record that can't be read counts as a failure.
    """
    record, report = one.record, snapshot.reports.get(one.host)
    if record is None or report is None or record.index <= report.index:
        return False
    return not record.readable or record.state != RECORDED_UPGRADED


def _was_there(snapshot: Snapshot, one: HostState) -> bool:
    """Return whether a host that runs the version has said nothing since the rollout began."""
    report = snapshot.reports.get(one.host)
    said = max(report.index if report is not None else 0, one.record.index if one.record is not None else 0)
    begun = snapshot.ledger.begun_index if snapshot.ledger is not None else None
    return begun is not None and said <= begun


def _reported_at(record: HostRecord | None, version: str) -> int | None:
    """Return when a host said in its record that it got there, by its own clock."""
    if record is None or (record.state, record.version) != (RECORDED_UPGRADED, version):
        return None
    return record.times.get(RECORDED_UPGRADED)


def _checks(snapshot: Snapshot, host: str) -> Mapping[str, str] | None:
    return None if snapshot.checks is None else snapshot.checks.get(host, {})


def _with_health(one: HostState, found: HealthState) -> HostState:
    state = UPGRADED if found.is_well else FAILED if found.is_broken else UPGRADING
    return replace(one, state=state, trouble=found.reason, mark=found.mark, wake_at=found.wake_at)


def _upgrading_or_lost(snapshot: Snapshot, one: HostState, rules: HealthRules) -> HostState:
    upgrading = replace(one, state=UPGRADING)
    # Where a run of Ansible is at work on it, that run is what is heard of, as long as it lives.
    if rules.progress_deadline is None or one.host in snapshot.leases:
        return upgrading
    record = one.record
    mine = record is not None and (record.version == snapshot.current_version or record.state == STARTED)
    times = record.times if record is not None and mine else None
    # The global gate admits nobody by name: it opens after a rollout, also for hosts that join the fleet long after that.
    opened_at = one.gate.at if one.gate.is_open and one.gate.scope != "global" else None
    heard = silent_since(snapshot.now, opened_at, times)
    if heard is None:
        return upgrading
    lost_at = heard + rules.progress_deadline
    if snapshot.now <= lost_at:
        return replace(upgrading, wake_at=lost_at)
    silent = int(snapshot.now - heard)
    return replace(
        one, state=LOST, trouble=f"silent for {silent} s, and health.progress_deadline is {rules.progress_deadline} s"
    )
