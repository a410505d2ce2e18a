# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs with a time limit, which also ends all processes that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional


def run_limited(words: Sequence[str], seconds: float) -> int:
    """Run a program and return its exit code.

    :param seconds: how long it may take.
    :raises subprocess.TimeoutExpired: if it took longer; it and all its descendants have been killed.
    :raises OSError: if it can't be started.
    """
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd="/")
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        process.wait()
        raise


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, also those in process groups of their own."""
    # Stopped first, so that no process starts another one meanwhile.
    tree = [pid]
    for one in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
        tree += _children(one)
    for one in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def kill_session(leader: int, variable: str) -> bool:
    """Kill the processes of a session whose leader may have ended; return whether there were any.

    :param leader: the PID of its leader.
    :param variable: ``NAME=VALUE`` in the environment that they have from it. Another session may have got the same PID.
    """
    found = []
    for pid, fields in _processes():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if int(fields[3]) == leader and variable.encode() in environment:
                found.append(pid)
    for pid in found:
        kill_tree(pid)
    return bool(found)


def start_ticks(pid: int) -> Optional[int]:
    """Return when a process started, in clock ticks since boot; None if it does not run. A PID is used again, this time is not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _children(pid: int) -> list[int]:
    return [child for child, fields in _processes() if int(fields[1]) == pid]


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Yield the PID of each process that runs, and the fields of its status after its name."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            # The name of the program, in parentheses, may contain spaces.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if len(fields) > 3 and fields[0] != "Z":
                yield int(folder.name), fields
