# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gates in two places: what is written of them is written where the old code looks too, as long as nodes may have that."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from .._model.errors import UpgradeError
from .._model.fleet import Snapshot
from .._model.gates import CLOSED, OPEN, Gates
from .client import Operation
from .keys import Keys
from .old_keys import OldKeys
from .operations import Change, put, remove, remove_tree

# A transaction takes 64 operations, and the beginning of a rollout needs some of its own.
_MOST_ONE_BY_ONE = 40


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

        :raises UpgradeError: ``others_keys`` where the old gates can't be told from keys of others in one transaction.
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
        facts = operation["KV"]
        if facts["Verb"] == "delete-tree" and facts["Key"] == self._keys.gates:
            return self._wiped()
        place = self._place(facts["Key"])
        if place is None:
            return []
        if facts["Verb"] in ("set", "cas"):
            return [put(self._old.gate(*place), self._spelled(base64.b64decode(facts["Value"]).decode()))]
        return [remove(self._old.gate(*place))] if facts["Verb"] == "delete" else []

    def _wiped(self) -> list[Operation]:
        mixed = self._snapshot.others_keys
        gates = [gate for gate in self._snapshot.old_gates.values() if gate.key.startswith((*mixed,))]
        if len(gates) > _MOST_ONE_BY_ONE:
            others = [key for folder in mixed for key in mixed[folder]]
            raise UpgradeError(
                "others_keys",
                f"{len(gates)} gates of nodes that have the old code would have to be removed at once, and keys of others stand "
                f"among them: {', '.join(others)}. Nothing is written. Move these elsewhere, or let migrate_state.yml remove "
                "the old gates (-e remove_old=true) once no node reads them any more.",
                keys=others,
            )
        whole = [remove_tree(folder) for folder in self._old.gate_folders if folder not in mixed]
        return [*whole, *(remove(gate.key) for gate in gates)]

    def _place(self, key: str) -> tuple[str, str | None] | None:
        """Return the scope and the name of a gate that is in its place."""
        if not key.startswith(self._keys.gates):
            return None
        scope, slash, name = key[len(self._keys.gates) :].partition("/")
        return (scope, name if slash else None) if scope else None

    def _spelled(self, value: str) -> str:
        """Return a value as the old code of this fleet writes it: some wrote Python's booleans, others JSON's."""
        return value.lower() if value in (OPEN, CLOSED) and not self._is_capital else value
