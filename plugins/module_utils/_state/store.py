# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The store: what the rest of the collection knows of Consul."""

from __future__ import annotations

import getpass
import queue
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from .._common.errors import UpgradeError
from .._consul.client import MOST_OPERATIONS, ConsulClient, KVEntry
from .._consul.errors import Conflict
from .._consul.settings import Settings
from .._fleet.fleet import Snapshot
from .._fleet.ledger import MOST_EPOCH, Ledger
from .event_codec import decode_event
from .keys import Keys
from .layout import refuse_newer_among
from .legacy_keys import LegacyKeys
from .snapshot import decode_snapshot

# Epochs as keys of the history have them; Python reads digits of other scripts too, and no number of very many.
_EPOCH = re.compile(r"[0-9]{1,16}")
# So many entries are asked for by their numbers, and more by their names.
_MOST_WITHOUT_A_GAP = 10_000
# What is given up is gone after so long (seconds).
_SECONDS_A_QUESTION = 5.0


class Store:
    """A fleet's state in Consul.

    :param settings: how Consul is reached.
    """

    def __init__(self, settings: Settings) -> None:
        """Prepare it; nothing is sent yet."""
        self.settings = settings
        self.client = ConsulClient(settings)
        self.keys = Keys(settings.kv_prefix)
        self._readable: set[str] = set()

    def snapshot(self, epoch: int = 0) -> Snapshot:
        """Return all that a planner needs, as it was at one moment: one request, at any number of hosts.

        :param epoch: whose commit is wanted too, 0 for none; where its entry is gone, that costs a second request.
        :raises UpgradeError: what :meth:`ConsulClient.read` raises, ``unreadable_ledger``, ``newer_schema``, ``unreadable_schema``.
        """
        keys = self.keys
        old = LegacyKeys(keys.prefix)
        folders = (keys.reports, keys.gates, keys.records, keys.holds)
        now = time.time()
        single = (keys.current_version, keys.ledger, keys.schema, keys.migration)
        ours = (keys.drivers, keys.marks, keys.approvals, keys.providers, *folders)
        wanted = (*single, *ours, old.reports, *old.gate_folders)
        try:
            entries = self.client.read(wanted, [keys.event(epoch)] if epoch else [])
        except Conflict:
            entries = self.client.read(wanted)
        refuse_newer_among(keys, entries)
        self.refuse_hidden_keys(entries, folders)
        events = self._events(entry for entry in entries if epoch and entry.key == keys.event(epoch))
        commits = {epoch: str(events[0].get("commit", ""))} if events else {}
        return replace(decode_snapshot(keys, entries), now=now, commits=commits)

    def refuse_hidden_keys(self, entries: Sequence[KVEntry], folders: Iterable[str]) -> None:
        """Make sure that the folders that came back empty are empty, and not hidden.

        Consul's ACLs leave out of a tree what a token may not read, without a word: an unreadable hold would
        look like none, and an unreadable gate like the default, which is open. Reading a single key is
        refused in so many words. It costs a request for each folder that came back empty, once for each
        store; where no token is in use, one is asked for only if nothing came back at all.

        :raises UpgradeError: ``denied``.
        """
        if not self.settings.token and entries:
            return
        for folder in folders:
            if folder in self._readable:
                continue
            if not any(entry.key.startswith(folder) for entry in entries):
                self.client.get(f"{folder}global")
            self._readable.add(folder)
        self._refuse_hidden_legacy_keys(entries)

    def _refuse_hidden_legacy_keys(self, entries: Sequence[KVEntry]) -> None:
        # A pause that can't be seen would let a host through. Where a layout is written down, pauses are holds already.
        keys = self.keys
        old = LegacyKeys(keys.prefix)
        seen = {entry.key for entry in entries}
        if old.gates in self._readable or keys.schema in seen:
            return
        if not any(key.startswith(old.gate_folders) for key in seen):
            self.client.get(old.gate("global"))
        self._readable.add(old.gates)

    def wait_for_change(self, index: int, seconds: float, prefixes: Sequence[str] | None = None) -> int:
        """Return as soon as anything that a plan depends on has changed, or after ``seconds``.

        One blocking query for each folder, side by side. Consul goes on with those that are given up and counts their
        connections, so each is asked for a few seconds only, and again. A process that waits often has
        :class:`~.watch.Watch`.

        :param index: the newest index that the caller has seen.
        :param prefixes: the folders and keys to watch; None for all that a plan depends on.
        :returns: the newest index now, which is ``index`` where nothing changed in time.
        :raises Unreachable: if Consul goes away.
        """
        keys, old = self.keys, LegacyKeys(self.keys.prefix)
        answers: queue.Queue[int | UpgradeError] = queue.Queue()
        answered = threading.Event()
        until = time.monotonic() + seconds

        def watch(prefix: str) -> None:
            client = ConsulClient(self.settings)
            found = asked = index
            try:
                while found <= index and not answered.is_set() and (left := until - time.monotonic()) > 0:
                    found, is_filled = client.wait_for_change_below(prefix, asked, min(left, _SECONDS_A_QUESTION))
                    if prefix == old.reports and not is_filled:
                        # Hardly any fleet has them, and of a folder that is not there Consul tells every write as a change.
                        found, asked = index, max(asked, found)
                answers.put(found)
            except UpgradeError as error:
                answers.put(error)

        if prefixes is None:
            prefixes = (keys.upgrade, keys.reports, old.reports, keys.gates, keys.current_version)
        for prefix in prefixes:
            threading.Thread(target=watch, args=(prefix,), daemon=True).start()
        try:
            for _answer in prefixes:
                answer = answers.get(timeout=max(0.0, until - time.monotonic()) + self.settings.timeout)
                if isinstance(answer, UpgradeError):
                    raise answer
                if answer > index:
                    return answer
        except queue.Empty:
            pass
        finally:
            answered.set()
        return index

    def epochs(self) -> list[int]:
        """Return the epochs that the history has, the newest first: one request, for names alone."""
        names = self.client.names(self.keys.history)
        return sorted((int(name) for name in names if _EPOCH.fullmatch(name) and int(name) <= MOST_EPOCH), reverse=True)

    def epoch_after(self, ledger: Ledger | None) -> int:
        """Return the epoch of the next write on top of a ledger.

        Where the ledger is gone, or no epoch can follow its own, it goes on from the history, so that no entry of it is
        written over.
        """
        if ledger is not None and ledger.epoch < MOST_EPOCH:
            return ledger.epoch + 1
        return max((epoch for epoch in self.epochs() if epoch < MOST_EPOCH), default=0) + 1

    def history(self, newest: int, block: int = MOST_OPERATIONS) -> Iterator[dict[str, Any]]:
        """Yield the entries of the history from an epoch back to the first one: a request for each block that is taken.

        As epochs have no gap, what the history has from earlier on costs nothing. Only where entries are gone all the same,
        their names are asked for. Entries that can't be read are left out.
        """
        epochs: Sequence[int] = range(newest, 0, -1)
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

    def events_after(self, epoch: int, newest: int) -> list[dict[str, Any]]:
        """Return the entries of the history after an epoch, the oldest first: one request for each 64.

        As epochs have no gap, their names are asked for only where there would be very many.
        """
        if newest - epoch <= _MOST_WITHOUT_A_GAP:
            return self.events(range(epoch + 1, newest + 1))
        return self.events([one for one in reversed(self.epochs()) if epoch < one <= newest])

    def events(self, epochs: Sequence[int]) -> list[dict[str, Any]]:
        """Return the entries of the history with these epochs, in the order given: one request for each 64.

        Entries that are gone or can't be read are left out.
        """
        wanted = [self.keys.event(epoch) for epoch in epochs]
        events = []
        for at in range(0, len(wanted), MOST_OPERATIONS):
            chunk = wanted[at : at + MOST_OPERATIONS]
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
    """Return who is at work, for the ledger and the history: user and machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
