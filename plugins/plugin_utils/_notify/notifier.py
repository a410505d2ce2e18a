# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The notifier of a run: reads the rollout from Consul and calls the hook with each event."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Unreachable
from ...module_utils._consul.watch import BlockingQueries, Watch
from ...module_utils._host_states.state_names import BROKEN
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
from .hook import NotSent
from .messages import StartNotifier
from .messenger import Messenger

# The rollout is read at least this often (seconds), because soaks and deadlines end without a change in Consul.
_LONGEST_WAIT = 5.0
# A read of a large fleet takes long. So there is at most one in so many seconds, and reads take at most a tenth of the processor and half of
# the time. Only the latter grows if others keep the machine busy.
_SHORTEST_PERIOD = 0.2
_PERIODS_PER_READ = 10
# How long a run waits at its end until another run that holds the lock has sent the last events (seconds).
_WAIT_FOR_HOLDER = 60.0


class Notifier:
    """Calls the hook of one run until the run has ended and every event is sent.

    :param queries: the blocking queries of this process.
    :param warn: is called with each warning; None to return them at the end.
    :raises UpgradeError: what :func:`read_rollout` and :func:`initial_state` raise.
    """

    def __init__(
        self, start: StartNotifier, queries: BlockingQueries | None = None, warn: Callable[[str], None] | None = None
    ) -> None:
        """Read the current state. Only later changes are events."""
        self._start = start
        self._store = Store(start.settings)
        self._warnings: list[str] = []
        self._warn = warn or self._warnings.append
        self._wait_for_holder = _WAIT_FOR_HOLDER
        self._over = runtime.event()
        self._sent_key = SentKey(self._store)
        self._has_lock = False
        # Whether Consul has what was sent: its answer to that may have been lost.
        self._is_stored = True
        self._of_job: bool | None = None
        self._period = _SHORTEST_PERIOD
        keys = self._store.keys
        folders = (keys.upgrade, keys.reports, LegacyKeys(keys.prefix).reports, keys.gates, keys.current_version)
        self._watch = Watch(start.settings, folders, queries)
        rollout = read_rollout(self._store, start.fleet)
        records = rollout.view.snapshot.records
        # Broken hosts that this run retries -> the attempt of each so far.
        self._retried = {
            host: records[host].attempt
            for host, view in rollout.hosts.items()
            if start.retry_failed and view.state in BROKEN and host in records
        }
        self._sent = initial_state(self._store, rollout)
        self._thread = runtime.start_thread(self._run)

    def wait(self) -> None:
        """Wait for its end: after :meth:`finish`, or because it failed."""
        self._thread.join()

    def finish(self, wait_for_holder: float = _WAIT_FOR_HOLDER, most_seconds: float | None = None) -> tuple[str, ...]:
        """Send the remaining events, and return the warnings of the whole run, each once.

        :param wait_for_holder: how long to wait until another run that holds the lock has sent them (seconds).
        :param most_seconds: how long to wait in all; None for as long as it takes.
        """
        self._wait_for_holder = wait_for_holder
        self._over.set()
        self._watch.wake()
        self._thread.join(most_seconds)
        return tuple(dict.fromkeys(self._warnings))

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:
            traceback.print_exc()
            self._warn(f"The notifier of this run failed and sends no further events: {error!r}.")
        finally:
            self._watch.close()
            # With the lock, no other run and no later notifier of this process could send them.
            self._sent_key.close()
        if self._over.is_set():
            # What slow targets have not got yet would end with this process.
            self._warn_of_late_targets(at_end=True)

    def _send_all(self) -> None:
        give_up: float | None = None
        warned = ""
        while True:
            mark, began = self._watch.mark(), runtime.monotonic()
            self._warn_of_late_targets()
            ending = self._over.is_set()
            if ending and give_up is None:
                give_up = began + self._wait_for_holder
            try:
                is_sent = self._send_new()
            except UpgradeError as error:
                is_sent = False
                if ending:
                    self._warn(f"The last events of the rollout were not sent: {error.message}")
                    break
                # Who plans says that Consul can't be reached.
                if not isinstance(error, Unreachable) and error.message != warned:
                    warned = error.message
                    self._warn(
                        f"No event is sent at present: {warned} The next try is made within {_LONGEST_WAIT:.0f} s."
                    )
            else:
                warned = ""
            if ending and is_sent:
                break
            if give_up is not None and runtime.monotonic() > give_up:
                self._warn(
                    f"Another run, which holds the lock {self._store.keys.notified} in Consul, has to send the last events."
                )
                break
            self._pause(mark, began)

    def _pause(self, mark: int, began: float) -> None:
        """Wait for a change or the end of the run."""
        self._watch.wait(mark, _LONGEST_WAIT)
        # One read covers all changes that arrive meanwhile.
        self._over.wait(max(0.0, began + self._period - runtime.monotonic()))

    def _send_new(self) -> bool:
        """Send the new events; return whether all are sent."""
        # Before the rollout is read, because what another run has sent since then would be taken for that of a time before a restore.
        self._take_lock()
        began, busy = runtime.monotonic(), runtime.processor_seconds()
        rollout = read_rollout(self._store, self._start.fleet, self._of_job)
        self._period = max(
            _SHORTEST_PERIOD,
            (runtime.processor_seconds() - busy) * _PERIODS_PER_READ,
            (runtime.monotonic() - began) * 2,
        )
        self._of_job = rollout.reads_job(self._sent)
        sent = self._without_retried(rollout, self._sent)
        notifications, after = new_notifications(self._store, rollout, sent)
        if not self._has_lock:
            if after.epoch < self._sent.epoch:
                # Consul was restored to an earlier time.
                self._sent = after
            return not notifications
        hook = self._start.hook
        for notification in notifications:
            # After a pause of this process or an outage, another run may have it, and have sent this event.
            self._has_lock = self._sent_key.is_held()
            if not self._has_lock:
                return False
            event = rollout.payload(notification)
            failed = hook.call(event)
            if failed is not None:
                self._warn_not_sent(event, failed)
            self._store_sent(notification.after)
            if not self._has_lock:
                # The run that holds the lock now sends the remaining events.
                return False
        if after != self._sent:
            self._store_sent(after)
        self._of_job = rollout.reads_job(after)
        return self._has_lock

    def _take_lock(self) -> None:
        """Take the lock if no other run has it, and learn or store what was sent."""
        if not self._has_lock:
            found = self._sent_key.take(self._sent)
            self._has_lock = found is not None
            self._sent = found or self._newest_sent()
            self._is_stored = True
        elif not self._is_stored:
            # If this process died after the next event, another run would send both again.
            self._store_sent(self._sent)

    def _warn_of_late_targets(self, *, at_end: bool = False) -> None:
        """Warn of events that slow targets did not get.

        :param at_end: whether to wait until each target has answered, or its time for the event is over.
        """
        hook = self._start.hook
        if isinstance(hook, Messenger):
            for event, failed in hook.late(hook.patience if at_end else 0.0):
                self._warn_not_sent(event, failed)

    def _warn_not_sent(self, event: Mapping[str, Any], failed: NotSent) -> None:
        self._warn(
            f"{self._start.hook.file} was called with the event {event['event']} of {event['at']}, and failed: "
            f"{failed.why.rstrip('.')}. The rollout continues, but this event is not sent again. {failed.remedy}"
        )

    def _newest_sent(self) -> SentNotifications:
        """Return the notifications that the run with the lock has sent."""
        found = read_sent(self._store)
        return self._sent if found is None or found.epoch < self._sent.epoch else found

    def _store_sent(self, sent: SentNotifications) -> None:
        self._sent, self._is_stored = sent, False
        self._has_lock = self._has_lock and self._sent_key.note(sent)
        self._is_stored = True

    def _without_retried(self, rollout: RolloutView, sent: SentNotifications) -> SentNotifications:
        """Return the sent notifications without the hosts that this run has retried since then."""
        records = rollout.view.snapshot.records
        retried = {
            host for host, attempt in self._retried.items() if host in records and records[host].attempt > attempt
        }
        for host in retried:
            del self._retried[host]
        return sent.without(retried) if retried else sent
