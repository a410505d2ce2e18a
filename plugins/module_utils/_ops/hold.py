# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds: an operator's "not this one", set and ended."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .._model.errors import UpgradeError
from .._model.fleet import Snapshot
from .._model.holds import Hold
from .._model.names import check_name
from .._model.shown import bounded
from .._store.client import Operation
from .._store.errors import Conflict
from .._store.ledger_writer import MOST_GATES, LedgerWriter
from .._store.operations import Change, compare_and_put, put, real_changes, remove
from .._store.store import Store, whoami

_MOST_TRIES = 200


@dataclass(frozen=True, slots=True)
class Whom:
    """Whom holds are for."""

    everything: bool = False
    roles: Sequence[str] = ()
    hosts: Sequence[str] = ()

    def scopes(self) -> list[tuple[str, str | None]]:
        """Return the holds as parts of their keys.

        :raises UpgradeError: ``bad_name``, ``nobody``.
        """
        found: list[tuple[str, str | None]] = [("global", None)] if self.everything else []
        found += [("role", check_name("role", name, "roles")) for name in dict.fromkeys(self.roles)]
        found += [("host", check_name("host", name, "hosts")) for name in dict.fromkeys(self.hosts)]
        if not found:
            raise UpgradeError("nobody", "Nobody is named: give hosts, roles, or everything: true.")
        return found


@dataclass(slots=True)
class Held:
    """What was set or ended.

    :param remarks: what the operator should know, such as a host that has begun already.
    """

    holds: list[Hold] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def set_holds(store: Store, whom: Whom, reason: str, by: str | None = None, *, dry: bool = False) -> Held:
    """Hold hosts, roles or everything. A hold for the same reason, by whomever, is left as it is.

    A planner that is at work has not seen the hold: so it goes through the ledger, and the folder's own key is written
    along, which the beginning of a rollout compares.

    :param by: who holds; None for whoever runs this.
    :raises UpgradeError: ``bad_name``, ``nobody``, ``no_reason``, ``busy``.
    """
    scopes = whom.scopes()
    if not reason.strip():
        raise UpgradeError("no_reason", "reason is empty. Say why, for those who find the hold later.")
    at = time.strftime("%Y-%m-%d %H:%M:%S %z")
    reason, by = bounded(reason.strip()), bounded(by or whoami())

    def change(snapshot: Snapshot, held: Held) -> list[tuple[Operation, Change]]:
        found = []
        for scope, name in scopes:
            key = store.keys.hold(scope, name)
            old = _old(snapshot, scope, name)
            if old is not None and old.reason == reason:
                held.holds.append(old)
                continue
            hold = Hold(key, reason, by, at)
            held.holds.append(hold)
            text = _encoded(hold)
            found.append((put(key, text), Change(key, _encoded(old) if old else None, text)))
        held.remarks = _begun(snapshot, whom)
        return found

    return _write(store, change, "hold", reason, dry=dry)


def end_holds(store: Store, whom: Whom, *, dry: bool = False) -> Held:
    """End holds; those that are not there are none the worse.

    :raises UpgradeError: ``bad_name``, ``nobody``, ``busy``.
    """
    scopes = whom.scopes()

    def change(snapshot: Snapshot, held: Held) -> list[tuple[Operation, Change]]:
        found = []
        for scope, name in scopes:
            old = _old(snapshot, scope, name)
            if old is not None:
                found.append((remove(old.key), Change(old.key, _encoded(old), None)))
        held.remarks = _still_held(snapshot, whom)
        return found

    return _write(store, change, "unhold", "", dry=dry)


def _write(store: Store, change: object, what: str, reason: str, *, dry: bool) -> Held:
    assert callable(change)
    for _try in range(_MOST_TRIES):
        snapshot, held = store.snapshot("consistent"), Held()
        found: list[tuple[Operation, Change]] = change(snapshot, held)
        held.changes = real_changes(one for _operation, one in found)
        if dry or not found:
            return held
        writer = LedgerWriter(store, snapshot, whoami(), int(time.time()))
        marker = compare_and_put(store.keys.holds, "", snapshot.hold_index)
        try:
            for at in range(0, len(found), MOST_GATES - 1):
                piece = found[at : at + MOST_GATES - 1]
                operations = [*([marker] if at == 0 else []), *(operation for operation, _change in piece)]
                if snapshot.ledger is None:
                    store.client.write(operations)
                else:
                    told = _told([one.key[len(store.keys.holds) :] for _operation, one in piece], reason)
                    writer.write(snapshot.ledger, {"what": what, "reason": reason, **told}, operations)
        except Conflict:
            continue
        return held
    raise UpgradeError("busy", f"{store.keys.ledger} changed under each of {_MOST_TRIES} tries.")


def _told(names: Sequence[str], reason: str) -> dict[str, Any]:
    """Return whom holds are for, as the history tells it; nobody by name means everybody."""
    if "global" in names:
        return {}
    of = {
        scope: [name.partition("/")[2] for name in names if name.startswith(f"{scope}/")] for scope in ("role", "host")
    }
    return {"hosts": dict.fromkeys(of["host"], reason), "roles": {role: {"reason": reason} for role in of["role"]}}


def _old(snapshot: Snapshot, scope: str, name: str | None) -> Hold | None:
    holds = snapshot.holds
    if name is None:
        return holds.everywhere
    return (holds.roles if scope == "role" else holds.hosts).get(name)


def _begun(snapshot: Snapshot, whom: Whom) -> list[str]:
    begun = [host for host in whom.hosts if (record := snapshot.records.get(host)) and record.state == "started"]
    return [
        f"{host} has begun its upgrade to {snapshot.records[host].version} and is not stopped by a hold: it goes on, keeps "
        "its slot, and is held after that."
        for host in begun
    ]


def _still_held(snapshot: Snapshot, whom: Whom) -> list[str]:
    everywhere = snapshot.holds.everywhere
    if everywhere is None or whom.everything:
        return []
    return [f"Everything is still held: {everywhere.words()}."]


def _encoded(hold: Hold) -> str:
    facts = {"reason": hold.reason, "by": hold.by, "at": hold.at}
    return json.dumps({name: value for name, value in facts.items() if value}, sort_keys=True)
