# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator ends a rollout: what has not begun is closed, and every record is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..._common.errors import UpgradeError
from ..._common.names import in_order
from ..._consul.client import Operation
from ..._consul.errors import Conflict
from ..._consul.operations import Change, compare, put
from ..._fleet.fleet import Snapshot
from ..._fleet.gates import CLOSED, OPEN, GateValue
from ..._fleet.ledger import ABORTED, PAUSED, RUNNING, Ledger
from ..._host_states import states
from ..._state.keys import Keys
from ..._state.ledger_writer import MOST_GATES, LedgerWriter
from ..._state.store import Store
from ..host_writes import MOST_CONFLICTS
from .command import Command, CommandResult, command_fields, members_of, refuse_unless, write_command


def abort(store: Store, word: Command, *, dry: bool = False) -> CommandResult:
    """End a rollout: close what has not begun, and keep every record. Hosts that have begun keep their open gates.

    Where a role or the whole fleet is open by one gate, those of its hosts that have begun get one of their own before that
    is closed. The first write stops all planners; the gates are closed after that, and by a second call where that was cut short.

    A host may begin while it works, so a gate is closed only as long as its host has not said anything else meanwhile. Of a gate
    of many, that is so for as many hosts as a transaction has room for.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``overtaken``, ``busy``.
    """
    # Of all tries: one that somebody else's write cut short has closed some already.
    closed: set[str] = set()
    conflicts: Counter[str] = Counter()

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> CommandResult:
        # What has to be refused is refused before the first write.
        members = members_of(snapshot, ledger, word.fleet)
        keys = writer.store.keys
        gates = _to_close(keys, snapshot, members)
        exposed = _let_through_by_many(snapshot, members)
        if ledger.state != ABORTED:
            refuse_unless(ledger, (RUNNING, PAUSED), "aborted")
            said = word.plain()
            ledger = replace(ledger, state=ABORTED, word=said)
            writer.write(ledger, {"what": "abort", **command_fields(said)})
        for piece in _close_in_turn(keys, gates, writer.places):
            hosts = _closed_hosts(keys, piece)
            # A host that writes its record all the time is closed without it being compared, or no host would be closed.
            compared = [
                host
                for host in (*hosts, *_under(keys, piece, exposed))
                if conflicts[keys.record(host)] < MOST_CONFLICTS
            ]
            checks = _unchanged(keys, snapshot, compared)[: MOST_GATES - len(piece) * writer.places]
            # A gate that a planner opened for a host that has started stays one.
            opened_at = [_opened_at(keys, snapshot, members, one) for one in piece]
            puts = [put(one.key, one.after or "", at) for one, at in zip(piece, opened_at, strict=True)]
            operations = [*checks, *puts]
            try:
                writer.write(ledger, {"what": "close", **_closed(keys, piece)}, operations, piece)
            except Conflict as conflict:
                conflicts.update(conflict.details.get("keys", ()))
                raise
            closed.update(hosts)
        return CommandResult(writer.ledger or ledger, hosts=in_order(closed))

    return write_command(store, act, dry=dry)


def _to_close(keys: Keys, snapshot: Snapshot, members: Mapping[str, str]) -> list[Change]:
    """Return the gates to be closed, the widest last, and before them those that hosts which have begun get of their own."""
    found = states.read_states(snapshot, members)
    begun = _begun(snapshot, members)
    gates = snapshot.gates

    def open_ones(of: Mapping[str, GateValue]) -> list[str]:
        return [name for name, gate in of.items() if _is_open(gate, snapshot.current_version)]

    own = [
        Change(keys.gate("host", host), None, OPEN)
        for host, one in found.items()
        if host in begun and host not in gates.hosts and one.gate.is_open
    ]
    closed = [("host", host, gates.hosts[host].text) for host in open_ones(gates.hosts) if host not in begun]
    closed += [("role", role, gates.roles[role].text) for role in sorted(open_ones(gates.roles))]
    wide = [Change(keys.gate(scope, name), text, CLOSED) for scope, name, text in closed]
    # Where there is none, everybody is let through that no other gate keeps.
    if gates.everywhere is None or _is_open(gates.everywhere, snapshot.current_version):
        wide.append(Change(keys.gate("global"), gates.everywhere.text if gates.everywhere else None, CLOSED))
    return own + wide


