# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A guard that clears away all that a process started, when that process ends, however it ends.

Ansible starts processes of its own, and a ``kill -9`` leaves no time to stop them. All of them inherit a mark in
their environment. The guard, a process apart, waits until the guarded one has gone, and kills what bears the mark.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "CONVOY_GUARD"
_SECONDS = 10


class Guard:
    """Guards this process: enter it before anything is started."""

    def __init__(self, *folders: Path) -> None:
        """Remember what has to go at the end.

        :param folders: to be removed.
        """
        self._folders = folders

    def __enter__(self) -> Guard:
        mark = uuid.uuid4().hex
        reading, self._writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, __file__, mark, *map(str, self._folders)],
            stdin=reading,
            start_new_session=True,
        )
        os.close(reading)
        os.environ[MARK] = mark
        return self

    def __exit__(self, *_exception: object) -> None:
        os.environ.pop(MARK, None)
        os.close(self._writing)
        self._process.wait()


def marked(mark: str) -> list[int]:
    """Return the processes that bear a mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def main() -> None:
    """Wait for the guarded process to end, then clear away."""
    mark, *folders = sys.argv[1:]
    while os.read(0, 1):
        pass
    until = time.monotonic() + _SECONDS
    while (left := marked(mark)) and time.monotonic() < until:
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
