# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which key layouts this release reads and writes, and the errors for other layouts."""

from __future__ import annotations

from collections.abc import Iterable

from .._codecs.migration import decode_schema, release_of
from .._common.errors import UpgradeError
from .._consul.client import KVEntry
from .._fleet.fleet import Snapshot
from .._fleet.migration import RUNNING
from .keys import SCHEMA, Keys

# The first release that supports layout SCHEMA.
RELEASE = "0.1.0"

_COMMAND = "ansible-playbook convoy.upgrade.migrate_state"


def refuse_newer(keys: Keys, schema: int | None, release: str, newest: int = SCHEMA) -> None:
    """Raise an error for a layout that is newer than this release.

    :param schema: the version of the layout, None if none is written.
    :param release: the first release that supports it, empty if it is not known.
    :param newest: the newest layout that the caller supports.
    :raises UpgradeError: ``newer_schema``.
    """
    if schema is None or schema <= newest:
        return
    which = f"convoy.upgrade {release} or later" if release else "the release that the other planners use"
    raise UpgradeError(
        "newer_schema",
        f"{keys.schema} is {schema}, and this release of convoy.upgrade supports layouts up to {newest}. Install {which}.",
        schema=schema,
        release=release,
    )


def refuse_newer_among(keys: Keys, entries: Iterable[KVEntry]) -> None:
    """Raise an error if the entries are of a layout that is newer than this release.

    Call it before decoding them, because their values may have another form.

    :raises UpgradeError: ``newer_schema``, ``unreadable_schema``.
    """
    for entry in entries:
        if entry.key == keys.schema:
            refuse_newer(keys, decode_schema(entry.key, entry.value), release_of(entry.flags))


def _under_way(keys: Keys, snapshot: Snapshot) -> str | None:
    """Return a sentence on the migration that is under way, None if there is none."""
    migration = snapshot.migration
    if migration is None or not migration.is_under_way:
        return None
    if not migration.readable:
        return f"{keys.migration} can't be read, so keys may be in the middle of being moved."
    doing = "moving the keys" if migration.state == RUNNING else "removing the legacy keys"
    return (
        f"A migration to layout {migration.target} is under way: {migration.by} is {doing} "
        f"({migration.phase}, {migration.done} of {migration.total} done)."
    )


def refuse_to_plan(keys: Keys, snapshot: Snapshot) -> None:
    """Raise an error if a ledger or a gate must not be written, because the keys are being moved or are in an older layout.

    Holds and reports of hosts are still written: they admit no host, and migrations do not move what they write.

    :raises UpgradeError: ``migrating``, ``older_schema``.
    """
    what = _under_way(keys, snapshot)
    if what is not None:
        raise UpgradeError(
            "migrating",
            f"{what} Nothing is written meanwhile. Wait until it ends; if it was interrupted, continue it: {_COMMAND}.",
            key=keys.migration,
        )
    # Layout 0 has no version key, only legacy keys.
    schema = 0 if snapshot.schema is None and snapshot.has_legacy_keys else snapshot.schema
    if schema is not None and schema < SCHEMA:
        raise UpgradeError(
            "older_schema",
            f"The keys of this fleet have layout {schema}, and rollouts need layout {SCHEMA}. Nothing is written. "
            f"Preview the migration with {_COMMAND} --check --diff, then run it without --check.",
            schema=schema,
        )
