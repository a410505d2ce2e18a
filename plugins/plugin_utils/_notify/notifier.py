# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The notifier of a run: reads from Consul what happens to the rollout and calls the hook with each event."""

from __future__ import annotations

import threading
import time
import traceback

from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.watch import BlockingQueries, Watch
from ...module_utils._host_states.states import BROKEN
from ...module_utils._observe.notifications import SentNotifications
from ...module_utils._queries.notifications import (
    RolloutView,
    SentKey,
    initial_state,
    new_notifications,
    read_rollout,
    read_sent,
)
from ...module_utils._state.legacy_keys import LegacyKeys
from ...module_utils._state.store import Store
from .messages import StartNotifier

# Time passes without a change in Consul, and with it soaks and deadlines (seconds).
_LONGEST_SILENCE = 5.0
# A read of the fleet costs time in proportion to its hosts: at most one in so many seconds, and a tenth of the time.
_LEAST_PAUSE = 0.2
_SHARE = 10
# How long an ended run waits for another one, which holds the lock, to send what is left (seconds).
_FOR_ANOTHER = 60.0


class Notifier:
    """Calls the hook of one run, until the run has ended and every event is sent.

    :param queries: the blocking queries of this process.
    :raises UpgradeError: what :func:`read_rollout` and :func:`initial_state` raise.
    """

    def __init__(self, start: StartNotifier, queries: BlockingQueries | None = None) -> None:
        """Read what has happened so far: only what comes later is an event."""
        self._start = start
        self._store = Store(start.settings)
        self._warnings: list[str] = []
        self._over = threading.Event()
        self._memory = SentKey(self._store)
        self._is_ours = False
        # How long a read takes (seconds).
        self._cost = 0.0
        keys = self._store.keys
        folders = (keys.upgrade, keys.reports, LegacyKeys(keys.prefix).reports, keys.gates, keys.current_version)
        self._watch = Watch(start.settings, folders, queries)
        sight = read_rollout(self._store, start.fleet)
        records = sight.view.snapshot.records
        # Broken hosts that this run retries -> the attempt of each so far.
        self._retried = {
            host: records[host].attempt
            for host, view in sight.hosts.items()
            if start.retry_failed and view.state in BROKEN and host in records
        }
        self._told = initial_state(self._store, sight)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> tuple[str, ...]:
        """Send what is left, and return the warnings of the whole run, each once."""
        self._over.set()
        self._watch.wake()
        self._thread.join()
        return tuple(dict.fromkeys(self._warnings))

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:
            traceback.print_exc()
            self._warnings.append(f"The notifier of this run failed, and sends no further event: {error!r}.")

    def _send_all(self) -> None:
        give_up: float | None = None
        while True:
            mark, began = self._watch.mark(), time.monotonic()
            ending = self._over.is_set()
            if ending and give_up is None:
                give_up = began + _FOR_ANOTHER
            try:
                is_sent = self._send_new()
            except UpgradeError as error:
                is_sent = False
                if ending:
                    self._warnings.append(f"The last events of the rollout were not sent: {error.message}")
                    break
            if ending and is_sent:
                break
            if give_up is not None and time.monotonic() > give_up:
                self._warnings.append(
                    f"The last events were left to another run, which holds {self._store.keys.notified} in Consul."
                )
                break
            self._pause(mark, began)
        self._memory.close()

    def _pause(self, mark: int, began: float) -> None:
        """Wait for a change, or for the end of the run."""
        self._watch.wait(mark, _LONGEST_SILENCE)
        # One read covers all changes that arrive meanwhile.
        self._over.wait(max(0.0, began + max(_LEAST_PAUSE, self._cost * _SHARE) - time.monotonic()))

    def _send_new(self) -> bool:
        """Send the new events; return whether none is left."""
        began = time.monotonic()
        sight = read_rollout(self._store, self._start.fleet)
        self._cost = time.monotonic() - began
        if not self._is_ours:
            found = self._memory.take(self._told)
            self._is_ours = found is not None
            self._told = found or self._newest_sent()
        told = self._without_retried(sight, self._told)
        notifications, after = new_notifications(self._store, sight, told)
        if not self._is_ours:
            return not notifications
        hook = self._start.hook
        for notification in notifications:
            event = sight.payload(notification)
            why = hook.call(event)
            if why is not None:
                self._warnings.append(
                    f"{hook.file} was called with the event {notification.event} of {event['at']}, and failed: "
                    f"{why.rstrip('.')}. The rollout goes on, and this event is not sent again. Fix the file."
                )
            self._note(notification.after)
            if not self._is_ours:
                # The run that holds the lock now sends the rest.
                return False
        if after != self._told:
            self._note(after)
        return self._is_ours

    def _newest_sent(self) -> SentNotifications:
        """Return what the run that holds the lock has sent."""
        found = read_sent(self._store)
        return self._told if found is None or found.epoch < self._told.epoch else found

    def _note(self, told: SentNotifications) -> None:
        self._told = told
        self._is_ours = self._is_ours and self._memory.note(told)

    def _without_retried(self, sight: RolloutView, told: SentNotifications) -> SentNotifications:
        """Return what was sent, without the hosts that this run has retried since then."""
        records = sight.view.snapshot.records
        again = {host for host, attempt in self._retried.items() if host in records and records[host].attempt > attempt}
        for host in again:
            del self._retried[host]
        return told.without(again) if again else told
