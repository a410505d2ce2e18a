# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner: a snapshot, a fleet and rules in, a plan out. No IO, no clock, no state: same input, same plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from .._common.errors import UpgradeError
from .._common.names import did_you_mean, listing, plural
from .._fleet.fleet import Snapshot
from .._host_states import states
from .._host_states.failure_budgets import spent_budgets
from .._host_states.states import HostState, in_rollback, read_states
from .._rule_checks.stage_hosts import stage_without_followers
from .._rule_checks.unknown_targets import duplicate_machines, unknown_targets
from .._rules.instructions import FORWARD, REVERSED, Instructions
from .._rules.role_order import RoleOrder, resolve
from .admission import Admissions, forecast
from .blockers import ABORT, PAUSE, rollout_blocker
from .host_views import ViewInput, host_views
from .plan import Admission, Plan
from .post_upgrade import post_upgrade_hosts
from .slots import limits_by_role
from .stage_progress import StageProgress, stage_progress
from .wave_times import wave_seconds


def make_plan(
    snapshot: Snapshot,
    members: Mapping[str, str],
    rules: Instructions,
    limit: Collection[str] | None = None,
) -> Plan:
    """Return the plan for one pass. Takes time linear in hosts.

    :param members: host -> role, in natural order, as :func:`fleet.place` returns it.
    :param limit: hosts, roles or groups that may be opened; None for all. The rest still counts under the caps.
    :raises UpgradeError: ``bad_instructions``, ``unknown_limit``.
    """
    hosts = read_states(snapshot, members, rules.health)
    by_role: dict[str, list[HostState]] = {}
    for one in hosts.values():
        by_role.setdefault(one.role, []).append(one)
    back = "" if not in_rollback(snapshot) else FORWARD if rules.forward_rollback else REVERSED
    order = resolve(rules, by_role, members, is_reversed=back == REVERSED)
    scope = _scope(limit, members, order)
    missing = _missing(snapshot, by_role)
    broken = {
        role: [one.host for one in found if one.state in states.BROKEN and not one.is_excused]
        for role, found in by_role.items()
    }
    counts = {role: len(found) for role, found in by_role.items()}
    spent_by_all, spent = spent_budgets(rules.failures, order, counts, broken)
    brake = rollout_blocker(snapshot, rules, spent_by_all)
    staging = stage_progress(snapshot, rules.stages, order, by_role, rules.optional_names)

    opener = _opener(snapshot, rules, order, by_role, scope, staging, frozenset(spent))
    wanted = snapshot.current_version is not None
    may_open = wanted and brake is None
    reopened = _reopened(opener, by_role, scope) if may_open else []
    chosen = opener.next_set() if may_open else []
    openings = [*reopened, *_openings(opener, chosen)]
    views = host_views(ViewInput(snapshot, opener, by_role, chosen, scope, brake, spent, staging), hosts, order)
    open_roles, open_hosts = _keys(snapshot, opener, by_role, chosen, reopened, scope)

    in_flight = {role: sum(1 for one in found if one.can_finish) for role, found in by_role.items()}
    flying = any(in_flight.values())
    for role, names in chosen:
        in_flight[role] += len(names)
    later = forecast(opener, in_flight.items()) if wanted and (brake is None or brake.passes) else []
    now = [one.host for one in openings]
    waves = tuple(tuple(wave) for wave in ([now, *later] if now or later else ()))
    unfinished = [
        one.host for one in hosts.values() if one.state != states.UPGRADED and (scope is None or one.host in scope)
    ]
    # Whoever waits for a rollout waits for the end of its pause too.
    paused = brake is not None and brake.code == PAUSE
    ends = brake is None or brake.code not in (PAUSE, ABORT)
    waits = paused or (bool(unfinished) and (staging.waits if brake is None else brake.passes))
    times = [one.wake_at for one in hosts.values()]
    times += [brake.until if brake else None, staging.until]
    return Plan(
        version=snapshot.current_version,
        hosts=views,
        openings=tuple(openings),
        open_roles=tuple(open_roles),
        open_hosts=tuple(open_hosts),
        waves=waves,
        wave_seconds=wave_seconds(snapshot, members, waves, rules.health.soak),
        complete=not missing and ends and all(one.state == states.UPGRADED for one in hosts.values()),
        scope_done=not unfinished and not missing and ends,
        can_move=flying or bool(openings) or waits,
        unfinished=tuple(unfinished),
        warnings=(
            *snapshot.warnings,
            *order.warnings,
            *stage_without_followers(staging.stages, staging.of_host or {}),
            *unknown_targets(snapshot, members, rules.stages),
            *duplicate_machines(snapshot, members),
        ),
        missing=missing,
        brake=brake,
        spent=spent,
        stopped=tuple(dict.fromkeys(one.key for one in (spent_by_all, *spent.values()) if one is not None)),
        stage=staging.name,
        stage_mark=staging.mark or {},
        wants_approval=staging.waits and staging.until is None,
        waits=waits,
        post_upgrade=post_upgrade_hosts(snapshot, members),
        order={role: firsts for role, firsts in order.waits.items() if firsts},
        rollback_order=back,
        marks={one.host: one.mark for one in hosts.values() if one.mark and one.mark != snapshot.marks.get(one.host)},
        wake_at=min((at for at in times if at is not None), default=None),
    )


