# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits: the caps as they bind the roles of a fleet, and the slots that are left under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .instructions import Instructions
from .order import RoleOrder


@dataclass(slots=True)
class Limit:
    """One cap at work.

    :param what: whom it limits, in words: ``role compute``, ``group ceph``, ``the fleet``.
    :param key: the key of the instructions that sets it.
    :param slots: how many hosts may be down at once.
    :param taken: how many are.
    """

    what: str
    key: str
    slots: int
    taken: int = 0

    @property
    def free(self) -> int:
        """How many more hosts it lets through; never negative."""
        return max(0, self.slots - self.taken)


def limits_by_role(rules: Instructions, order: RoleOrder, members: Mapping[str, int]) -> dict[str, tuple[Limit, ...]]:
    """Return role -> the limits over it; those of a group or the fleet are shared by their roles.

    A role of a group counts in the group's cap (its own one, else the global one), and in a cap of its own
    if it has one: the group is what ``rolling_rules.global`` applies to, not each of its roles.

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
    return found


def _limit(rules: Instructions, name: str, what: str, size: int) -> Limit | None:
    cap = rules.caps.get(name, rules.default_cap)
    if cap is None:
        return None
    key = f"rolling_rules.roles.{name}" if name in rules.caps else "rolling_rules.global"
    return Limit(what, key, cap.limit(size))
