# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder of a live page. One process writes it at a time; each file is replaced as a whole, and only if it has changed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.text_file import read_text, write_atomically

INDEX = "index.html"
# Page -> a text that differs for each of its contents. Scripts load a page again when that changes. Besides, what all pages show: when they
# were written, whether they are no longer updated, and the error of the last read.
CHANGES = "changes.json"
_LOCK = ".convoy-page.lock"
# Every page of this collection has this, and no other file is replaced.
_MARK = '<meta name="generator" content="convoy.upgrade">'
# The names of reports: of a rollout and when it began (unix seconds).
_REPORT = re.compile(r"rollout-.+-(?P<begun>[0-9]{9,})\.html")
# The subfolder of hosts.
HOSTS = "hosts"
_OPTION = "page"


class PageFolder:
    """A folder that this process alone writes.

    :param path: an existing folder.
    :ivar texts: file -> its text, as it was written.
    """

    def __init__(self, path: str, *, dry: bool = False) -> None:
        """Check the folder, and keep other processes from writing it until :meth:`close`.

        :param dry: write nothing.
        :raises UpgradeError: ``bad_folder`` if it can't be written, has another page, or another process writes it.
        """
        self.path = Path(path).absolute()
        self._dry = dry
        self.texts: dict[str, str] = {}
        self._changes: dict[str, str] = {}
        self._lock: int | None = None
        before = read_text(str(self.path / INDEX), _OPTION)
        if before and _MARK not in before:
            raise self._error(f"its {INDEX} is not a page of convoy.upgrade; give another folder, or remove that file")
        if dry:
            return
        try:
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._make_hosts()
        except BlockingIOError:
            self.close()
            raise self._error("another process writes a page there; give another folder, or end that process") from None
        except OSError as error:
            self.close()
            # Another user may have written the folder before, and then this file is that user's.
            why = f"{error.strerror or error}" + (
                f": {error.filename}; remove it, or run as its owner" if error.filename else ""
            )
            raise self._error(why) from error

    def close(self) -> None:
        """Let other processes write the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self, name: str) -> str:
        """Return the text of a file; empty if it does not exist.

        :raises UpgradeError: ``bad_folder``.
        """
        return read_text(str(self.path / name), _OPTION)

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return (self.path / name).is_file()

    def is_lost(self, name: str) -> bool:
        """Return whether someone has removed a file that was written."""
        return name in self.texts and not self._dry and not self.has(name)

    def write(self, name: str, text: str) -> bool:
        """Replace a file atomically if its text has changed; return whether it has.

        :raises UpgradeError: ``bad_folder``.
        """
        # A file that was deleted since is written again.
        if self.texts.get(name) == text and not self.is_lost(name):
            return False
        if not self._dry:
            with contextlib.suppress(OSError):
                self._make_hosts()
            write_atomically(str(self.path / name), text, _OPTION)
        self.texts[name] = text
        if name.endswith(".html"):
            self._changes[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return True

    def _make_hosts(self) -> None:
        if (self.path / HOSTS).is_symlink():
            # Another user may have made it, and what it leads to would be overwritten.
            raise self._error(f"its {HOSTS} is a symbolic link; remove it")
        if not (self.path / HOSTS).is_dir():
            (self.path / HOSTS).mkdir()
            # A web server reads it, whatever the umask of this process.
            (self.path / HOSTS).chmod(0o755)

    def publish(self, written: int, error: str, *, ended: bool) -> None:
        """Let scripts load the pages that were written.

        :param written: when (unix seconds).
        :param error: why the state is old; empty if it is not.
        :param ended: whether the pages are no longer updated.
        :raises UpgradeError: ``bad_folder``.
        """
        found = {**self._changes, "written": written, "error": error, "ended": ended}
        self.write(CHANGES, json.dumps(found, ensure_ascii=False, sort_keys=True) + "\n")

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove files of hosts that are in no part any more.

        :param names: names of the files of all parts, without their extensions.
        """
        kept = {*names, "index"}
        if self._dry:
            return
        for file in (self.path / HOSTS).iterdir():
            if file.suffix in (".html", ".json") and file.stem not in kept and file.stem.isdigit():
                file.unlink(missing_ok=True)
                self.texts.pop(f"{HOSTS}/{file.name}", None)
                self._changes.pop(f"{HOSTS}/{file.name}", None)

    def keep_reports(self, most: int) -> None:
        """Remove the reports of all rollouts but those that began last, also reports of earlier processes.

        Which rollouts a page lists does not decide that: a process that has just begun may list fewer.

        :param most: how many stay.
        """
        if self._dry:
            return
        # An operator may have written other reports here, whose names have no time.
        found = (_REPORT.fullmatch(file.name) for file in self.path.glob("rollout-*.html"))
        reports = sorted((one for one in found if one), key=lambda one: int(one["begun"]), reverse=True)
        for name in [one.string for one in reports if self._is_own(one.string)][most:]:
            # One that stays does no harm.
            with contextlib.suppress(OSError):
                (self.path / name).unlink(missing_ok=True)
            self.texts.pop(name, None)
            self._changes.pop(name, None)

    def _is_own(self, name: str) -> bool:
        """Return whether a file is a page of this collection, which this user can read."""
        try:
            return _MARK in self.read(name)
        except UpgradeError:
            return False

    def _error(self, why: str) -> UpgradeError:
        return UpgradeError("bad_folder", f"{_OPTION}: {self.path} can't be written: {why}.", path=str(self.path))
