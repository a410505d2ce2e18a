# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Admission: the queues of a rollout, the hosts that the rules admit next, and the gates to open for them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from .._fleet.fleet import Snapshot
from .._host_states.admitted import gate_is_open
from .._host_states.host_state import HostState
from .._host_states.state_names import PENDING
from .._rules.failure_rules import FailureRules
from .._rules.role_order import RoleOrder
from .blockers import Blockers
from .fleet_state import FleetState
from .plan import Admission
from .slots import AppliedCap, Slots

# Hosts that are admitted together: role -> hosts. A role comes after the roles that it waits for.
Wave = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class StageQueue:
    """The hosts of one stage. The current stage includes hosts of earlier stages that are not upgraded.

    :param waiting: role -> the hosts that wait to be admitted, in order of admission.
    :param unfinished: role -> number of its hosts, in any state, that other roles and the next stage wait for.
    :param in_flight: role -> how many of these are upgrading and expected to finish.
    :param down: role -> how many hosts at the head of ``waiting`` are down since an earlier rollout, and have a slot already.
    """

    waiting: Mapping[str, tuple[str, ...]]
    unfinished: Mapping[str, int]
    in_flight: Mapping[str, int] = field(default_factory=dict)
    down: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rollout is: the queues, the unfinished hosts, and the slots that are taken.

    :param order: which roles wait for which.
    :param stages: the queues of the current stage and of those that follow; at least one.
    :param next: role -> index of its next host in the queue of the current stage, for roles with a waiting host, in the order of roles.
    :param unfinished: role -> number of hosts in the current stage that other roles and the next stage wait for.
    :param slots: the caps on the roles, and how many of their slots are taken.
    """

    order: RoleOrder
    stages: tuple[StageQueue, ...]
    next: Mapping[str, int]
    unfinished: Mapping[str, int]
    slots: Slots

    def waits_for(self, role: str) -> list[str]:
        """Return the roles that this role waits for now.

        The order passes through roles without an unfinished host in the stage: those may never have had one.
        """
        unfinished = self.unfinished
        direct = [first for first in self.order.waits[role] if unfinished.get(first)]
        return direct or [first for first in self.order.further.get(role, ()) if unfinished.get(first)]

    def may_go_on(self, role: str) -> bool:
        """Return whether neither a cap of 0 nor the order between roles stops a role. Free slots do not matter."""
        return not self.slots.is_held(role) and not self.waits_for(role)

    @property
    def is_last_stage(self) -> bool:
        """Whether no stage comes after the current one."""
        return len(self.stages) == 1


def begin_stage(order: RoleOrder, stages: tuple[StageQueue, ...], slots: Slots) -> Position:
    """Return the position at the beginning of the first of these stages."""
    waiting = stages[0].waiting
    return Position(order, stages, {role: 0 for role in order.roles if waiting.get(role)}, stages[0].unfinished, slots)


def first_position(fleet: FleetState, blockers: Blockers, slots: Slots) -> Position:
    """Return the position before a pass admits any host. Takes time linear in hosts, and in stages times roles.

    Hosts out of scope, hosts without their tasks of services and hosts of roles with an exhausted failure budget are not in a queue. Others still
    wait for them.
    """
    return begin_stage(fleet.order, _stage_queues(fleet, blockers), slots)


def admit(position: Position) -> tuple[Wave, Position]:
    """Return the hosts that the rules admit next, and the position after that. Takes time linear in roles, caps and these hosts.

    Only this function decides which hosts are admitted, for a pass and for each step of the forecast.
    """
    waiting, down = position.stages[0].waiting, position.stages[0].down
    ready = {role: len(waiting[role]) - at for role, at in position.next.items() if not position.waits_for(role)}
    own = {role: count - position.next[role] for role, count in down.items() if count > position.next.get(role, count)}
    counts, slots = position.slots.fill(ready, own)
    wave = {role: waiting[role][position.next[role] : position.next[role] + count] for role, count in counts.items()}
    after = {role: at + counts.get(role, 0) for role, at in position.next.items()}
    left = {role: at for role, at in after.items() if at < len(waiting[role])}
    return wave, Position(position.order, position.stages, left, position.unfinished, slots)


def reopened_hosts(
    fleet: FleetState, position: Position, exhausted: Container[str] = frozenset()
) -> tuple[Admission, ...]:
    """Return the hosts that were admitted and have started, and whose gate was closed later, such as by a new rollout.

    Those without the tasks of their services keep their slots, and wait for the tasks.

    :param exhausted: roles whose failure budget is exhausted.
    """
    return tuple(
        Admission(
            one.host,
            role,
            one.state,
            "its gate opens again: it was admitted, has started, and keeps its slot",
        )
        for role in fleet.order.roles
        if position.may_go_on(role) and role not in exhausted
        for one in fleet.by_role[role]
        if one.needs_its_gate and fleet.in_scope(one.host) and not fleet.lacks_services(one)
    )


def admitted_hosts(wave: Wave, after: Position) -> tuple[Admission, ...]:
    """Return the hosts of a wave, each with the reason for its admission.

    :param after: the position once they have their slots. The reason names the cap with the fewest free slots.
    """
    found: list[Admission] = []
    # ``what`` of a cap -> how many of its slots later hosts of the wave get.
    later: dict[str, int] = {}
    for role, hosts in reversed([*wave.items()]):
        caps = after.slots.caps[role]
        tightest = min(caps, key=after.slots.free) if caps else None
        reason = _reason(role, tightest, after)
        for host in reversed(hosts):
            slot = ""
            if tightest is not None:
                number = after.slots.taken.get(tightest.what, 0) - later.get(tightest.what, 0)
                # More may be taken than there are, such as after the cap was lowered. Then the host has had one.
                slot = f"slot {number} of {tightest.slots}" if number <= tightest.slots else ""
            for cap in caps:
                later[cap.what] = later.get(cap.what, 0) + 1
            found.append(Admission(host, role, PENDING, reason, slot))
    return tuple(reversed(found))


def gates_to_open(
    fleet: FleetState, position: Position, wave: Wave, reopened: Sequence[Admission]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the roles and the hosts whose gates this pass opens.

    A role's gate also admits hosts that this planner has not read. So it is opened only if no cap limits the role, it waits for no other role, the rules
    have no window, freeze, failure budget or complete sets, all of its hosts are in scope and targets of the job, the last stage has begun, its hosts
    need no tasks of services, none of them is held, busy with other work, or started without an admission, and all hosts of other roles have
    reported that they do not read this gate. A host's own gate takes precedence over the gate of its role, so it is opened too.
    """
    # One that is open already admits no host with a gate of its own, such as one that was retried.
    roles, version = fleet.snapshot.gates.roles, fleet.snapshot.current_version
    are_open = {role for role in wave if role in roles and gate_is_open(roles[role], version)}
    by_role = [role for role in wave if role not in are_open and _opens_as_one(fleet, position, role)]
    by_role = fleet.read_by_one_role(by_role)
    own_gates = fleet.snapshot.gates.hosts
    by_host = [one.host for one in reopened]
    for role, hosts in wave.items():
        by_host += [host for host in hosts if host in own_gates] if role in by_role else hosts
    return tuple(by_role), tuple(by_host)