def _scope(limit: Collection[str] | None, members: Mapping[str, str], order: RoleOrder) -> frozenset[str] | None:
    if limit is None:
        return None
    scope: set[str] = set()
    roles: set[str] = set()
    for name in limit:
        found = order.roles_of(name)
        if name in members:
            scope.add(name)
        elif found:
            roles.update(found)
        else:
            known = {*members, *order.roles, *order.group.values()}
            raise UpgradeError(
                "unknown_limit",
                f"limit: {name!r} is no host, role or group of this fleet{did_you_mean(name, known) or '.'} "
                f"Its roles are {listing(list(order.roles), 10) or 'none'}.",
                name=name,
            )
    scope.update(host for host, role in members.items() if role in roles)
    return frozenset(scope)


def _missing(snapshot: Snapshot, by_role: Mapping[str, Collection[HostState]]) -> tuple[str, ...]:
    # A planner that was given no fleet would take hosts that never reported for non-existent, and call it a day.
    counts = snapshot.ledger.members if snapshot.ledger else {}
    return tuple(
        f"role {role}: {len(by_role.get(role, ()))} of its {plural(count, 'host')} are known here, because hosts that "
        "never reported are known by fleet only; give the fleet that the rollout was given last"
        for role, count in sorted(counts.items())
        if len(by_role.get(role, ())) < count
    )


def _opener(
    snapshot: Snapshot,
    rules: Instructions,
    order: RoleOrder,
    by_role: Mapping[str, list[HostState]],
    scope: frozenset[str] | None,
    staging: StageProgress,
    stopped: frozenset[str],
) -> Admissions:
    counts = {role: len(found) for role, found in by_role.items()}
    parts = [_part(snapshot, by_role, scope, staging, staging.number, first=True)]
    parts += [_part(snapshot, by_role, scope, staging, at) for at in range(staging.number + 1, staging.last + 1)]
    (queues, unfinished), *later = parts
    limits = limits_by_role(rules, order, counts)
    opener = Admissions(order, queues, unfinished, limits, rules.complete_sets, stopped=stopped, later=deque(later))
    for role, found in by_role.items():
        taken = sum(1 for one in found if one.takes_a_slot)
        if taken:
            opener.take(role, taken)
    return opener


def _part(
    snapshot: Snapshot,
    by_role: Mapping[str, list[HostState]],
    scope: frozenset[str] | None,
    staging: StageProgress,
    number: int,
    *,
    first: bool = False,
) -> tuple[dict[str, deque[str]], dict[str, int]]:
    """Return the queues and the unfinished hosts of a stage, with those of all before it for the first one."""
    queues, unfinished = {}, {}
    for role, found in by_role.items():
        mine = found
        if staging.of_host is not None:
            of_host = staging.of_host
            mine = [one for one in found if of_host[one.host] == number or (first and of_host[one.host] < number)]
        waiting = [one for one in mine if one.state == states.PENDING and (scope is None or one.host in scope)]
        queues[role] = deque(one.host for one in _in_turn(snapshot, waiting))
        unfinished[role] = sum(1 for one in mine if one.is_in_the_way)
    return queues, unfinished


def _in_turn(snapshot: Snapshot, waiting: list[HostState]) -> list[HostState]:
    """Return hosts in the order in which they go: by name, and in a rollback those first that changed last.

    That is told by Consul's index, as hosts' clocks may be wrong.
    """
    if not (waiting and waiting[0].in_rollback):
        return waiting
    former = snapshot.ledger.previous_version if snapshot.ledger else None

    def changed(one: HostState) -> tuple[int, int]:
        report, record = snapshot.reports.get(one.host), one.record
        if one.version == former and report is not None:
            return 0, -report.index
        if record is not None and record.version == former:
            return 1, -record.index
        return 2, 0

    return sorted(waiting, key=changed)


def _reopened(
    opener: Admissions, by_role: Mapping[str, list[HostState]], scope: frozenset[str] | None
) -> list[Admission]:
    return [
        Admission(
            one.host,
            role,
            one.state,
            "it was admitted and has started, and holds its slot already, so its gate opens again",
        )
        for role in opener.order.roles
        if not opener.is_stopped(role) and not opener.waits_for(role)
        for one in by_role[role]
        if one.needs_its_gate and (scope is None or one.host in scope)
    ]


def _openings(opener: Admissions, chosen: list[tuple[str, list[str]]]) -> list[Admission]:
    openings = []
    for role, names in chosen:
        limits = opener.limits[role]
        reason = f"nothing limits role {role}"
        if limits:
            tightest = min(limits, key=lambda limit: limit.free)
            reason = f"{tightest.key} lets {tightest.slots} of {tightest.what} go at once"
        if opener.order.waits[role]:
            reason += f"; {', '.join(opener.order.waits[role])} done"
        openings += [Admission(host, role, states.PENDING, reason) for host in names]
    return openings


def _keys(
    snapshot: Snapshot,
    opener: Admissions,
    by_role: Mapping[str, list[HostState]],
    chosen: list[tuple[str, list[str]]],
    reopened: list[Admission],
    scope: frozenset[str] | None,
) -> tuple[list[str], list[str]]:
    # A role key opens hosts that this planner has never heard of too, so it is for roles that nothing limits.
    open_roles = []
    open_hosts = [one.host for one in reopened]
    gates = snapshot.gates.hosts
    for role, names in chosen:
        hosts = [one.host for one in by_role[role]]
        whole = scope is None or all(host in scope for host in hosts)
        # Nor is it for a host of its role that says that it has started, and was not admitted.
        closed = snapshot.holds.cover_any(hosts, role) or any(one.is_unadmitted for one in by_role[role])
        if opener.limits[role] or opener.later or not whole or closed:
            open_hosts += names
        else:
            open_roles.append(role)
            open_hosts += [host for host in names if host in gates]
    return open_roles, open_hosts
