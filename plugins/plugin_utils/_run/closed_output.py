# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a run whose output no one reads any more, as where ``head`` or a pager ended.

ansible-core ends the thread that takes in the results of its workers when that can't print, and then waits for them for ever.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable

_STDOUT, _STDERR = 1, 2


def call_when_closed(closed: Callable[[], None]) -> None:
    """Call a function, in a thread of its own, as soon as the other end of the standard output is closed.

    Whatever is printed from then on goes nowhere, so that no write fails. So does what goes to the standard error once that is closed,
    and for this nothing is called.
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
        # Errors and hang-ups are told without being asked for.
        poll.register(file, 0)
    while files:
        ended = [file for file, _events in poll.poll()]
        # All of them first: one pipe may be both, and what is called may print.
        for file in ended:
            poll.unregister(file)
            files.remove(file)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, file, inheritable=False)
            os.close(nothing)
        if _STDOUT in ended:
            closed()
