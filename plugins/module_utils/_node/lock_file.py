# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of this node's locks, in directories into which no other user can write.

In a directory that everybody may write, such as ``/run/lock``, anybody could take a lock for ever, or put text into its file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .._common.errors import UpgradeError

# Root's own. It goes with each boot, and is made by whoever needs it first.
FOLDER = "/run/convoy"


@contextlib.contextmanager
def open_lock_file(path: str, option: str = "") -> Iterator[int]:
    """Give the open file of a lock. It is made where it is missing, and so is its directory.

    :param option: the name of the option that the path is from, for messages.
    :raises UpgradeError: ``bad_lock_file``: it can't be opened, or another user could write it or replace it.
    """
    shown = f"{option}: {path}" if option else path
    folder = Path(path).absolute().parent
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o755)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _refuse_others(shown, f"its directory {folder}", os.fstat(directory))
            # Within the directory that was looked at, even if the path leads to another one by now.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(Path(path).name, flags, 0o600, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise UpgradeError(
            "bad_lock_file",
            f"{shown} can't be opened: {error.strerror}. It has to be a file that this user may write, in a directory of this user's "
            "or root's, no link. Run it as root (become: true).",
        ) from error
    try:
        about = os.fstat(file)
        _refuse_others(shown, "the file", about)
        if not stat.S_ISREG(about.st_mode):
            raise UpgradeError("bad_lock_file", f"{shown} is no file. Remove it, or give another path.")
        yield file
    finally:
        os.close(file)


def _refuse_others(shown: str, what: str, about: os.stat_result) -> None:
    """Refuse what belongs to another user than this one and root, or can be written by one."""
    if about.st_uid in (0, os.geteuid()) and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    raise UpgradeError(
        "bad_lock_file",
        f"{shown} can't be trusted: {what} (owner {about.st_uid}, mode {stat.S_IMODE(about.st_mode):04o}) can be written by other users, "
        f"so anybody could take the lock for ever. Give a path in a directory that only this user or root can write, such as {FOLDER}.",
    )
