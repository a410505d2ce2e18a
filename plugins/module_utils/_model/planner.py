# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner: a snapshot, a fleet and rules in, a plan out. No IO, no clock, no state: same input, same plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from . import states, why
from .errors import UpgradeError
from .fleet import Snapshot
from .instructions import Instructions
from .limits import limits_by_role
from .names import nearest, plural, some
from .opener import Opener, forecast
from .order import RoleOrder, resolve
from .states import HostState, read_states


@dataclass(frozen=True, slots=True)
class HostView:
    """A host as an operator sees it. ``reason`` says why it is in its state, or why it waits."""

    role: str
    group: str | None
    state: str
    version: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Opening:
    """A host that this plan lets through."""

    host: str
    role: str
    before: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write now, where every host is, why the others wait, and what comes after.

    :param hosts: every host, as it is **before** the openings.
    :param openings: the hosts let through now.
    :param open_roles: roles to open by one key, because nothing limits them.
    :param open_hosts: hosts to open by a key of their own.
    :param waves: the hosts let through now, then the forecast; empty where nothing is left to open.
    :param complete: whether every host is upgraded.
    :param scope_done: whether every host that the call may open is.
    :param can_move: whether anything may still change without an operator.
    :param unfinished: the hosts in scope that are not upgraded.
    :param missing: roles of which fewer hosts are known here than the rollout has; nothing may be opened then.
    """

    version: str | None = None
    hosts: Mapping[str, HostView] = field(default_factory=dict)
    openings: tuple[Opening, ...] = ()
    open_roles: tuple[str, ...] = ()
    open_hosts: tuple[str, ...] = ()
    waves: tuple[tuple[str, ...], ...] = ()
    complete: bool = False
    scope_done: bool = False
    can_move: bool = False
    unfinished: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def status(self) -> dict[str, list[str]]:
        """Return state -> hosts in natural order, for all six states."""
        found: dict[str, list[str]] = {state: [] for state in states.STATES}
        for host, view in self.hosts.items():
            found[view.state].append(host)
        return found


def obstacles(plan: Plan, hosts: Mapping[str, HostView]) -> list[str]:
    """Return why hosts in scope are not upgraded: a sentence for each reason, with its hosts."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for host in plan.unfinished:
        view = hosts[host]
        by_reason.setdefault((view.state, view.reason), []).append(host)
    return [f"{some(found)} ({state}): {reason}" for (state, reason), found in by_reason.items()]


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
    hosts = read_states(snapshot, members)
    by_role: dict[str, list[HostState]] = {}
    for one in hosts.values():
        by_role.setdefault(one.role, []).append(one)
    order = resolve(rules, by_role)
    scope = _scope(limit, members, order)
    missing = _missing(snapshot, by_role)

    opener = _opener(rules, order, by_role, scope)
    reopened = _reopened(opener, by_role, scope)
    wanted = snapshot.current_version is not None
    chosen = opener.next_set() if wanted else []
    openings = [*reopened, *_openings(opener, chosen)]
    views = _views(snapshot, hosts, order, opener, by_role, chosen, scope)
    open_roles, open_hosts = _keys(snapshot, opener, by_role, chosen, reopened, scope)

    in_flight = {role: sum(1 for one in found if one.can_finish) for role, found in by_role.items()}
    flying = any(in_flight.values())
    for role, names in chosen:
        in_flight[role] += len(names)
    later = forecast(opener, in_flight.items()) if wanted else []
    now = [one.host for one in openings]
    unfinished = [
        one.host for one in hosts.values() if one.state != states.UPGRADED and (scope is None or one.host in scope)
    ]
    return Plan(
        version=snapshot.current_version,
        hosts=views,
        openings=tuple(openings),
        open_roles=tuple(open_roles),
        open_hosts=tuple(open_hosts),
        waves=tuple(tuple(wave) for wave in ([now, *later] if now or later else ())),
        complete=not missing and all(one.state == states.UPGRADED for one in hosts.values()),
        scope_done=not unfinished and not missing,
        can_move=flying or bool(openings),
        unfinished=tuple(unfinished),
        warnings=(*snapshot.warnings, *order.warnings),
        missing=missing,
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
                f"limit: {name!r} is no host, role or group of this fleet{nearest(name, known) or '.'} "
                f"Its roles are {some(list(order.roles), 10) or 'none'}.",
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
    rules: Instructions, order: RoleOrder, by_role: Mapping[str, list[HostState]], scope: frozenset[str] | None
) -> Opener:
    counts = {role: len(found) for role, found in by_role.items()}
    unfinished = {role: sum(1 for one in found if one.state != states.UPGRADED) for role, found in by_role.items()}
    queues = {
        role: deque(one.host for one in found if one.state == states.PENDING and (scope is None or one.host in scope))
        for role, found in by_role.items()
    }
    opener = Opener(order, queues, unfinished, limits_by_role(rules, order, counts), rules.complete_sets)
    for role, found in by_role.items():
        taken = sum(1 for one in found if one.state in states.TAKES_A_SLOT)
        if taken:
            opener.take(role, taken)
    return opener


