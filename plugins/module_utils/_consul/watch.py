# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for changes during the whole life of a process, with one connection for each folder.

Consul goes on with a blocking query after its client has disconnected, and counts the connection until then. It accepts 200
connections from one address (``limits.http_max_conns_per_client``). So a query is never cancelled here; the next one is sent
after the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from .._common.errors import UpgradeError
from .client import ConsulClient
from .settings import Settings

# The longest that one blocking query waits (seconds).
_LONGEST = 60.0
_PAUSE = 1.0


class Watch:
    """Watches folders and keys for changes.

    :param prefixes: what to watch.
    """

    def __init__(self, settings: Settings, prefixes: Sequence[str]) -> None:
        """Prepare the watch; the first query is sent by :meth:`mark`."""
        self._settings = settings
        self._prefixes = prefixes
        self._changed = threading.Condition()
        self._count = 0
        self._started = False
        self._over = threading.Event()

    def mark(self) -> int:
        """Return the number of changes so far. Call it before a read, so that :meth:`wait` misses no later change."""
        with self._changed:
            if not self._started:
                self._started = True
                for prefix in self._prefixes:
                    threading.Thread(target=self._watch, args=(prefix,), daemon=True).start()
            return self._count

    def wait(self, mark: int, seconds: float) -> bool:
        """Wait for a change since a mark, at most for ``seconds``; return whether there is one.

        A failed query counts as a change, so that the caller reads again and gets the error.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._count > mark, seconds)

    def wake(self) -> None:
        """End all waits, as a change does."""
        self._count_change()

    def close(self) -> None:
        """Send no more queries. Those under way end with their answers."""
        self._over.set()

    def _watch(self, prefix: str) -> None:
        client = ConsulClient(self._settings)
        index, filled = 0, True
        while not self._over.is_set():
            try:
                found, is_filled = client.wait_for_change_below(prefix, index, _LONGEST)
            except UpgradeError:
                self._count_change()
                client = ConsulClient(self._settings)
                time.sleep(_PAUSE)
                continue
            # The index of an empty folder changes with every write to any key.
            if found != index and (filled or is_filled):
                self._count_change()
            # The index goes back when Consul is restored from a snapshot; then the next query starts over.
            index, filled = (found if found >= index else 0), is_filled

    def _count_change(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
