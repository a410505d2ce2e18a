# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds: an operator's "not this one", set and ended."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..._common.errors import UpgradeError
from ..._common.names import check_name, did_you_mean, in_order, listing
from ..._common.sanitize import sanitize, truncate_middle
from ..._consul.client import Operation
from ..._consul.operations import Change, compare, compare_and_put, net_changes, put, remove
from ..._consul.retry import TRIES_OF_LEDGER, retry_on_conflict
from ..._fleet.fleet import DEFAULT_ROLE_PATTERN, STARTED, Snapshot, compile_role_pattern, role_by_name
from ..._fleet.holds import MADE_OF_GATES, Hold
from ..._state.codec import encode_hold
from ..._state.gate_copies import GateCopies
from ..._state.layout import refuse_newer_among
from ..._state.ledger_writer import MOST_GATES, LedgerWriter
from ..._state.legacy_keys import LegacyKeys
from ..._state.snapshot import decode_snapshot
from ..._state.store import Store, current_user

# Of a long list, so many names are told one by one.
_MOST_REMARKS = 5
# A node that asks is told no from then on, also where its former run was cut off midway.
_GOES_ON = "The run that is at work goes on; no further run begins until the hold ends. The slot is kept meanwhile."


@dataclass(frozen=True, slots=True)
class HoldTargets:
    """Whom holds are for.

    :param fleet: host -> role, for hosts whose names don't tell their roles; holds are for roles as such.
    :param allow_unknown: whether names may be of hosts and roles that are not known, such as those that are still to come.
    """

    everything: bool = False
    roles: Sequence[str] = ()
    hosts: Sequence[str] = ()
    fleet: Mapping[str, str] = field(default_factory=dict)
    allow_unknown: bool = False

    def scopes(self) -> list[tuple[str, str | None]]:
        """Return the holds as parts of their keys.

        :raises UpgradeError: ``bad_name``, ``no one``.
        """
        found: list[tuple[str, str | None]] = [("global", None)] if self.everything else []
        found += [("role", check_name("role", name, "roles")) for name in dict.fromkeys(self.roles)]
        found += [("host", check_name("host", name, "hosts")) for name in dict.fromkeys(self.hosts)]
        if not found:
            raise UpgradeError("no_target", "No one is named: give hosts, roles, or everything: true.")
        return found


@dataclass(slots=True)
class HoldResult:
    """What was set or ended.

    :param remarks: what the operator should know, such as a host that has begun already.
    """

    holds: list[Hold] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def set_holds(store: Store, whom: HoldTargets, reason: str, by: str | None = None, *, dry: bool = False) -> HoldResult:
    """Hold hosts, roles or everything. A hold for the same reason, by whomever, is left as it is.

    A planner that is at work has not seen the hold: so it goes through the ledger, and the folder's own key is written
    along, which the beginning of a rollout compares. A ledger that can't be read lets no planner go on, and keeps no one
    from holding.

    :param by: who holds; None for whoever runs this.
    :raises UpgradeError: ``bad_name``, ``no one``, ``no_reason``, ``unknown_names``, ``busy``.
    """
    scopes = whom.scopes()
    if not reason.strip():
        raise UpgradeError("no_reason", "reason is empty. Say why, for those who find the hold later.")
    at = time.strftime("%Y-%m-%d %H:%M:%S %z")
    reason, by = (truncate_middle(sanitize(text)) for text in (reason.strip(), by or current_user()))

    def change(snapshot: Snapshot, held: HoldResult) -> list[tuple[Operation, Change]]:
        found = []
        unknown = _refuse_unknown(snapshot, whom, scopes)
        for scope, name in scopes:
            key = store.keys.hold(scope, name)
            old = snapshot.holds.at(scope, name)
            if old is not None and old.key != key:
                old = None
            if old is not None and old.reason == reason:
                held.holds.append(old)
                continue
            hold = Hold(key, reason, by, at)
            held.holds.append(hold)
            text = encode_hold(hold)
            found.append((put(key, text), Change(key, encode_hold(old) if old else None, text)))
        held.remarks = [*_begun(snapshot, whom), *unknown]
        return found

    return _write(store, change, {"what": "hold", "by": by, "reason": reason}, dry=dry)


