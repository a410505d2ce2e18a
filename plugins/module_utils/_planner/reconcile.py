# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner makes a plan from a snapshot, a fleet and rules. No IO, clock or state: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .._common.lazy import LazySequence
from .._fleet.fleet import Snapshot
from .._fleet.health_marks import HealthMark
from .._host_states.host_state import HostState
from .._host_states.soak import READ_AGAIN_AFTER
from .._rule_checks.stage_hosts import stage_without_followers
from .._rule_checks.unknown_targets import duplicate_machines, other_roles, unknown_targets
from .._rules.instructions import Instructions
from .admission import admit, admitted_hosts, first_position, gates_to_open, reopened_hosts, role_gates_to_close
from .blockers import Blockers, find_blockers
from .explanations import explain_hosts
from .fleet_state import FleetState, read_fleet
from .forecast import forecast, wave_seconds
from .plan import Plan, Waves
from .post_upgrade import post_upgrade_hosts
from .slots import fleet_slots


def make_plan(
    snapshot: Snapshot,
    members: Mapping[str, str],
    rules: Instructions,
    limit: Collection[str] | None = None,
    before: Plan | None = None,
) -> Plan:
    """Return the plan for one pass. Takes time linear in hosts.

    :param members: host -> role, in natural order, as :func:`roles_of_hosts` returns it.
    :param limit: hosts, roles or groups that may be admitted; None for all hosts. Other hosts still count under the caps.
    :param before: the plan of an earlier pass, which saves time.
    :raises UpgradeError: ``bad_instructions``, ``unknown_limit``.
    """
    fleet = read_fleet(snapshot, members, rules, limit, before.fleet if before is not None else None)
    blockers = find_blockers(fleet)
    slots = fleet_slots(fleet)

    start = first_position(fleet, blockers, slots)
    wave, after = admit(start) if blockers.allow_admissions else ({}, start)
    reopened = reopened_hosts(fleet, start, blockers.budgets.by_role) if blockers.allow_admissions else ()
    admissions = (*reopened, *admitted_hosts(wave, after))
    role_gates, host_gates = gates_to_open(fleet, start, wave, reopened)
    unfinished, missing, in_flight = fleet.unfinished, fleet.missing, fleet.in_flight

    def waves_of_forecast() -> Waves:
        later = forecast(after, in_flight, wave) if blockers.allow_forecast else ()
        return (tuple(one.host for one in admissions), *later) if admissions or later else ()

    waves = LazySequence(waves_of_forecast)
    may_be_over = not (missing or blockers.is_paused or blockers.is_aborted)
    waits = blockers.is_paused or (bool(unfinished) and blockers.end_by_waiting)
    return Plan(
        version=snapshot.current_version,
        hosts=explain_hosts(fleet, blockers, wave, after),
        admissions=admissions,
        role_gates=role_gates,
        host_gates=host_gates,
        role_gates_to_close=role_gates_to_close(fleet, start, blockers),
        waves=waves,
        wave_seconds=LazySequence(lambda: wave_seconds(snapshot, members, waves, rules.health.soak)),
        # A fleet without hosts is one that is not known, and its gates stay closed.
        complete=may_be_over and bool(fleet.hosts) and fleet.is_upgraded,
        scope_done=may_be_over and not unfinished,
        can_move=bool(admissions) or waits or _is_any_in_flight(fleet) or _is_at_work_elsewhere(fleet),
        unfinished=unfinished,
        warnings=_warnings(fleet, blockers),
        missing=missing,
        blocker=blockers.rollout,
        exhausted=blockers.budgets.by_role,
        exhausted_keys=blockers.budgets.keys,
        stage=blockers.stages.name,
        stage_mark=blockers.stages.mark or {},
        needs_approval=blockers.stages.needs_approval,
        waits=waits,
        post_upgrade=post_upgrade_hosts(snapshot, members),
        order={role: firsts for role, firsts in fleet.order.waits.items() if firsts},
        rollback_order=fleet.rollback_order,
        marks=_new_marks(fleet),
        wake_at=_wake_at(fleet, blockers),
        stages=blockers.stages,
        fleet=fleet,
    )


def _warnings(fleet: FleetState, blockers: Blockers) -> tuple[str, ...]:
    stages = blockers.stages
    return (
        *fleet.snapshot.warnings,
        *fleet.order.warnings,
        *stage_without_followers(stages.stages, stages.of_host or {}),
        *unknown_targets(fleet.snapshot, fleet.members, fleet.rules.stages),
        *duplicate_machines(fleet.snapshot, fleet.members),
        *other_roles(fleet.snapshot, fleet.members),
    )


def _is_any_in_flight(fleet: FleetState) -> bool:
    """Return whether a host is upgrading and can be expected to finish. One that an Ansible run has left can't, while rules keep its gate closed."""
    return any(one.can_finish and not _is_left_behind(fleet, one) for one in fleet.hosts.values())


def _is_left_behind(fleet: FleetState, one: HostState) -> bool:
    is_at_work = one.host in fleet.snapshot.leases or one.record is None or not one.record.is_by_ansible
    return one.needs_its_gate and not is_at_work


def _is_at_work_elsewhere(fleet: FleetState) -> bool:
    """Return whether a run works on post-upgrade tasks, or a pull host may at any time. Their end frees a slot."""
    leases = fleet.snapshot.leases
    return any(
        one.is_down
        and one.is_in_post_upgrade
        and (one.host in leases or (one.record is not None and one.record.services is not None))
        for one in fleet.hosts.values()
    )


def _new_marks(fleet: FleetState) -> dict[str, HealthMark]:
    """Return host -> its health mark, for marks that differ from the stored ones."""
    known = fleet.snapshot.marks
    return {one.host: one.mark for one in fleet.hosts.values() if one.mark and one.mark != known.get(one.host)}


def _wake_at(fleet: FleetState, blockers: Blockers) -> float | None:
    """Return when a host's state, a stage or a window may change without a write (unix seconds); None for never."""
    times = [one.wake_at for one in fleet.hosts.values()]
    times += [blockers.rollout.until if blockers.rollout else None, blockers.stages.until]
    if blockers.stages.until is not None and fleet.rules.health.consul_checks:
        # A host whose check fails is not done any more, so the soak of the stage begins again.
        times.append(fleet.snapshot.now + READ_AGAIN_AFTER)
    return min((at for at in times if at is not None), default=None)
