# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of this node's locks, in directories that no other user can write.

In a directory that all users can write, such as ``/run/lock``, any user could hold a lock forever, or write to its file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .._common.errors import UpgradeError

# It belongs to root, is gone after a reboot, and is created when a lock is first needed.
FOLDER = "/run/convoy"


@contextlib.contextmanager
def open_lock_file(path: str, option: str = "") -> Iterator[int]:
    """Yield the open file of a lock. The file and its directory are created if they are missing.

    :param option: the option that the path is from, for messages.
    :raises UpgradeError: ``bad_lock_file`` if it can't be opened, or another user could write or replace it.
    """
    name = f"{option}: {path}" if option else path
    folder = Path(path).absolute().parent
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o755)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _refuse_others(name, f"its directory {folder}", os.fstat(directory))
            # Relative to the directory that was checked, even if the path has been replaced since.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(Path(path).name, flags, 0o600, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise UpgradeError(
            "bad_lock_file",
            f"{name} can't be opened: {error.strerror}. It has to be a file that this user can write, in a directory of this user "
            "or root, and not a link. Run the task as root (become: true).",
        ) from error
    try:
        about = os.fstat(file)
        _refuse_others(name, "the file", about)
        if not stat.S_ISREG(about.st_mode):
            raise UpgradeError("bad_lock_file", f"{name} is not a regular file. Remove it, or give another path.")
        yield file
    finally:
        os.close(file)


def _refuse_others(name: str, what: str, about: os.stat_result) -> None:
    """Raise an error if a file or directory belongs to, or can be written by, a user other than this one and root."""
    if about.st_uid in (0, os.geteuid()) and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    raise UpgradeError(
        "bad_lock_file",
        f"{name} can't be trusted: {what} (owner {about.st_uid}, mode {stat.S_IMODE(about.st_mode):04o}) can be written by other users, "
        f"so any of them could hold the lock forever. Give a path in a directory that only this user or root can write, such as {FOLDER}.",
    )
