# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A constant stream of HTTP requests, and what became of each."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

_SECONDS_BETWEEN = 0.02
_SECONDS_TO_ANSWER = 10


def get(address: str, path: str = "/", seconds: float = _SECONDS_TO_ANSWER) -> tuple[int, str, bytes]:
    """Make one request, on a connection of its own; return status, the server that says it answered, and the body."""
    connection = http.client.HTTPConnection(address, 80, timeout=seconds)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("X-Served-By", ""), answer.read()
    finally:
        connection.close()


class Traffic:
    """Asks an address over and over again, from its entering to its end.

    :param address: of a host that serves HTTP.
    """

    def __init__(self, address: str, path: str = "/") -> None:
        """Remember whom to ask."""
        self.address = address
        self.path = path
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _number in range(2)]

    def _ask(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN):
            try:
                status, server, _body = get(self.address, self.path)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{time.strftime('%X')}: {error!r}")
                continue
            if status == 200:
                self.answers[server] += 1
            else:
                self.failures.append(f"{time.strftime('%X')}: status {status} of {server or 'nobody'}")

    def __enter__(self) -> Traffic:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._ended.set()
        for thread in self._threads:
            thread.join()


class Download:
    """One long request that is under way meanwhile."""

    def __init__(self, address: str, path: str) -> None:
        """Begin it; it is under way when the first of it has come."""
        self.size = 0
        self.error: Any = None
        self._connection = http.client.HTTPConnection(address, 80, timeout=60)
        self._connection.request("GET", path)
        self._answer = self._connection.getresponse()
        self.server = self._answer.headers.get("X-Served-By", "")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while part := self._answer.read(4096):
                self.size += len(part)
        except (OSError, http.client.HTTPException) as error:
            self.error = error
        finally:
            self._connection.close()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def end(self, seconds: float = 60) -> int:
        """Wait for its end; return how many bytes came."""
        self._thread.join(seconds)
        assert self.is_over, f"the download is still under way after {seconds} s"
        return self.size
