# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of this node's locks, in folders that only root can change.

In a folder that other users can write, such as ``/run/lock``, any of them could hold a lock forever, or have root write to another file.
``plugins/module_utils/_node/lock_file.py`` refuses the same places for agent runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from .errors import LockError, sanitize
from .ownership import problem_of

# The option that the places of the node's locks come from.
_OPTION = "puppet_gate_lock_file"
_FOLDER = "/run/convoy"


def open_lock_file(path: Path) -> int:
    """Return the open file of a lock. The file and its folder are created if they are missing; its content stays.

    :raises LockError: if it can't be opened, or if another user could write or replace it.
    """
    name = sanitize(str(path))
    folder = open_lock_folder(path.absolute().parent)
    try:
        # Relative to the folder that was checked, even if the path has been replaced since. Not inherited by what runs meanwhile.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(path.name, flags, 0o600, dir_fd=folder)
    except OSError as error:
        raise _unusable(path, error) from error
    finally:
        os.close(folder)
    facts = os.fstat(file)
    problem = problem_of(path, facts)
    if problem is None and not stat.S_ISREG(facts.st_mode):
        problem = f"{name} is not a regular file. Run rm {name}"
    if problem is not None:
        os.close(file)
        raise LockError(f"The lock {name} can't be trusted: {problem}")
    return file


def wait_for_lock(file: int, seconds: float = 0.0, pause: float = 0.1) -> bool:
    """Lock an open file; return False if another process still has the lock after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
        else:
            return True


def is_locked(path: Path) -> bool:
    """Return whether a process has a lock now; False if there is no such file, or it can't be opened."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


@contextlib.contextmanager
def unlocked(path: Path) -> Iterator[bool]:
    """Yield whether no process has a lock; then none can take it meanwhile. A lock without a file is one that no process has had since the boot.

    The file is only read, because its folder may be read-only in the service.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    except OSError:
        yield False
        return
    try:
        yield wait_for_lock(file)
    finally:
        os.close(file)


def open_lock_folder(folder: Path) -> int:
    """Return the open folder of a lock, which is created if it is missing.

    :raises LockError: if it can't be opened, or if another user could change it.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755, parents=True)
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(folder, error) from error
    problem = _problem_of_folder(folder, os.fstat(found))
    if problem is not None:
        os.close(found)
        raise LockError(f"Locks in {sanitize(str(folder))} can't be trusted: {problem}")
    return found


def _problem_of_folder(folder: Path, facts: os.stat_result) -> Optional[str]:
    problem = problem_of(folder, facts)
    if problem is not None and facts.st_mode & stat.S_ISVTX:
        # A folder that is meant for all users stays as it is.
        return (
            f"it is a folder for all users, so that any of them could hold a lock forever. Set {_OPTION} to a path in a folder that only root "
            f"can write, such as {_FOLDER}/node.lock"
        )
    return f"{problem}, or set {_OPTION} to a path in {_FOLDER}" if problem is not None else None


def _unusable(path: Path, error: OSError) -> LockError:
    name = sanitize(str(path))
    if path.is_symlink():
        return LockError(f"The lock can't be opened: {name} is a symbolic link. Run rm {name}")
    return LockError(
        f"The lock can't be opened: {name}: {error.strerror}. Run convoy-node as root, and set {_OPTION} to a path that root can write, such "
        f"as {_FOLDER}/node.lock"
    )
