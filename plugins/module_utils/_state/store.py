# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The store: reads a fleet's state from Consul, and waits for changes."""

from __future__ import annotations

import copy
import getpass
import re
import socket
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from .._codecs.event import decode_event
from .._common import runtime
from .._consul.client import MOST_OPERATIONS, ConsulClient, KVEntry
from .._consul.errors import Conflict
from .._consul.settings import Settings
from .._consul.watch import BlockingQueries
from .._fleet.fleet import Snapshot
from .._fleet.ledger import MOST_EPOCH, Ledger
from .keys import Keys
from .layout import refuse_newer_among
from .legacy_keys import LegacyKeys
from .snapshot import decode_snapshot

# An epoch as it is in a key of the history. int() also accepts other scripts' digits, and refuses very many.
_EPOCH = re.compile(r"[0-9]{1,16}")
# Up to this many entries are requested by number; for more, the existing keys are listed first.
_MOST_WITHOUT_A_GAP = 10_000


class Store:
    """A fleet's state in Consul.

    :param settings: how to reach Consul.
    """

    def __init__(self, settings: Settings) -> None:
        """Create the client and the names of the keys."""
        self.settings = settings
        self.client = ConsulClient(settings)
        self.keys = Keys(settings.kv_prefix)
        # Folders that are empty, and that the token may read.
        self._readable: set[str] = set()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that a token must be able to read, because a hidden key would count as a missing one."""
        keys = self._keys_of_versions
        return (keys.reports, keys.gates, keys.records, keys.holds, keys.job_gates, keys.job_records)

    @property
    def _keys_of_versions(self) -> Keys:
        return replace(self.keys, is_job=False)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The single keys and the folders that a snapshot has."""
        keys, old = self._keys_of_versions, LegacyKeys(self.keys.prefix)
        single = (keys.current_version, keys.current_job, keys.ledger, keys.schema, keys.migration, keys.handover)
        ours = (
            keys.leases,
            keys.marks,
            keys.job_marks,
            keys.approvals,
            keys.providers,
            keys.planners,
            *self.folders,
        )
        return (*single, *ours, old.reports, *old.gate_folders)

    def of(self, snapshot: Snapshot) -> Store:
        """Return the store with the keys of a snapshot's rollout: those of the job, or those of versions.

        All that writes for the rollout of a snapshot uses this one.
        """
        if snapshot.is_job == self.keys.is_job:
            return self
        other = copy.copy(self)
        other.keys = replace(self.keys, is_job=snapshot.is_job)
        return other

    def snapshot(self, epoch: int = 0, of_job: bool | None = None) -> Snapshot:
        """Return all that a planner needs, from one atomic read: one request for any number of hosts.

        :param epoch: read the commit of this epoch too, 0 for none. If its entry is gone, it takes a second request.
        :param of_job: whether it is a snapshot of the job; None for the kind of rollout that the ledger is for. A job that is complete gives way
            to versions.
        :raises UpgradeError: what :meth:`ConsulClient.read` raises, ``unreadable_ledger``, ``newer_schema``, ``unreadable_schema``.
        """
        now = runtime.now()
        try:
            entries = self.client.read(self.prefixes, self.entry_of(epoch))
        except Conflict:
            entries = self.client.read(self.prefixes)
        refuse_newer_among(self.keys, entries)
        self.refuse_hidden_keys(entries, self.folders)
        found = decode_snapshot(self._keys_of_versions, entries, of_job)
        return replace(found, now=now, commits=self.commits(entries, epoch))

    def entry_of(self, epoch: int) -> list[str]:
        """Return the key of the history's entry for an epoch; none for epoch 0."""
        return [self.keys.event(epoch)] if epoch else []

    def commits(self, entries: Iterable[KVEntry], epoch: int) -> dict[int, str]:
        """Return epoch -> commit, if the entry of that epoch is among the entries."""
        events = self._events(entry for entry in entries if epoch and entry.key == self.keys.event(epoch))
        return {epoch: str(events[0].get("commit", ""))} if events else {}

    def read_beside_hold_key(self, prefixes: Sequence[str]) -> list[KVEntry]:
        """Return all entries under the prefixes, and the own key of the holds' folder, from one atomic read.

        That key shows that holds are not hidden. It exists once a rollout has begun or a hold was set; before that, it takes a second request.
        As a prefix, it would return the holds of all hosts too.

        :raises UpgradeError: what :meth:`ConsulClient.read` raises.
        """
        try:
            return self.client.read(prefixes, known=[self.keys.holds])
        except Conflict:
            return self.client.read(prefixes)

    def refuse_hidden_keys(self, entries: Sequence[KVEntry], folders: Iterable[str]) -> None:
        """Raise an error if a folder came back empty because the token may not read it.

        :raises UpgradeError: ``denied``.
        """
        keys = sorted(entry.key for entry in entries)

        def is_empty(prefix: str) -> bool:
            at = bisect_left(keys, prefix)
            return at == len(keys) or not keys[at].startswith(prefix)

        self.refuse_hidden_folders(is_empty, folders, is_nothing=not entries)

    def refuse_hidden_folders(
        self,
        is_empty: Callable[[str], bool],
        folders: Iterable[str],
        *,
        is_nothing: bool = False,
    ) -> None:
        """Raise an error if a folder is empty because the token may not read it.

        Consul silently leaves out of a tree what the token may not read: a hidden hold would look like no hold, and a hidden
        gate like the default, which is open. Reading a single key fails instead. That takes one request for each empty
        folder, once as long as it stays empty. Without a token, it is done only if the whole read came back empty, and for the holds if their
        folder's own key is missing too, which each rollout and each hold writes.

        :param is_empty: whether a read returned no key with a prefix.
        :param is_nothing: whether it returned no key at all.
        :raises UpgradeError: ``denied``.
        """
        if not self.settings.token and not is_nothing:
            self._confirm(self.keys.holds, f"{self.keys.holds}global", is_empty=is_empty(self.keys.holds))
            return
        for folder in folders:
            self._confirm(folder, f"{folder}global", is_empty=is_empty(folder))
        # A hidden pause would admit a host. If the layout has a version, all pauses are holds already.
        old = LegacyKeys(self.keys.prefix)
        if is_empty(self.keys.schema):
            self._confirm(old.gates, old.gate("global"), is_empty=all(map(is_empty, old.gate_folders)))

    def _confirm(self, folder: str, key: str, *, is_empty: bool) -> None:
        """Read a key of a folder that is empty, unless that was done since it became empty.

        :raises UpgradeError: ``denied``.
        """
        if not is_empty:
            # The token may lose the access later.
            self._readable.discard(folder)
        elif folder not in self._readable:
            self.client.get(key)
            self._readable.add(folder)

    def wait_for_change(self, index: int, seconds: float, prefixes: Sequence[str] | None = None) -> int:
        """Wait until something changes that a plan depends on, at most for ``seconds``.

        There is one blocking query for each folder. A process that waits often should use :class:`~.watch.Watch` instead.

        :param index: the newest index that the caller has read.
        :param prefixes: the folders and keys to watch; None for all that a plan depends on.
        :returns: the new index, or ``index`` if nothing changed in time.
        :raises UpgradeError: if a query fails; ``unreachable`` if Consul does not answer.
        """
        keys, old = self._keys_of_versions, LegacyKeys(self.keys.prefix)
        if prefixes is None:
            prefixes = (keys.upgrade, keys.reports, old.reports, keys.gates, keys.current_version)
        queries = BlockingQueries(self.settings, short_lived=True)
        try:
            with queries.changed:
                # Few fleets have legacy reports, and the index of an empty folder changes with every write to any key.
                queries.start(prefixes, index, empty=(old.reports,))
            return max(index, queries.wait_for_change(prefixes, seconds))
        finally:
            queries.close()

    def epochs(self) -> list[int]:
        """Return the epochs of all entries of the history, the newest first: one request, without the values."""
        names = self.client.names(self.keys.history)
        return sorted((int(name) for name in names if _EPOCH.fullmatch(name) and int(name) <= MOST_EPOCH), reverse=True)

    def epoch_after(self, ledger: Ledger | None) -> int:
        """Return the epoch of the next write on top of a ledger.

        If the ledger is gone, or has the highest epoch, it follows the newest entry of the history, so that no entry is
        overwritten.
        """
        if ledger is not None and ledger.epoch < MOST_EPOCH:
            return ledger.epoch + 1
        return max((epoch for epoch in self.epochs() if epoch < MOST_EPOCH), default=0) + 1

    def history(self, ledger: Ledger | None, block: int = MOST_OPERATIONS) -> Iterator[dict[str, Any]]:
        """Yield the entries of the history, the newest first: one request per block, sent when it is needed.

        Epochs have no gaps, so the entries are read by number. If there is no ledger, or entries were deleted by hand, the
        existing keys are listed. Entries that can't be read are left out.
        """
        epochs: Sequence[int] = (
            range(ledger.epoch, ledger.history_from - 1, -1) if ledger is not None else self.epochs()
        )
        is_whole = True
        while epochs:
            chunk = epochs[:block]
            if is_whole:
                try:
                    yield from self._events(self.client.read_known([self.keys.event(epoch) for epoch in chunk]))
                except Conflict:
                    is_whole, epochs = False, [epoch for epoch in self.epochs() if epoch <= chunk[0]]
                    continue
            else:
                yield from self.events(chunk)
            epochs = epochs[block:]

    def events_after(self, epoch: int, ledger: Ledger | None) -> list[dict[str, Any]]:
        """Return the entries of the history after an epoch, the oldest first: one request for each 64.

        Epochs have no gaps, so the entries are read by number; for very many, the existing keys are listed first.
        """
        if ledger is None:
            return []
        epoch, newest = max(epoch, ledger.history_from - 1), ledger.epoch
        if newest - epoch <= _MOST_WITHOUT_A_GAP:
            return self.events(range(epoch + 1, newest + 1))
        return self.events([one for one in reversed(self.epochs()) if epoch < one <= newest])

    def events(self, epochs: Sequence[int]) -> list[dict[str, Any]]:
        """Return the entries of the history with these epochs, in this order: one request for each 64.

        Entries that were deleted or can't be read are left out.
        """
        requested = [self.keys.event(epoch) for epoch in epochs]
        events = []
        for at in range(0, len(requested), MOST_OPERATIONS):
            chunk = requested[at : at + MOST_OPERATIONS]
            try:
                found = self.client.read_known(chunk)
            except Conflict:
                found = [entry for entry in map(self.client.get, chunk) if entry is not None]
            events += self._events(found)
        return events

    def _events(self, entries: Iterable[KVEntry]) -> list[dict[str, Any]]:
        prefix = len(self.keys.history)
        events = (decode_event(int(entry.key[prefix:]), entry.value) for entry in entries)
        return [event for event in events if event is not None]


def current_user() -> str:
    """Return ``user@machine`` of this process, for the ledger and the history."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
