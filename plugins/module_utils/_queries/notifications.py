# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the notifications to send from Consul, and stores what was sent. A lock lets one run at a time send them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .._codecs.values import decode_data, sanitize_all
from .._common import runtime
from .._common.errors import UpgradeError
from .._common.names import is_job
from .._consul.client import KVEntry, Operation
from .._consul.errors import Conflict
from .._consul.operations import check_lock, compare, compare_and_put, lock
from .._fleet.ledger import BEGINNINGS, Ledger
from .._host.leases import SESSION_SECONDS, LeaseHolder, end_dead_holder, renew_session
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
from .._state.store import Store, current_user
from .fleet_info import FleetView, read_fleet


@dataclass(frozen=True, slots=True)
class RolloutView:
    """One read of the fleet.

    :param hosts: what :func:`watched_hosts` returns.
    """

    view: FleetView
    hosts: Mapping[str, HostView]

    @property
    def epoch(self) -> int:
        """The epoch of the ledger; 0 without a ledger."""
        return self.ledger.epoch if self.ledger is not None else 0

    @property
    def ledger(self) -> Ledger | None:
        """The ledger; that of the last job in a fleet without a rollout to a version; None without both."""
        return self.view.snapshot.ledger or self.view.snapshot.job

    def reads_job(self, sent: SentNotifications) -> bool | None:
        """Return ``of_job`` for the next :func:`read_rollout`: a job is read until its end was sent, also when it is complete."""
        return True if self.view.snapshot.is_job and not sent.ended else None

    @property
    def everything_sent(self) -> SentNotifications:
        """The state in which everything has been sent."""
        return everything_sent(self.view.snapshot, self.view.plan, self.hosts)

    def payload(self, notification: Notification) -> dict[str, Any]:
        """Return the payload for a hook."""
        return payload(notification, self.view.snapshot, self.view.plan, self.hosts)


def read_rollout(store: Store, fleet: Mapping[str, str] | None, of_job: bool | None = None) -> RolloutView:
    """Read the fleet. Costs the requests of :func:`read_fleet`; of two, if a rollout to a version has begun after the job.

    :param of_job: as for :meth:`Store.snapshot`.
    :raises UpgradeError: what :func:`read_fleet` raises.
    """
    view = read_fleet(store, fleet=fleet, of_job=of_job)
    if view.snapshot.is_job and (view.snapshot.ledger is None or not view.snapshot.ledger.is_job):
        view = read_fleet(store, fleet=fleet)
    return RolloutView(view, watched_hosts(view.snapshot, view.plan))


def new_notifications(
    store: Store, rollout: RolloutView, sent: SentNotifications
) -> tuple[list[Notification], SentNotifications]:
    """Return the notifications to send, and what has been sent after them. One request for each 64 new entries.

    :raises UpgradeError: what :meth:`Store.events` raises.
    """
    if rollout.ledger is None:
        # It may be back in a moment, such as during a restore key by key. If it was deleted, the next one goes on counting.
        return [], sent
    if sent.epoch > rollout.epoch:
        # Consul was restored to an earlier time, so what was sent belongs to another history.
        return [], rollout.everything_sent
    return pending_notifications(
        rollout.view.snapshot, rollout.view.plan, rollout.hosts, _entries(store, rollout, sent), sent
    )


class RolloutEvents:
    """The events of a rollout for one reader, from its first read on. It writes nothing, so each of several readers gets all events.

    :param fleet: host -> role; None for hosts that have reported.
    """

    def __init__(self, store: Store, fleet: Mapping[str, str] | None = None) -> None:
        """Keep the arguments."""
        self._store, self._fleet = store, fleet
        self._sent: SentNotifications | None = None
        self._of_job: bool | None = None

    def read(self) -> list[dict[str, Any]]:
        """Return the payloads of the events since the last call; none for the first one. Costs the requests of :func:`read_rollout`.

        :raises UpgradeError: what :func:`read_rollout` and :func:`new_notifications` raise. The next call returns the events then.
        """
        rollout = read_rollout(self._store, self._fleet, self._of_job)
        if self._sent is None:
            self._sent = rollout.everything_sent
            self._of_job = rollout.reads_job(self._sent)
            return []
        found, self._sent = new_notifications(self._store, rollout, self._sent)
        self._of_job = rollout.reads_job(self._sent)
        return [rollout.payload(one) for one in found]


def _entries(store: Store, rollout: RolloutView, sent: SentNotifications) -> list[dict[str, Any]]:
    return store.events_after(sent.epoch, rollout.ledger)