def end_holds(store: Store, whom: HoldTargets, by: str | None = None, *, dry: bool = False) -> HoldResult:
    """End holds; those that are not there are none the worse.

    :param by: who ends them; None for whoever runs this.
    :raises UpgradeError: ``bad_name``, ``no one``, ``unknown_names``, ``busy``.
    """
    scopes = whom.scopes()
    # Of all tries: one that somebody else's write cut short has ended some already.
    were_held: set[tuple[str, str | None]] = set()

    def change(snapshot: Snapshot, held: HoldResult) -> list[tuple[Operation, Change]]:
        found = []
        for scope, name in scopes:
            old = snapshot.holds.at(scope, name)
            if old is not None:
                were_held.add((scope, name))
                found += _closed_behind(store, snapshot, old, scope, name)
                if old.key == store.keys.hold(scope, name):
                    found.append((remove(old.key), Change(old.key, encode_hold(old), None)))
        left = [one for one in scopes if one not in were_held]
        _refuse_unknown(snapshot, whom, left)
        held.remarks = [*_still_held(snapshot, whom), *_not_held(snapshot, left)]
        return found

    return _write(
        store, change, {"what": "unhold", "by": truncate_middle(sanitize(by or current_user())), "reason": ""}, dry=dry
    )


_Planned = list[tuple[Operation, Change]]


def _write(
    store: Store, change: Callable[[Snapshot, HoldResult], _Planned], event: Mapping[str, Any], *, dry: bool
) -> HoldResult:
    changes: list[Change] = []

    def write_some() -> HoldResult | None:
        """Write as much as a transaction takes; return the result where nothing is left."""
        held = HoldResult()
        snapshot, lost = _read(store)
        found = change(snapshot, held)
        # Beside the folder's own key; a gate may be removed in two places. What is left comes after reading again.
        has_gates = any(not one.key.startswith(store.keys.holds) for _operation, one in found)
        most = (MOST_GATES - 1) // (2 if has_gates else 1)
        piece = found if dry else found[:most]
        if piece and not dry:
            _send(store, snapshot, piece, event)
        changes.extend(one for _operation, one in piece)
        if len(piece) < len(found):
            return None
        held.changes = net_changes(changes)
        held.remarks += lost if changes else []
        return held

    while True:
        held = retry_on_conflict(write_some, lambda: store.keys.ledger, tries=TRIES_OF_LEDGER)
        if held is not None:
            return held


def _read(store: Store) -> tuple[Snapshot, list[str]]:
    """Return what a hold needs, without the ledger where that can't be read, and what is to be said of that."""
    try:
        return store.snapshot(), []
    except UpgradeError as error:
        if error.code != "unreadable_ledger":
            raise
    keys = store.keys
    reports = (keys.reports, LegacyKeys(keys.prefix).reports)
    folders = (keys.schema, keys.current_version, keys.ledger, keys.records, keys.holds, *reports)
    entries = store.client.read(folders)
    refuse_newer_among(keys, entries)
    snapshot = decode_snapshot(keys, (entry for entry in entries if entry.key != keys.ledger))
    index = next((entry.modify_index for entry in entries if entry.key == keys.ledger), 0)
    said = f"The ledger {keys.ledger} can't be read, so the history does not tell of this. It holds all the same."
    return replace(snapshot, ledger_index=index), [said]


def _send(store: Store, snapshot: Snapshot, piece: _Planned, event: Mapping[str, Any]) -> None:
    keys = store.keys
    # A value of its own, as Consul passes over a write that changes nothing, and no one would see that it was there: neither a
    # rollout that begins nor a host that starts, both of which compare the index of this key.
    mark = compare_and_put(keys.holds, uuid.uuid4().hex, snapshot.hold_index)
    operations = [mark, *(operation for operation, _change in piece)]
    if snapshot.ledger is None:
        # Who brings a ledger meanwhile may have planned without this hold.
        store.client.settle([compare(keys.ledger, snapshot.ledger_index), *operations])
        return
    names = [one.key[len(keys.holds) :] for _operation, one in piece if one.key.startswith(keys.holds)]
    told = _told(names, str(event["reason"]))
    LedgerWriter(store, snapshot, current_user(), int(time.time())).write(
        snapshot.ledger, {**event, **told}, operations
    )


def _told(names: Sequence[str], reason: str) -> dict[str, Any]:
    """Return whom holds are for, as the history tells it; no one by name means everybody."""
    if "global" in names:
        return {}
    of = {
        scope: [name.partition("/")[2] for name in names if name.startswith(f"{scope}/")] for scope in ("role", "host")
    }
    return {"hosts": dict.fromkeys(of["host"], reason), "roles": {role: {"reason": reason} for role in of["role"]}}


