# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that others read while they are written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from .errors import UpgradeError

# Readable for whoever collects it.
_MODE = 0o644


def read_text(path: str, option: str) -> str:
    """Return what is in the file now, nothing where there is none.

    :param option: that named it, for the message.
    :raises UpgradeError: ``bad_folder``, ``bad_metrics_file``, also where no file could be written there.
    """
    file = Path(path)
    try:
        if not file.parent.is_dir():
            raise _bad(path, option, f"{file.parent} is no folder; make it, or correct the path")
        if file.exists() and not file.is_file():
            raise _bad(path, option, "there is something that is no file; give the path of a file")
        if not os.access(file.parent, os.W_OK):
            raise _bad(path, option, f"this user may not write in {file.parent}; run it as one who may")
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    except OSError as error:
        raise _bad(path, option, error.strerror or str(error)) from error


def write_atomically(path: str, text: str, option: str) -> None:
    """Write the file so that whoever reads it sees the old one or the new one, whole.

    :param option: as for :func:`read_text`.
    :raises UpgradeError: ``bad_folder``, ``bad_metrics_file``.
    """
    file = Path(path)
    new = None
    try:
        # The collector takes what ends in .prom, so the file must not be called so before it is whole.
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
        "bad_folder" if option == "folder" else "bad_metrics_file",
        f"{option}: {path} can't be written: {why}.",
        path=path,
    )
