# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stores for threads that work at the same time, and requests that are tried again."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from .._common import runtime
from .._consul.errors import Conflict, Unreachable
from .._consul.settings import Settings
from .store import Store

T = TypeVar("T")

_LONGEST_PAUSE = 5.0
_MOST_CONFLICTS = 200


class StorePool:
    """A pool of stores. Each thread borrows one for each use.

    :param is_job: whether the stores use the keys of the job.
    :param retry_timeout: seconds for which requests are retried while Consul can't be reached.
    """

    def __init__(self, settings: Settings, *, is_job: bool = False, retry_timeout: float = 120.0) -> None:
        """Start with an empty pool."""
        self.settings = settings
        self._is_job = is_job
        self._retry_timeout = retry_timeout
        self._idle: queue.LifoQueue[Store] = queue.LifoQueue()

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        """Lend a store, a new one if none is idle."""
        try:
            store = self._idle.get_nowait()
        except queue.Empty:
            store = Store(self.settings)
            store.keys = replace(store.keys, is_job=self._is_job)
        yield store
        self._idle.put(store)

    def close(self) -> None:
        """Close the connections of idle stores."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().client.close()

    def with_retries(self, act: Callable[[Store], T]) -> T:
        """Return the result of a function that reads before it writes. Call it again on conflicts and while Consul can't be reached.

        :raises Unreachable: if Consul can't be reached for ``retry_timeout`` seconds.
        :raises Conflict: after 200 conflicts.
        """
        conflicts = 0
        until = runtime.monotonic() + self._retry_timeout
        pause = 0.1
        while True:
            try:
                with self.store() as store:
                    return act(store)
            except Conflict:
                conflicts += 1
                if conflicts > _MOST_CONFLICTS:
                    raise
            except Unreachable:
                if runtime.monotonic() + pause > until:
                    raise
                runtime.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