def open_role_gates(snapshot: Snapshot) -> list[str]:
    """Return the roles whose gates planners have opened. An operator who opens a gate leaves no time in it."""
    gates, version = snapshot.gates.roles, snapshot.current_version
    return [role for role, gate in gates.items() if gate.at and gate_is_open(gate, version)]


def role_gates_to_close(fleet: FleetState, position: Position, blockers: Blockers) -> tuple[str, ...]:
    """Return the roles whose gates planners have opened, and which other rules or a pause no longer leave open.

    Otherwise hosts that join would be admitted by them, also to a role that has no host any more.
    """
    ours = open_role_gates(fleet.snapshot)
    admit_all = [
        role for role in ours if role in fleet.by_role and not blockers.is_paused and _admits_all(fleet, position, role)
    ]
    stay = fleet.read_by_one_role(admit_all)
    return tuple(role for role in ours if role not in stay)


def _admits_all(fleet: FleetState, position: Position, role: str) -> bool:
    """Return whether the rules admit every host of a role at any time, also one that joins and reads the open gate of its role."""
    # A host may join a role that this one waits for, and one that was upgraded may fail.
    if position.slots.caps[role] or fleet.order.waits[role] or not position.is_last_stage or role in fleet.services:
        return False
    rules = fleet.rules
    return not (rules.windows or rules.freezes or rules.complete_sets or rules.failures != FailureRules())


