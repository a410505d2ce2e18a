# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of services within a role, and the order between roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ...module_utils._common.errors import UpgradeError
from .._services.planes import PLANES

# The key of a role with the names of its task groups in the order of a rollback. Roles whose order is always the same have none.
REVERSED_TASK_GROUPS = "reversed_task_groups"
# Whether a run replaces the services of a role in that order.
IS_REVERSED = "is_reversed"


@dataclass(frozen=True, slots=True)
class RoleNeeds:
    """What decides the order of a role.

    :param plane: ``controlplane``, ``dataplane`` or None.
    :param services: the names of its services, in the order of ``upgrade_roles``.
    :param requires: service -> the services that have to be upgraded before it.
    :param pull: whether its hosts run the tasks themselves, each when it is admitted.
    """

    plane: str | None
    services: Sequence[str]
    requires: Mapping[str, Sequence[str]]
    pull: bool = False


@dataclass(frozen=True, slots=True)
class RoleOrdering:
    """The order between roles.

    :param order: role -> roles that go before it, in the form of ``role_order``.
    :param reasons: role -> role before it -> a sentence that says why.
    :param lockstep: groups of roles that require each other, so that they are upgraded together.
    """

    order: Mapping[str, list[str]]
    reasons: Mapping[str, Mapping[str, str]]
    lockstep: Sequence[tuple[str, ...]]


def order_within_role(services: Sequence[str], requires: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a role's services so that each comes after those that it requires. Otherwise their order stays.

    Requirements through services of other roles count too.
    """
    done: dict[str, None] = {}
    listed = set(services)

    def add(name: str) -> None:
        if name in done:
            return
        for first in requires.get(name, ()):
            add(first)
        done[name] = None

    for name in services:
        add(name)
    return [name for name in done if name in listed]


def inverted(requires: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return service -> the services that require it, which a rollback replaces before it."""
    found: dict[str, list[str]] = {}
    for service, firsts in requires.items():
        for first in firsts:
            found.setdefault(first, []).append(service)
    return found


def composition_of_rollback(composition: Mapping[str, Any], *, is_reversed: bool) -> dict[str, Any]:
    """Return a composition as data whose roles have their task groups in the order of this rollback, and no other order.

    :param is_reversed: whether it reverses the order, see :func:`reversed_role`.
    """
    kinds = {kind: composition[kind] for kind in ("roles", "pull_roles") if kind in composition}
    oriented = {
        kind: {name: reversed_role(role) if is_reversed else _with_one_order(role) for name, role in roles.items()}
        for kind, roles in kinds.items()
    }
    return {**composition, **oriented}


def _with_one_order(role: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in role.items() if name != REVERSED_TASK_GROUPS}


def reversed_role(role: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a role of a composition as data with its task groups in the order of a rollback, and ``is_reversed`` if that is another one.

    A role in a folder of an older release has only the order of an upgrade.
    """
    names = role.get(REVERSED_TASK_GROUPS)
    if not names:
        return role
    groups = {group["name"]: group for group in role["task_groups"]}
    return {**_with_one_order(role), "task_groups": [groups[name] for name in names], IS_REVERSED: True}


def refuse_cycle(requires: Mapping[str, Sequence[str]], where: Mapping[str, str]) -> None:
    """Refuse services that require each other in a cycle.

    :param where: service -> file and line of its ``requires``.
    :raises UpgradeError: ``bad_service``.
    """
    done: set[str] = set()
    for begin in requires:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(begin, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                done.add(name)
            elif name in path:
                cycle = [*path[path.index(name) :], name]
                raise UpgradeError(
                    "bad_service",
                    f"{where.get(name, name)}: requires has a cycle: {' -> '.join(cycle)}. Remove one of these.",
                    cycle=cycle,
                )
            elif name not in done:
                path.append(name)
                stack.append((name, True))
                stack.extend((first, False) for first in reversed(list(requires.get(name, ()))))


def order_among_roles(roles: Mapping[str, RoleNeeds]) -> RoleOrdering:
    """Return the order between roles from their planes and from what their services require.

    A role waits for other roles only for services that it does not have itself.

    :raises UpgradeError: ``bad_service`` for a cycle with a role that is not in the control plane, or of pull hosts.
    """
    reasons: dict[str, dict[str, str]] = {role: {} for role in roles}
    for role, what in roles.items():
        if what.plane == PLANES[1]:
            for other, that in roles.items():
                if that.plane == PLANES[0]:
                    reasons[role][other] = f"{role} is in the data plane, and {other} in the control plane"
        own = set(what.services)
        for service in what.services:
            for first in what.requires.get(service, ()):
                if first in own:
                    continue
                for other, that in roles.items():
                    if other != role and first in that.services:
                        reasons[role].setdefault(other, f"{service} requires {first}, which {other} has")
    groups = _connected_roles({role: list(found) for role, found in reasons.items()})
    lockstep = [group for group in groups if len(group) > 1]
    for group in lockstep:
        if any(roles[role].plane != PLANES[0] or roles[role].pull for role in group):
            raise _cycle_error(group, reasons)
    together = {role: group for group in lockstep for role in group}
    order: dict[str, list[str]] = {}
    for role in roles:
        mates = together.get(role, (role,))
        firsts = [first for mate in mates for first in reasons[mate] if first not in mates]
        # A role that waits for one role of a lockstep group waits for all of them.
        spread = dict.fromkeys(each for first in firsts for each in together.get(first, (first,)))
        if spread:
            order[role] = list(spread)
    return RoleOrdering(order, reasons, tuple(lockstep))


def _cycle_error(group: Iterable[str], reasons: Mapping[str, Mapping[str, str]]) -> UpgradeError:
    members = set(group)
    begin = next(iter(group))
    # Every role of the group waits for another one of it, so this ends at a role that is in the path already.
    path = [begin]
    while True:
        nxt = next(first for first in reasons[path[-1]] if first in members)
        if nxt in path:
            path = [*path[path.index(nxt) :], nxt]
            break
        path.append(nxt)
    why = "; ".join(reasons[role][first] for role, first in pairwise(path))
    return UpgradeError(
        "bad_service",
        f"upgrade_roles: roles wait for each other, {' -> '.join(path)}: {why}. Only roles of the control plane without pull can be "
        "upgraded together. Move the services of these roles into one role, or remove a requirement.",
        cycle=path,
    )


def _connected_roles(edges: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the strongly connected components, each in the order of ``edges`` (Tarjan's algorithm without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    on_stack: list[str] = []
    found: list[tuple[str, ...]] = []
    place = {role: at for at, role in enumerate(edges)}
    for begin in edges:
        if begin in number:
            continue
        work: list[tuple[str, int]] = [(begin, 0)]
        while work:
            role, at = work.pop()
            if at == 0:
                number[role] = low[role] = len(number)
                on_stack.append(role)
            firsts = edges[role]
            if at:
                low[role] = min(low[role], low[firsts[at - 1]])
            while at < len(firsts):
                first = firsts[at]
                at += 1
                if first not in number:
                    work += [(role, at), (first, 0)]
                    break
                if first in on_stack:
                    low[role] = min(low[role], number[first])
            else:
                if low[role] == number[role]:
                    cut = on_stack.index(role)
                    found.append(tuple(sorted(on_stack[cut:], key=place.__getitem__)))
                    del on_stack[cut:]
    return found
