# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slots: how many hosts the caps of a fleet admit at once, and how many of those slots are taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .._common.errors import UpgradeError
from .._common.names import listing
from .._host_states.host_state import HostState
from .._host_states.state_names import HELD, PENDING, UPGRADED
from .._rules.instructions import Instructions
from .._rules.role_order import RoleOrder
from .fleet_state import FleetState


@dataclass(frozen=True, slots=True)
class AppliedCap:
    """A cap as it applies to a fleet.

    :param what: the hosts that it limits: ``role compute``, ``group ceph`` or ``the fleet``. Unique among the caps of a fleet.
    :param key: the key in the rules that sets it.
    :param slots: how many hosts may be down at once.
    :param is_missing: whether the rules give no cap. Such a cap has no slot.
    """

    what: str
    key: str
    slots: int
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class Slots:
    """The caps of a fleet, and how many of their slots are taken.

    :param caps: role -> the caps on it.
    :param complete_sets: whether hosts get slots only while no host has one.
    :param taken: ``what`` of a cap -> number of its slots that are taken. It can exceed the cap, such as after the cap was lowered.
    :param busy: number of hosts at work, including hosts of roles without a cap.
    :param resting: ``what`` of a cap -> how many of ``taken`` belong to hosts that failed or stopped in an earlier upgrade and are not at work. So many
        of them may begin as keep the hosts at work within the cap, and no other host takes their slots.
    """

    caps: Mapping[str, tuple[AppliedCap, ...]]
    complete_sets: bool = False
    taken: Mapping[str, int] = field(default_factory=dict)
    busy: int = 0
    resting: Mapping[str, int] = field(default_factory=dict)

    def free(self, cap: AppliedCap) -> int:
        """Return how many slots of a cap are free; never negative."""
        return max(0, cap.slots - self.taken.get(cap.what, 0))

    def full_caps(self, role: str) -> list[AppliedCap]:
        """Return the caps on a role that have no free slot."""
        return [cap for cap in self.caps[role] if not self.free(cap)]

    def is_held(self, role: str) -> bool:
        """Return whether a cap on the role has no slot at all."""
        return any(cap.slots == 0 for cap in self.caps[role])

    def take(self, hosts: Mapping[str, int]) -> Slots:
        """Return the slots after hosts have taken theirs, even beyond the caps.

        :param hosts: role -> number of hosts.
        """
        return self._with(hosts, 1)

    def release(self, hosts: Mapping[str, int]) -> Slots:
        """Return the slots after hosts have released theirs.

        :param hosts: role -> number of hosts.
        """
        return self._with(hosts, -1)

    def fill(self, waiting: Mapping[str, int], own: Mapping[str, int] | None = None) -> tuple[dict[str, int], Slots]:
        """Return how many hosts of each role are admitted, and the slots after that. Takes time linear in roles and caps.

        :param waiting: role -> number of hosts that wait. Roles are served in this order.
        :param own: role -> how many of these have a slot already.
        :returns: role -> number of hosts that are admitted, without roles that have none; and the new slots.
        """
        given: dict[str, int] = {}
        is_set_busy = self.complete_sets and self.busy > 0
        taken, resting, more = dict(self.taken), dict(self.resting), 0
        for role, requested in waiting.items():
            caps = self.caps[role]
            at_work = {cap.what: taken.get(cap.what, 0) - resting.get(cap.what, 0) for cap in caps}
            most = min([cap.slots - at_work[cap.what] for cap in caps], default=requested)
            has = 0 if is_set_busy or own is None else max(0, min(requested, most, own.get(role, 0)))
            if has:
                resting |= {cap.what: resting[cap.what] - has for cap in caps}
            free = min([requested - has, *(cap.slots - taken.get(cap.what, 0) for cap in caps)])
            count = 0 if is_set_busy else max(0, free)
            if has + count:
                given[role] = has + count
                more += has + count
                for cap in caps:
                    taken[cap.what] = taken.get(cap.what, 0) + count
        return given, replace(self, taken=taken, busy=self.busy + more, resting=resting)

    def _with(self, hosts: Mapping[str, int], sign: int) -> Slots:
        busy = self.busy + sign * sum(hosts.values())
        return replace(self, taken=self._sums(self.taken, hosts, sign), busy=busy)

    def rest(self, hosts: Mapping[str, int]) -> Slots:
        """Return the slots when so many of those that are taken belong to hosts that are not at work.

        :param hosts: role -> number of hosts.
        """
        return replace(self, resting=self._sums(self.resting, hosts, 1), busy=self.busy - sum(hosts.values()))

    def _sums(self, before: Mapping[str, int], hosts: Mapping[str, int], sign: int) -> dict[str, int]:
        found = dict(before)
        for role, count in hosts.items():
            for cap in self.caps[role]:
                found[cap.what] = found.get(cap.what, 0) + sign * count
        return found


