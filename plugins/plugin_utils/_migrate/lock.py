# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a migration: a Consul session locks ``upgrade/migration``, and each write of the migration checks that lock."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ...module_utils._codecs.migration import encode_migration
from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.client import MOST_OPERATIONS, Operation
from ...module_utils._consul.errors import Conflict
from ...module_utils._consul.operations import check_lock, compare, lock, put, remove, unlock
from ...module_utils._fleet.migration import Migration
from ...module_utils._host.leases import SESSION_SECONDS, LeaseHolder, decode_holder, end_dead_holder, renew_session
from ...module_utils._state.store import Store, current_user

# Each transaction also has the check of the lock and the progress.
MOST_MOVED = MOST_OPERATIONS - 2


class MigrationLock:
    """The lock of a migration, renewed until exit. Enter it before :meth:`take`."""

    def __init__(self, store: Store) -> None:
        """Keep the store."""
        self._store = store
        self._key = store.keys.migration
        self._over = runtime.event()
        self._holder: Mapping[str, object] = {}
        self.session = ""

    def __enter__(self) -> MigrationLock:
        """Open the session.

        :raises UpgradeError: what :meth:`ConsulClient.write` raises.
        """
        name = f"convoy.upgrade migration of {current_user()}"
        self.session = self._store.client.open_session(name, SESSION_SECONDS, keeps_keys=True)
        self._holder = asdict(LeaseHolder.of_this_process(self.session))
        runtime.start_thread(renew_session, self._store.settings, self.session, self._over)
        return self

    def __exit__(self, *_exception: object) -> None:
        """Release the lock. The key stays."""
        self._over.set()
        # Otherwise the session expires.
        with contextlib.suppress(UpgradeError):
            self._store.client.close_session(self.session)

    def take(self, migration: Migration, index: int, operations: Sequence[Operation]) -> None:
        """Lock the key, write the migration to it and execute the operations, in one transaction.

        :param index: the key's ModifyIndex when it was read; 0 if it did not exist.
        :raises Conflict: if one of the keys has changed.
        :raises UpgradeError: ``migrating`` if another migration has the lock.
        """
        text = encode_migration(migration, self._holder)
        try:
            self._store.client.write([compare(self._key, index), lock(self._key, text, self.session), *operations])
        except Conflict:
            self._refuse_if_held()
            raise

    def write(self, migration: Migration, operations: Sequence[Operation]) -> None:
        """Execute operations and store the progress, if this migration still has the lock.

        :raises Conflict: if one of the keys has changed since it was read; then nothing is written.
        :raises UpgradeError: ``lost_lock``, and what :meth:`ConsulClient.write` raises.
        """
        self._write([put(self._key, encode_migration(migration, self._holder)), *operations])

    def end(self, migration: Migration | None, operations: Sequence[Operation]) -> None:
        """Write the migration to the key, or remove the key for None, and release the lock.

        :raises Conflict: as :meth:`write`.
        :raises UpgradeError: as :meth:`write`.
        """
        last = remove(self._key) if migration is None else unlock(self._key, encode_migration(migration), self.session)
        self._write([*operations, last])

    def _write(self, operations: Sequence[Operation]) -> None:
        try:
            self._store.client.write([check_lock(self._key, self.session), *operations])
        except Conflict as conflict:
            if conflict.details["key"] != self._key:
                raise
            raise UpgradeError(
                "lost_lock",
                f"{self._key} is not locked by this migration any more: Consul has ended its session, such as after {SESSION_SECONDS} "
                "seconds without a renewal. What was done stays and is safe. Run the same command again; it continues from there.",
                key=self._key,
            ) from conflict

    def _refuse_if_held(self) -> None:
        """Refuse if another migration has the lock. If its process on this machine is dead, end its session."""
        entry = self._store.client.get(self._key)
        holder = decode_holder(entry.value) if entry is not None else None
        if holder is None or end_dead_holder(self._store, entry):
            return
        if self._store.client.is_session(holder.session):
            raise UpgradeError(
                "migrating",
                f"Another migration is under way: {holder} has locked {self._key}. Nothing was changed. Wait until it ends, then run the "
                "same command again. If its machine is gone, Consul releases the lock within half a minute.",
                key=self._key,
            )
