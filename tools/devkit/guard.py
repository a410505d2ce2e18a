# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run something so that nothing it started outlives it, however it ends.

Ansible, Consul and the tests start processes in sessions of their own, and a ``kill -9`` leaves no time to stop them.
The guard is a process between the one that was started and the one that works: the kernel makes it the parent of all
orphans (``PR_SET_CHILD_SUBREAPER``), so it finds and kills every descendant as soon as either of the two has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
# Guards are not killed by other guards: they have to finish what they are there for.
NAME = "convoy-guard"
_SECONDS = 60
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_guarded(act: Callable[[], int], *folders: Path) -> int:
    """Run a function in a process of its own, then kill all that it started.

    :param act: returns an exit code.
    :param folders: to be removed at the end.
    :returns: what ``act`` returned; 128 and the number of the signal where one ended it.
    """
    reading, writing = os.pipe()
    front = os.getpgrp()
    sys.stdout.flush()
    sys.stderr.flush()
    guard = os.fork()
    if not guard:
        os.close(writing)
        _be_guard(act, reading, front, folders)
    os.close(reading)

    def end(number: int, _frame: FrameType | None) -> None:
        for one in _ENDING:
            signal.signal(one, signal.SIG_IGN)
        # The guard reads the end of the pipe, and clears away.
        os.close(writing)
        os.waitpid(guard, 0)
        os._exit(128 + number)

    for number in _ENDING:
        signal.signal(number, end)
    # A make that was killed does not end what it has started.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _pid, status = os.waitpid(guard, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def take_guards_name() -> None:
    """Call this process a guard, so that no other guard kills it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME.encode())


def _be_guard(act: Callable[[], int], reading: int, front: int, folders: tuple[Path, ...]) -> None:
    """Start the worker, wait for its end or that of the front, and clear away."""
    code = 1
    try:
        take_guards_name()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # A group of its own, so that neither Ctrl-C nor the killing of the front's group ends it.
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, lambda *_arguments: None)
        wake, written = os.pipe()
        for one in (wake, written):
            os.set_blocking(one, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        worker = os.fork()
        if not worker:
            _work(act, front)
        code = _wait(worker, reading, wake)
        _kill_all()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(code)


def _work(act: Callable[[], int], front: int) -> None:
    """Be the worker: act, and end with the code that this gives."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"python")
        # Where the front is: it may have the terminal, and Ctrl-C is for this one too.
        with contextlib.suppress(OSError):
            os.setpgid(0, front)
        code = act()
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(worker: int, reading: int, wake: int) -> int:
    """Return the code of the worker, or 130 where the front has gone."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while True:
                found, status = os.waitpid(-1, os.WNOHANG)
                if not found:
                    break
                if found == worker:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
        ready, _writable, _errors = select.select([reading, wake], [], [])
        if reading in ready:
            return 130
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)


def _kill_all() -> None:
    """Kill all descendants but guards and what these have started, and wait until all are gone."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        for number in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


def _descendants(top: int) -> list[int]:
    """Return the processes below one, without guards and what is below them."""
    found: list[int] = []
    left = _children(top)
    while left:
        number = left.pop()
        with contextlib.suppress(OSError):
            if Path(f"/proc/{number}/comm").read_text().strip() != NAME:
                found.append(number)
                left += _children(number)
    return found


def _children(number: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{number}/task").iterdir():
            with contextlib.suppress(OSError):
                children += map(int, (thread / "children").read_text().split())
    return children
