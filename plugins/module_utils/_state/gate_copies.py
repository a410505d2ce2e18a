# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of gates in the legacy layout, for nodes that still run the old code and read gates only there.

Operators' pauses of python-jiocloud are in the same keys. A copy has a flag that a pause does not have, and a pause is never
overwritten: a write of a copy fails if its key has changed since the read.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .._common.errors import UpgradeError
from .._consul.client import MOST_OPERATIONS, Operation
from .._consul.operations import Change, compare_and_put, compare_and_remove, put, remove
from .._fleet.fleet import Snapshot
from .._fleet.gates import CLOSED, OPEN, Gates, GateValue
from .keys import Keys
from .legacy_keys import LegacyKeys

# How many legacy gates one transaction removes. It takes 64 operations, and the start of a rollout needs some of them.
_MOST_AT_ONCE = 40
# The ledger writer adds three checks to each earlier transaction.
_MOST_AHEAD = MOST_OPERATIONS - 3
# The flags of a copy, unless its gate has its own. Gates that were closed by hand or by old tools have none.
_BY_PLANNER = 1


@dataclass(frozen=True, slots=True)
class EarlierWrite:
    """A transaction that has to be written before another one, and its changes."""

    operations: list[Operation]
    changes: list[Change]


class GateCopies:
    """Adds to writes of gates the same writes for their legacy keys, if the fleet has or keeps any.

    :param snapshot: the read that the writes are based on.
    """

    def __init__(self, keys: Keys, snapshot: Snapshot) -> None:
        """Find out whether copies are needed."""
        self._keys = keys
        self._old = LegacyKeys(keys.prefix)
        self._snapshot = snapshot
        # The keys of copies that were written before the transaction itself.
        self._closed_ahead: set[str] = set()
        self._is_capital = any(gate.text in (OPEN, CLOSED) for gate in snapshot.legacy_gates.values())
        migration = snapshot.migration
        # The gates of a job have no copies: nodes with the old code run none.
        self.is_needed = not keys.is_job and (
            snapshot.legacy_gates != Gates() or (migration is not None and migration.keeps_legacy_keys)
        )

    @property
    def places(self) -> int:
        """In how many keys each gate is set, which is also the number of operations."""
        return 2 if self.is_needed else 1

    def operations(self, operations: Iterable[Operation]) -> list[Operation]:
        """Return the operations of a transaction, with each write of a gate followed by the same for its legacy key.

        If the transaction removes all gates, it does not remove the legacy gates that :meth:`ahead` removes before it.
        """
        return [one for operation in operations for one in (self._in_new_place(operation), *self._copied(operation))]

    def changes(self, changes: Iterable[Change]) -> list[Change]:
        """Return the changes, with each change of a gate followed by that of its legacy key."""
        found = []
        for change in changes:
            place = self._place(change.key) if self.is_needed else None
            if place is None:
                found.append(change)
                continue
            found.append(replace(change, after=None if change.after is None else _as_json(change.after)))
            old = self._snapshot.legacy_gates.at(*place)
            if self._is_paused(place):
                continue
            after = self._spelled(change.after) if change.after is not None else None
            found.append(Change(self._old.gate(*place), (old.text or "") if old is not None else None, after))
        return found

    def wiped(self) -> list[Change]:
        """Return the changes of a transaction that removes all gates, for legacy gates that have no gate in the new layout."""
        return [
            Change(gate.key, gate.text or "", None)
            for scope, name, gate in self._legacy_changes()
            if self._snapshot.gates.at(scope, name) is None
        ]

    def unpaused(self, scope: str, name: str | None, *, is_gone: bool) -> tuple[Operation, Change] | None:
        """Return what ends an operator's pause: its key becomes a copy of the gate again. None if there is no pause.

        :param is_gone: whether the gate is removed in the same transaction, so that the key is removed too.
        """
        old, gate = self._snapshot.legacy_gates.at(scope, name), self._snapshot.gates.at(scope, name)
        if old is None or not self._is_paused((scope, name)):
            return None
        if gate is None or is_gone:
            return remove(old.key), Change(old.key, old.text or "", None)
        text = self._spelled(gate.text or "")
        return put(old.key, text, _BY_PLANNER), Change(old.key, old.text or "", text)

    def _is_paused(self, place: tuple[str, str | None]) -> bool:
        old = self._snapshot.legacy_gates.at(*place)
        return old is not None and old.is_pause(self._snapshot.current_version)

    def _in_new_place(self, operation: Operation) -> Operation:
        """Return the operation; if it sets a gate, with its value as JSON, because python-jiocloud's status reads only that."""
        facts = operation["KV"]
        if not self.is_needed or facts["Verb"] not in ("set", "cas") or self._place(facts["Key"]) is None:
            return operation
        value = base64.b64encode(_as_json(_value_of(operation)).encode()).decode()
        return {"KV": {**facts, "Value": value}}

    def _copied(self, operation: Operation) -> list[Operation]:
        if not self.is_needed:
            return []
        if self.wipes(operation):
            # One by one, never the whole folder: it also has settings of other tools.
            return [
                self._removed(gate.key, gate.index) for _scope, _name, gate in self._legacy_changes()[-_MOST_AT_ONCE:]
            ]
        facts = operation["KV"]
        place = self._place(facts["Key"])
        if place is None or self._is_paused(place):
            return []
        if facts["Verb"] in ("set", "cas"):
            flags = facts.get("Flags") or _BY_PLANNER
            return [self._written(place, self._spelled(_value_of(operation)), flags)]
        return [self._removed(self._old.gate(*place), self._index(place))] if facts["Verb"] == "delete" else []

    def _written(self, place: tuple[str, str | None], text: str, flags: int) -> Operation:
        """Return the write of a copy. What :meth:`ahead` has written before is set as it is."""
        key = self._old.gate(*place)
        return (
            put(key, text, flags)
            if key in self._closed_ahead
            else compare_and_put(key, text, self._index(place), flags)
        )

    def _removed(self, key: str, index: int) -> Operation:
        return remove(key) if key in self._closed_ahead else compare_and_remove(key, index)

    def _index(self, place: tuple[str, str | None]) -> int:
        gate = self._snapshot.legacy_gates.at(*place)
        return gate.index if gate is not None else 0

    def ahead(self, operations: Iterable[Operation]) -> list[EarlierWrite]:
        """Return the transactions to write before one that has no room to remove all legacy gates, in this order.

        If that one closes the global gate, the first of these close it, and the open gates of roles: so the removal of a gate
        opens no host. The list is empty for most fleets.
        """
        operations = list(operations)
        early = self._legacy_changes()[:-_MOST_AT_ONCE] if any(map(self.wipes, operations)) else []
        if not early:
            return []
        everywhere = self._keys.gate("global")
        is_closing = any(one["KV"]["Key"] == everywhere and _value_of(one) == CLOSED for one in operations)
        places = self._open_places() if is_closing else []
        parts = [self._closing(*place) for place in places]
        self._closed_ahead |= {self._old.gate(*place) for place in places}
        parts += [
            EarlierWrite([self._removed(gate.key, gate.index)], [Change(gate.key, gate.text or "", None)])
            for _scope, _name, gate in early
        ]
        found = [EarlierWrite([], [])]
        for part in parts:
            if len(found[-1].operations) + len(part.operations) > _MOST_AHEAD:
                found.append(EarlierWrite([], []))
            found[-1].operations.extend(part.operations)
            found[-1].changes.extend(part.changes)
        return found

    def _closing(self, scope: str, name: str | None) -> EarlierWrite:
        key, gate = self._keys.gate(scope, name), self._snapshot.gates.at(scope, name)
        change = Change(key, gate.text if gate is not None else None, CLOSED)
        return EarlierWrite(self.operations([put(key, CLOSED, _BY_PLANNER)]), self.changes([change]))

    def _open_places(self) -> list[tuple[str, str | None]]:
        """Return scope and name of the global and role gates that admit hosts in either layout."""
        gates, old = self._snapshot.gates, self._snapshot.legacy_gates
        roles = [
            name
            for name in {**old.roles, **gates.roles}
            if not all(map(self._is_closed, (gates.roles.get(name), old.roles.get(name))))
        ]
        both = (gates.everywhere, old.everywhere)
        is_closed = None not in both and all(map(self._is_closed, both))
        return [*([] if is_closed else [("global", None)]), *(("role", name) for name in roles)]

    def _is_closed(self, gate: GateValue | None) -> bool:
        try:
            return gate is None or not gate.is_open(self._snapshot.current_version)
        except UpgradeError:
            return False

    def _legacy_changes(self) -> list[tuple[str, str, GateValue]]:
        """Return scope, name and value of the legacy gates of roles and hosts except pauses, in the order of their removal.

        The global one is not removed: each transaction that removes all gates sets it.
        """
        old, current = self._snapshot.legacy_gates, self._snapshot.current_version
        named = (("role", old.roles), ("host", old.hosts))
        return [
            (scope, name, gate) for scope, found in named for name, gate in found.items() if not gate.is_pause(current)
        ]

    def wipes(self, operation: Operation) -> bool:
        """Return whether an operation removes all gates."""
        facts = operation["KV"]
        return bool(facts["Verb"] == "delete-tree" and facts["Key"] == self._keys.gates)

    def _place(self, key: str) -> tuple[str, str | None] | None:
        """Return scope and name of the gate that a key of the new layout holds, None for other keys."""
        if not key.startswith(self._keys.gates):
            return None
        scope, slash, name = key[len(self._keys.gates) :].partition("/")
        return (scope, name if slash else None) if scope else None

    def _spelled(self, value: str) -> str:
        """Return a value as the old code of this fleet writes it: with Python's booleans or with JSON's."""
        return value if self._is_capital else _as_json(value)


def _as_json(value: str) -> str:
    return value.lower() if value in (OPEN, CLOSED) else value


def _value_of(operation: Operation) -> str:
    return base64.b64decode(operation["KV"].get("Value") or "").decode()
