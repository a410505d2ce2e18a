# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for changes for as long as a process lives, on one connection for each folder.

Consul goes on with a blocking query after the one who asked has hung up, and counts its connection until then; it takes
200 of one address (``limits.http_max_conns_per_client``). So a query is never given up here: it is asked again when it
has been answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from .._common.errors import UpgradeError
from .client import ConsulClient
from .settings import Settings

# The longest that one question takes (seconds).
_LONGEST = 60.0
_PAUSE = 1.0


class Watch:
    """Watches folders and keys.

    :param prefixes: what to watch.
    """

    def __init__(self, settings: Settings, prefixes: Sequence[str]) -> None:
        """Begin with nothing: the first question is asked when somebody waits."""
        self._settings = settings
        self._prefixes = prefixes
        self._changed = threading.Condition()
        self._count = 0
        self._started = False
        self._over = threading.Event()

    def mark(self) -> int:
        """Return where the watch is. Taken before something is read, it makes sure that no later change is missed."""
        with self._changed:
            if not self._started:
                self._started = True
                for prefix in self._prefixes:
                    threading.Thread(target=self._watch, args=(prefix,), daemon=True).start()
            return self._count

    def wait(self, mark: int, seconds: float) -> bool:
        """Return as soon as anything has changed since a mark, or after ``seconds``; return whether it has.

        A Consul that goes away or refuses is a change too: who looks again is told what is wrong.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._count > mark, seconds)

    def wake(self) -> None:
        """End all waiting, as a change would."""
        self._tell()

    def close(self) -> None:
        """Ask nothing more. What has been asked ends with its answer, and its connection with that."""
        self._over.set()

    def _watch(self, prefix: str) -> None:
        client = ConsulClient(self._settings)
        index, filled = 0, True
        while not self._over.is_set():
            try:
                found, is_filled = client.wait_for_change_below(prefix, index, _LONGEST)
            except UpgradeError:
                self._tell()
                client = ConsulClient(self._settings)
                time.sleep(_PAUSE)
                continue
            # What was empty and is, has not changed, whatever its index says.
            if found != index and (filled or is_filled):
                self._tell()
            # An index that went back is one of a Consul that was restored; the next question begins again.
            index, filled = (found if found >= index else 0), is_filled

    def _tell(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