def initial_state(store: Store, rollout: RolloutView, *, dry: bool = False) -> SentNotifications:
    """Return what counts as sent for a new run: what was sent, and everything before the rollout under way.

    If no run has had a hook yet, everything so far counts as sent, and that is stored. Three requests, and one more for each 64 new
    entries.

    :param dry: write nothing.
    :raises UpgradeError: what :meth:`ConsulClient.write` raises.
    """
    key = store.keys.notified
    entry = store.client.get(key)
    sent = _decoded(entry)
    if sent is None:
        sent = rollout.everything_sent
        with contextlib.suppress(Conflict):
            # On a conflict, another run has stored it.
            if not dry:
                index = entry.modify_index if entry is not None else 0
                store.client.write([compare_and_put(key, _encoded(sent), index)])
        return sent
    entries = _entries(store, rollout, sent)
    kept = caught_up(rollout.ledger, entries)
    if len(kept) == len(entries):
        return sent
    if not kept:
        return rollout.everything_sent
    passed_over = entries[: -len(kept)]
    has_other = any(one.get("what") in BEGINNINGS and not is_job(one.get("version")) for one in passed_over)
    # A job does not end the rollout before it, whose failures were sent if that had a hook.
    before = (rollout.everything_sent if has_other else sent).of_versions
    return SentNotifications(int(kept[0]["epoch"]) - 1, before=before)


def read_sent(store: Store) -> SentNotifications | None:
    """Return what was sent so far; None if that was never stored or can't be read. One request.

    :raises UpgradeError: what :meth:`ConsulClient.get` raises.
    """
    return _decoded(store.client.get(store.keys.notified))


class SentKey:
    """The key that stores what was sent, and its lock. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        """Keep the store."""
        self._store = store
        self._key = store.keys.notified
        self._over = runtime.event()
        self._session = ""
        self._index = 0
        self._holder: Mapping[str, Any] = {}

    def take(self, sent: SentNotifications) -> SentNotifications | None:
        """Lock the key; return what was sent so far, or None if another run has the lock and sends the notifications.

        :param sent: what counts as sent even if the key has less.
        :raises UpgradeError: what :meth:`ConsulClient.write` raises.
        """
        if not self._session:
            self._session = self._store.client.open_session(
                f"convoy.upgrade notifier of {current_user()}", SESSION_SECONDS, keeps_keys=True
            )
            runtime.start_thread(renew_session, self._store.settings, self._session, self._over)
        entry = self._store.client.get(self._key)
        found = _decoded(entry)
        found = sent if found is None or found.epoch < sent.epoch else found
        index = entry.modify_index if entry is not None else 0
        self._holder = asdict(LeaseHolder.of_this_process(self._session))
        text = _encoded(found, self._holder)
        try:
            self._write(compare(self._key, index), lock(self._key, text, self._session))
        except Conflict:
            end_dead_holder(self._store, entry)
            return None
        except UpgradeError as error:
            if "session" in error.message:
                # Consul has ended the session, such as after an outage. The next try opens another one.
                self._session = ""
                return None
            raise
        return found

    def is_held(self) -> bool:
        """Return whether this run still has the lock. One request.

        :raises UpgradeError: what :meth:`ConsulClient.confirm` raises.
        """
        try:
            self._store.client.confirm(check_lock(self._key, self._session))
        except Conflict:
            self._session = ""
            return False
        return True

    def note(self, sent: SentNotifications) -> bool:
        """Store what was sent; return False if this run has lost the lock.

        An earlier write of this run that arrives late changes nothing.

        :raises UpgradeError: what :meth:`ConsulClient.write` raises.
        """
        text = _encoded(sent, self._holder)
        while True:
            try:
                self._write(check_lock(self._key, self._session), compare_and_put(self._key, text, self._index))
            except Conflict:
                entry = self._store.client.get(self._key)
                if entry is None or not self.is_held():
                    self._session = ""
                    return False
                # An earlier write of this run has changed it: one whose answer was lost, or that has arrived late.
                self._index = entry.modify_index
                continue
            return True

    def _write(self, check: Operation, change: Operation) -> None:
        self._index = max(one["ModifyIndex"] for one in self._store.client.write([check, change]))

    def close(self) -> None:
        """End the session, and with it the lock."""
        self._over.set()
        if self._session:
            # Otherwise the session expires.
            with contextlib.suppress(UpgradeError):
                self._store.client.close_session(self._session)


def _encoded(sent: SentNotifications, more: Mapping[str, Any] | None = None) -> str:
    return json.dumps({**sent.plain(), **(more or {})}, sort_keys=True)


def _decoded(entry: KVEntry | None) -> SentNotifications | None:
    try:
        return SentNotifications.from_plain(sanitize_all(decode_data(entry.value))) if entry is not None else None
    except (ValueError, TypeError, KeyError):
        return None
