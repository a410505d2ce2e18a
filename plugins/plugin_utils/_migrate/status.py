# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The migration status of a fleet: the layout of its keys, a migration under way, and the legacy keys that hosts still need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...module_utils._codecs.migration import decode_migration, decode_schema, release_of
from ...module_utils._codecs.values import text_of
from ...module_utils._fleet.migration import Migration
from ...module_utils._state.layout import refuse_newer
from ...module_utils._state.store import Store
from .active_hosts import has_active_hosts
from .step import KeysFound, MigrationStep


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """The keys from one read, with their layout.

    :param steps: all steps of this release.
    :param found: the keys.
    :param schema: the version of the layout; 0 if none is stored.
    :param migration: a migration that is under way, or whose legacy keys are kept; None for none.
    """

    steps: Sequence[MigrationStep]
    found: KeysFound
    schema: int = 0
    migration: Migration | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a migration has begun and not ended."""
        return self.migration is not None and self.migration.is_under_way

    @property
    def is_of_fleet(self) -> bool:
        """Whether there is any key besides those that a migration writes."""
        keys = self.found.keys
        return bool(self.found.entries.keys() - {keys.schema, keys.migration, keys.holds})

    @property
    def schema_text(self) -> str | None:
        """The stored text of the layout's version; None if there is none."""
        entry = self.found.entries.get(self.found.keys.schema)
        return text_of(entry.value) if entry is not None else None

    @property
    def origin(self) -> int:
        """The layout at which the migration began, or begins now."""
        before = self.migration
        return self.schema if before is None or not before.readable else min(before.origin, self.schema)

    def legacy_keys(self, schema: int) -> int:
        """Return the number of keys of layouts before ``schema``."""
        found = replace(self.found, begun=True, switched=True)
        return sum(len(step.removals(found)) for step in self.steps[:schema])

    def waiting(self) -> list[str]:
        """Return the hosts that are known to need keys of older layouts."""
        return list(dict.fromkeys(host for step in self.steps for host in step.waiting(self.found)))

    def is_over(self, schema: int) -> bool:
        """Return whether no host needs the keys of layouts before ``schema``.

        They count as needed until some host has reported through convoy.upgrade, because it is unknown before that who reads them.
        """
        if self.waiting():
            return False
        return not self.legacy_keys(schema) or has_active_hosts(self.found)


def read_status(store: Store, steps: Sequence[MigrationStep]) -> MigrationStatus:
    """Return the migration status. One request.

    :raises UpgradeError: ``newer_schema``, ``unreadable_schema``, and what :meth:`ConsulClient.read` raises.
    """
    keys = store.keys
    of_steps = {folder for step in steps for folder in step.folders(keys.prefix)}
    requested = sorted({keys.schema, keys.migration, keys.ledger, keys.holds, keys.records, *of_steps})
    entries = store.client.read(requested)
    store.refuse_hidden_keys(entries, [folder for folder in requested if folder.endswith("/")])
    # A key under two of the requested prefixes is returned twice.
    by_key = {entry.key: entry for entry in sorted(entries)}
    schema, migration, number = by_key.get(keys.schema), by_key.get(keys.migration), 0
    if schema is not None:
        number = decode_schema(keys.schema, schema.value)
        refuse_newer(keys, number, release_of(schema.flags), steps[-1].number)
    begun = migration is not None
    return MigrationStatus(
        steps, KeysFound(keys, by_key, begun), number, decode_migration(migration.value) if migration else None
    )
