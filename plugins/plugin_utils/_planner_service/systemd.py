# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages to systemd, as sd_notify(3) describes them. Without systemd they go nowhere."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

from ...module_utils._common import runtime
from ...module_utils._common.sanitize import sanitize, truncate_middle

# Without a watchdog, a service says this often that it still works (seconds).
_EVERY = 20.0


class Systemd:
    """Tells systemd that the service is ready, alive, and what it does.

    :param environ: the environment of the process. The address is removed, so that no child process has it.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Read the environment."""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        watched = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit = environ.pop("WATCHDOG_USEC", "") if watched else ""
        # A third of the limit, so that one delay does no harm.
        self.every = min(_EVERY, int(limit) / 3e6) if limit.isdecimal() and int(limit) > 0 else _EVERY
        self._alive_at = float("-inf")

    def ready(self) -> None:
        """Say that the service has started."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Say that the service ends."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Say that the service still works, at most once a second."""
        if runtime.monotonic() - self._alive_at >= 1.0:
            self._alive_at = runtime.monotonic()
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Say what the service does, for ``systemctl status``."""
        self._send(f"STATUS={truncate_middle(sanitize(text), 300)}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(message.encode(), address)
