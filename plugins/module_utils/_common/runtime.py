# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time, threads, randomness and IDs. All other code of the collection gets them here, so that a simulation can replace them."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any


class Runtime:
    """The real time and real threads. A simulation replaces it by a subclass with :func:`use`."""

    def now(self) -> float:
        """Return unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds of a clock that no one sets."""
        return time.monotonic()

    def since_boot(self) -> float:
        """Return seconds of a clock that no one sets, and that goes on while the machine is suspended, where there is one."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return self.monotonic() if clock is None else time.clock_gettime(clock)

    def processor_seconds(self) -> float:
        """Return how long this thread has used the processor."""
        return time.thread_time()

    def sleep(self, seconds: float) -> None:
        """Let this thread wait."""
        time.sleep(seconds)

    def uniform(self, least: float, most: float) -> float:
        """Return a random number between two numbers."""
        return random.uniform(least, most)

    def random_bytes(self, count: int) -> bytes:
        """Return random bytes, which no one can guess."""
        return os.urandom(count)

    def lock(self) -> threading.Lock:
        """Return a lock."""
        return threading.Lock()

    def rlock(self) -> threading.RLock:
        """Return a lock that its thread may take again."""
        return threading.RLock()

    def condition(self, lock: threading.RLock | None = None) -> threading.Condition:
        """Return a condition; with a lock, one that uses it."""
        return threading.Condition(lock)

    def event(self) -> threading.Event:
        """Return an event."""
        return threading.Event()

    def start_thread(self, act: Callable[..., Any], arguments: tuple[Any, ...]) -> Thread:
        """Start a thread that does not keep the process from ending."""
        thread = Thread(target=act, args=arguments, daemon=True)
        thread.start()
        return thread


Event = threading.Event
Thread = threading.Thread
_runtime = Runtime()


def use(runtime: Runtime) -> Runtime:
    """Use another runtime in this process from now on; return the one before."""
    global _runtime
    before, _runtime = _runtime, runtime
    return before


def now() -> float:
    """Return unix seconds."""
    return _runtime.now()


def monotonic() -> float:
    """Return seconds of a clock that no one sets, for durations and deadlines."""
    return _runtime.monotonic()


def since_boot() -> float:
    """Return seconds of a clock that no one sets, and that goes on while the machine is suspended, for the age of what was read."""
    return _runtime.since_boot()


def seconds_until(at: float | None, known_at: float, read_at: float) -> float:
    """Return how long it is until a time that was computed earlier; infinity for None.

    The clock may have been set back since then, and the monotonic one stands still while the machine is suspended. So the first of both counts.

    :param at: unix seconds.
    :param known_at: what :func:`now` returned when it was computed, and ``read_at`` what :func:`monotonic` did.
    """
    if at is None:
        return math.inf
    return min(at - now(), at - known_at - (monotonic() - read_at))


def processor_seconds() -> float:
    """Return how long this thread has used the processor."""
    return _runtime.processor_seconds()


def sleep(seconds: float) -> None:
    """Let this thread wait."""
    _runtime.sleep(seconds)


def uniform(least: float, most: float) -> float:
    """Return a random number between two numbers, for jitter."""
    return _runtime.uniform(least, most)


def new_id() -> str:
    """Return an ID that no other process has: 32 hexadecimal digits."""
    return _runtime.random_bytes(16).hex()


def lock() -> threading.Lock:
    """Return a lock."""
    return _runtime.lock()


def rlock() -> threading.RLock:
    """Return a lock that its thread may take again."""
    return _runtime.rlock()


def condition(lock: threading.RLock | None = None) -> threading.Condition:
    """Return a condition.

    :param lock: the lock that it uses; None for one of its own.
    """
    return _runtime.condition(lock)


def event() -> threading.Event:
    """Return an event."""
    return _runtime.event()


def start_thread(act: Callable[..., Any], *arguments: Any) -> Thread:
    """Start a thread that does not keep the process from ending."""
    return _runtime.start_thread(act, arguments)


def current_thread() -> Thread:
    """Return the thread that calls."""
    return threading.current_thread()
