# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow the rollout in the daemon, for the live view of ansible-playbook."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.settings import Settings
from ...module_utils._consul.watch import BlockingQueries
from ...module_utils._observe.progress import RolloutProgress
from ...module_utils._queries.follow import ProgressUpdate, follow
from .._observe.view_messages import FollowProgress, ViewEnd, ViewUpdate, WaitUntilShown
from .._observe.view_updates import ViewUpdates, sanitized_progress

# How long a task waits for the first drawing, so that lines are not shown twice (seconds).
_FIRST_DRAWING = 3.0


class ProgressFeed:
    """Sends the view an update for each change of the rollout.

    :param queries: returns the blocking queries of this process for the settings of a Consul.
    """

    def __init__(self, queries: Callable[[Settings], BlockingQueries]) -> None:
        """Keep the function."""
        self._queries = queries
        self._changed = runtime.condition()
        # Held while an update is sent, until the view has shown it.
        self._sending = runtime.lock()
        self._view: Connection | None = None
        self._is_following = False
        self._is_shown = False
        # The newest index that is shown. That of the end does not count, as the view has shown it only once nothing is followed any more.
        self._index = 0
        self._end: RolloutProgress | None = None

    def attach(self, view: Connection) -> None:
        """Answer `AttachView`: send updates to this view until it closes the connection."""
        with self._changed:
            self._view, self._is_shown = view, False

    def is_shown(self) -> bool:
        """Return whether the view shows the rollout, also after its end."""
        with self._changed:
            return self._view is not None and self._is_shown

    def follow(self, message: FollowProgress) -> bool:
        """Answer `FollowProgress`."""
        with self._changed:
            if self._view is None:
                return False
            if not self._is_following:
                # If this attempt fails, tasks show their lines again.
                self._is_following, self._is_shown, self._end = True, False, None
                runtime.start_thread(self._follow, message)
            self._changed.wait_for(lambda: self._is_shown or not self._is_following, _FIRST_DRAWING)
            return self._is_shown

    def wait_until_shown(self, message: WaitUntilShown) -> None:
        """Answer `WaitUntilShown`."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._is_shown or not self._is_following or self._index >= message.index, message.seconds
            )

    def wait_for_end(self) -> RolloutProgress | None:
        """Answer `WaitForEnd`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_following)
            return self._end

    def _follow(self, message: FollowProgress) -> None:
        last: RolloutProgress | None = None
        updates = ViewUpdates(message.lines, message.states)
        try:
            reads = follow(
                message.settings,
                message.fleet,
                queries=self._queries(message.settings),
                until_hosts_finish=message.until_hosts_finish,
            )
            for update in reads:
                if isinstance(update, ProgressUpdate):
                    if last is None and message.version and update.progress.version != message.version:
                        return
                    last = update.progress
                elif last is None:
                    return
                if update is None:
                    if self._view is None:
                        return
                elif not self._send(updates.update(update)):
                    return
            if last is not None and self._send(ViewEnd(sanitized_progress(last))):
                self._end = last
        except UpgradeError as error:
            self._send(ViewEnd(why=f"The live view failed, but the rollout continues: {error.message}"))
        except Exception:
            # The error can be reported only in the log of the daemon.
            traceback.print_exc()
            self._send(ViewEnd(why="The live view failed. The rollout continues."))
        finally:
            with self._changed:
                self._is_following = False
                self._is_shown = self._is_shown and self._end is not None
                self._changed.notify_all()

    def _send(self, update: ViewUpdate | ViewEnd) -> bool:
        """Send the view an update, and return whether it has shown it."""
        view = self._view
        try:
            if view is None:
                return False
            with self._sending:
                view.send(update)
                view.recv()
        except (OSError, EOFError):
            with self._changed:
                if self._view is view:
                    self._view = None
            return False
        with self._changed:
            if isinstance(update, ViewUpdate) and update.progress is not None:
                self._is_shown = True
                if not update.progress.over:
                    self._index = max(self._index, update.index)
            self._changed.notify_all()
        return True