def _opens_as_one(fleet: FleetState, position: Position, role: str) -> bool:
    if not _admits_all(fleet, position, role):
        return False
    hosts = [one.host for one in fleet.by_role[role]]
    if not all(map(fleet.in_scope, hosts)) or fleet.snapshot.holds.cover_any(hosts, role):
        return False
    return all(one.is_target and not one.is_unadmitted and not one.is_busy for one in fleet.by_role[role])


def _reason(role: str, tightest: AppliedCap | None, after: Position) -> str:
    if tightest is None:
        reason = f"nothing limits role {role}"
    else:
        reason = f"{tightest.key} admits {tightest.slots} of {tightest.what} at once"
    first = after.order.waits[role]
    return f"{reason}; after {'role' if len(first) == 1 else 'roles'} {', '.join(first)}" if first else reason


def _stage_queues(fleet: FleetState, blockers: Blockers) -> tuple[StageQueue, ...]:
    exhausted = blockers.budgets.by_role
    return tuple(
        _stage_queue(
            hosts, {role: () if role in exhausted else _queue(fleet, role, found) for role, found in hosts.items()}
        )
        for hosts in _hosts_of_stages(fleet, blockers)
    )


def _hosts_of_stages(fleet: FleetState, blockers: Blockers) -> list[Mapping[str, Sequence[HostState]]]:
    """Return role -> hosts for the current stage, with those of earlier stages, and for each later stage."""
    stages = blockers.stages
    if stages.of_host is None:
        return [fleet.by_role]
    numbers = range(stages.number, max(stages.number, stages.last) + 1)
    found: dict[int, dict[str, list[HostState]]] = {at: {role: [] for role in fleet.by_role} for at in numbers}
    for role, hosts in fleet.by_role.items():
        for one in hosts:
            found[max(stages.number, stages.stage_of(one.host))][role].append(one)
    return [*found.values()]


def _stage_queue(hosts: Mapping[str, Sequence[HostState]], waiting: Mapping[str, tuple[str, ...]]) -> StageQueue:
    blocking = {role: [one for one in found if one.blocks_others] for role, found in hosts.items()}
    in_flight = {role: sum(1 for one in found if one.can_finish) for role, found in blocking.items()}
    down = {role: {one.host for one in found if one.is_down} for role, found in hosts.items()}
    first = {role: sum(1 for host in waiting[role] if host in found) for role, found in down.items() if found}
    return StageQueue(waiting, {role: len(found) for role, found in blocking.items()}, in_flight, first)


def _queue(fleet: FleetState, role: str, hosts: Sequence[HostState]) -> tuple[str, ...]:
    waiting = [one for one in hosts if one.state == PENDING]
    if fleet.scope is not None:
        waiting = [one for one in waiting if fleet.in_scope(one.host)]
    if role in fleet.services:
        waiting = [one for one in waiting if not fleet.lacks_services(one)]
    waiting = [one for one in waiting if not fleet.reads_other_role(one)]
    if waiting and waiting[0].in_rollback:
        waiting = _latest_first(fleet.snapshot, waiting)
    # They have slots already, and others have to wait for these.
    waiting.sort(key=lambda one: not one.is_down)
    return tuple([one.host for one in waiting])


def _latest_first(snapshot: Snapshot, hosts: Sequence[HostState]) -> list[HostState]:
    """Return the hosts, the last changed first. Consul's index decides, because hosts' clocks may be wrong."""
    former = snapshot.ledger.previous_version if snapshot.ledger else None

    def changed(one: HostState) -> tuple[int, int]:
        report, record = snapshot.reports.get(one.host), one.record
        if one.version == former and report is not None:
            return 0, -report.index
        if record is not None and record.version == former:
            return 1, -record.index
        return 2, 0

    return sorted(hosts, key=changed)
