# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator ends a rollout: what has not begun is closed, and every record is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .._model import states
from .._model.errors import UpgradeError
from .._model.fleet import Snapshot
from .._model.gates import CLOSED, OPEN, GateValue
from .._model.ledger import ABORTED, PAUSED, RUNNING, Ledger
from .._model.names import in_order
from .._store.keys import Keys
from .._store.ledger_writer import MOST_GATES, LedgerWriter
from .._store.operations import Change, put
from .._store.store import Store
from .word import Done, Word, members_of, refuse_unless, said_as, write_word


def abort(store: Store, word: Word, *, dry: bool = False) -> Done:
    """End a rollout: close what has not begun, and keep every record. Hosts that have begun keep their open gates.

    Where a role or the whole fleet is open by one gate, those of its hosts that have begun get one of their own before that
    is closed. The first write stops all planners; the gates are closed after that, and by a second call where that was cut short.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``overtaken``, ``busy``.
    """
    # Of all tries: one that somebody else's write cut short has closed some already.
    closed: set[str] = set()

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> Done:
        # What has to be refused is refused before the first write.
        gates = _to_close(writer.store.keys, snapshot, members_of(snapshot, ledger, word.fleet))
        if ledger.state != ABORTED:
            refuse_unless(ledger, (RUNNING, PAUSED), "aborted")
            said = word.plain()
            ledger = replace(ledger, state=ABORTED, word=said)
            writer.write(ledger, {"what": "abort", **said_as(said)})
        for piece in _close_in_turn(writer.store.keys, gates):
            event = {"what": "close", **_closed(writer.store.keys, piece)}
            writer.write(ledger, event, [put(one.key, one.after or "") for one in piece], piece)
            prefix = writer.store.keys.gate("host", "")
            closed.update(one.key[len(prefix) :] for one in piece if one.after == CLOSED and one.key.startswith(prefix))
        return Done(writer.ledger or ledger, hosts=in_order(closed))

    return write_word(store, act, dry=dry)


def _to_close(keys: Keys, snapshot: Snapshot, members: Mapping[str, str]) -> list[Change]:
    """Return the gates to be closed, the widest last, and before them those that hosts which have begun get of their own.

    A host has begun that said so, whatever became of it, and one that a run of Ansible is at work on. One that was let
    through and has been silent since has not, also where it is lost.
    """
    found = states.read_states(snapshot, members)
    ended = (states.UPGRADED, states.FAILED)
    begun = {host for host, one in found.items() if one.has_started or one.state in ended} | set(snapshot.driven)
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


def _close_in_turn(keys: Keys, gates: Sequence[Change]) -> list[list[Change]]:
    """Return the gates in pieces, one for each write; that of the global one is told to all hosts."""
    narrow = [one for one in gates if one.key != keys.gate("global")]
    wide = [one for one in gates if one.key == keys.gate("global")]
    return [narrow[at : at + MOST_GATES] for at in range(0, len(narrow), MOST_GATES)] + ([wide] if wide else [])


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
