# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The groups and the order of the rules, resolved to the roles of a fleet."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .._common.errors import UpgradeError
from .._common.names import in_order
from .._common.sanitize import truncate
from .instructions import Instructions, find_cycle
from .unknown_names import UnknownNames, unknown_names


@dataclass(frozen=True, slots=True)
class RoleOrder:
    """The groups and the order of a fleet's roles.

    :param roles: all roles, each after those that it waits for.
    :param group: role -> its group, for roles that have one.
    :param waits: role -> the roles that must be completely upgraded first.
    :param further: role -> the roles that come before those, where there are any. They count if a stage has no host of the roles between.
    :param unknown: names in the rules that the fleet does not have, without those in ``optional_names``.
    :param is_reversed: whether the rules' order is reversed, as in a rollback.
    """

    roles: tuple[str, ...]
    group: Mapping[str, str]
    waits: Mapping[str, tuple[str, ...]]
    unknown: tuple[UnknownNames, ...] = ()
    is_reversed: bool = False
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning for each unknown name."""
        return tuple(one.text for one in self.unknown)

    def roles_of(self, name: str) -> tuple[str, ...]:
        """Return the roles of a group, or the role with this name; empty if there is neither."""
        return tuple(_roles_of(self.roles, self.group).get(name, ()))


def resolve(
    rules: Instructions, roles: Iterable[str], hosts: Collection[str] | None = None, *, is_reversed: bool = False
) -> RoleOrder:
    """Return the order of a fleet's roles.

    The order passes through roles that the fleet does not have: if compute waits for network, and network for controller,
    compute waits for controller in a fleet without network hosts.

    :param hosts: the fleet's hosts, to find unknown hosts in the rules; None to skip that.
    :param is_reversed: whether to reverse the order: each role waits for those that usually wait for it.
    :raises UpgradeError: ``bad_instructions`` for a role in two groups, a name of both a group and a role outside of it, or a
        cycle of roles.
    """
    names = tuple(in_order(roles))
    group = _groups(rules, names)
    named = _roles_of(names, group)
    waits: dict[str, tuple[str, ...]] = {}
    for role in names:
        requested = [*rules.order.get(role, ())]
        if role in group:
            requested += rules.order.get(group[role], ())
        waits[role] = tuple(in_order(_present(requested, rules, named)))
    cycle = find_cycle(waits)
    if cycle:
        text = " waits for ".join(f"{role} (of group {group[role]})" if role in group else role for role in cycle)
        raise UpgradeError(
            "bad_instructions",
            f"instructions: role_order: with group_mappings it has a cycle, so none of these can begin: {text}.",
            key="role_order",
            cycle=cycle,
        )
    if is_reversed:
        after: dict[str, list[str]] = {role: [] for role in names}
        for role in names:
            for first in waits[role]:
                after[first].append(role)
        waits = {role: tuple(found) for role, found in after.items()}
    unknown = unknown_names(rules, names, group.values(), hosts)
    ordered = _sorted_by_order(names, waits)
    return RoleOrder(ordered, group, waits, unknown, is_reversed, _further(ordered, waits))


def _further(ordered: Sequence[str], waits: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return role -> all roles before it but those in ``waits``, for roles that have such.

    :param ordered: the roles, each after those that it waits for.
    """
    before: dict[str, set[str]] = {}
    found = {}
    for role in ordered:
        before[role] = {one for first in waits[role] for one in (first, *before[first])}
        if more := before[role].difference(waits[role]):
            found[role] = tuple(in_order(more))
    return found


def _groups(rules: Instructions, roles: tuple[str, ...]) -> dict[str, str]:
    group: dict[str, str] = {}
    for name, patterns in rules.groups.items():
        for role in roles:
            if not _matches(patterns, role):
                continue
            if role in group:
                raise UpgradeError(
                    "bad_instructions",
                    f"instructions: group_mappings: the role {role!r} is matched by the group {group[role]!r} and by "
                    f"{name!r} ({truncate(', '.join(patterns))}). A role can be in only one group; make the expressions narrower.",
                    key=f"group_mappings.{name}",
                )
            group[role] = name
    for name in rules.groups:
        if name in roles and group.get(name) != name:
            raise UpgradeError(
                "bad_instructions",
                f"instructions: group_mappings: {name!r} is the name of a group and of a role outside of it, so a rule "
                "for that name could mean either. Give the group another name.",
                key=f"group_mappings.{name}",
            )
    return group


def _roles_of(roles: tuple[str, ...], group: Mapping[str, str]) -> dict[str, list[str]]:
    """Return name -> the roles that it stands for: those of a group, or the role itself."""
    members: dict[str, list[str]] = {}
    for role in roles:
        if role in group:
            members.setdefault(group[role], []).append(role)
    return {role: [role] for role in roles} | members


def _present(requested: list[str], rules: Instructions, named: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    asked: set[str] = set()
    left = list(requested)
    while left:
        name = left.pop()
        if name in asked:
            continue
        asked.add(name)
        members = named.get(name, ())
        found.update(members)
        if not members:
            for one in (name, *(group for group, patterns in rules.groups.items() if _matches(patterns, name))):
                left.extend(rules.order.get(one, ()))
    return found


def _matches(patterns: Iterable[str], role: str) -> bool:
    return any(re.match(pattern, role) for pattern in patterns)


def _sorted_by_order(roles: tuple[str, ...], waits: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    done: dict[str, None] = {}
    stack = [(role, False) for role in reversed(roles)]
    while stack:
        role, ready = stack.pop()
        if role in done:
            continue
        if ready:
            done[role] = None
        else:
            stack.append((role, True))
            stack.extend((first, False) for first in reversed(waits[role]) if first not in done)
    return tuple(done)
