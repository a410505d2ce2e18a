# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of a node, which are all in one control group, so that none can get away."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_SECONDS = 10


def hierarchy() -> Path:
    """Return where this machine has the second version of control groups.

    :raises RuntimeError: if it has none.
    """
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _device, folder, kind, *_rest = line.split()
        if kind == "cgroup2":
            return Path(folder)
    raise RuntimeError(
        "The lab needs control groups of version 2 (a file system of type cgroup2), and none is mounted."
    )


class Group:
    """A control group.

    :param name: its folder, right below the root of the hierarchy.
    """

    def __init__(self, name: str) -> None:
        """Remember where it is; nothing is made yet."""
        self.folder = hierarchy() / name

    def make(self) -> None:
        """Make it."""
        self.folder.mkdir(exist_ok=True)

    def enter(self) -> None:
        """Move the calling process into it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def processes(self) -> list[int]:
        """Return the processes in it and in the groups below it."""
        found: list[int] = []
        # What systemd makes and removes meanwhile is passed over.
        for folder, _folders, _files in os.walk(self.folder):
            with contextlib.suppress(OSError):
                found += map(int, Path(folder, "cgroup.procs").read_text().split())
        return found

    def kill(self) -> None:
        """Kill all processes in it, as a power cut would.

        :raises RuntimeError: if some don't go.
        """
        until = time.monotonic() + _SECONDS
        while left := self.processes():
            for number in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            if time.monotonic() > until:
                raise RuntimeError(f"The processes {left} of {self.folder} don't die.")
            time.sleep(0.005)

    def remove(self) -> None:
        """Remove it with the groups below it; its processes have to be gone."""
        if not self.folder.is_dir():
            return
        for folder, _folders, _files in os.walk(self.folder, topdown=False):
            until = time.monotonic() + _SECONDS
            while True:
                try:
                    Path(folder).rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    # The kernel lets go of the dead a moment later.
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.005)
