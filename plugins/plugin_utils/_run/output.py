# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of ansible-playbook in a pipe: print each line at once, and notice when its reader has ended, such as ``head`` or a pager.

If ansible-core can't print, the thread that reads the results of its workers ends, and ansible-core waits for them forever.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import threading
from collections.abc import Callable

_STDOUT, _STDERR = 1, 2


def print_each_line_at_once() -> None:
    """Let this process print each line at once, also into a pipe or a file.

    Ansible prints there only when the buffer is full or a task begins, so the lines of a task that waits for hours would not be seen.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def call_when_closed(closed: Callable[[], None]) -> None:
    """Call a function in a separate thread as soon as the other end of the standard output is closed.

    Later output is discarded, so that no write fails. If the other end of the standard error is closed, its output is discarded too,
    but the function is not called.
    """
    files = [file for file in (_STDOUT, _STDERR) if _has_reader(file)]
    if files:
        threading.Thread(target=_watch, args=(files, closed), daemon=True).start()


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
