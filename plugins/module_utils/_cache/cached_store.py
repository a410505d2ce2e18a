# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A store for processes that read a fleet again and again: it keeps the fleet in memory, and reads what has changed."""

from __future__ import annotations

from dataclasses import replace

from .._common import runtime
from .._consul.errors import Conflict
from .._consul.settings import Settings
from .._fleet.fleet import Snapshot
from .._state.layout import refuse_newer_among
from .._state.snapshot import SnapshotDecoder
from .._state.store import Store
from .key_cache import KeyCache


class FleetCache:
    """The keys of a fleet in memory, for all threads of a process.

    :param settings: how to reach Consul.
    """

    def __init__(self, settings: Settings) -> None:
        """Create a store and an empty cache."""
        self._lock = runtime.lock()
        self._store = Store(settings)
        self._cache = KeyCache(self._store.client, self._store.prefixes)
        self._decoder = SnapshotDecoder(self._store.keys)

    def snapshot(self, epoch: int = 0, of_job: bool | None = None) -> Snapshot:
        """Return what :meth:`Store.snapshot` returns, with the same objects for unchanged keys: one request for up to 1,500 hosts.

        :raises UpgradeError: what :meth:`Store.snapshot` raises.
        """
        with self._lock:
            try:
                return self._snapshot(epoch, of_job)
            except Exception:
                self._cache.forget()
                self._decoder = SnapshotDecoder(self._store.keys)
                raise

    def _snapshot(self, epoch: int, of_job: bool | None) -> Snapshot:
        store, cache = self._store, self._cache
        now = runtime.now()
        try:
            changes = cache.refresh(store.entry_of(epoch))
        except Conflict:
            changes = cache.refresh()
        refuse_newer_among(store.keys, changes.set)
        store.refuse_hidden_folders(cache.is_empty, store.folders, is_nothing=cache.is_nothing)
        for key in changes.removed:
            self._decoder.remove(key)
        for entry in changes.set:
            self._decoder.put(entry)
        return replace(self._decoder.snapshot(of_job), now=now, commits=store.commits(changes.known, epoch))


class CachedStore(Store):
    """A store that reads snapshots from a cache. Not for use by several threads, but the cache is.

    :param cache: None for one of its own.
    """

    def __init__(self, settings: Settings, cache: FleetCache | None = None) -> None:
        """Keep the cache."""
        super().__init__(settings)
        self._cache = cache or FleetCache(settings)

    def snapshot(self, epoch: int = 0, of_job: bool | None = None) -> Snapshot:
        """Return what :meth:`Store.snapshot` returns, with the same objects for keys that have not changed."""
        return self._cache.snapshot(epoch, of_job)
