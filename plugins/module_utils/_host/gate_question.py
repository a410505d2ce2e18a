# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's question: may this host run Puppet?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .._common.errors import UpgradeError
from .._common.names import check_name
from .._consul.client import MOST_OPERATIONS
from .._consul.errors import Unreachable
from .._fleet.fleet import Snapshot, compile_role_pattern, role_by_name
from .._state.keys import Keys
from .._state.layout import refuse_newer
from .._state.legacy_keys import LegacyKeys
from .._state.snapshot import decode_snapshot
from .._state.store import Store


@dataclass(frozen=True, slots=True)
class Permission:
    """The answer for one host.

    :param value: whether it may run.
    :param scope: host, role or global: where the deciding gate or hold stands; ``default`` where nothing is set,
        ``unreachable`` where Consul could not be asked.
    :param key: the deciding key, None where nothing is set.
    :param hold: whether a hold decided, and not a gate.
    :param reason: the answer in a sentence.
    :param version: what the fleet should run, read at the same moment; None where that is not known.
    :param held: why the host holds itself, as its record says; the host knows better by now, so it does not decide here.
    """

    value: bool
    scope: str
    key: str | None
    hold: bool
    reason: str
    version: str | None = None
    held: str | None = None


def role_by_host_name(host: str, role_pattern: str) -> str:
    """Return the role that a host's name tells.

    :raises UpgradeError: ``unplaced_hosts``: without its role, a closed gate of the role would go unseen.
    """
    role = role_by_name(host, compile_role_pattern(role_pattern))
    if role is None:
        raise UpgradeError(
            "unplaced_hosts",
            f"No role for {host}: role_pattern {role_pattern!r} finds none in its name, and without it the gate of the "
            "role would go unseen. Give role.",
        )
    return role


def ask_gate(
    store: Store, hosts: Mapping[str, str], *, default: bool = True, version: str | None = None
) -> dict[str, Permission]:
    """Return for each host whether it may run Puppet: one request, however many hosts are asked for.

    The gate of the host decides, else that of its role, else the global one; a hold closes whatever they say. A pause of
    python-jiocloud is a hold, so the answer is right before, during and after a migration.

    :param hosts: host -> role.
    :param default: the answer where no gate is set.
    :param version: what gates that hold a version are compared to; None for ``current_version``.
    :raises UpgradeError: ``unreadable_gate``, ``newer_schema``, or what :meth:`ConsulClient.read` raises. Never a yes by mistake.
    """
    keys = store.keys
    for host, role in hosts.items():
        check_name("host", host, "enable_puppet")
        check_name("role", role, f"enable_puppet: {host}")
    # Tokens of nodes from before may not read the version of the layout: it is left out for them, and no one is refused for that.
    wanted = {keys.current_version, keys.schema}.union(
        *(keys_to_read(keys, host, role) for host, role in hosts.items())
    )
    wanted |= {keys.record(host) for host in hosts}
    # Reading by key keeps a node's question small; many at once are cheaper as two whole trees.
    prefixes = (
        sorted(wanted)
        if len(wanted) <= MOST_OPERATIONS
        else [keys.current_version, keys.schema, LegacyKeys(keys.prefix).gates, keys.holds]
    )
    entries = store.client.read(prefixes)
    store.refuse_hidden_keys(entries, (keys.gates, keys.holds))
    snapshot = decode_snapshot(keys, entries)
    refuse_newer(keys, snapshot.schema, snapshot.release)
    current = version if version is not None else snapshot.current_version
    return {host: permission(snapshot, host, role, default=default, current=current) for host, role in hosts.items()}


def keys_to_read(keys: Keys, host: str, role: str) -> set[str]:
    """Return the keys of all gates and holds that the answer for a host may depend on, whether they are there or not."""
    old = LegacyKeys(keys.prefix)
    scopes = (("global", None), ("role", role), ("host", host))
    return {place(scope, name) for scope, name in scopes for place in (keys.gate, old.gate, keys.hold)}


def permission(snapshot: Snapshot, host: str, role: str, *, default: bool, current: str | None) -> Permission:
    """Return the answer for one host.

    :param default: the answer where no gate is set.
    :param current: what gates that hold a version are compared to.
    :raises UpgradeError: ``unreadable_gate``.
    """
    version = snapshot.current_version
    record = snapshot.records.get(host)
    held = record.held if record is not None else None
    hold = replace(snapshot.holds, own={}).covering(host, role)
    if hold is not None:
        scope = next(
            scope
            for scope, name in (("host", host), ("role", role), ("global", None))
            if snapshot.holds.at(scope, name) is hold
        )
        return Permission(False, scope, hold.key, True, f"closed: {hold.words()}", version, held)
    gate = snapshot.gates.answer(host, role, current)
    if gate.is_open is None:
        word = "open" if default else "closed"
        return Permission(default, "default", None, False, f"{word}: no gate is set for {host}", version, held)
    word = "open" if gate.is_open else "closed"
    reason = f"{word}: {gate.key} is {gate.value}"
    return Permission(gate.is_open, str(gate.scope), gate.key, False, reason, version, held)


def closed_when_unreachable(error: Unreachable, hosts: Iterable[str]) -> dict[str, Permission]:
    """Return the answer of a Consul that can't be reached, for callers that take it for one: closed."""
    return {host: Permission(False, "unreachable", None, False, f"closed: {error.message}") for host in hosts}
