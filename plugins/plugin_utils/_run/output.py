# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of ansible-playbook in a pipe: print each line at once, and notice when its reader has ended, such as ``head`` or a pager.

If ansible-core can't print, the thread that reads the results of its workers ends, and ansible-core waits for them forever.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

from ...module_utils._common import runtime

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STDOUT, _STDERR = 1, 2


class _Discarding(io.BufferedIOBase):
    """Write to a stream as long as the other end of its pipe is open; afterwards, discard.

    Writes through the stream's own methods: ansible-core holds a lock in them, without which a fork could stop a worker.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: Buffer, /) -> int:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._stream.write(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._stream.flush()

    def close(self) -> None:
        """Leave the stream open; it isn't this object's own."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def print_each_line_at_once() -> None:
    """Let this process print each line at once, also into a pipe or a file, and let no print fail because the reader of a pipe has ended.

    Ansible prints there only when the buffer is full or a task begins, so the lines of a task that waits for hours would not be seen.
    """
    sys.stdout = _each_line_at_once(sys.stdout)
    sys.stderr = _each_line_at_once(sys.stderr)


def _each_line_at_once(stream: TextIO) -> TextIO:
    """Return the stream to print to: the same one if that is no plain text stream, or one of ours."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream.buffer, _Discarding):
        return stream
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.flush()
    buffer = cast("BinaryIO", _Discarding(stream.buffer))
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=True)


def call_when_closed(closed: Callable[[], None]) -> None:
    """Call a function in a separate thread as soon as the other end of the standard output is closed.

    Later output is discarded, so that no write fails. If the other end of the standard error is closed, its output is discarded too,
    but the function is not called.
    """
    files = [file for file in (_STDOUT, _STDERR) if _has_reader(file)]
    if files:
        runtime.start_thread(_watch, files, closed)


def _has_reader(file: int) -> bool:
    try:
        mode = os.fstat(file).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _watch(files: list[int], closed: Callable[[], None]) -> None:
    poll = select.poll()
    for file in files:
        # poll() always reports errors and hang-ups.
        poll.register(file, 0)
    while files:
        ended = [file for file, _events in poll.poll()]
        # Replace all of them first: both may be the same pipe, and the function may print.
        for file in ended:
            poll.unregister(file)
            files.remove(file)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, file, inheritable=False)
            os.close(null)
        if _STDOUT in ended:
            closed()
