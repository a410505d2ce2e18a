# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failure budgets: which of them the failed and lost hosts of a fleet have exhausted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .._common.names import listing, plural
from .._rules.caps import Cap
from .._rules.failure_rules import FailureRules
from .._rules.role_order import RoleOrder


@dataclass(frozen=True, slots=True)
class ExhaustedBudget:
    """A failure budget that is exhausted.

    :param what: what it is for: ``role compute``, ``group ceph`` or ``the fleet``.
    :param key: the key of the rules that sets it.
    :param allowed: the number of failed or lost hosts at which nothing more is admitted.
    :param hosts: the hosts that exhausted it.
    """

    what: str
    key: str
    allowed: int
    hosts: tuple[str, ...]

    def reason(self) -> str:
        """Return why no host is admitted, and what would change that."""
        count = plural(len(self.hosts), "failed or lost host")
        return (
            f"{self.what} has {count} ({listing(list(self.hosts), 3)}), and {self.key} stops it at {self.allowed}; fix "
            f"{'them' if len(self.hosts) > 1 else 'it'}, or give all rules again with {self.key} raised"
        )


@dataclass(frozen=True, slots=True)
class ExhaustedBudgets:
    """All failure budgets of a fleet that are exhausted.

    :param fleet: that of the whole fleet; None if it is not exhausted or not set.
    :param by_role: role -> the first budget over it that is exhausted: its group's, else its own.
    """

    fleet: ExhaustedBudget | None = None
    by_role: Mapping[str, ExhaustedBudget] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the rules that set them, each once."""
        return tuple(dict.fromkeys(one.key for one in (self.fleet, *self.by_role.values()) if one is not None))


def exhausted_budgets(
    rules: FailureRules, order: RoleOrder, sizes: Mapping[str, int], broken: Mapping[str, Sequence[str]]
) -> ExhaustedBudgets:
    """Return the failure budgets that are exhausted.

    :param sizes: role -> number of hosts, of which a percentage is taken.
    :param broken: role -> its hosts that failed or are lost.
    """
    fleet = None
    if rules.fleet is not None:
        hosts = tuple(host for role in order.roles for host in broken.get(role, ()))
        fleet = _exhausted("the fleet", "failure_rules.fleet", rules.fleet, sum(sizes.values()), hosts)
    by_role: dict[str, ExhaustedBudget] = {}
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
            budget = _exhausted(what, key, cap, sum(sizes.get(one, 0) for one in roles), hosts)
            if budget is not None:
                by_role.setdefault(role, budget)
    return ExhaustedBudgets(fleet, by_role)


def _exhausted(what: str, key: str, cap: Cap, size: int, hosts: tuple[str, ...]) -> ExhaustedBudget | None:
    allowed = cap.hosts_of(size)
    return ExhaustedBudget(what, key, allowed, hosts) if hosts and len(hosts) >= allowed else None