def _closed_behind(store: Store, snapshot: Snapshot, hold: Hold, scope: str, name: str | None) -> _Planned:
    """Return what ends the pause behind a hold, and removes the closed gate that it was made of."""
    gate = snapshot.gates.at(scope, name)
    is_made_of_gate = name is not None and hold.by in MADE_OF_GATES  # The closed global gate is a rollout's.
    is_gone = gate is not None and is_made_of_gate and gate.was_closed_by_hand(snapshot.current_version)
    pause = GateCopies(store.keys, snapshot).unpaused(scope, name, is_gone=is_gone)
    found = [pause] if pause is not None else []
    if gate is not None and is_gone:
        found.append((remove(gate.key), Change(gate.key, gate.text or "", None)))
    return found


def _begun(snapshot: Snapshot, whom: HoldTargets) -> list[str]:
    """Return who has begun: each host that is named, and all others that the hold is for in a sentence."""
    begun = {host: record.version for host, record in snapshot.records.items() if record.state == STARTED}
    named = [host for host in dict.fromkeys(whom.hosts) if host in begun]
    remarks = [f"{host} has begun its upgrade to {begun[host]}. {_GOES_ON}" for host in named]
    others = [host for host in in_order(begun) if host not in named]
    if not whom.everything:
        role_of, roles = _roles(snapshot, whom, others), frozenset(whom.roles)
        others = [host for host in others if role_of[host] in roles]
    if others:
        remarks.append(f"{listing(others)} had begun to upgrade. {_GOES_ON}")
    return remarks


def _roles(snapshot: Snapshot, whom: HoldTargets, hosts: Iterable[str]) -> dict[str, str | None]:
    """Return host -> role, as it is given or as the name tells it."""
    pattern = compile_role_pattern((snapshot.ledger.role_pattern if snapshot.ledger else None) or DEFAULT_ROLE_PATTERN)
    return {host: whom.fleet.get(host) or role_by_name(host, pattern) for host in hosts}


def _refuse_unknown(snapshot: Snapshot, whom: HoldTargets, scopes: Sequence[tuple[str, str | None]]) -> list[str]:
    """Refuse names of no host or role that is known, as a typo holds no host; return what to say of them where they may be such.

    :raises UpgradeError: ``unknown_names``.
    """
    role_of = _roles(snapshot, whom, {*whom.fleet, *snapshot.reports, *snapshot.records})
    known = {"role": {role for role in role_of.values() if role}, "host": set(role_of)}
    found = [(scope, name) for scope, name in scopes if name is not None and name not in known[scope]]
    texts = [
        f"No {scope} {name} is known: none has reported as such, and fleet names none{did_you_mean(name, known[scope]) or '.'}"
        for scope, name in found[:_MOST_REMARKS]
    ]
    if len(found) > _MOST_REMARKS:
        texts.append(f"Nor is any of {listing([name for _scope, name in found[_MOST_REMARKS:]])} known.")
    if found and not whom.allow_unknown:
        raise UpgradeError(
            "unknown_names",
            f"{' '.join(texts)} Nothing is changed. Correct the name, or give allow_unknown: true (-e allow_unknown=true) where it "
            "is right all the same.",
            names=[name for _scope, name in found],
        )
    return texts


def _not_held(snapshot: Snapshot, scopes: Sequence[tuple[str, str | None]]) -> list[str]:
    """Return which of the holds that were to end were not there."""
    holds = snapshot.holds
    remarks = ["Everything as such was not held."] if ("global", None) in scopes else []
    named = [(scope, name) for scope, name in scopes if name is not None]
    for scope, name in named[:_MOST_REMARKS]:
        known = holds.roles if scope == "role" else holds.hosts
        remarks.append(f"{scope.capitalize()} {name} as such was not held{did_you_mean(name, known) or '.'}")
    if len(named) > _MOST_REMARKS:
        remarks.append(f"Nor was any of {listing([name for _scope, name in named[_MOST_REMARKS:]])}.")
    return remarks


def _still_held(snapshot: Snapshot, whom: HoldTargets) -> list[str]:
    everywhere = snapshot.holds.everywhere
    if everywhere is None or whom.everything:
        return []
    return [f"Everything is still held: {everywhere.words()}."]
