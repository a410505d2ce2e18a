# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in the place of time, threading, random and uuid in the collection's modules while a world runs.

Outside of a world, and in whatever runs it, they do what the real modules do.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from types import ModuleType
from typing import Any

from .world import TIMED_OUT, Process, Wait, World

# All nights begin at the same noon, because windows of rules name days of the week.
BEGIN = datetime(2026, 3, 4, 12, tzinfo=timezone.utc).timestamp()

_worlds: list[World] = []


def enter(world: World) -> None:
    """Let modules use a world from now on."""
    _worlds[:] = [world]


def leave() -> None:
    """Let modules use the real time again."""
    _worlds.clear()


def current() -> tuple[World, Process] | None:
    """Return the world and the process that asks, None outside of a simulated process."""
    if not _worlds:
        return None
    process = _worlds[0].current
    return None if process is None else (_worlds[0], process)


class _StandIn:
    """Has all that a module has, and replaces some of it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Time(_StandIn):
    @staticmethod
    def time() -> float:
        found = current()
        if found is None:
            return BEGIN + _worlds[0].now if _worlds else time.time()
        return BEGIN + found[0].now + found[1].ahead

    @staticmethod
    def monotonic() -> float:
        return _worlds[0].now if _worlds else time.monotonic()

    @staticmethod
    def thread_time() -> float:
        # What is computed takes no time in a world.
        return 0.0 if _worlds else time.thread_time()

    @staticmethod
    def sleep(seconds: float) -> None:
        found = current()
        if found is None:
            time.sleep(seconds)
        else:
            found[0].wait(seconds)


class _Random(_StandIn):
    @staticmethod
    def uniform(least: float, most: float) -> float:
        found = current()
        return random.uniform(least, most) if found is None else found[0].chance.uniform(least, most)


class _Uuid(_StandIn):
    @staticmethod
    def uuid4() -> uuid.UUID:
        found = current()
        return uuid.uuid4() if found is None else uuid.UUID(int=found[0].chance.getrandbits(128), version=4)


class _Lock:
    """A lock between simulated threads; the same thread may take it again if it is reentrant."""

    def __init__(self, *, reentrant: bool = False) -> None:
        self._reentrant = reentrant
        self._owner: Any = None
        self._depth = 0
        self._waiting: list[Wait] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        found = current()
        if found is None:
            return True
        world = found[0]
        me = world.new_wait()
        if self._owner is me.thread and self._reentrant:
            self._depth += 1
            return True
        until = None if timeout < 0 else world.now + timeout
        while self._owner is not None:
            # The process of the owner may have been killed; such a lock is of that process too.
            left = None if until is None else until - world.now
            if not blocking or (left is not None and left <= 0):
                return False
            wait = world.new_wait()
            self._waiting.append(wait)
            world.wait_on(wait, left)
        self._owner, self._depth = me.thread, 1
        return True

    def release(self) -> None:
        if current() is None:
            return
        self._depth -= 1
        if not self._depth:
            self._owner = None
            waiting, self._waiting = self._waiting, []
            for wait in waiting:
                _wake(wait, True)

    def release_fully(self) -> int:
        """Release a reentrant lock however often it was taken, and return how often it was."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_again(self, depth: int) -> None:
        """Take a lock as often as it was taken before."""
        self.acquire()
        self._depth = depth

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class _Condition:
    """A condition between simulated threads."""

    def __init__(self, lock: _Lock | None = None) -> None:
        self._lock = lock if lock is not None else _Lock(reentrant=True)
        self._waiting: list[Wait] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def acquire(self, *given: Any) -> bool:
        return self._lock.acquire(*given)

    def release(self) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        found = current()
        if found is None:
            raise TypeError("Only a simulated thread can wait.")
        wait = found[0].new_wait()
        self._waiting.append(wait)
        depth = self._lock.release_fully()
        value = found[0].wait_on(wait, timeout)
        self._lock.take_again(depth)
        return value is not TIMED_OUT

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else _Time.monotonic() + timeout
        found = predicate()
        while not found:
            left = None if until is None else until - _Time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
            found = predicate()
        return found

    def notify(self, count: int = 1) -> None:
        waiting, self._waiting = self._waiting[:count], self._waiting[count:]
        for wait in waiting:
            _wake(wait, True)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class _Event:
    """An event between simulated threads."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Wait] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for wait in waiting:
            _wake(wait, True)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        found = current()
        if found is not None and not self._is_set:
            wait = found[0].new_wait()
            self._waiting.append(wait)
            found[0].wait_on(wait, timeout)
        return self._is_set


class _SimulatedThread:
    """What a simulated process starts as a thread."""

    def __init__(self, process: Process, target: Callable[..., Any], args: Iterable[Any]) -> None:
        self._process = process
        self._act = lambda: target(*args)

    def start(self) -> None:
        self._process.start_thread(self._act)


class _Threading(_StandIn):
    @staticmethod
    def Lock() -> Any:
        return threading.Lock() if current() is None else _Lock()

    @staticmethod
    def RLock() -> Any:
        return threading.RLock() if current() is None else _Lock(reentrant=True)

    @staticmethod
    def Condition(lock: Any = None) -> Any:
        return threading.Condition(lock) if current() is None else _Condition(lock)

    @staticmethod
    def Event() -> Any:
        return threading.Event() if current() is None else _Event()

    @staticmethod
    def Thread(*, target: Callable[..., Any], args: Iterable[Any] = (), daemon: bool = True) -> Any:
        found = current()
        if found is None:
            return threading.Thread(target=target, args=tuple(args), daemon=daemon)
        return _SimulatedThread(found[1], target, args)


def _wake(wait: Wait, value: Any) -> None:
    wait.thread.process.world.wake(wait, value)


_STAND_INS: dict[ModuleType, _StandIn] = {
    time: _Time(time),
    threading: _Threading(threading),
    random: _Random(random),
    uuid: _Uuid(uuid),
}


def install(prefixes: tuple[str, ...]) -> None:
    """Put the stand-ins into all imported modules whose names begin with one of the prefixes."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(prefixes) or name.startswith(__package__ or "simulation"):
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, ModuleType) and value in _STAND_INS:
                setattr(module, attribute, _STAND_INS[value])
