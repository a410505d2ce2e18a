# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was asked of Consul, and what it answered: every write on its way, with the index at which it was done."""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

# A server without a leader keeps a request for 7 s (rpc_hold_timeout), and a little goes to carry it out.
_KEPT = 8.0


@dataclass(eq=False)
class Write:
    """A transaction that writes.

    :param who: the process that sent it.
    :param operations: as Consul gets them.
    :param reading: what the sender had read last of all that a planner needs.
    :param at: when it was sent (unix seconds).
    :param index: Consul's index at which it was done; None where it was not, or no one knows.
    :param is_known: whether Consul's answer was seen; ``was_done`` what the answer was.
    """

    who: str
    operations: list[dict[str, Any]]
    reading: Reading | None
    at: float = field(default_factory=time.time)
    index: int | None = None
    is_known: bool = False
    was_done: bool = False
    answered_at: float = float("inf")

    def compared(self) -> tuple[str, int] | None:
        """Return the key that it compares and sets, and the index that it expects."""
        for one in self.operations:
            if one["Verb"] == "cas":
                return one["Key"], one["Index"]
        return None


@dataclass(eq=False)
class Reading:
    """What a process has read of all that a planner needs.

    :param number: readings of one process are numbered as they were sent.
    :param at: when it was asked for (unix seconds).
    """

    number: int
    at: float
    body: bytes

    def entries(self) -> dict[str, tuple[str, int]]:
        """Return key -> value and ModifyIndex."""
        found = (one["KV"] for one in json.loads(self.body).get("Results") or [])
        return {one["Key"]: (text(one["Value"]), one["ModifyIndex"]) for one in found}


def text(value: str | None) -> str:
    """Return a value as text."""
    return base64.b64decode(value or "").decode(errors="replace")


class Journal:
    """The writes of all processes, and what each has read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._pending = 0
        self._readings: dict[str, Reading] = {}
        self.writes: list[Write] = []

    def next_number(self) -> int:
        """Return the number of a reading that is about to be sent."""
        with self._lock:
            self._count += 1
            return self._count

    def read(self, who: str, reading: Reading) -> None:
        """Note what a process has read; it does not use an answer that was late."""
        with self._lock:
            last = self._readings.get(who)
            if last is None or last.number < reading.number:
                self._readings[who] = reading

    def sent(self, who: str, operations: list[dict[str, Any]]) -> Write:
        """Note a write that is on its way."""
        with self._lock:
            write = Write(who, operations, self._readings.get(who))
            self.writes.append(write)
            self._pending += 1
            return write

    def answered(self, write: Write, code: int | None, body: bytes = b"") -> None:
        """Note what came of it; None where no answer came."""
        with self._lock:
            self._pending -= 1
            write.answered_at = time.time()
            if code == 200:
                written = {one["Key"] for one in write.operations if one["Verb"] in ("set", "cas")}
                results = [one["KV"] for one in json.loads(body).get("Results") or []]
                found = [one["ModifyIndex"] for one in results if one["Key"] in written]
                # What was compared and set to what it was keeps its index, and what is deleted has none.
                compared = [one.get("Index", 0) for one in write.operations]
                write.index = max((index for index in found if index not in compared), default=None)
                write.is_known = write.was_done = True
            elif code is not None and 400 <= code < 500:
                write.is_known = True

    def forgot(self, write: Write) -> None:
        """Note that it was never sent on."""
        with self._lock:
            self._pending -= 1
            write.is_known = True

    def is_quiet(self, seconds: float) -> bool:
        """Wait until nothing is on its way, and return whether that came to be.

        A write to which no answer came is, for as long as its server may be looking for a leader to carry it out.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self._lock:
                given_up = max((one.answered_at for one in self.writes if not one.is_known), default=0)
                if not self._pending and time.time() > given_up + _KEPT:
                    return True
            time.sleep(0.02)
        return False
