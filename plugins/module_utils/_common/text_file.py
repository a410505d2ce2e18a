# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text files that are replaced as a whole, so that a reader never sees a part of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from .errors import UpgradeError

# Collectors of metrics run as other users.
_MODE = 0o644


def read_text(path: str, option: str) -> str:
    """Return the content of a file that is to be written; empty if it does not exist.

    :param option: the option that names the file, for the message.
    :raises UpgradeError: ``bad_folder`` or ``bad_metrics_file`` if it can't be read or written.
    """
    file = Path(path)
    try:
        if not file.parent.is_dir():
            raise _bad(path, option, f"{file.parent} is not a folder; create it, or correct the path")
        if file.exists() and not file.is_file():
            raise _bad(path, option, "it is not a regular file; give the path of a file")
        if not os.access(file.parent, os.W_OK):
            raise _bad(path, option, f"this user can't write in {file.parent}; run it as a user who can")
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    except OSError as error:
        raise _bad(path, option, error.strerror or str(error)) from error


def write_atomically(path: str, text: str, option: str) -> None:
    """Replace the file atomically: a reader sees all of the old content or all of the new.

    :param option: as for :func:`read_text`.
    :raises UpgradeError: ``bad_folder`` or ``bad_metrics_file`` if it can't be written.
    """
    file = Path(path)
    new = None
    try:
        # The collector reads all files that end in .prom, so the temporary file must not.
        handle, new = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".new", dir=file.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
            os.fchmod(opened.fileno(), _MODE)
        Path(new).replace(file)
    except OSError as error:
        if new is not None:
            with contextlib.suppress(OSError):
                Path(new).unlink()
        raise _bad(path, option, error.strerror or str(error)) from error


def _bad(path: str, option: str, why: str) -> UpgradeError:
    return UpgradeError(
        "bad_metrics_file" if option == "metrics_file" else "bad_folder",
        f"{option}: {path} can't be written: {why}.",
        path=path,
    )
