# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate question: may a host run Puppet?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from .._common.errors import UpgradeError
from .._common.names import check_name, in_order
from .._common.sanitize import limit_to
from .._consul.client import MOST_OPERATIONS, KVEntry
from .._consul.errors import Unreachable
from .._fleet.fleet import STARTED, HostRecord, Snapshot, compile_role_pattern, role_by_name
from .._state.keys import Keys
from .._state.layout import refuse_newer
from .._state.legacy_keys import LegacyKeys
from .._state.snapshot import decode_snapshot
from .._state.store import Store


@dataclass(frozen=True, slots=True)
class Permission:
    """The answer for one host.

    :param value: whether it may run Puppet.
    :param scope: the scope of the deciding gate or hold: host, role or global; ``default`` if no gate is set, ``unreachable`` if
        Consul does not answer.
    :param key: the deciding key, None if no gate is set.
    :param hold: whether a hold decided, not a gate.
    :param reason: the answer as a phrase, for messages.
    :param version: the version that the fleet should run, from the same read; None if it is not known.
    :param held: the host's own hold in its record. It does not decide here: the host checks its Puppet itself before a run.
    :param pending: whether it is closed only because a rollout has not admitted the host yet.
    :param started: the version of an upgrade that has not ended, as the host's record says; None for none.
    """

    value: bool
    scope: str
    key: str | None
    hold: bool
    reason: str
    version: str | None = None
    held: str | None = None
    pending: bool = False
    started: str | None = None


def role_by_host_name(host: str, role_pattern: str) -> str:
    """Return the role that the pattern finds in a host's name.

    :raises UpgradeError: ``unplaced_hosts`` if it finds none.
    """
    role = role_by_name(host, compile_role_pattern(role_pattern))
    if role is None:
        raise UpgradeError(
            "unplaced_hosts",
            f"No role for {host}: role_pattern {role_pattern!r} finds none in its name, and without it the gate of the "
            "role can't be read. Set role.",
        )
    return role


def ask_gate(
    store: Store, hosts: Mapping[str, str], *, default: bool = True, version: str | None = None
) -> dict[str, Permission]:
    """Return for each host whether it may run Puppet: one request for any number of hosts, and another one if a host's role has changed.

    The gate of the host decides, otherwise that of its role, otherwise the global one. A hold overrides them all. A pause of
    python-jiocloud counts as a hold, so the answer is right before, during and after a migration.

    :param hosts: host -> role.
    :param default: the answer if no gate is set.
    :param version: the version that gates with a version are compared with; None for ``current_version``.
    :raises UpgradeError: ``unreadable_gate``, ``newer_schema``, or what :meth:`ConsulClient.read` raises.
    """
    keys = store.keys
    for host, role in hosts.items():
        check_name("host", host, "enable_puppet")
        check_name("role", role, f"enable_puppet: {host}")
    # Tokens from older releases may not read keys.schema. It is missing from the answer then, which is no error.
    requested = {keys.current_version, keys.schema}.union(
        *(keys_to_read(keys, host, role) for host, role in hosts.items())
    )
    requested |= {keys.record(host) for host in hosts}
    entries = _read(store, requested)
    snapshot = decode_snapshot(keys, entries)
    changed = {
        role for host in hosts if host in snapshot.records for role in snapshot.records[host].other_roles(hosts[host])
    }
    if more := {keys.hold("role", role) for role in changed} - requested:
        entries = _read(store, requested | more)
        snapshot = decode_snapshot(keys, entries)
    store.refuse_hidden_keys(entries, (keys.gates, keys.holds))
    refuse_newer(keys, snapshot.schema, snapshot.release)
    current = version if version is not None else snapshot.current_version
    return {host: permission(snapshot, host, role, default=default, current=current) for host, role in hosts.items()}


def _read(store: Store, requested: Collection[str]) -> list[KVEntry]:
    """Read keys. Single ones keep the answer for one node small. For many hosts, whole folders take fewer operations."""
    if len(requested) < MOST_OPERATIONS:
        return store.read_beside_hold_key(sorted(requested))
    keys = store.keys
    return store.client.read(
        [keys.current_version, keys.schema, LegacyKeys(keys.prefix).gates, keys.holds, keys.records]
    )


