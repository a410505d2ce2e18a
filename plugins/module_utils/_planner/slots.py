# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits: the caps as they bind the roles of a fleet, and the slots that are left under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .._common.errors import UpgradeError
from .._common.names import listing
from .._rules.instructions import Instructions
from .._rules.role_order import RoleOrder


@dataclass(slots=True)
class Limit:
    """One cap at work.

    :param what: whom it limits, in words: ``role compute``, ``group ceph``, ``the fleet``.
    :param key: the key of the instructions that sets it.
    :param slots: how many hosts may be down at once.
    :param taken: how many are.
    :param is_missing: whether this stands for a cap that the rules do not give. It holds all.
    """

    what: str
    key: str
    slots: int
    taken: int = 0
    is_missing: bool = False

    @property
    def free(self) -> int:
        """How many more hosts it lets through; never negative."""
        return max(0, self.slots - self.taken)


def limits_by_role(rules: Instructions, order: RoleOrder, members: Mapping[str, int]) -> dict[str, tuple[Limit, ...]]:
    """Return role -> the limits over it; those of a group or the fleet are shared by their roles.

    A role of a group counts in the group's cap (its own one, else the global one), and in a cap of its own
    if it has one: the group is what ``rolling_rules.global`` applies to, not each of its roles.
    A role without any cap is held: only ``unlimited`` lets all of its hosts go at once.

    :param members: role -> number of hosts, of which a percent is taken.
    """
    fleet = (
        (Limit("the fleet", "rolling_rules.fleet", rules.fleet_cap.limit(sum(members.values()))),)
        if rules.fleet_cap
        else ()
    )
    groups: dict[str, Limit | None] = {}
    for group in set(order.group.values()):
        size = sum(members.get(role, 0) for role in order.roles_of(group))
        groups[group] = _limit(rules, group, f"group {group}", size)
    found = {}
    for role in order.roles:
        size = members.get(role, 0)
        group_name = order.group.get(role)
        if group_name is None:
            own = [_limit(rules, role, f"role {role}", size)]
        else:
            own = [groups[group_name]]
            if role != group_name and role in rules.caps:
                own.append(_limit(rules, role, f"role {role}", size))
        found[role] = (*(limit for limit in own if limit is not None), *fleet)
        if not found[role] and not _is_unlimited(rules, role, group_name):
            found[role] = (Limit(f"role {role}", f"rolling_rules.roles.{role}", 0, is_missing=True),)
    return found


def refuse_uncapped(rules: Instructions, order: RoleOrder, former: str = "") -> None:
    """Refuse rules that limit a role by no cap and do not ask for that either.

    :param former: what to add for a fleet that had another default, empty for nothing.
    :raises UpgradeError: ``no_cap``, with the roles.
    """
    limits = limits_by_role(rules, order, {})
    roles = [role for role in order.roles if any(limit.is_missing for limit in limits[role])]
    nothing = rules.default_cap is None and rules.fleet_cap is None and not rules.caps
    if not roles and not nothing:
        return
    whom = f"role {roles[0]}" if len(roles) == 1 else f"roles {listing(roles)}" if roles else "any role"
    one = f"{{roles: {{{roles[0]}: 1}}}}" if len(roles) == 1 and not nothing else "{global: 1}"
    raise UpgradeError(
        "no_cap",
        f"rolling_rules: no cap limits {whom}, so all of its hosts would go at once. Nothing is admitted. Say how many may be down "
        f"at once, such as rolling_rules: {one}, or ask for no cap in so many words with "
        f"rolling_rules: {one.replace('1', 'unlimited')}.{former and f' {former}'}",
        key="rolling_rules",
        roles=roles,
    )


def _is_unlimited(rules: Instructions, role: str, group: str | None) -> bool:
    """Return whether the cap that applies to a role says that it has none."""
    own = rules.caps.get(role) if group is None else rules.caps.get(group, rules.caps.get(role))
    cap = own or rules.default_cap
    return cap is not None and cap.is_unlimited


def _limit(rules: Instructions, name: str, what: str, size: int) -> Limit | None:
    cap = rules.caps.get(name, rules.default_cap)
    if cap is None or cap.is_unlimited:
        return None
    key = f"rolling_rules.roles.{name}" if name in rules.caps else "rolling_rules.global"
    return Limit(what, key, cap.limit(size))
