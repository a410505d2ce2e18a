# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds: an operator's "not this one", kept apart from the gates so that no rollout erases it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .._common.names import in_order

# Who made a hold of the closed gate that an operator had put on a host before there were holds: a migration, or the first
# rollout. Such a gate goes with its hold.
MIGRATION, FIRST_ROLLOUT = MADE_OF_GATES = ("migrate_state.yml", "the first rollout")

# Who holds a host whose own Puppet is disabled, as the host says in its record.
PUPPET = "puppet agent --disable"
# Who holds where an operator paused with python-jiocloud, as long as no migration has made a hold of that.
PAUSED = "python-jiocloud"


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold.

    :param key: the Consul key that holds, and that has to go for the hold to end.
    :param reason: why, in the operator's words.
    :param by: who set it.
    :param at: when, as the operator's tool wrote it.
    """

    key: str
    reason: str = "no reason given"
    by: str = "unknown"
    at: str = ""

    def words(self) -> str:
        """Return who holds it and why, and how it ends."""
        since = f" since {self.at}" if self.at else ""
        ends = f"ends when the key {self.key} is deleted"
        if self.by in MADE_OF_GATES:
            ends = f"ends with unhold.yml, which deletes the key {self.key} and the closed gate behind it"
        if self.by == PUPPET:
            ends = "ends with 'puppet agent --enable' on the host, at its next run"
        if self.by == PAUSED:
            ends = f"ends with unhold.yml, which deletes the key {self.key}"
        return f"held by {self.by}{since}: {self.reason} ({ends})"


@dataclass(frozen=True, slots=True)
class Holds:
    """All holds that were read.

    :param own: those that hosts say of themselves: host -> hold.
    """

    everywhere: Hold | None = None
    roles: Mapping[str, Hold] = field(default_factory=dict)
    hosts: Mapping[str, Hold] = field(default_factory=dict)
    own: Mapping[str, Hold] = field(default_factory=dict)

    def at(self, scope: str, name: str | None) -> Hold | None:
        """Return one hold, None where there is none."""
        if name is None:
            return self.everywhere
        return (self.roles if scope == "role" else self.hosts).get(name)

    def every(self) -> Iterator[tuple[str, str, Hold]]:
        """Yield scope, name and hold of each: the global one, which has no name, those of roles, those of hosts."""
        if self.everywhere is not None:
            yield "global", "", self.everywhere
        for scope, named in (("role", self.roles), ("host", {**self.own, **self.hosts})):
            for name in in_order(named):
                yield scope, name, named[name]

    def covering(self, host: str, role: str | None) -> Hold | None:
        """Return the hold that covers a host, the nearest first."""
        by_role = self.roles.get(role) if role is not None else None
        return self.hosts.get(host) or by_role or self.everywhere or self.own.get(host)

    def cover_any(self, hosts: Iterable[str], role: str) -> bool:
        """Return whether at least one of a role's hosts is held."""
        if self.everywhere or role in self.roles:
            return True
        return bool(self.hosts or self.own) and any(host in self.hosts or host in self.own for host in hosts)