def keys_to_read(keys: Keys, host: str, role: str) -> set[str]:
    """Return the keys of all gates and holds that the answer for a host may depend on, whether they exist or not."""
    old = LegacyKeys(keys.prefix)
    scopes = (("global", None), ("role", role), ("host", host))
    return {place(scope, name) for scope, name in scopes for place in (keys.gate, old.gate, keys.hold)}


def permission(snapshot: Snapshot, host: str, role: str, *, default: bool, current: str | None) -> Permission:
    """Return the answer for one host.

    :param default: the answer if no gate is set.
    :param current: the version that gates with a version are compared with.
    :raises UpgradeError: ``unreadable_gate``.
    """
    record = snapshot.records.get(host)
    held = record.held if record is not None else None
    started = record.version if record is not None and record.state == STARTED else None
    found = replace(_permission(snapshot, host, role, default, current), version=snapshot.current_version)
    of_upgrades = record if snapshot.versions is None else snapshot.versions.records.get(host)
    # A hold keeps Puppet out of a pending host too.
    if (found.value or found.pending) and of_upgrades is not None and of_upgrades.has_changed_role(role):
        found = _with_changed_role(snapshot, found, host, role, of_upgrades)
    return replace(found, held=held, started=started)


def _permission(snapshot: Snapshot, host: str, role: str, default: bool, current: str | None) -> Permission:
    hold = snapshot.holds.set_for(host, role)
    if hold is not None:
        scope = next(
            scope
            for scope, name in (("host", host), ("role", role), ("global", None))
            if snapshot.holds.at(scope, name) is hold
        )
        return Permission(False, scope, hold.key, True, f"closed: {hold.text()}")
    gate = snapshot.gates.answer(host, role, current)
    if gate.is_open is None:
        state = "open" if default else "closed"
        return Permission(default, "default", None, False, f"{state}: no gate is set for {host}")
    state = "open" if gate.is_open else "closed"
    reason = f"{state}: {gate.key} is {gate.value}"
    # A planner that begins a rollout leaves the time in the global gate. An operator who closes all gates leaves none.
    pending = not gate.is_open and gate.scope == "global" and gate.at != 0
    return Permission(gate.is_open, str(gate.scope), gate.key, False, reason, pending=pending)


def _with_changed_role(snapshot: Snapshot, found: Permission, host: str, role: str, record: HostRecord) -> Permission:
    """Return the answer for a host whose role has changed since it last started, and that is admitted or pending otherwise.

    Planners that knew it with another role may have opened the gate of its present one, so that gate does not admit it. A hold of another role may be
    what an operator set for it. Its settings may have changed since it last reported, so the role in its record may be another one too.
    """
    others = in_order(record.other_roles(role))
    for other in others:
        of_other = snapshot.holds.roles.get(other)
        if of_other is not None:
            of_former = snapshot.hold_of_former_role(host) if other == record.former_role else None
            reason = f"closed: {of_former.text_for(host) if of_former else f'its role was {other} before, which is {of_other.text()}'}"
            return replace(found, value=False, scope="role", key=of_other.key, hold=True, reason=reason, pending=False)
    gate = snapshot.gates.roles.get(role)
    if found.scope != "role" or gate is None or not gate.at:
        # Only planners write a time into a gate. Without one, an operator has opened it for all hosts of the role.
        return found
    if record.role not in (None, role):
        return replace(found, value=False, reason=f"closed: {unreported_role(host, role, record)}")
    before = others[0] if others else "another one"
    reason = f"closed: its role was {before} before, and planners may have opened {found.key} before it was {role}; its own gate has to open"
    return replace(found, value=False, reason=reason)


def unreported_role(host: str, role: str, record: HostRecord) -> str:
    """Return that a host has another role in its settings than it last reported, and what to do, without a full stop."""
    return (
        f"its settings have the role {role}, and it reported {record.role} before; if that is right, enroll it again "
        f"(ansible-playbook convoy.upgrade.enroll {limit_to([host])})"
    )


def closed_when_unreachable(error: Unreachable, hosts: Iterable[str]) -> dict[str, Permission]:
    """Return closed for all hosts, for callers that treat an unreachable Consul so."""
    return {host: Permission(False, "unreachable", None, False, f"closed: {error.message}") for host in hosts}
