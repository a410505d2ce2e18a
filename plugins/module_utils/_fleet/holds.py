# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds, with which operators exclude hosts from rollouts. They are separate from gates, so no rollout removes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .._common.names import in_order
from .._common.sanitize import option

# The ``by`` of holds that were made of a gate that an operator had closed before there were holds. When such a hold ends, the gate
# is deleted too.
MIGRATION, FIRST_ROLLOUT = MADE_OF_GATES = ("migrate_state.yml", "the first rollout")

# The ``by`` of a hold that a host reports because its Puppet is disabled.
PUPPET = "puppet agent --disable"
# The ``by`` of a hold that a host without health checks reports because its settings or its token can't be used, and how its reason begins. The role
# puppet_gate writes it.
SETTINGS = "convoy-node"
SETTINGS_REASON = "its settings can't be used: "
# The ``by`` of an operator's pause in python-jiocloud that no migration has turned into a hold.
PAUSED = "python-jiocloud"


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold.

    :param key: the Consul key; the hold ends when it is deleted.
    :param reason: the operator's reason.
    :param by: who set it.
    :param at: when, as text that the operator's tool wrote.
    :param allow_unknown: whether its host or role may be unknown, such as one that will join the fleet.
    """

    key: str
    reason: str = "no reason given"
    by: str = "unknown"
    at: str = ""
    allow_unknown: bool = False

    def text(self) -> str:
        """Return a phrase with who set the hold, why, and how it ends."""
        since = f" since {self.at}" if self.at else ""
        ends = f"ends with ansible-playbook convoy.upgrade.unhold {self._target_option()}"
        if self.by in MADE_OF_GATES:
            ends += ", which also deletes the closed gate behind it"
        if self.by == PUPPET:
            ends = "ends with 'puppet agent --enable' on the host, at its next run"
        if self.by == SETTINGS:
            ends = "ends by itself once 'convoy-node check' on the host finds no mistake"
        if self.by == PAUSED:
            ends += f", which ends the pause at the key {self.key}"
        return f"held by {self.by}{since}: {self.reason} ({ends})"

    def _target_option(self) -> str:
        """Return the option of convoy.upgrade.unhold that names what is held, by the end of the key."""
        # A pause of python-jiocloud has one more part.
        key = self.key.rpartition("/")[0] if self.by == PAUSED else self.key
        scope, name = key.split("/")[-2:]
        return "-e everything=true" if name == "global" and scope not in ("role", "host") else option(scope, name)


def own_hold(key: str, reason: str) -> Hold:
    """Return the hold that a host reports of itself.

    :param key: the key of its record.
    """
    return Hold(key, reason or "no reason given", SETTINGS if reason.startswith(SETTINGS_REASON) else PUPPET)


@dataclass(frozen=True, slots=True)
class HoldOfFormerRole(Hold):
    """A hold of the role that a host had before, as it covers that host.

    :param role: that role.
    """

    role: str = ""

    def text(self) -> str:
        """Return a phrase with who set the hold, why, and how it ends for a host. It is the same for all hosts, so that they are listed together."""
        return self.text_for("HOST")

    def text_for(self, host: str) -> str:
        """Return the phrase for one host, with the command for it."""
        since = f" since {self.at}" if self.at else ""
        return (
            f"held by {self.by}{since}: {self.reason} (a hold of its former role {self.role}, which ends for it with "
            f"ansible-playbook convoy.upgrade.unhold {option('host', host)})"
        )


@dataclass(frozen=True, slots=True)
class Holds:
    """All holds of a fleet.

    :param own: host -> the hold that the host reports of itself.
    """

    everywhere: Hold | None = None
    roles: Mapping[str, Hold] = field(default_factory=dict)
    hosts: Mapping[str, Hold] = field(default_factory=dict)
    own: Mapping[str, Hold] = field(default_factory=dict)

    def at(self, scope: str, name: str | None) -> Hold | None:
        """Return one hold that an operator set, None if there is none."""
        if name is None:
            return self.everywhere
        return (self.roles if scope == "role" else self.hosts).get(name)

    def every(self) -> Iterator[tuple[str, str, Hold]]:
        """Yield scope, name and hold: the global one, whose name is empty, then those of roles, then those of hosts."""
        if self.everywhere is not None:
            yield "global", "", self.everywhere
        for scope, named in (("role", self.roles), ("host", {**self.own, **self.hosts})):
            for name in in_order(named):
                yield scope, name, named[name]

    def covering(self, host: str, role: str | None) -> Hold | None:
        """Return the first hold over a host: its own key's, its role's, the global one, the one that it reports of itself."""
        return self.set_for(host, role) or self.own.get(host)

    def set_for(self, host: str, role: str | None) -> Hold | None:
        """Return the first hold over a host that has a key: its own, its role's, the global one."""
        by_role = self.roles.get(role) if role is not None else None
        return self.hosts.get(host) or by_role or self.everywhere

    def cover_any(self, hosts: Iterable[str], role: str) -> bool:
        """Return whether at least one of a role's hosts is held."""
        if self.everywhere or role in self.roles:
            return True
        return bool(self.hosts or self.own) and any(host in self.hosts or host in self.own for host in hosts)
