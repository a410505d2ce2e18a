# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planner writes: each one transaction that begins with a compare-and-set of the ledger."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._consul.client import MOST_OPERATIONS, Operation
from .._consul.errors import Conflict, Unreachable
from .._consul.operations import Change, compare, compare_and_put, put
from .._fleet.fleet import Snapshot
from .._fleet.ledger import Ledger
from .codec import decode_ledger, encode_ledger
from .event_codec import encode_event
from .gate_copies import GateCopies
from .store import Store

# Beside the gates, a transaction holds the ledger, the check of current_version and the entry of the history.
_OWN_OPERATIONS = 3
MOST_GATES = MOST_OPERATIONS - _OWN_OPERATIONS


class LedgerWriter:
    """Writes on top of one snapshot, and on top of its own writes after that.

    If anybody else writes the ledger or ``current_version`` meanwhile, the next write is a conflict: read and
    plan again. So planners need no lock, and a stale one can't write.

    As long as nodes may look for gates where the old code had them, each is set in both places at once.

    :param who: written into the history.
    :param clock: the unix time in seconds to write.
    :param dry: send nothing, and do everything else: what check mode shows is what would be written.
    """

    def __init__(self, store: Store, snapshot: Snapshot, who: str, clock: int, *, dry: bool = False) -> None:
        """Stand on a snapshot."""
        self.store = store
        self.ledger = snapshot.ledger
        self.changes: list[Change] = []
        self._index = snapshot.ledger_index
        self._version_index = snapshot.version_index
        self._who = who
        self.clock = clock
        self.dry = dry
        self._mirror = GateCopies(store.keys, snapshot)

    @property
    def places(self) -> int:
        """In how many places each gate is set: so many operations it takes of the :data:`MOST_GATES`."""
        return self._mirror.places

    def room(self, operations: Sequence[Operation]) -> int:
        """Return how many operations a write has room for beside these, which set or remove no gates."""
        return MOST_GATES - len(self._mirror.operations(operations))

    @property
    def next_epoch(self) -> int:
        """The epoch of the next write."""
        return self.store.epoch_after(self.ledger)

    def write(
        self,
        ledger: Ledger,
        event: Mapping[str, Any],
        operations: Sequence[Operation] = (),
        changes: Sequence[Change] = (),
    ) -> None:
        """Write a ledger, its entry in the history, and what belongs to them, or nothing of it.

        :param ledger: the new one; its epoch is set here.
        :param event: what happened and why, for the history.
        :param changes: what the operations change, for diff mode.
        :raises Conflict: if somebody else wrote.
        """
        self._make_room(operations)
        operations = self._mirror.operations(operations)
        key, before = self.store.keys.ledger, self.ledger
        ledger = replace(ledger, epoch=self.next_epoch, commit="" if self.dry else uuid.uuid4().hex)
        if not self.dry:
            self._send(ledger, event, operations)
        self.ledger = ledger
        self.changes.append(Change(key, ledger_for_diff(before) if before else None, ledger_for_diff(ledger)))
        self.changes.extend(self._mirror.changes(changes))
        if any(map(self._mirror.wipes, operations)):
            self.changes.extend(self._mirror.wiped())

    def _make_room(self, operations: Sequence[Operation]) -> None:
        """Write what the transaction has no room for. It needs no plan, and whoever finds it without the rest just goes on."""
        keys = self.store.keys
        for piece in () if self.dry else self._mirror.ahead(operations):
            checks = [compare(keys.ledger, self._index), compare(keys.current_version, self._version_index)]
            try:
                self.store.client.write([*checks, *piece.operations])
            except Unreachable as error:
                # Reading again tells whether it was done.
                raise Conflict("conflict", f"{error.message} Old gates may be removed, and may not.") from None
            self.changes.extend(piece.changes)

    def _send(self, ledger: Ledger, event: Mapping[str, Any], operations: Sequence[Operation]) -> None:
        keys, commit = self.store.keys, ledger.commit
        entry = {
            "epoch": ledger.epoch,
            "at": self.clock,
            "who": self._who,
            "commit": commit,
            "version": ledger.version,
        }
        head = [
            compare_and_put(keys.ledger, encode_ledger(ledger), self._index),
            compare(keys.current_version, self._version_index),
            put(keys.event(ledger.epoch), encode_event({**entry, **event})),
        ]
        try:
            written = self.store.client.write([*head, *operations])
            indexes = {one["Key"]: one["ModifyIndex"] for one in written}
        except Unreachable:
            indexes = {keys.ledger: self._index_if_done(ledger.epoch, commit)}
        self._index = indexes[keys.ledger]
        self._version_index = indexes.get(keys.current_version, self._version_index)

    def _index_if_done(self, epoch: int, commit: str) -> int:
        # The answer was lost. Reading tells whether the write was done; writing again could do it twice. If it
        # is still on its way, the compare-and-set lets either it or what we write next through, never both.
        entry = self.store.client.get(self.store.keys.ledger)
        found = decode_ledger(entry.key, entry.value).epoch if entry is not None else 0
        if entry is not None and found >= epoch and any(e.get("commit") == commit for e in self.store.events([epoch])):
            # With others on top of it, index 0 makes the next write a conflict, as it has to be.
            return entry.modify_index if found == epoch else 0
        raise Conflict("conflict", "The answer to a write was lost, and it was not done.")


def ledger_for_diff(ledger: Ledger) -> str:
    """Return a ledger as diff mode shows it: alike in check mode, which commits nothing."""
    return encode_ledger(replace(ledger, commit=""))
