# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be told of a rollout, read from Consul, and the key that remembers what was: one run tells it at a time."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .._common.errors import UpgradeError
from .._common.processes import start_of, this_machine
from .._consul.client import ConsulClient, Entry
from .._consul.errors import Conflict
from .._consul.operations import check_lock, compare, compare_and_put, lock, put
from .._host.leases import RENEW_EVERY, SESSION_SECONDS, Holder, holder_in
from .._observe.notifications import Notice, Told, all_told, caught_up, payload, untold
from .._observe.progress import watched
from .._planner.plan import HostView
from .._state.codec import all_printable, decode_data
from .._state.store import Store, whoami
from .fleet_info import View, look


@dataclass(frozen=True, slots=True)
class Sight:
    """A look at the fleet.

    :param hosts: as they are watched.
    """

    view: View
    hosts: Mapping[str, HostView]

    @property
    def epoch(self) -> int:
        """The newest entry of the history, 0 where there is none."""
        ledger = self.view.snapshot.ledger
        return ledger.epoch if ledger is not None else 0

    @property
    def all_told(self) -> Told:
        """Where nothing is left to tell."""
        return all_told(self.view.snapshot, self.view.plan, self.hosts)

    def payload(self, notice: Notice) -> dict[str, Any]:
        """Return what a hook gets of an event."""
        return payload(notice, self.view.snapshot, self.view.plan, self.hosts)


def see(store: Store, fleet: Mapping[str, str] | None) -> Sight:
    """Look at the fleet: what :func:`look` costs.

    :raises UpgradeError: what :func:`look` raises.
    """
    view = look(store, fleet=fleet)
    return Sight(view, watched(view.snapshot, view.plan))


def news(store: Store, sight: Sight, told: Told) -> tuple[list[Notice], Told]:
    """Return what is to be told, and what was told after that: a request for each 64 entries that are new.

    :raises UpgradeError: what :meth:`Store.events` raises.
    """
    if told.epoch > sight.epoch:
        # Consul was put back to an earlier time, so what was told is of another history.
        return [], sight.all_told
    return untold(sight.view.snapshot, sight.view.plan, sight.hosts, _entries(store, sight, told), told)


def _entries(store: Store, sight: Sight, told: Told) -> list[dict[str, Any]]:
    return store.events_after(told.epoch, sight.epoch)


def remember(store: Store, sight: Sight, *, dry: bool = False) -> Told:
    """Return what counts as told to a run that begins: what was, and what came before the rollout that is on its way.

    Where no run ever had a hook, it is all that happened so far, and that is written down. Three requests, and one more for each
    64 entries that are new.

    :param dry: write nothing.
    :raises UpgradeError: what :meth:`ConsulClient.write` raises.
    """
    key = store.keys.notified
    entry = store.client.get(key)
    told = _decoded(entry)
    if told is None:
        told = sight.all_told
        with contextlib.suppress(Conflict):
            # Otherwise another run was faster, which has seen what there was too.
            if not dry:
                index = entry.modify_index if entry is not None else 0
                store.client.write([compare_and_put(key, _encoded(told), index)])
        return told
    entries = _entries(store, sight, told)
    kept = caught_up(sight.view.snapshot.ledger, entries)
    if len(kept) == len(entries):
        return told
    return Told(int(kept[0]["epoch"]) - 1) if kept else sight.all_told


def recall(store: Store) -> Told | None:
    """Return what was told so far, None where that was never noted or can't be read: one request.

    :raises UpgradeError: what :meth:`ConsulClient.get` raises.
    """
    return _decoded(store.client.get(store.keys.notified))


class Memory:
    """The key that remembers what was told, and its lock. Not for use by several threads."""

    def __init__(self, store: Store) -> None:
        """Prepare it; nothing is sent yet."""
        self._store = store
        self._key = store.keys.notified
        self._over = threading.Event()
        self._session = ""
        self._holder: Mapping[str, Any] = {}

    def take(self, told: Told) -> Told | None:
        """Lock the key; return what was told so far, None where another run has it, which tells what there is then.

        :param told: what counts as told in any case.
        :raises UpgradeError: what :meth:`ConsulClient.write` raises.
        """
        if not self._session:
            self._session = self._store.client.open_session(
                f"convoy.upgrade notices of {whoami()}", SESSION_SECONDS, keeps_keys=True
            )
            threading.Thread(target=self._renew, args=(self._session,), daemon=True).start()
        entry = self._store.client.get(self._key)
        found = _decoded(entry)
        found = told if found is None or found.epoch < told.epoch else found
        index = entry.modify_index if entry is not None else 0
        pid = os.getpid()
        self._holder = asdict(
            Holder(whoami(), int(time.time()), self._session, this_machine(), pid, start_of(pid) or 0)
        )
        text = _encoded(found, self._holder)
        try:
            self._store.client.write([compare(self._key, index), lock(self._key, text, self._session)])
        except Conflict:
            self._end_the_dead(entry)
            return None
        except UpgradeError as error:
            if "session" in error.message:
                # Consul has ended it meanwhile, as after being away; the next try opens another one.
                self._session = ""
                return None
            raise
        return found

    def note(self, told: Told) -> bool:
        """Write down what was told; return False where the lock is not this run's any more.

        :raises UpgradeError: what :meth:`ConsulClient.write` raises.
        """
        try:
            self._store.client.write(
                [check_lock(self._key, self._session), put(self._key, _encoded(told, self._holder))]
            )
        except Conflict:
            self._session = ""
            return False
        return True

    def close(self) -> None:
        """End the session, and with it the lock."""
        self._over.set()
        if self._session:
            # Where that fails, it ends by itself soon.
            with contextlib.suppress(UpgradeError):
                self._store.client.close_session(self._session)

    def _end_the_dead(self, entry: Entry | None) -> None:
        """Let a run that died on this machine let go at once, and not only when its session has run out."""
        holder = holder_in(entry.value) if entry is not None else None
        if holder is not None and holder.is_dead:
            self._store.client.close_session(holder.session)

    def _renew(self, session: str) -> None:
        client = ConsulClient(self._store.settings)
        while not self._over.wait(RENEW_EVERY):
            # The next write tells whether the lock is still ours.
            with contextlib.suppress(UpgradeError):
                if not client.renew_session(session):
                    return


def _encoded(told: Told, more: Mapping[str, Any] | None = None) -> str:
    return json.dumps({**told.plain(), **(more or {})}, sort_keys=True)


def _decoded(entry: Entry | None) -> Told | None:
    try:
        return Told.from_plain(all_printable(decode_data(entry.value))) if entry is not None else None
    except (ValueError, TypeError, KeyError):
        return None
