# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Abort: an operator ends a rollout. Gates of hosts that have not begun are closed, and every record is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..._common.names import in_order
from ..._consul.client import Operation
from ..._consul.errors import Conflict
from ..._consul.operations import Change, compare, compare_and_put
from ..._fleet.fleet import Snapshot
from ..._fleet.gates import CLOSED, OPEN
from ..._fleet.ledger import ABORTED, COMPLETE, PAUSED, RUNNING, WAS, Ledger
from ..._host_states import states
from ..._passes.closed_gates import begun_hosts, closed_event, gates_to_close, in_pieces, opened_at
from ..._planner.blockers import command_text
from ..._state.keys import Keys
from ..._state.ledger_writer import MOST_GATES, LedgerWriter
from ..._state.store import Store
from ..host_writes import MOST_CONFLICTS
from .command import Command, CommandResult, command_fields, members_of, refuse_unless, write_command


def abort(store: Store, command: Command, *, dry: bool = False) -> CommandResult:
    """End a rollout and close the gates of hosts that have not begun. Records stay, and hosts that have begun keep open gates.

    The first write stops all planners. The gates are closed after that; if an abort is interrupted, a second one closes the rest. Hosts
    that have begun under the gate of their role or the global gate get an open gate of their own first.

    A host may begin during the abort. So each write compares the records of the hosts that it closes. For the gate of a role and the
    global gate, it compares as many records as a transaction has room for. An operator may set a gate, so each write compares its gates too.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``overtaken``, ``busy``.
    """
    # Over all tries: a try that ends in a conflict may have closed some gates.
    closed: set[str] = set()
    conflicts: Counter[str] = Counter()
    is_aborted_here = False

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> CommandResult:
        nonlocal is_aborted_here
        # Everything that can fail on bad input runs before the first write.
        members = members_of(snapshot, ledger, command.fleet)
        keys = writer.store.keys
        gates = gates_to_close(keys, snapshot, members)
        exposed = _admitted_by_shared_gates(snapshot, members)
        if ledger.state != ABORTED:
            refuse_unless(ledger, (RUNNING, PAUSED), "aborted")
            given, is_aborted_here = command.plain(), True
            was = {WAS: COMPLETE} if ledger.was_complete else {}
            ledger = replace(ledger, state=ABORTED, command={**given, **was})
            writer.write(ledger, {"what": "abort", **command_fields(given)})
        for piece in in_pieces(keys, gates, writer.places):
            hosts = _closed_hosts(keys, piece)
            # A record that keeps changing is no longer compared, or no gate would be closed.
            compared = [
                host
                for host in (*hosts, *_under(keys, piece, exposed))
                if conflicts[keys.record(host)] < MOST_CONFLICTS
            ]
            deciding = _shared_gates(keys, snapshot, members, piece)
            checks = _unchanged(keys, snapshot, compared)[: MOST_GATES - len(deciding) - len(piece) * writer.places]
            operations = [*deciding, *checks, *_gate_writes(keys, snapshot, members, piece)]
            try:
                writer.write(ledger, {"what": "close", **closed_event(keys, piece)}, operations, piece)
            except Conflict as conflict:
                conflicts.update(conflict.details.get("keys", ()))
                raise
            closed.update(hosts)
        is_repeated = not (is_aborted_here or closed)
        remarks = [f"It was aborted before{command_text(ledger)}, and nothing is changed."] if is_repeated else []
        return CommandResult(writer.ledger or ledger, hosts=in_order(closed), remarks=remarks)

    return write_command(store, act, dry=dry)


def _admitted_by_shared_gates(snapshot: Snapshot, members: Mapping[str, str]) -> dict[str, str]:
    """Return host -> role for hosts that the gate of their role or the global gate admits, and that have not begun."""
    found, begun = states.read_states(snapshot, members), begun_hosts(snapshot, members)
    own = snapshot.gates.hosts
    return {host: one.role for host, one in found.items() if one.gate.is_open and host not in own and host not in begun}


def _under(keys: Keys, gates: Sequence[Change], exposed: Mapping[str, str]) -> list[str]:
    """Return the hosts that a role gate or the global gate among ``gates`` admits."""
    closed = {one.key for one in gates}
    is_global = keys.gate("global") in closed
    return [host for host, role in exposed.items() if is_global or keys.gate("role", role) in closed]


def _closed_hosts(keys: Keys, gates: Sequence[Change]) -> list[str]:
    """Return the hosts whose own gates are closed."""
    prefix = keys.gate("host", "")
    return [one.key[len(prefix) :] for one in gates if one.after == CLOSED and one.key.startswith(prefix)]


def _unchanged(keys: Keys, snapshot: Snapshot, hosts: Sequence[str]) -> list[Operation]:
    """Return comparisons that fail a write if one of the hosts has written its record since it was read."""
    records = snapshot.records
    return [compare(keys.record(host), records[host].index if host in records else 0) for host in hosts]


def _gate_writes(
    keys: Keys, snapshot: Snapshot, members: Mapping[str, str], gates: Sequence[Change]
) -> list[Operation]:
    """Return the writes of gates. They fail if an operator has set one of the gates since it was read."""
    index = {gate.key: gate.index for gate in snapshot.gates.values()}
    # A host that a planner admitted and that has started still counts as admitted by its new gate.
    at = [opened_at(keys, snapshot, members, one) for one in gates]
    return [
        compare_and_put(one.key, one.after or "", index.get(one.key, 0), since)
        for one, since in zip(gates, at, strict=True)
    ]


def _shared_gates(
    keys: Keys, snapshot: Snapshot, members: Mapping[str, str], gates: Sequence[Change]
) -> list[Operation]:
    """Return comparisons that fail a write if a gate was set since the read that admits one of the hosts whose own gates are opened."""
    prefix, found = keys.gate("host", ""), snapshot.gates
    roles = dict.fromkeys(members[one.key[len(prefix) :]] for one in gates if one.after == OPEN)
    decide = [(keys.gate("role", role), found.roles.get(role)) for role in roles]
    if any(gate is None for _key, gate in decide):
        decide.append((keys.gate("global"), found.everywhere))
    return [compare(key, gate.index if gate is not None else 0) for key, gate in decide]
