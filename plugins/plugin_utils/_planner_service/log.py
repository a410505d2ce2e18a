# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The log of a planner service: a line for each event, as JSON unless a person reads it."""

from __future__ import annotations

import json
import sys
import time
from typing import TextIO

from ...module_utils._common import runtime
from ...module_utils._common.sanitize import sanitize
from .systemd import Systemd

INFO, WARNING = "info", "warning"


class Log:
    """Writes lines, from any thread.

    :param is_json: whether each line is an object with ``time``, ``level``, ``event``, ``message``, and fields of the event.
    """

    def __init__(self, systemd: Systemd, out: TextIO | None = None, *, is_json: bool) -> None:
        """Keep the arguments."""
        self._systemd = systemd
        self._out = out or sys.stdout
        self._is_json = is_json
        self._lock = runtime.lock()
        self._latest: dict[str, str] = {}

    def say(self, event: str, message: str, level: str = INFO, **fields: str | int) -> None:
        """Write a line.

        :param event: what happened, one word for programs.
        """
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(runtime.now()))
        if self._is_json:
            plain = {name: sanitize(value) if isinstance(value, str) else value for name, value in fields.items()}
            data = {"time": at, "level": level, "event": event, "message": sanitize(message), **plain}
            line = json.dumps(data, ensure_ascii=False)
        else:
            line = f"{at} {'Warning: ' if level == WARNING else ''}{sanitize(message)}"
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()

    def say_once(self, what: str, event: str, message: str, level: str = INFO, **fields: str | int) -> None:
        """Write a line unless it says what the last one about the same thing said.

        :param what: what it is about; empty text as ``message`` forgets the last line.
        """
        with self._lock:
            is_old = self._latest.get(what, "") == message
            self._latest[what] = message
        if message and not is_old:
            self.say(event, message, level, **fields)

    def state(self, event: str, message: str, level: str = INFO, **fields: str | int) -> None:
        """Write what the service does now if it is something else than before, and tell systemd."""
        self.say_once("state", event, message, level, **fields)
        self._systemd.status(message)
