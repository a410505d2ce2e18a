# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the keys of a fleet are: their layout, a migration that was begun, and what older code still needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...module_utils._fleet.migration import Migration
from ...module_utils._state.codec import text_of
from ...module_utils._state.layout import refuse_newer
from ...module_utils._state.migration_codec import decode_migration, decode_schema, release_of
from ...module_utils._state.store import Store
from .active_hosts import has_active_hosts
from .step import KeysFound, MigrationStep


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """The keys, as they were read at one moment, and what they say of their layout.

    :param schema: the version of the layout; 0 where none is written.
    :param migration: one that is under way, or whose old keys are kept.
    """

    steps: Sequence[MigrationStep]
    found: KeysFound
    schema: int = 0
    migration: Migration | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a migration was begun and has not come to its end."""
        return self.migration is not None and self.migration.is_under_way

    @property
    def is_of_fleet(self) -> bool:
        """Whether there is any key but those that a migration writes of itself."""
        keys = self.found.keys
        return bool(self.found.entries.keys() - {keys.schema, keys.migration, keys.holds})

    @property
    def schema_text(self) -> str | None:
        """The version of the layout as it is written."""
        entry = self.found.entries.get(self.found.keys.schema)
        return text_of(entry.value) if entry is not None else None

    @property
    def origin(self) -> int:
        """The layout that the migration began at, or begins at now."""
        before = self.migration
        return self.schema if before is None or not before.readable else min(before.origin, self.schema)

    def legacy_keys(self, schema: int) -> int:
        """Return how many keys of layouts before ``schema`` there are."""
        found = replace(self.found, begun=True, switched=True)
        return sum(len(step.removals(found)) for step in self.steps[:schema])

    def waiting(self) -> list[str]:
        """Return the hosts that still need keys of older layouts, as far as is known."""
        return list(dict.fromkeys(host for step in self.steps for host in step.waiting(self.found)))

    def is_over(self, schema: int) -> bool:
        """Return whether no one needs the keys of layouts before ``schema``.

        Where no host waits as none has ever said a word, nothing tells who reads them: they are needed until some host has
        reported through convoy.upgrade.
        """
        if self.waiting():
            return False
        return not self.legacy_keys(schema) or has_active_hosts(self.found)


def read_status(store: Store, steps: Sequence[MigrationStep]) -> MigrationStatus:
    """Return where the keys are: one request.

    :raises UpgradeError: ``newer_schema``, ``unreadable_schema``, and what :meth:`ConsulClient.read` raises.
    """
    keys = store.keys
    looked_at = {folder for step in steps for folder in step.folders(keys.prefix)}
    wanted = sorted({keys.schema, keys.migration, keys.ledger, keys.holds, keys.records, *looked_at})
    entries = store.client.read(wanted)
    store.refuse_hidden_keys(entries, [folder for folder in wanted if folder.endswith("/")])
    # What is asked for by two prefixes comes twice.
    by_key = {entry.key: entry for entry in sorted(entries)}
    schema, migration, number = by_key.get(keys.schema), by_key.get(keys.migration), 0
    if schema is not None:
        number = decode_schema(keys.schema, schema.value)
        refuse_newer(keys, number, release_of(schema.flags), steps[-1].number)
    begun = migration is not None
    return MigrationStatus(
        steps, KeysFound(keys, by_key, begun), number, decode_migration(migration.value) if migration else None
    )
