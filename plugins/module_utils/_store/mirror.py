# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gates in two places: what is written of them is written where the old code looks too, as long as nodes may have that."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass

from .._model.errors import UpgradeError
from .._model.fleet import Snapshot
from .._model.gates import CLOSED, OPEN, Gates, GateValue
from .client import MOST_OPERATIONS, Operation
from .keys import Keys
from .old_keys import OldKeys
from .operations import Change, put, remove

# A transaction takes 64 operations, and the beginning of a rollout needs some of its own.
_MOST_AT_ONCE = 40
# Beside what their writer checks.
_MOST_AHEAD = MOST_OPERATIONS - 2


@dataclass(frozen=True, slots=True)
class Ahead:
    """A transaction that is to be written before another one, and what it changes."""

    operations: list[Operation]
    changes: list[Change]


class Mirror:
    """Adds to what is written of gates the same for their old places.

    :param snapshot: what was read before; it says whether there are old places, and what stands there.
    """

    def __init__(self, keys: Keys, snapshot: Snapshot) -> None:
        """Look whether there is anything to do."""
        self._keys = keys
        self._old = OldKeys(keys.prefix)
        self._snapshot = snapshot
        self._is_capital = any(gate.text in (OPEN, CLOSED) for gate in snapshot.old_gates.values())
        migration = snapshot.migration
        self.is_needed = snapshot.old_gates != Gates() or (migration is not None and migration.keeps_old)

    @property
    def places(self) -> int:
        """In how many places each gate is set: so many operations it takes."""
        return 2 if self.is_needed else 1

    def operations(self, operations: Iterable[Operation]) -> list[Operation]:
        """Return the operations of a transaction, each that sets or removes gates followed by the same for the old places.

        Of old gates that are wiped, those are left out that :meth:`ahead` has.
        """
        return [one for operation in operations for one in (operation, *self._mirrored(operation))]

    def changes(self, changes: Iterable[Change]) -> list[Change]:
        """Return changes of gates along with those in the old places, and all others as they are."""
        found = []
        for change in changes:
            place = self._place(change.key) if self.is_needed else None
            if place is None:
                found.append(change)
                continue
            gate, old = self._snapshot.gates.at(*place), self._snapshot.old_gates.at(*place)
            is_there = gate is not None and gate.key == change.key
            found.append(Change(change.key, change.before if is_there else None, change.after))
            after = self._spelled(change.after) if change.after is not None else None
            found.append(Change(self._old.gate(*place), (old.text or "") if old is not None else None, after))
        return found

    def _mirrored(self, operation: Operation) -> list[Operation]:
        if not self.is_needed:
            return []
        if self._wipes(operation):
            # One by one, and never a folder as a whole: settings of others stand there too, or will in a moment.
            return [remove(gate.key) for gate in self._old_ones()[-_MOST_AT_ONCE:]]
        facts = operation["KV"]
        place = self._place(facts["Key"])
        if place is None:
            return []
        if facts["Verb"] in ("set", "cas"):
            return [put(self._old.gate(*place), self._spelled(_value_of(operation)))]
        return [remove(self._old.gate(*place))] if facts["Verb"] == "delete" else []

    def ahead(self, operations: Iterable[Operation]) -> list[Ahead]:
        """Return what is to be written before a transaction that has no room for the removal of all old gates, in this order.

        Where that transaction closes the global gate, it is closed first, and those of roles that are open; so the removal of
        another one opens nothing. Gates that a hand closed are left for last, as a rollout may make holds of them. Most fleets
        need nothing of this.
        """
        operations = list(operations)
        early = self._old_ones()[:-_MOST_AT_ONCE] if any(map(self._wipes, operations)) else []
        if not early:
            return []
        everywhere = self._keys.gate("global")
        is_closing = any(one["KV"]["Key"] == everywhere and _value_of(one) == CLOSED for one in operations)
        parts = [self._closing(*place) for place in (self._open_places() if is_closing else ())]
        parts += [Ahead([remove(gate.key)], [Change(gate.key, gate.text or "", None)]) for gate in early]
        found = [Ahead([], [])]
        for part in parts:
            if len(found[-1].operations) + len(part.operations) > _MOST_AHEAD:
                found.append(Ahead([], []))
            found[-1].operations.extend(part.operations)
            found[-1].changes.extend(part.changes)
        return found

    def _closing(self, scope: str, name: str | None) -> Ahead:
        key, gate = self._keys.gate(scope, name), self._snapshot.gates.at(scope, name)
        change = Change(key, gate.text if gate is not None else None, CLOSED)
        return Ahead(self.operations([put(key, CLOSED)]), self.changes([change]))

    def _open_places(self) -> list[tuple[str, str | None]]:
        """Return where hosts without gates of their own may be let through, in either place."""
        gates, old = self._snapshot.gates, self._snapshot.old_gates
        roles = [
            name for name in gates.roles if not all(map(self._is_closed, (gates.roles[name], old.roles.get(name))))
        ]
        both = (gates.everywhere, old.everywhere)
        is_closed = None not in both and all(map(self._is_closed, both))
        return [*([] if is_closed else [("global", None)]), *(("role", name) for name in roles)]

    def _is_closed(self, gate: GateValue | None) -> bool:
        try:
            return gate is None or not gate.is_open(self._snapshot.current_version)
        except UpgradeError:
            return False

    def _old_ones(self) -> list[GateValue]:
        """Return the old gates but for the global one, which is set whenever these are wiped, in the order in which they go."""
        old, current = self._snapshot.old_gates, self._snapshot.current_version
        by_hand = sorted(old.hosts.values(), key=lambda gate: gate.was_closed_by_hand(current))
        return [*old.roles.values(), *by_hand]

    def _wipes(self, operation: Operation) -> bool:
        facts = operation["KV"]
        return bool(facts["Verb"] == "delete-tree" and facts["Key"] == self._keys.gates)

    def _place(self, key: str) -> tuple[str, str | None] | None:
        """Return the scope and the name of a gate that is in its place."""
        if not key.startswith(self._keys.gates):
            return None
        scope, slash, name = key[len(self._keys.gates) :].partition("/")
        return (scope, name if slash else None) if scope else None

    def _spelled(self, value: str) -> str:
        """Return a value as the old code of this fleet writes it: some wrote Python's booleans, others JSON's."""
        return value.lower() if value in (OPEN, CLOSED) and not self._is_capital else value


def _value_of(operation: Operation) -> str:
    return base64.b64decode(operation["KV"].get("Value") or "").decode()