def _reopened(opener: Opener, by_role: Mapping[str, list[HostState]], scope: frozenset[str] | None) -> list[Opening]:
    return [
        Opening(one.host, role, one.state, "it has started and holds its slot already, so its gate opens again")
        for role in opener.order.roles
        if not opener.is_stopped(role) and not opener.waits_for(role)
        for one in by_role[role]
        if one.needs_its_gate and (scope is None or one.host in scope)
    ]


def _openings(opener: Opener, chosen: list[tuple[str, list[str]]]) -> list[Opening]:
    openings = []
    for role, names in chosen:
        limits = opener.limits[role]
        reason = f"nothing limits role {role}"
        if limits:
            tightest = min(limits, key=lambda limit: limit.free)
            reason = f"{tightest.key} lets {tightest.slots} of {tightest.what} go at once"
        if opener.order.waits[role]:
            reason += f"; {', '.join(opener.order.waits[role])} done"
        openings += [Opening(host, role, states.PENDING, reason) for host in names]
    return openings


def _views(
    snapshot: Snapshot,
    hosts: Mapping[str, HostState],
    order: RoleOrder,
    opener: Opener,
    by_role: Mapping[str, list[HostState]],
    chosen: list[tuple[str, list[str]]],
    scope: frozenset[str] | None,
) -> dict[str, HostView]:
    current = snapshot.current_version
    occupants = {
        role: [one.host for one in found if one.state in states.TAKES_A_SLOT] for role, found in by_role.items()
    }
    opening = set()
    for role, names in chosen:
        occupants[role] += names
        opening.update(names)
    unfinished = {role: [one for one in found if one.state != states.UPGRADED] for role, found in by_role.items()}
    waiting = why.Waiting(opener, occupants, unfinished, opening)

    def reason(one: HostState) -> str:
        if one.state != states.PENDING:
            return why.of_state(one, current)
        if current is None:
            text = "no version is wanted yet: current_version is not set"
        elif one.host in opening:
            text = "may go now"
        elif scope is not None and one.host not in scope:
            text = "outside of this call's limit"
        else:
            text = waiting.of_role(one.role)
        if one.gate.scope == "unreadable":
            text = f"{one.gate.value} {text}"
        return text if one.version else f"never reported; {text}"

    return {
        one.host: HostView(one.role, order.group.get(one.role), one.state, one.version, reason(one))
        for one in hosts.values()
    }


def _keys(
    snapshot: Snapshot,
    opener: Opener,
    by_role: Mapping[str, list[HostState]],
    chosen: list[tuple[str, list[str]]],
    reopened: list[Opening],
    scope: frozenset[str] | None,
) -> tuple[list[str], list[str]]:
    # A role key opens hosts that this planner has never heard of too, so it is for roles that nothing limits.
    open_roles = []
    open_hosts = [one.host for one in reopened]
    gates = snapshot.gates.hosts
    for role, names in chosen:
        hosts = [one.host for one in by_role[role]]
        whole = scope is None or all(host in scope for host in hosts)
        if opener.limits[role] or not whole or snapshot.holds.cover_any(hosts, role):
            open_hosts += names
        else:
            open_roles.append(role)
            open_hosts += [host for host in names if host in gates]
    return open_roles, open_hosts