def fleet_slots(fleet: FleetState) -> Slots:
    """Return the slots of a fleet before a pass admits any host. Hosts that may be down take one each, also out of scope."""
    caps = caps_by_role(fleet.rules, fleet.order, fleet.sizes)
    taken = {role: sum(1 for one in hosts if one.takes_a_slot) for role, hosts in fleet.by_role.items()}
    resting = {role: sum(map(_rests, hosts)) for role, hosts in fleet.by_role.items()}
    return Slots(caps, fleet.rules.complete_sets).take(taken).rest(resting)


def _rests(one: HostState) -> bool:
    """Return whether a host takes a slot because it failed before, and nothing works on it. It may be upgraded, or have run the job, or not be for it."""
    return one.is_down and one.state in (PENDING, HELD, UPGRADED) and not one.is_in_post_upgrade


def caps_by_role(rules: Instructions, order: RoleOrder, sizes: Mapping[str, int]) -> dict[str, tuple[AppliedCap, ...]]:
    """Return role -> the caps on it. Roles share the caps of their group and of the fleet.

    A role of a group counts under the group's cap: the one given for the group, else ``rolling_rules.global``. If the role has a cap
    of its own, it counts under that too. ``rolling_rules.global`` applies to the group as a whole, not to each of its roles.
    A role without any cap gets one of 0 slots: only ``unlimited`` admits all of its hosts at once.

    :param sizes: role -> number of hosts, for caps in percent.
    """
    fleet = (
        (AppliedCap("the fleet", "rolling_rules.fleet", rules.fleet_cap.hosts_of(sum(sizes.values()))),)
        if rules.fleet_cap
        else ()
    )
    groups: dict[str, AppliedCap | None] = {}
    for group in set(order.group.values()):
        size = sum(sizes.get(role, 0) for role in order.roles_of(group))
        groups[group] = _applied_cap(rules, group, f"group {group}", size)
    found = {}
    for role in order.roles:
        size = sizes.get(role, 0)
        group_name = order.group.get(role)
        if group_name is None:
            own = [_applied_cap(rules, role, f"role {role}", size)]
        else:
            own = [groups[group_name]]
            if role != group_name and role in rules.caps:
                own.append(_applied_cap(rules, role, f"role {role}", size))
        found[role] = (*(cap for cap in own if cap is not None), *fleet)
        if not found[role] and not _is_unlimited(rules, role, group_name):
            found[role] = (AppliedCap(f"role {role}", f"rolling_rules.roles.{role}", 0, is_missing=True),)
    return found


def refuse_uncapped(rules: Instructions, order: RoleOrder, former: str = "") -> None:
    """Refuse rules that set neither a cap nor ``unlimited`` for a role.

    :param former: a sentence that the message ends with; empty for none.
    :raises UpgradeError: ``no_cap``, with the roles.
    """
    caps = caps_by_role(rules, order, {})
    roles = [role for role in order.roles if any(cap.is_missing for cap in caps[role])]
    nothing = not has_cap(rules)
    if not roles and not nothing:
        return
    whom = f"role {roles[0]}" if len(roles) == 1 else f"roles {listing(roles)}" if roles else "any role"
    before, after = (f"{{roles: {{{roles[0]}: ", "}}") if len(roles) == 1 and not nothing else ("{global: ", "}")
    raise UpgradeError(
        "no_cap",
        f"rolling_rules: no cap limits {whom}, so all of its hosts could be down at once. No host is admitted. Set how many hosts may "
        f"be down at once, such as rolling_rules: {before}1{after}, or admit all of them at once with "
        f"rolling_rules: {before}unlimited{after}.{former and f' {former}'}",
        key="rolling_rules",
        roles=roles,
    )


def has_cap(rules: Instructions) -> bool:
    """Return whether the rules set any cap, or ``unlimited``."""
    return rules.default_cap is not None or rules.fleet_cap is not None or bool(rules.caps)


def _is_unlimited(rules: Instructions, role: str, group: str | None) -> bool:
    """Return whether the cap that applies to a role is ``unlimited``."""
    own = rules.caps.get(role) if group is None else rules.caps.get(group, rules.caps.get(role))
    cap = own or rules.default_cap
    return cap is not None and cap.is_unlimited


def _applied_cap(rules: Instructions, name: str, what: str, size: int) -> AppliedCap | None:
    cap = rules.caps.get(name, rules.default_cap)
    if cap is None or cap.is_unlimited:
        return None
    key = f"rolling_rules.roles.{name}" if name in rules.caps else "rolling_rules.global"
    return AppliedCap(what, key, cap.hosts_of(size))
