# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that only root can change: the commands of a node, their schemas, and the keys that may sign jobs."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Optional

from ..machine import ownership
from ..machine.errors import sanitize
from .refusals import Refused


def refuse_untrusted_folder(folder: Path) -> None:
    """Refuse a folder that another user could change, or replace by changing a folder above it.

    A folder above may be one such as ``/tmp``, in which others create files but replace none of root.

    :raises Refused: also if it is missing.
    """
    for path in dict.fromkeys((folder, Path(os.path.realpath(folder)))):
        for one in (*reversed(path.parents), path):
            problem = _problem(one, is_link_well=True)
            if problem is not None and not (one != path and _is_shared(one)):
                raise Refused(f"{sanitize(str(folder))} can't be trusted: {problem}")


def read_trusted(path: Path, most: int) -> bytes:
    """Return the content of a file in a folder that was checked with :func:`refuse_untrusted_folder`.

    :param most: the most bytes that it may have.
    :raises Refused: if another user could change it, or it is a link, is no regular file, is larger, or can't be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(_problem(path) or f"{sanitize(str(path))} can't be read: {error.strerror}.") from None
    try:
        facts = os.fstat(file)
        problem = ownership.problem_of(path, facts) or (None if stat.S_ISREG(facts.st_mode) else _not_regular(path))
        if problem is None and facts.st_size > most:
            problem = f"{sanitize(str(path))} has more than {most} bytes. Make it shorter."
        if problem is not None:
            raise Refused(problem)
        content = b""
        while len(content) <= most and (piece := os.read(file, most + 1 - len(content))):
            content += piece
        return content[:most]
    except OSError as error:
        raise Refused(f"{sanitize(str(path))} can't be read: {error.strerror}.") from None
    finally:
        os.close(file)


def refuse_untrusted_program(path: Path) -> None:
    """Refuse a program that another user could change, that is a link, or that can't be executed.

    :param path: a path in a folder that was checked with :func:`refuse_untrusted_folder`.
    :raises Refused: also if it is missing.
    """
    problem = _problem(path)
    if problem is None:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            problem = _not_regular(path)
        elif not mode & stat.S_IXUSR:
            problem = f"{sanitize(str(path))} is not executable. Run chmod 755 {sanitize(str(path))}"
    if problem is not None:
        raise Refused(problem)


def _problem(path: Path, is_link_well: bool = False) -> Optional[str]:
    """Return why a path can't be trusted; None if it can.

    :param is_link_well: whether it may be a symbolic link of a trusted owner. The mode of a link means nothing.
    """
    try:
        facts = path.lstat()
    except OSError as error:
        return f"{sanitize(str(path))} can't be read: {error.strerror}."
    if stat.S_ISLNK(facts.st_mode):
        if not is_link_well:
            return f"{sanitize(str(path))} is a symbolic link. Put the file itself there."
        if facts.st_uid in ownership.owners():
            return None
    return ownership.problem_of(path, facts)


def _is_shared(path: Path) -> bool:
    """Return whether a folder of a trusted owner has the sticky bit, so that users can replace only what belongs to them."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and bool(facts.st_mode & stat.S_ISVTX) and facts.st_uid in ownership.owners()


def _not_regular(path: Path) -> str:
    return f"{sanitize(str(path))} is not a regular file. Put the file itself there."
