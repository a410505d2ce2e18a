# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a world gives the collection in the place of time, threads and chance, and what stands in the place of the modules time and
threading in the actors of the fire tests.

Outside of a world, and in whatever runs it, both do what is real.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from types import ModuleType
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common import processes, runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._host import leases
from ansible_collections.convoy.upgrade.plugins.module_utils._queries import notifications

from . import caches
from .world import TIMED_OUT, Process, Thread, Wait, World

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


class SimulatedRuntime(runtime.Runtime):
    """The time, threads and chance of the world of the process that asks."""

    def now(self) -> float:
        found = current()
        if found is None:
            return BEGIN + _worlds[0].now if _worlds else super().now()
        return BEGIN + found[0].now + found[1].ahead

    def monotonic(self) -> float:
        return _worlds[0].now if _worlds else super().monotonic()

    def since_boot(self) -> float:
        return self.monotonic()

    def processor_seconds(self) -> float:
        # What is computed takes no time in a world.
        return 0.0 if _worlds else super().processor_seconds()

    def sleep(self, seconds: float) -> None:
        found = current()
        if found is None:
            super().sleep(seconds)
        else:
            found[0].wait(seconds)

    def uniform(self, least: float, most: float) -> float:
        found = current()
        return super().uniform(least, most) if found is None else found[0].chance.uniform(least, most)

    def random_bytes(self, count: int) -> bytes:
        found = current()
        return super().random_bytes(count) if found is None else found[0].chance.randbytes(count)

    def lock(self) -> Any:
        return super().lock() if current() is None else _Lock()

    def rlock(self) -> Any:
        return super().rlock() if current() is None else _Lock(reentrant=True)

    def condition(self, lock: Any = None) -> Any:
        return super().condition(lock) if current() is None else _Condition(lock)

    def event(self) -> Any:
        return super().event() if current() is None else _Event()

    def start_thread(self, act: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        found = current()
        if found is None:
            return super().start_thread(act, arguments)
        return _Joinable(found[1].start_thread(lambda: act(*arguments)))


class _Joinable:
    """A simulated thread for which others can wait."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def is_alive(self) -> bool:
        return self._thread.is_alive

    def join(self, timeout: float | None = None) -> None:
        until = None if timeout is None else _RUNTIME.monotonic() + timeout
        while self._thread.is_alive and (until is None or _RUNTIME.monotonic() < until):
            _RUNTIME.sleep(0.01)


_RUNTIME = SimulatedRuntime()
runtime.use(_RUNTIME)


class _StandIn:
    """Has all that a module has, and replaces some of it."""

    def __init__(self, module: ModuleType, **instead: Any) -> None:
        self._module = module
        self.__dict__.update(instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _thread(*, target: Callable[..., Any], args: tuple[Any, ...] = (), daemon: bool = True) -> Any:
    if current() is None:
        return threading.Thread(target=target, args=args, daemon=daemon)
    return _Startable(target, args)


class _Startable:
    """A simulated thread that is not started yet."""

    def __init__(self, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.start = lambda: _RUNTIME.start_thread(target, arguments)


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
        until = None if timeout is None else _RUNTIME.monotonic() + timeout
        found = predicate()
        while not found:
            left = None if until is None else until - _RUNTIME.monotonic()
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


def _wake(wait: Wait, value: Any) -> None:
    wait.thread.process.world.wake(wait, value)


_STAND_INS: dict[ModuleType, _StandIn] = {
    time: _StandIn(time, time=_RUNTIME.now, monotonic=_RUNTIME.monotonic, sleep=_RUNTIME.sleep),
    threading: _StandIn(threading, Condition=_RUNTIME.condition, Thread=_thread),
}


def _start_ticks(pid: int) -> int | None:
    found = current()
    return processes.start_ticks(pid) if found is None else found[0].started.get(pid)


def _boot_id() -> str:
    found = current()
    return processes.boot_id() if found is None else found[1].machine


def _getpid() -> int:
    found = current()
    return os.getpid() if found is None else found[1].pid


def install() -> None:
    """Put the stand-ins into all imported modules of the fire tests, and what else is of a process into those that ask for it."""
    for module in (leases, notifications):
        vars(module).update(start_ticks=_start_ticks, boot_id=_boot_id, os=_StandIn(os, getpid=_getpid))
    caches.install()
    for name, module in list(sys.modules.items()):
        if not name.startswith("fire."):
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, ModuleType) and value in _STAND_INS:
                setattr(module, attribute, _STAND_INS[value])
