# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to Consul for the threads of a driver."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ...module_utils._consul.errors import Conflict, Unreachable
from ...module_utils._consul.settings import Settings
from ...module_utils._state.store import Store

T = TypeVar("T")

_LONGEST_PAUSE = 5.0
_MOST_CONFLICTS = 200


class StorePool:
    """Lends stores, one to each thread that asks.

    :param patience: seconds for which a Consul that is away is tried again.
    """

    def __init__(self, settings: Settings, patience: float = 120.0) -> None:
        """Begin with none."""
        self.settings = settings
        self._patience = patience
        self._idle: queue.LifoQueue[Store] = queue.LifoQueue()

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        """Lend a store."""
        try:
            store = self._idle.get_nowait()
        except queue.Empty:
            store = Store(self.settings)
        yield store
        self._idle.put(store)

    def with_retries(self, act: Callable[[Store], T]) -> T:
        """Do something that begins by reading, again and again while Consul is away or others write in between.

        :raises Unreachable: when the patience is at its end.
        :raises Conflict: if others are always faster.
        """
        conflicts = 0
        until = time.monotonic() + self._patience
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
                if time.monotonic() + pause > until:
                    raise
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
