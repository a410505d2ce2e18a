# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated time, and processes with threads in it. One seed decides the order of everything, so a night can be repeated exactly.

A thread is a greenlet, and runs until it waits. So nothing happens between two of its waits, and what a process computes takes no time.
"""

from __future__ import annotations

import heapq
import random
import traceback
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

_MACHINES = 2
# What a wait returns whose time was over.
TIMED_OUT = object()


class Wait:
    """A thread that waits."""

    __slots__ = ("is_over", "thread")

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.is_over = False


class Thread(greenlet):
    """A thread of a simulated process."""

    def __init__(self, process: Process, act: Callable[[], Any]) -> None:
        super().__init__(self._run, process.world.hub)
        self.process = process
        self._act = act

    @property
    def is_alive(self) -> bool:
        """Whether it may still go on."""
        return not self.dead and self in self.process._threads

    def _run(self, _nothing: Any = None) -> None:
        try:
            self._act()
        except GreenletExit:
            return
        except BaseException as error:
            self.process.fail(error)
        else:
            self.process.forget(self)


class Process:
    """A simulated process.

    :param ahead: by how much its clock is ahead (seconds).
    :param machine: where it runs. Those on the same machine see whether it is alive.
    :param pid: that of its last start; 0 before the first one.
    :param error: what it ended with, None while it runs or if it ended well.
    :param stopped_at: when it was stopped last (seconds of the world), ``went_on_at`` when it went on after that.
    """

    def __init__(self, world: World, name: str) -> None:
        """Remember it; :meth:`start` starts it."""
        self.world = world
        self.name = name
        self.ahead = 0.0
        self.machine = f"machine{world.chance.randrange(_MACHINES)}"
        self.pid = 0
        self.is_alive = False
        self.error: BaseException | None = None
        self.stack = ""
        self.stopped_at = self.went_on_at = float("-inf")
        self._is_stopped = False
        self._kept: list[tuple[Wait, Any]] = []
        # In the order of their starts; those that have ended are left out.
        self._threads: dict[Thread, None] = {}

    def start(self, act: Callable[[], Any]) -> None:
        """Start it with a function, whose end is the end of the process."""
        self.is_alive, self.error, self._is_stopped = True, None, False
        self.pid = self.world.new_pid()

        def run() -> None:
            act()
            self.kill()

        self.start_thread(run)

    def start_thread(self, act: Callable[[], Any]) -> Thread:
        """Start one more thread."""
        thread = Thread(self, act)
        self._threads[thread] = None
        # It is kept until the world ends, as the end of a greenlet runs what stands in its finally.
        self.world.threads.append(thread)
        self.world.wake(Wait(thread), None)
        return thread

    def kill(self) -> None:
        """End it at once: none of its threads goes on."""
        self.is_alive = False
        self.world.started.pop(self.pid, None)
        self._threads, self._kept = {}, []

    def fail(self, error: BaseException) -> None:
        """End it by an error in one of its threads."""
        self.error = error
        self.world.failed.append(self)
        self.stack = traceback.format_exc()
        self.kill()

    def stop(self) -> None:
        """Stop it as by SIGSTOP, until :meth:`go_on`."""
        self._is_stopped = True
        self.stopped_at = self.world.now

    def go_on(self) -> None:
        """Let it go on."""
        if self._is_stopped:
            self.went_on_at = self.world.now
        self._is_stopped = False
        for wait, value in self._kept:
            self.world.wake(wait, value)
        self._kept = []

    def forget(self, thread: Thread) -> None:
        """Forget a thread that has ended."""
        self._threads.pop(thread, None)

    def takes(self, wait: Wait, value: Any) -> bool:
        """Return whether a thread of it can go on now. If the process is stopped, it goes on later."""
        if not self.is_alive or wait.thread not in self._threads:
            return False
        if self._is_stopped:
            self._kept.append((wait, value))
            return False
        return True

    def stacks(self) -> str:
        """Return where each thread is."""
        found = []
        for thread in self._threads:
            if thread.gr_frame is not None:
                found.append("".join(traceback.format_stack(thread.gr_frame)))
        return "\n".join(found)


class World:
    """A simulated world.

    :param seed: decides all chances.
    :param now: the seconds since its beginning.
    :param started: PID of each process that is alive -> when it was started, in some ticks.
    :param failed: the processes that an error has ended, whether or not they were started again.
    :param threads: all that were ever started.
    """

    def __init__(self, seed: str) -> None:
        """Begin at 0 s."""
        self.chance = random.Random(seed)
        self.now = 0.0
        self.hub = getcurrent()
        self._queue: list[tuple[float, float, int, Wait | None, Any]] = []
        self._count = 0
        self._is_over = False
        self.steps = 0
        self.started: dict[int, int] = {}
        self.failed: list[Process] = []
        self.threads: list[Thread] = []
        self._pids = 0

    def new_pid(self) -> int:
        """Return the PID of a process that is started now."""
        self._pids += 1
        self.started[self._pids] = 100 * self._pids
        return self._pids

    @property
    def current(self) -> Process | None:
        """The process of the current thread; None outside of all processes."""
        thread = getcurrent()
        return thread.process if isinstance(thread, Thread) else None

    def wait(self, seconds: float | None) -> Any:
        """Let the current thread wait for some seconds, or without an end; return what :meth:`wake` gives or TIMED_OUT."""
        return self.wait_on(self.new_wait(), seconds)

    def new_wait(self) -> Wait:
        """Return a wait of the current thread, for others to end."""
        thread = getcurrent()
        if not isinstance(thread, Thread):
            raise TypeError("Only a simulated thread can wait.")
        return Wait(thread)

    def wait_on(self, wait: Wait, seconds: float | None) -> Any:
        """Let the current thread wait until :meth:`wake` ends this wait, at most for some seconds."""
        if self._is_over:
            # The end of the world runs what stands in the finally of its threads.
            raise GreenletExit
        if seconds is not None:
            self._push(self.now + max(0.0, seconds), wait, TIMED_OUT)
        return self.hub.switch()

    def wake(self, wait: Wait, value: Any, after: float = 0.0) -> None:
        """End a wait, now or after some seconds. The first to do so counts."""
        self._push(self.now + after, wait, value)

    def call(self, act: Callable[[], Any], after: float) -> None:
        """Call a function after some seconds, as the network or a server does: no process's end prevents it."""
        self._push(self.now + after, None, act)

    def run(self, until: float, is_done: Callable[[], bool]) -> None:
        """Let time pass until some time, or until it is done."""
        queue = self._queue
        while queue and queue[0][0] <= until and not is_done():
            at, _chance, _count, wait, value = heapq.heappop(queue)
            self.now = max(self.now, at)
            self.steps += 1
            if wait is None:
                value()
            elif not wait.is_over and wait.thread.process.takes(wait, value):
                wait.is_over = True
                wait.thread.switch(value)
        if not is_done():
            self.now = max(self.now, until)

    def end(self) -> None:
        """End the world, and all of its threads: none can wait any more.

        Python can't collect a greenlet that waits, nor anything that it knows, so each has to come to its end.
        """
        self._is_over = True
        self._queue.clear()
        threads, self.threads = self.threads, []
        for thread in threads:
            if not thread.dead:
                thread.throw()

    def _push(self, at: float, wait: Wait | None, value: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at, self.chance.random(), self._count, wait, value))
