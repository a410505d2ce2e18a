# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lock on a node that lasts from one task of a run to another, and no longer than the run.

A small process holds the lock (flock) and watches a process of the run. When that has ended, in whatever way, the holder ends
too, and the kernel frees the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._common import runtime
from .._common.errors import UpgradeError
from .._common.processes import close_files_except, start_ticks, wait_for_exit
from .._common.sanitize import sanitize, truncate_middle
from .lock_file import open_lock_file

_SECONDS_TO_GO = 2.0


@dataclass(frozen=True)
class LockHolder:
    """The run that has a lock, as the lock's file says.

    :param who: a text for messages.
    :param since: unix seconds.
    :param pid: the process that holds the lock.
    :param started: when that process started, in clock ticks since boot, in case its PID is reused.
    :param run: the ID of the run.
    """

    who: str
    since: int
    pid: int
    started: int
    run: str

    @property
    def lives(self) -> bool:
        """Whether the process that holds the lock still runs."""
        return start_ticks(self.pid) == self.started


@dataclass(frozen=True)
class LockRequest:
    """A run's request for a lock.

    :param run: an ID that is the same in all tasks of the run, and that no other run has.
    :param who: a text for messages.
    :param process: the process with which the run ends; None if there is none that can be watched.
    :param lease: seconds for which the lock lasts after that process has ended, or from now on if there is none.
    """

    run: str
    who: str
    process: int | None
    lease: float


def acquire_lock(path: str, request: LockRequest, *, dry: bool = False) -> tuple[bool, LockHolder | None]:
    """Acquire a lock; return whether the run has it now, and its holder, if that is known.

    If the run already has the lock, nothing changes.

    :param dry: check mode: only find out whether it could be acquired.
    :raises UpgradeError: ``bad_lock_file``.
    """
    if dry and not os.path.lexists(path):
        return True, None
    with open_lock_file(path, "path") as file:
        if not _locked(file):
            holder = _holder(file)
            return holder is not None and holder.run == request.run, holder
        if dry:
            return True, None
        pid = _hold(file, request)
        holder = LockHolder(request.who, int(runtime.now()), pid, start_ticks(pid) or 0, request.run)
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(asdict(holder)).encode(), 0)
        return True, holder


def release_lock(path: str, run: str) -> bool:
    """Release a lock if this run has it; return whether it had.

    :raises UpgradeError: ``bad_lock_file``.
    """
    if not os.path.lexists(path):
        return False
    with open_lock_file(path, "path") as file:
        if _locked(file):
            return False
        holder = _holder(file)
        if holder is None or holder.run != run:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
        until = runtime.monotonic() + _SECONDS_TO_GO
        while not _locked(file):
            if runtime.monotonic() > until:
                raise UpgradeError(
                    "bad_lock_file",
                    f"{path} is still held by process {holder.pid}, which does not end. End it: kill -9 {holder.pid}",
                )
            runtime.sleep(0.01)
        return True


def _locked(file: int) -> bool:
    """Try to lock an open file; return whether it worked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: int) -> LockHolder | None:
    """Return the holder that a file names; None if it names none, as before it is written, or none that still runs."""
    try:
        found: dict[str, Any] = json.loads(os.pread(file, 4096, 0))
        holder = LockHolder(**found)
    except (ValueError, TypeError, RecursionError):
        return None
    if [type(value) for value in asdict(holder).values()] != [str, int, int, int, str]:
        return None
    # It is printed on operators' terminals.
    holder = replace(holder, who=truncate_middle(sanitize(holder.who)))
    return holder if holder.pid > 1 and holder.lives else None


def _hold(file: int, request: LockRequest) -> int:
    """Start the process that holds a locked file, and return its PID."""
    watched = None if request.process is None else (request.process, start_ticks(request.process))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Forked twice, so that init adopts the holder and it leaves no zombie.
        try:
            os.setsid()
            holder = os.fork()
            if holder == 0:
                close_files_except(file)
                _watch(watched, request.lease)
            else:
                os.write(writing, str(holder).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return int(pipe.read())


def _watch(watched: tuple[int, int | None] | None, lease: float) -> None:
    """Block until the lock has to be freed."""
    if watched is not None:
        pid, started = watched
        if started is not None and start_ticks(pid) == started:
            wait_for_exit(pid, started)
    runtime.sleep(lease)
