# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command: no shell, its own process group, a time limit, and an output of which head and tail are kept."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Callable

from ..machine.processes import kill_tree

# Bytes of the output that are kept: from its beginning and from its end.
HEAD, TAIL = 2000, 6000
# How often the output is read before the clock is looked at.
_MOST_READS = 64
_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended.

    :param exit_status: its exit status; negative for the signal that ended it.
    :param is_timeout: whether it was killed at its time limit.
    :param output: what it wrote to standard output and standard error, sanitized, without its middle if it is long.
    :param seconds: how long it took.
    """

    exit_status: int
    is_timeout: bool
    output: str
    seconds: float


class NotStarted(Exception):
    """The program could not be started, so nothing of it has run. The text says why."""


class Output:
    """Collects head and tail of an output of any length."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._head, self._tail = b"", b""
        self._count = 0

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._count += len(piece)
        room = HEAD - len(self._head)
        self._head += piece[:room]
        self._tail = (self._tail + piece[room:])[-TAIL:]

    def text(self) -> str:
        """Return what is kept as printable text with lines."""
        left_out = self._count - len(self._head) - len(self._tail)
        if left_out:
            middle = f"\n[{left_out} bytes are left out]\n"
            return f"{clean(self._head)}{middle}{clean(self._tail)}"
        return clean(self._head + self._tail)


def clean(content: bytes) -> str:
    """Return output as text that is safe on a terminal: lines of printable characters, whatever its source is.

    It has at most two characters for each byte, so that no end of it is cut off where it is read.
    """
    text = content.decode("utf-8", "replace").replace("\r\n", "\n").replace("\t", "  ")
    return "".join(one if one == "\n" or one.isprintable() else "?" for one in text)


def environment(arguments: Mapping[str, Any], facts: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: its arguments as ``CONVOY_ARG_NAME``, facts of the job, and nothing of the agent's.

    A text is given as it is, everything else as JSON.
    """
    given = {
        f"CONVOY_ARG_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in arguments.items()
    }
    return {"PATH": _FOLDERS, "LC_ALL": "C.UTF-8", "HOME": "/", **given, **facts}


def execute(
    program: Path,
    arguments: Mapping[str, Any],
    timeout: float,
    facts: Mapping[str, str],
    started: Callable[[int], None] = lambda _pid: None,
) -> CommandEnd:
    """Run a program with its arguments as JSON on standard input, and return how it ended.

    What it started in its process group is killed at its end, and at the time limit all its descendants are.

    :param timeout: how long it may take (seconds).
    :param facts: further variables for its environment.
    :param started: called with the PID of the program.
    :raises NotStarted: if it can't be started.
    :raises OSError: if something else fails, after which it may have run.
    """
    begun = time.monotonic()
    output = Output()
    reading, writing = os.pipe()
    try:
        try:
            process = _begin(program, arguments, facts, writing)
        except OSError as error:
            raise NotStarted(error.strerror) from error
        os.close(writing)
        writing = -1
        started(process.pid)
        is_timeout = _follow(process, reading, output, begun + timeout)
        return CommandEnd(process.returncode, is_timeout, output.text(), time.monotonic() - begun)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def _begin(
    program: Path, arguments: Mapping[str, Any], facts: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    with _open_in_memory() as given:
        given.write(json.dumps(dict(arguments), sort_keys=True).encode())
        given.seek(0)
        return subprocess.Popen(
            [str(program)],
            stdin=given,
            stdout=output,
            stderr=output,
            env=environment(arguments, facts),
            cwd="/",
            start_new_session=True,
        )


def _open_in_memory() -> IO[bytes]:
    """Return a file in memory, because a full /tmp is no reason not to run a command, such as one that makes room."""
    try:
        return os.fdopen(os.memfd_create("arguments"), "r+b")
    except OSError:
        # vm.memfd_noexec=2 refuses it.
        return tempfile.TemporaryFile()


def _follow(process: subprocess.Popen[bytes], reading: int, output: Output, until: float) -> bool:
    """Read the output until the program has ended; return whether that was at the time limit."""
    is_timeout, is_open = False, True
    os.set_blocking(reading, False)
    while True:
        is_open = is_open and _drain(reading, output)
        # Not yet reaped, so that its process group can't be that of another program.
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        left = until - time.monotonic()
        if left <= 0:
            is_timeout = True
            kill_tree(process.pid)
            break
        if is_open:
            # The end of the program closes the pipe, unless something that it started has it too.
            select.select([reading], [], [], min(left, 0.5))
        else:
            time.sleep(min(left, 0.05))
    # What the program left behind in its group ends with it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _drain(reading, output)
    return is_timeout


def _drain(reading: int, output: Output) -> bool:
    """Take what can be read now; return False at the end of the output. A program may write faster than this reads."""
    with contextlib.suppress(BlockingIOError):
        for _try in range(_MOST_READS):
            piece = os.read(reading, 65536)
            if not piece:
                return False
            output.add(piece)
    return True
