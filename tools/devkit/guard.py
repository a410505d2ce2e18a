# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a function and kill all processes that it started, however it ends.

Ansible, Consul and the tests start processes in their own sessions, and after a ``kill -9`` the parent can't stop them.
The guard is a process between the front process and the worker. The kernel makes it the parent of all orphans
(``PR_SET_CHILD_SUBREAPER``), so it finds and kills every descendant when the front process or the worker ends.
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
# A guard does not kill other guards, because they must kill their own descendants.
NAME = "convoy-guard"
# In the environment: the PID of the process that started the run, and whose end ends it.
PARENT = "CONVOY_TEST_PARENT"
_SECONDS = 60
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_guarded(act: Callable[[], int], *folders: Path) -> int:
    """Run a function in a separate process, then kill all processes that it started.

    :param act: returns an exit code.
    :param folders: folders to remove at the end.
    :returns: the exit code; 128 plus the signal number if a signal ended the process.
    """
    # Processes that are started here have other parents.
    parent = int(os.environ.pop(PARENT, os.getppid()))
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
        # The guard notices the closed pipe, and cleans up.
        os.close(writing)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(guard, 0)
        os._exit(128 + number)

    for number in _ENDING:
        signal.signal(number, end)
    # If make is killed, it does not stop its children.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.stderr.write("The process that started this one has ended, so this one ends too.\n")
        os.kill(os.getpid(), signal.SIGTERM)
    _pid, status = os.waitpid(guard, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def take_guards_name() -> None:
    """Set the process name by which other guards recognize this one."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME.encode())


def _be_guard(act: Callable[[], int], reading: int, front: int, folders: tuple[Path, ...]) -> None:
    """Start the worker, wait for its end or that of the front process, and clean up."""
    code = 1
    try:
        take_guards_name()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # A separate process group, so that neither Ctrl-C nor a signal to the group of the front process ends the guard.
        os.setpgid(0, 0)
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
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
    """Run the function in the worker process, and exit with its code."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"python")
        # The group of the front process, so that the worker can use the terminal and gets Ctrl-C.
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
    """Return the exit code of the worker, or 130 if the front process ended first."""
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
    """Kill all descendants except other guards and their descendants, and wait for their end."""
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
    """Return the descendants of a process, without guards and their descendants."""
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
