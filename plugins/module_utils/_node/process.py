# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program with a time limit, which also ends all processes that it started."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from .._common import runtime
from .._common.errors import UpgradeError
from .._common.processes import end_process_tree

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Variables of an agent run.
_OF_ANSIBLE = re.compile(r"PYTHONPATH$|ANSIBLE_")
_SECONDS_TO_END = 5
_SECONDS_BETWEEN_CHECKS = 0.5
# Bytes of the output that are kept: from its beginning and from its end. Far more than any package manager or Puppet prints in a run.
_HEAD = _TAIL = 1024 * 1024
_PIECE = 65536
# How often the output is read before the clock is looked at. More than fits into a pipe.
_MOST_READS = 64


@dataclass(frozen=True)
class FinishedProcess:
    """The result of a program.

    :param code: its exit code, None if it took too long.
    :param output: its standard output and errors, without colours, and without the middle if they are very long.
    :param seconds: how long it ran.
    """

    code: int | None
    output: str
    seconds: float


class _Output:
    """Collects head and tail of an output of any length."""

    def __init__(self) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._count = 0

    def drain(self, reading: int) -> bool:
        """Take what can be read now; return False at the end of the output. A program may write faster than this reads."""
        with contextlib.suppress(BlockingIOError):
            for _try in range(_MOST_READS):
                piece = os.read(reading, _PIECE)
                if not piece:
                    return False
                self._add(piece)
        return True

    def _add(self, piece: bytes) -> None:
        self._count += len(piece)
        room = _HEAD - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        if len(self._tail) > 2 * _TAIL:
            del self._tail[:-_TAIL]

    def text(self) -> str:
        """Return what is kept, without colours."""
        tail = bytes(self._tail[-_TAIL:])
        left_out = self._count - len(self._head) - len(tail)
        if left_out:
            return f"{_plain(bytes(self._head))}\n[{left_out} bytes are left out]\n{_plain(tail)}"
        return _plain(bytes(self._head) + tail)


def _plain(output: bytes) -> str:
    return _COLOURS.sub("", output.decode(errors="replace"))


def run_process(command: Sequence[str], seconds: float, keep: Sequence[int] = ()) -> FinishedProcess:
    """Run a program; if it takes too long, end it with all processes that it has started.

    It gets the environment without what an agent run is made with: its libraries may be for another Python than those of the program.

    :param seconds: how long it may take.
    :param keep: file descriptors that it inherits.
    :raises UpgradeError: ``not_runnable``.
    """
    began = runtime.monotonic()
    output = _Output()
    reading, writing = os.pipe()
    try:
        os.set_blocking(reading, False)
        process = _begin(command, writing, keep)
        os.close(writing)
        writing = -1
        try:
            is_in_time = _follow(process, reading, output, began + seconds)
        finally:
            if process.returncode is None:
                end_process_tree(process, _SECONDS_TO_END)
                _reap(process)
        output.drain(reading)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    code = process.returncode if is_in_time else None
    return FinishedProcess(code, output.text(), runtime.monotonic() - began)


def last_lines(text: str, most: int = 10) -> str:
    """Return the last ``most`` lines that are not empty."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-most:])


def _begin(command: Sequence[str], output: int, keep: Sequence[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=keep,
            env={name: text for name, text in os.environ.items() if not _OF_ANSIBLE.match(name)},
            cwd="/",
        )
    except OSError as error:
        raise UpgradeError("not_runnable", f"{command[0]} can't be run: {error.strerror}.") from error


def _follow(process: subprocess.Popen[bytes], reading: int, output: _Output, until: float) -> bool:
    """Read the output until the program has ended; return False if its time is over before.

    Its end counts, not that of the output: a service that it started may keep that open.
    """
    is_open = True
    while True:
        is_open = is_open and output.drain(reading)
        if process.poll() is not None:
            return True
        left = until - runtime.monotonic()
        if left <= 0:
            return False
        if is_open:
            # The end of the program closes the pipe, unless something that it started has it too.
            select.select([reading], [], [], min(left, _SECONDS_BETWEEN_CHECKS))
        else:
            runtime.sleep(min(left, _SECONDS_BETWEEN_CHECKS / 10))


def _reap(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_END)
