# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signals of the resident agent, as something that a wait can wait for too."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from typing import Any


class Signals:
    """Notes SIGTERM and SIGINT (end), SIGHUP (read again) and SIGCHLD (an agent run has ended)."""

    def __init__(self) -> None:
        """Take over the signals of this process."""
        self.is_over = False
        self.read_again = False
        self.pipe, self._in = socket.socketpair()
        for one in (self.pipe, self._in):
            one.setblocking(False)
        # select() goes on after a signal; a byte in this socket ends it.
        signal.set_wakeup_fd(self._in.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._note)

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most for so long."""
        select.select([self.pipe], [], [], max(0.0, seconds))
        self.drain()

    def sleep(self, seconds: float) -> None:
        """Wait for so long, whatever signals come, but for those that end the process."""
        until = time.monotonic() + seconds
        while not self.is_over and (left := until - time.monotonic()) > 0:
            self.wait(left)

    def leave_to_system(self) -> bool:
        """Let a signal that ends the process do so by itself from now on; return False if one has come before.

        What takes the place of this process does not know of a signal that was noted here.
        """
        ends = (signal.SIGTERM, signal.SIGINT)
        # Blocked meanwhile, so that none comes between the two ways.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        try:
            if not self.is_over:
                for number in ends:
                    signal.signal(number, signal.SIG_DFL)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return not self.is_over

    def drain(self) -> None:
        """Take the bytes of the signals that have been noted."""
        with contextlib.suppress(BlockingIOError):
            while self.pipe.recv(64):
                pass

    def _note(self, number: int, _frame: Any) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.is_over = True
        elif number == signal.SIGHUP:
            self.read_again = True
