# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program on a terminal of its own, whose screen is read as a person in front of it would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyte
from devkit.child import start, stop


class Terminal:
    """Runs a program on a pseudo-terminal."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path,
        env: Mapping[str, str],
        rows: int = 24,
        columns: int = 100,
    ) -> None:
        """Start it.

        :param env: its environment, to which that of a terminal with colours is added.
        """
        self._screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.001)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition()
        self.raw = b""
        # All that a screen has shown so far, for what is there for a moment.
        self.shown: list[str] = []
        self._mark = f"CONVOY_TEST_TERMINAL={uuid.uuid4()}"
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self.process: subprocess.Popen[Any] = start(
            command,
            cwd=cwd,
            env={"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **kept, **dict([self._mark.split("=")])},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # The other end is closed with an error.
        with contextlib.suppress(OSError):
            while updates := os.read(self._master, 1 << 16):
                with self._changed:
                    self.raw += updates
                    self._stream.feed(updates)
                    self.shown.append("\n".join(self._screen.display))
                    self._changed.notify_all()

    @property
    def screen(self) -> str:
        """What is on the screen now."""
        with self._changed:
            return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def cells(self) -> list[list[pyte.screens.Char]]:
        """What is on the screen now, cell by cell."""
        with self._changed:
            return [
                [line[at] for at in range(self._screen.columns)]
                for line in map(self._screen.buffer.__getitem__, range(self._screen.lines))
            ]

    @property
    def text(self) -> str:
        """What has scrolled away, and what is on the screen."""
        with self._changed:
            columns = range(self._screen.columns)
            gone = ["".join(line[at].data for at in columns).rstrip() for line in self._screen.history.top]
            return "\n".join([*gone, *(line.rstrip() for line in self._screen.display)])

    @property
    def processes(self) -> list[int]:
        """The processes that are left of it, its own and all that it has started."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    @property
    def cursor_is_hidden(self) -> bool:
        """Whether the terminal shows no cursor."""
        with self._changed:
            return bool(self._screen.cursor.hidden)

    def wait_for(self, found: Callable[[str], object] | str, seconds: float = 90) -> str:
        """Return the screen as soon as it is as wanted: it has a text, or a test of it is true."""
        test: Callable[[str], object] = (lambda screen: found in screen) if isinstance(found, str) else found
        tested = ""

        def is_there() -> object:
            nonlocal tested
            tested = self.screen
            return test(tested)

        with self._changed:
            there = self._changed.wait_for(is_there, seconds)
        assert there, f"not seen within {seconds} s on:\n{self.text}"
        # Not read again: the program may be drawing again.
        return tested

    def end(self, seconds: float = 90) -> int:
        """Wait for its end and return its exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            stop(self.process, signal.SIGKILL)
            raise AssertionError(f"still running after {seconds} s:\n{self.text}") from None
        self._reader.join(5)
        return int(code)

    def close(self) -> None:
        """End whatever is left of it."""
        if self.process.poll() is None:
            stop(self.process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.close(self._master)