def _begun(snapshot: Snapshot, members: Mapping[str, str]) -> set[str]:
    """Return the hosts that have begun: those that said so, whatever became of them, and those that a run is at work on.

    One that was let through and has been silent since has not, also where it is lost.
    """
    found = states.read_states(snapshot, members)
    ended = (states.UPGRADED, states.FAILED)
    return {host for host, one in found.items() if one.has_started or one.state in ended} | set(snapshot.leases)


def _opened_at(keys: Keys, snapshot: Snapshot, members: Mapping[str, str], gate: Change) -> int:
    """Return when planners let a host through whose own gate an abort writes, 0 where it closes it or they did not."""
    host = gate.key.removeprefix(keys.gate("host", ""))
    if gate.after != OPEN or not states.was_admitted(snapshot, host, members[host]):
        return 0
    return snapshot.gates.answer(host, members[host], snapshot.current_version).at


def _let_through_by_many(snapshot: Snapshot, members: Mapping[str, str]) -> dict[str, str]:
    """Return host -> role of those that a gate of their role or of everybody lets through, and that have not begun."""
    found, begun = states.read_states(snapshot, members), _begun(snapshot, members)
    own = snapshot.gates.hosts
    return {host: one.role for host, one in found.items() if one.gate.is_open and host not in own and host not in begun}


def _under(keys: Keys, gates: Sequence[Change], exposed: Mapping[str, str]) -> list[str]:
    """Return the hosts that a gate of many among these lets through."""
    closed = {one.key for one in gates}
    everybody = keys.gate("global") in closed
    return [host for host, role in exposed.items() if everybody or keys.gate("role", role) in closed]


def _closed_hosts(keys: Keys, gates: Sequence[Change]) -> list[str]:
    """Return the hosts whose own gates are closed."""
    prefix = keys.gate("host", "")
    return [one.key[len(prefix) :] for one in gates if one.after == CLOSED and one.key.startswith(prefix)]


def _unchanged(keys: Keys, snapshot: Snapshot, hosts: Sequence[str]) -> list[Operation]:
    """Return what fails a write where one of the hosts has said something since it was read."""
    records = snapshot.records
    return [compare(keys.record(host), records[host].index if host in records else 0) for host in hosts]


def _close_in_turn(keys: Keys, gates: Sequence[Change], places: int) -> list[list[Change]]:
    """Return the gates in pieces, one for each write; one of many has a write of its own.

    :param places: in how many places each is set.
    """
    own = keys.gate("host", "")
    hosts = [one for one in gates if one.key.startswith(own)]
    # Beside each gate there may be the check of a record, and beside one of many those of all its hosts.
    most = MOST_GATES // (1 + places)
    return [hosts[at : at + most] for at in range(0, len(hosts), most)] + [
        [one] for one in gates if not one.key.startswith(own)
    ]


def _is_open(gate: GateValue, current_version: str | None) -> bool:
    """Return whether a gate lets anybody through. One that can't be read does not, and so is no reason not to abort."""
    try:
        return gate.is_open(current_version)
    except UpgradeError:
        return False


def _closed(keys: Keys, gates: Sequence[Change]) -> dict[str, object]:
    """Return whose gates an abort writes, as the history tells it."""
    hosts, roles = {}, {}
    for one in gates:
        scope, _slash, name = one.key[len(keys.gates) :].partition("/")
        if scope == "global":
            return {"reason": "the rollout was aborted, and the global gate let everybody through"}
        if scope == "role":
            roles[name] = {"reason": "the rollout was aborted"}
        else:
            closed = one.after == CLOSED
            hosts[name] = "the rollout was aborted" if closed else "it has begun, so it keeps an open gate"
    return {"hosts": hosts, "roles": roles}
