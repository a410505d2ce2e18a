# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Budgets of failure: which of them the failed and lost hosts of a fleet have used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .._common.names import listing, plural
from .._rules.caps import Cap
from .._rules.failure_rules import FailureRules
from .._rules.role_order import RoleOrder


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A budget that is used up.

    :param what: whose it is, in words: ``role compute``, ``group ceph``, ``the fleet``.
    :param key: the key of the instructions that sets it.
    :param allowed: the number at which it stops.
    :param hosts: those that used it up.
    """

    what: str
    key: str
    allowed: int
    hosts: tuple[str, ...]

    def reason(self) -> str:
        """Return why nothing opens, and what would change that."""
        count = plural(len(self.hosts), "failed or lost host")
        return (
            f"{self.what} has {count} ({listing(list(self.hosts), 3)}), and {self.key} stops at {self.allowed}: mend and retry "
            f"{'them' if len(self.hosts) > 1 else 'it'}, or give all rules again with {self.key} raised"
        )


def spent_budgets(
    rules: FailureRules, order: RoleOrder, members: Mapping[str, int], broken: Mapping[str, Sequence[str]]
) -> tuple[SpentBudget | None, dict[str, SpentBudget]]:
    """Return the fleet's budget and those of roles, as far as they are used up.

    :param members: role -> number of hosts, of which a percent is taken.
    :param broken: role -> its hosts that failed or are lost.
    """
    everywhere = None
    if rules.fleet is not None:
        hosts = tuple(host for role in order.roles for host in broken.get(role, ()))
        everywhere = _spent("the fleet", "failure_rules.fleet", rules.fleet, sum(members.values()), hosts)
    found: dict[str, SpentBudget] = {}
    for role in order.roles:
        group = order.group.get(role)
        for name in dict.fromkeys((group, role) if group is not None else (role,)):
            cap = rules.own.get(name, rules.default if name == (group or role) else None)
            if cap is None:
                continue
            roles = order.roles_of(name) if name == group else (role,)
            hosts = tuple(host for one in roles for host in broken.get(one, ()))
            key = f"failure_rules.roles.{name}" if name in rules.own else "failure_rules.global"
            what = f"group {name}" if name == group else f"role {name}"
            spent = _spent(what, key, cap, sum(members.get(one, 0) for one in roles), hosts)
            if spent is not None:
                found.setdefault(role, spent)
    return everywhere, found


def _spent(what: str, key: str, cap: Cap, size: int, hosts: tuple[str, ...]) -> SpentBudget | None:
    allowed = cap.limit(size)
    return SpentBudget(what, key, allowed, hosts) if hosts and len(hosts) >= allowed else None
