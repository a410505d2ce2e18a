# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a planner service does besides planning: the live page, the metrics, notifications, and silences of alerts. No failure of these delays a pass."""

from __future__ import annotations

import contextlib

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.sanitize import truncated_repr
from ...module_utils._common.text_file import read_text, write_atomically
from ...module_utils._consul.errors import Unreachable
from ...module_utils._consul.watch import BlockingQueries
from ...module_utils._queries.follow import ProgressUpdate, follow, read_progress
from ...module_utils._queries.metrics import metrics_text
from ...module_utils._state.store import Store
from .._notify.maintenance import Maintenance
from .._notify.messages import StartNotifier
from .._notify.notifier import Notifier
from .._pages.live_page import LivePage
from .log import WARNING, Log
from .settings import ServiceSettings

# The metrics are written at most this often after changes, and read from a part of the history each time (seconds).
_METRICS_EVERY = 15.0
# While nothing changes, they are written this often (seconds): an alert takes older ones for an outage.
_METRICS_REFRESH = 60.0
# What failed is tried again after this time (seconds).
_AGAIN = 15.0
# A service that is stopped waits so long for a notification that is under way (seconds). Without it, its lock expires.
_TO_SEND = 10.0


class Outputs:
    """Writes the page and the metrics, sends notifications and silences alerts, in threads of their own."""

    def __init__(self, settings: ServiceSettings, log: Log) -> None:
        """Start the threads that the settings need."""
        self._settings, self._log = settings, log
        self._closed = runtime.event()
        # Of both threads: a notifier may be made again many times.
        self._queries = BlockingQueries(settings.consul)
        self._page: LivePage | None = None
        self._notifier: Notifier | None = None
        self._page_due = 0.0
        self._metrics_at = float("-inf")
        self._written: ProgressUpdate | None = None
        self._writing = runtime.lock()
        self._maintenance = [
            Maintenance(one, lambda: read_progress(settings.consul, settings.fleet or None))
            for one in settings.monitoring
        ]
        if settings.page or settings.metrics_file or settings.monitoring:
            runtime.start_thread(self._write_all)
        if settings.messenger is not None:
            runtime.start_thread(self._notify)

    def close(self) -> None:
        """Say on the page that it is no longer updated, and let another service send the next notifications.

        Silences end by themselves, unless another service renews them.
        """
        self._closed.set()
        with self._writing, contextlib.suppress(UpgradeError):
            if self._page is not None:
                self._page.close()
        if self._notifier is not None:
            self._notifier.finish(wait_for_holder=0, most_seconds=_TO_SEND)

    def _write_all(self) -> None:
        consul = self._settings.consul
        while not self._closed.is_set():
            try:
                latest: ProgressUpdate | None = None
                # Without a rollout too: holds, failures, hosts that join, and hosts that are upgraded after an abort.
                for found in follow(consul, self._settings.fleet or None, queries=self._queries, endless=True):
                    with self._writing:
                        if self._closed.is_set():
                            return
                        latest = found if isinstance(found, ProgressUpdate) else latest
                        # First, because silences begin and end only by a fresh read.
                        for number, one in enumerate(self._maintenance):
                            one.update(found)
                            self._log.say_once(f"maintenance {number}", "maintenance", one.warning, WARNING)
                        is_new = self._open_page()
                        if self._page is not None:
                            self._page.update(latest if is_new and found is None else found)
                            self._log.say_once("page", "page", self._page.warning, WARNING)
                        if latest is not None and not isinstance(found, Unreachable):
                            self._write_metrics(latest)
                    if found is latest:
                        self._log.say_once("files", "", "")
            except Unreachable:
                # The planner says so.
                self._closed.wait(_AGAIN)
            except UpgradeError as error:
                self._log.say_once(
                    "files",
                    error.code,
                    f"The page, the metrics and silences are not up to date: {error.message}",
                    WARNING,
                )
                with self._writing:
                    if not self._closed.is_set():
                        self._open_page()
                        if self._page is not None:
                            self._page.update(error)
                        self._only_renew(error)
                self._closed.wait(_AGAIN)
            except Exception as fault:
                # Without this thread, silences would end during upgrades, and the page would show an old state.
                text = f"The page, the metrics and silences are not up to date: {_fault_text(fault)}"
                self._log.say_once("files", "fault", text, WARNING)
                self._only_renew(fault)
                self._closed.wait(_AGAIN)

    def _only_renew(self, error: Exception) -> None:
        """Let silences only be renewed until the fleet is read again. Another service may know of hosts that have begun since."""
        for one in self._maintenance:
            one.update(error)

    def _open_page(self) -> bool:
        """Open the page if there is none; return whether it was opened now. After an error, it is tried again from time to time."""
        if not self._settings.page or self._page is not None or runtime.monotonic() < self._page_due:
            return False
        try:
            self._page = LivePage(Store(self._settings.consul), self._settings.page)
        except UpgradeError as error:
            self._log.say_once("page", error.code, f"There is no page: {error.message}", WARNING)
            self._page_due = runtime.monotonic() + _AGAIN
        return self._page is not None

    def _write_metrics(self, latest: ProgressUpdate) -> None:
        """Write the metrics of the latest read: at once when a rollout begins or ends, soon after a change, else from time to time."""
        path, now = self._settings.metrics_file, runtime.monotonic()
        pause = _METRICS_EVERY if latest is not self._written else _METRICS_REFRESH
        is_other = self._written is None or _phase(latest) != _phase(self._written)
        if not path or (now < self._metrics_at + pause and not is_other):
            return
        self._metrics_at, self._written = now, latest
        try:
            read_text(path, "metrics_file")
            write_atomically(path, metrics_text(Store(self._settings.consul), latest.view), "metrics_file")
        except UpgradeError as error:
            self._log.say_once("metrics", error.code, f"The metrics are not up to date: {error.message}", WARNING)
        else:
            self._log.say_once("metrics", "", "")

    def _notify(self) -> None:
        messenger = self._settings.messenger
        while messenger is not None and not self._closed.is_set():
            start = StartNotifier(self._settings.consul, messenger, self._settings.fleet, retry_failed=False)
            try:
                self._notifier = Notifier(start, self._queries, self._warn)
            except Unreachable:
                # The planner says so.
                pass
            except UpgradeError as error:
                self._log.say_once("notify", error.code, f"No notification is sent: {error.message}", WARNING)
            except Exception as fault:
                self._log.say_once("notify", "fault", f"No notification is sent: {_fault_text(fault)}", WARNING)
            else:
                self._log.say_once("notify", "", "")
                self._notifier.wait()
            self._closed.wait(_AGAIN)

    def _warn(self, text: str) -> None:
        self._log.say("notification", text, WARNING)


def _phase(read: ProgressUpdate) -> tuple[str, bool]:
    """Return the target of a rollout, and whether it is over."""
    return read.progress.version, read.progress.over


def _fault_text(fault: Exception) -> str:
    """Return the type and the text of an unexpected error."""
    return f"{type(fault).__name__}: {truncated_repr(str(fault))}"
