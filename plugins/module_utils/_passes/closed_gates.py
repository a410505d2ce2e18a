# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gates that are closed in a rollout, while hosts that have begun keep open ones of their own: by an abort, and by passes under other rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from .._consul.operations import Change, compare, compare_and_put, put, remove
from .._fleet.fleet import FAILED, Snapshot
from .._fleet.gates import CLOSED, OPEN, Gates, GateValue
from .._fleet.ledger import Ledger
from .._host_states import admitted, state_names, states
from .._host_states.host_state import HostState
from .._state.keys import Keys
from .._state.ledger_writer import MOST_GATES, LedgerWriter


def close_role_gates(
    writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger, members: Mapping[str, str], roles: Collection[str]
) -> Snapshot:
    """Close the gates of roles in a rollout that goes on, after hosts that have begun under them got gates of their own; return the snapshot then.

    A host that has not begun waits to be admitted. If it begins in the same moment, it still counts as admitted. A gate that an operator has closed
    since the read stays closed.

    :param members: host -> role.
    :raises Conflict: if the ledger or one of the gates was written since the read.
    """
    keys, gates = writer.store.keys, snapshot.gates
    under = {host: role for host, role in members.items() if role in roles}
    everywhere = gates.everywhere
    # Without its gate, a role has the global one, which tells nodes that a rollout has closed it.
    is_closed = everywhere is not None and not admitted.gate_is_open(everywhere, snapshot.current_version)
    changes = own_gates(keys, snapshot, under)
    changes += [
        Change(keys.gate("role", role), gates.roles[role].text, None if is_closed else CLOSED) for role in roles
    ]
    ledger = replace(
        ledger, admitted={**ledger.admitted, **admitted.still_admitted(snapshot, under, ledger.room_for_names)}
    )
    hosts = {**gates.hosts}
    prefix = keys.gate("host", "")
    for piece in in_pieces(keys, changes, writer.places):
        operations = []
        for one in piece:
            if one.key.startswith(prefix):
                host, at = one.key[len(prefix) :], opened_at(keys, snapshot, members, one)
                operations.append(compare_and_put(one.key, OPEN, 0, at))
                hosts[host] = GateValue(one.key, OPEN, at)
            else:
                operations.append(remove(one.key) if one.after is None else put(one.key, one.after))
        concerned = dict.fromkeys(role for role in roles for one in piece if _concerns(keys, one, role, under))
        checks = [compare(keys.gate("role", role), gates.roles[role].index) for role in concerned]
        event = closed_event(keys, piece, "the gate of the role no longer admits all of its hosts")
        writer.write(ledger, {"what": "close", **event}, [*checks, *operations], piece)
    left = {role: gate for role, gate in gates.roles.items() if role not in roles}
    closed = {} if is_closed else {role: GateValue(keys.gate("role", role), CLOSED) for role in roles}
    return replace(snapshot, ledger=ledger, gates=Gates(everywhere, {**left, **closed}, hosts))


def _concerns(keys: Keys, gate: Change, role: str, members: Mapping[str, str]) -> bool:
    """Return whether a gate is that of a role, or of one of its hosts."""
    own = keys.gate("host", "")
    return members[gate.key[len(own) :]] == role if gate.key.startswith(own) else gate.key == keys.gate("role", role)


def own_gates(keys: Keys, snapshot: Snapshot, members: Mapping[str, str]) -> list[Change]:
    """Return the gates of their own for hosts that have begun under the gate of their role or the global one."""
    begun = begun_hosts(snapshot, members)
    return [
        Change(keys.gate("host", host), None, OPEN)
        for host, one in states.read_states(snapshot, members).items()
        if host in begun and host not in snapshot.gates.hosts and one.gate.is_open
    ]


def gates_to_close(keys: Keys, snapshot: Snapshot, members: Mapping[str, str]) -> list[Change]:
    """Return the gates that an abort writes: own gates for hosts that have begun, then those to close. The global gate comes last."""
    begun, gates = begun_hosts(snapshot, members), snapshot.gates

    def open_ones(of: Mapping[str, GateValue]) -> list[str]:
        return [name for name, gate in of.items() if admitted.gate_is_open(gate, snapshot.current_version)]

    closed = [("host", host, gates.hosts[host].text) for host in open_ones(gates.hosts) if host not in begun]
    closed += [("role", role, gates.roles[role].text) for role in sorted(open_ones(gates.roles))]
    wide = [Change(keys.gate(scope, name), text, CLOSED) for scope, name, text in closed]
    # Without a global gate, every host without another gate is admitted.
    if gates.everywhere is None or admitted.gate_is_open(gates.everywhere, snapshot.current_version):
        wide.append(Change(keys.gate("global"), gates.everywhere.text if gates.everywhere else None, CLOSED))
    return own_gates(keys, snapshot, members) + wide


def begun_hosts(snapshot: Snapshot, members: Mapping[str, str]) -> set[str]:
    """Return the hosts that have reported a start, an upgrade or a failure.

    A host that was admitted and never reported has not begun, even if it is lost. A push run that has only the lease of a host has done
    nothing on it: it reports the start first, and only if the gate is still open.
    """
    found = states.read_states(snapshot, members)
    ended = (state_names.UPGRADED, state_names.FAILED)
    return {host for host, one in found.items() if one.has_started or one.state in ended or _has_failed(one)}


def _has_failed(one: HostState) -> bool:
    """Return whether a host is lost because the run that worked on it lost it."""
    return one.state == state_names.LOST and one.record is not None and one.record.state == FAILED


def opened_at(keys: Keys, snapshot: Snapshot, members: Mapping[str, str], gate: Change) -> int:
    """Return when planners admitted the host whose own gate is opened (unix seconds); 0 if they did not, or if the gate is closed.

    A host that has ended keeps the time of its role's gate, as it may fall back and start again behind its own gate.
    """
    if gate.after != OPEN:
        return 0
    host = gate.key.removeprefix(keys.gate("host", ""))
    answer = snapshot.gates.answer(host, members[host], snapshot.current_version)
    return answer.at if answer.scope == "role" or admitted.was_admitted(snapshot, host, members[host]) else 0


def in_pieces(keys: Keys, gates: Sequence[Change], places: int) -> list[list[Change]]:
    """Return the gates in pieces, one for each write. A role gate and the global gate have a write of their own.

    :param places: how many keys each gate is written to.
    """
    own = keys.gate("host", "")
    hosts = [one for one in gates if one.key.startswith(own)]
    # A write compares a record or the gate of a role for each host gate, and perhaps the global gate. It compares the records of many hosts
    # for a shared gate.
    most = (MOST_GATES - 1) // (1 + places)
    return [hosts[at : at + most] for at in range(0, len(hosts), most)] + [
        [one] for one in gates if not one.key.startswith(own)
    ]


def closed_event(keys: Keys, gates: Sequence[Change], reason: str = "the rollout was aborted") -> dict[str, object]:
    """Return the hosts and roles whose gates are written, as fields of a history entry."""
    hosts, roles = {}, {}
    for one in gates:
        scope, _slash, name = one.key[len(keys.gates) :].partition("/")
        if scope == "global":
            return {"reason": f"{reason}, and the global gate was open"}
        if scope == "role":
            roles[name] = {"reason": reason}
        else:
            closed = one.after == CLOSED
            hosts[name] = reason if closed else "it has begun, so its gate stays open"
    return {"hosts": hosts, "roles": roles}
