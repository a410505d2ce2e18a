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
from .._common.processes import boot_id, start_ticks
from .._consul.client import ConsulClient, KVEntry
from .._consul.errors import Conflict
from .._consul.operations import check_lock, compare, compare_and_put, lock, put
from .._host.leases import RENEW_EVERY, SESSION_SECONDS, LeaseHolder, decode_holder
from .._observe.notifications import (
    Notification,
    SentNotifications,
    caught_up,
    everything_sent,
    payload,
    pending_notifications,
)
from .._observe.progress import watched_hosts
from .._planner.plan import HostView
from .._state.codec import decode_data, sanitize_all
from .._state.store import Store, current_user
from .fleet_info import FleetView, read_fleet


@dataclass(frozen=True, slots=True)
class RolloutView:
    """A look at the fleet.

    :param hosts: as they are watched.
    """

    view: FleetView
    hosts: Mapping[str, HostView]

    @property
    def epoch(self) -> int:
        """The newest entry of the history, 0 where there is none."""
        ledger = self.view.snapshot.ledger
        return ledger.epoch if ledger is not None else 0

    @property
    def everything_sent(self) -> SentNotifications:
        """Where nothing is left to tell."""
        return everything_sent(self.view.snapshot, self.view.plan, self.hosts)

    def payload(self, notification: Notification) -> dict[str, Any]:
        """Return what a hook gets of an event."""
        return payload(notification, self.view.snapshot, self.view.plan, self.hosts)


def read_rollout(store: Store, fleet: Mapping[str, str] | None) -> RolloutView:
    """Look at the fleet: what :func:`read_fleet` costs.

    :raises UpgradeError: what :func:`read_fleet` raises.
    """
    view = read_fleet(store, fleet=fleet)
    return RolloutView(view, watched_hosts(view.snapshot, view.plan))


def new_notifications(
    store: Store, sight: RolloutView, told: SentNotifications
) -> tuple[list[Notification], SentNotifications]:
    """Return what is to be told, and what was told after that: a request for each 64 entries that are new.

    :raises UpgradeError: what :meth:`Store.events` raises.
    """
    if told.epoch > sight.epoch:
        # Consul was put back to an earlier time, so what was told is of another history.
        return [], sight.everything_sent
    return pending_notifications(sight.view.snapshot, sight.view.plan, sight.hosts, _entries(store, sight, told), told)


def _entries(store: Store, sight: RolloutView, told: SentNotifications) -> list[dict[str, Any]]:
    return store.events_after(told.epoch, sight.epoch)


def initial_state(store: Store, sight: RolloutView, *, dry: bool = False) -> SentNotifications:
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
        told = sight.everything_sent
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
    return SentNotifications(int(kept[0]["epoch"]) - 1) if kept else sight.everything_sent


def read_sent(store: Store) -> SentNotifications | None:
    """Return what was told so far, None where that was never noted or can't be read: one request.

    :raises UpgradeError: what :meth:`ConsulClient.get` raises.
    """
    return _decoded(store.client.get(store.keys.notified))


class SentKey:
    """The key that remembers what was told, and its lock. Not for use by several threads."""

    def __init__(self, store: Store) -> None:
        """Prepare it; nothing is sent yet."""
        self._store = store
        self._key = store.keys.notified
        self._over = threading.Event()
        self._session = ""
        self._holder: Mapping[str, Any] = {}

    def take(self, told: SentNotifications) -> SentNotifications | None:
        """Lock the key; return what was told so far, None where another run has it, which tells what there is then.

        :param told: what counts as told in any case.
        :raises UpgradeError: what :meth:`ConsulClient.write` raises.
        """
        if not self._session:
            self._session = self._store.client.open_session(
                f"convoy.upgrade notices of {current_user()}", SESSION_SECONDS, keeps_keys=True
            )
            threading.Thread(target=self._renew, args=(self._session,), daemon=True).start()
        entry = self._store.client.get(self._key)
        found = _decoded(entry)
        found = told if found is None or found.epoch < told.epoch else found
        index = entry.modify_index if entry is not None else 0
        pid = os.getpid()
        self._holder = asdict(
            LeaseHolder(current_user(), int(time.time()), self._session, boot_id(), pid, start_ticks(pid) or 0)
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

    def note(self, told: SentNotifications) -> bool:
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

    def _end_the_dead(self, entry: KVEntry | None) -> None:
        """Let a run that died on this machine let go at once, and not only when its session has run out."""
        holder = decode_holder(entry.value) if entry is not None else None
        if holder is not None and holder.is_dead:
            self._store.client.close_session(holder.session)

    def _renew(self, session: str) -> None:
        client = ConsulClient(self._store.settings)
        while not self._over.wait(RENEW_EVERY):
            # The next write tells whether the lock is still ours.
            with contextlib.suppress(UpgradeError):
                if not client.renew_session(session):
                    return


def _encoded(told: SentNotifications, more: Mapping[str, Any] | None = None) -> str:
    return json.dumps({**told.plain(), **(more or {})}, sort_keys=True)


def _decoded(entry: KVEntry | None) -> SentNotifications | None:
    try:
        return SentNotifications.from_plain(sanitize_all(decode_data(entry.value))) if entry is not None else None
    except (ValueError, TypeError, KeyError):
        return None
