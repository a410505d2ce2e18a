# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The notifier of a run: a process of its own that reads what happens from Consul and calls the hook, until all is told."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.processes import close_files_except, start_ticks, wait_for_exit
from ...module_utils._consul.settings import Settings
from ...module_utils._consul.watch import Watch
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
from .._push.daemon import detached
from .hook import Hook
from .run_watch import END, WARNINGS

LOG = "log"

# Time passes without a word from Consul, and with it soaks and deadlines (seconds).
_LONGEST_SILENCE = 5.0
# As many looks as these let, and they take a tenth of the time at most: see _ops/follow.py.
_LEAST_PAUSE = 0.2
_SHARE = 10
# A run that has ended waits so long for another one, which has the lock, to tell what is left (seconds).
_FOR_ANOTHER = 60.0


@dataclass(frozen=True, slots=True)
class Notifier:
    """What a notifier is told of its run when it starts.

    :param folder: its own, which is gone when the run is.
    :param fleet: host -> role.
    :param retried: broken hosts that this run tries again -> the attempt of each so far: failing again is news.
    """

    settings: Settings
    folder: str
    hook: Hook
    fleet: Mapping[str, str]
    retried: Mapping[str, int]


def start(notifier: Notifier, sight: RolloutView, process: int) -> int:
    """Start a run's notifier, which knows from then on what is news; return its process.

    :param sight: what there was before the run did anything.
    :param process: the process with which the run ends.
    :raises UpgradeError: what :func:`initial_state` raises.
    """
    told = initial_state(Store(notifier.settings), sight)
    os.mkfifo(Path(notifier.folder) / END, 0o600)
    reading, writing = os.pipe()
    detached(lambda: _live(notifier, told, process, writing))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return int(pipe.read() or 0)


def _live(notifier: Notifier, told: SentNotifications, process: int, telling: int) -> None:
    started = start_ticks(process)
    log = os.open(Path(notifier.folder) / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    close_files_except(telling, log)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
    # Opened here, so that there is a reader when this process is known.
    end = os.open(Path(notifier.folder) / END, os.O_RDONLY | os.O_NONBLOCK)
    os.write(telling, str(os.getpid()).encode())
    os.close(telling)
    sender = NotificationSender(notifier, told)
    sender.end_when(lambda: wait_for_exit(process, started or 0))
    sender.end_when(lambda: _wait_for_word(end))
    try:
        sender.tell()
    except BaseException:
        # The log is all that is left to say it in.
        traceback.print_exc()


def _wait_for_word(end: int) -> None:
    """Return when somebody has opened the pipe for writing and closed it."""
    poll = select.poll()
    poll.register(end, select.POLLIN | select.POLLHUP)
    poll.poll()


class NotificationSender:
    """Tells what there is to tell until the run is over and nothing is left."""

    def __init__(self, notifier: Notifier, told: SentNotifications) -> None:
        """Prepare it.

        :param told: what was told when the run began.
        """
        self._notifier = notifier
        self._store = Store(notifier.settings)
        self._told = told
        self._over = threading.Event()
        self._memory = SentKey(self._store)
        self._is_ours = False
        # Of a look, in seconds.
        self._cost = 0.0
        self._retried = dict(notifier.retried)
        keys = self._store.keys
        folders = (keys.upgrade, keys.reports, LegacyKeys(keys.prefix).reports, keys.gates, keys.current_version)
        self._watch = Watch(notifier.settings, folders)

    def end_when(self, act: Callable[[], object]) -> None:
        """Take the run to be over once ``act`` returns."""

        def wait() -> None:
            act()
            self._over.set()
            self._watch.wake()

        threading.Thread(target=wait, daemon=True).start()

    def tell(self) -> None:
        """Tell it."""
        give_up: float | None = None
        while True:
            mark, began = self._watch.mark(), time.monotonic()
            ending = self._over.is_set()
            if ending and give_up is None:
                give_up = began + _FOR_ANOTHER
            try:
                is_shown = self._look()
            except UpgradeError as error:
                is_shown = False
                if ending:
                    self._warn(f"What is left to be told of the rollout was not: {error.message}")
                    break
            if ending and is_shown:
                break
            if give_up is not None and time.monotonic() > give_up:
                self._warn(
                    f"What is left to be told was left to another run, which has {self._store.keys.notified} in Consul."
                )
                break
            self._pause(mark, began)
        self._memory.close()

    def _pause(self, mark: int, began: float) -> None:
        """Wait for news, or for the end of the run."""
        self._watch.wait(mark, _LONGEST_SILENCE)
        # What comes in meanwhile is seen in one look.
        self._over.wait(max(0.0, began + max(_LEAST_PAUSE, self._cost * _SHARE) - time.monotonic()))

    def _look(self) -> bool:
        """Tell what is new; return whether nothing is left."""
        began = time.monotonic()
        sight = read_rollout(self._store, self._notifier.fleet)
        self._cost = time.monotonic() - began
        if not self._is_ours:
            found = self._memory.take(self._told)
            self._is_ours = found is not None
            self._told = found or self._newest_told()
        told = self._without_retried(sight, self._told)
        notifications, after = new_notifications(self._store, sight, told)
        if not self._is_ours:
            return not notifications
        for notification in notifications:
            event = sight.payload(notification)
            why = self._notifier.hook.call(event)
            if why is not None:
                self._warn(
                    f"{self._notifier.hook.file} was called with the event {notification.event} of {event['at']}, and failed: "
                    f"{why.rstrip('.')}. The rollout goes on, and this event is not told again. Fix the file."
                )
            self._note(notification.after)
            if not self._is_ours:
                # Whoever has the lock now tells the rest.
                return False
        if after != self._told:
            self._note(after)
        return self._is_ours

    def _newest_told(self) -> SentNotifications:
        """Return what was told by the run that has the lock."""
        found = read_sent(self._store)
        return self._told if found is None or found.epoch < self._told.epoch else found

    def _note(self, told: SentNotifications) -> None:
        self._told = told
        self._is_ours = self._is_ours and self._memory.note(told)

    def _without_retried(self, sight: RolloutView, told: SentNotifications) -> SentNotifications:
        """Return what was told, without the hosts that this run has tried again since then."""
        records = sight.view.snapshot.records
        again = {host for host, attempt in self._retried.items() if host in records and records[host].attempt > attempt}
        for host in again:
            del self._retried[host]
        return told.without(again) if again else told

    def _warn(self, text: str) -> None:
        # Where the run was killed, its folder is gone, and no one is left to be warned.
        with contextlib.suppress(OSError), (Path(self._notifier.folder) / WARNINGS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(text) + "\n")
