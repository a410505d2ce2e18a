# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lock on a node that lasts from one task of a run to another, and no longer than the run.

A small process holds it (flock) and watches the process that stands for the run. When that is gone, however it went,
the holder goes too, and the kernel frees the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._common.errors import UpgradeError
from .._common.processes import close_files_except, start_ticks, wait_for_exit
from .._common.sanitize import sanitize, truncate_middle
from .lock_file import open_lock_file

_SECONDS_TO_GO = 2.0


@dataclass(frozen=True)
class LockHolder:
    """Who has a lock.

    :param who: for people.
    :param since: unix seconds.
    :param pid: the process that holds it.
    :param started: when that process started, in the kernel's ticks: a number that is used again is not the same.
    :param run: which run it holds it for.
    """

    who: str
    since: int
    pid: int
    started: int
    run: str

    @property
    def lives(self) -> bool:
        """Whether the process that is named is there."""
        return start_ticks(self.pid) == self.started


@dataclass(frozen=True)
class LockRequest:
    """What a run says when it wants a lock.

    :param run: the same in all of the run's tasks, and no other run's.
    :param process: the process with which the run ends; None if there is none that can be watched.
    :param lease: seconds for which the lock lasts after that process, or from now on where there is none.
    """

    run: str
    who: str
    process: int | None
    lease: float


def acquire_lock(path: str, claim: LockRequest, *, dry: bool = False) -> tuple[bool, LockHolder | None]:
    """Take a lock; return whether the run has it now, and who has it, as far as that is known.

    A lock that the run has already stays as it is.

    :param dry: only tell whether it could be taken.
    :raises UpgradeError: ``bad_lock_file``.
    """
    if dry and not os.path.lexists(path):
        return True, None
    with open_lock_file(path, "path") as file:
        if not _locked(file):
            holder = _holder(file)
            return holder is not None and holder.run == claim.run, holder
        if dry:
            return True, None
        pid = _hold(file, claim)
        holder = LockHolder(claim.who, int(time.time()), pid, start_ticks(pid) or 0, claim.run)
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(asdict(holder)).encode(), 0)
        return True, holder


def release_lock(path: str, run: str) -> bool:
    """Free a lock, if this run has it; return whether it had.

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
        until = time.monotonic() + _SECONDS_TO_GO
        while not _locked(file):
            if time.monotonic() > until:
                raise UpgradeError(
                    "bad_lock_file", f"{path} is still held by process {holder.pid}, which does not end."
                )
            time.sleep(0.01)
        return True


def _locked(file: int) -> bool:
    """Try to lock an open file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: int) -> LockHolder | None:
    """Return who holds a file; None in the moment before that is written down, and where it does not say."""
    try:
        found: dict[str, Any] = json.loads(os.pread(file, 4096, 0))
        holder = LockHolder(**found)
    except (ValueError, TypeError, RecursionError):
        return None
    if [type(value) for value in asdict(holder).values()] != [str, int, int, int, str]:
        return None
    # Text from a file is shown to operators.
    holder = replace(holder, who=truncate_middle(sanitize(holder.who)))
    return holder if holder.pid > 1 and holder.lives else None


def _hold(file: int, claim: LockRequest) -> int:
    """Start the process that holds a locked file; return its number."""
    watched = None if claim.process is None else (claim.process, start_ticks(claim.process))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Twice, so that the holder is no one's child and leaves no zombie.
        try:
            os.setsid()
            holder = os.fork()
            if holder == 0:
                close_files_except(file)
                _watch(watched, claim.lease)
            else:
                os.write(writing, str(holder).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        return int(told.read())


def _watch(watched: tuple[int, int | None] | None, lease: float) -> None:
    """Return when the lock is to be freed."""
    if watched is not None:
        pid, started = watched
        if started is not None and start_ticks(pid) == started:
            wait_for_exit(pid, started)
    time.sleep(lease)
