# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages to systemd, as sd_notify(3) describes them. Without systemd they go nowhere."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

from .errors import sanitize


class SystemdNotifier:
    """Tells systemd that the service is ready, alive, and what it does."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the address from the environment, so that no child process has it."""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        environ.pop("WATCHDOG_PID", None)
        limit = environ.pop("WATCHDOG_USEC", "")
        # A third of the limit, so that one delay does no harm.
        self.every = int(limit) / 3e6 if limit.isdecimal() and int(limit) > 0 else 60.0
        self._is_ready = False

    @property
    def is_started_by_systemd(self) -> bool:
        """Whether systemd has started this process."""
        return bool(self._address)

    def ready(self) -> None:
        """Say that the service has started."""
        self._is_ready = True
        self._send("READY=1")

    def alive(self) -> None:
        """Say that the service still works, also if it has not started yet."""
        self._send("WATCHDOG=1" if self._is_ready else f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={int(self.every * 3e6)}")

    def status(self, text: str) -> None:
        """Say what the service does, for ``systemctl status``."""
        self._send(f"STATUS={sanitize(text, 300)}")

    def environ(self) -> dict[str, str]:
        """Return what a process needs that goes on in the place of this one."""
        if not self._address:
            return {}
        return {
            "NOTIFY_SOCKET": self._address,
            "WATCHDOG_USEC": str(int(self.every * 3e6)),
            "WATCHDOG_PID": str(os.getpid()),
        }

    def _send(self, message: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(message.encode(), address)
