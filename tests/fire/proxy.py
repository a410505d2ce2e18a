# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between a process and its server: forwards, notes each write, and on demand loses writes, or the replies to them."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .journal import Journal, Reading, Write

# Longer than any process here waits for an answer.
_SECONDS = 6


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_arguments: Any) -> None:
        """Say nothing: that others hang up, or are killed, is what this is for."""


class CuttingProxy:
    """Forwards what one process asks to a server.

    :param who: the process, for the journal.
    """

    def __init__(self, who: str, address: str, journal: Journal, port: int = 8500) -> None:
        self._who = who
        self._journal = journal
        self._target = (address, port)
        self._lock = threading.Lock()
        self._fates: list[bool] = []
        self.lost = 0
        self._is_open = True
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._forward(self)

            do_PUT = do_DELETE = do_GET

            def log_message(self, *_arguments: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop listening, and speak no more on connections that there are: nothing of one run reaches the next."""
        self._is_open = False
        self._server.shutdown()
        self._server.server_close()

    def lose_next(self, count: int, *, after: bool) -> None:
        """Lose the next writes, or with ``after`` the replies to them."""
        with self._lock:
            self._fates = [after] * count

    def _forward(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length)
        if len(body) < length or not self._is_open:
            # It was killed while it spoke, or should have been by now.
            _cut(handler)
            return
        operations = [one["KV"] for one in json.loads(body)] if handler.path.startswith("/v1/txn") else []
        if all(one["Verb"].startswith("get") for one in operations):
            reads_all = any(one["Key"].endswith("upgrade/ledger") for one in operations)
            number, asked_at = self._journal.next_number(), time.time()
            found = self._ask(handler, body)
            if found is not None and reads_all and found[0].status == 200:
                self._journal.read(self._who, Reading(number, asked_at, found[1]))
        else:
            write, fate = self._journal.sent(self._who, operations), self._fate()
            found = self._write(handler, body, write, fate)
        if found is None:
            _cut(handler)
            return
        with contextlib.suppress(OSError):
            self._answer(handler, *found)

    def _write(
        self, handler: BaseHTTPRequestHandler, body: bytes, write: Write, fate: bool | None
    ) -> tuple[http.client.HTTPResponse, bytes] | None:
        if fate is False:
            self._journal.forgot(write)
            return None
        found = self._ask(handler, body)
        self._journal.answered(write, *((found[0].status, found[1]) if found is not None else (None,)))
        return None if fate is True else found

    def _ask(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[http.client.HTTPResponse, bytes] | None:
        try:
            line = http.client.HTTPConnection(*self._target, timeout=_SECONDS)
            with contextlib.closing(line):
                line.request(handler.command, handler.path, body or None)
                answer = line.getresponse()
                return answer, answer.read()
        except (OSError, http.client.HTTPException):
            return None

    @staticmethod
    def _answer(handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse, found: bytes) -> None:
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(found)))
        handler.end_headers()
        handler.wfile.write(found)

    def _fate(self) -> bool | None:
        """Return whether a write is lost after it was carried out, before that (False), or not at all (None)."""
        with self._lock:
            if not self._fates:
                return None
            self.lost += 1
            return self._fates.pop(0)


def _cut(handler: BaseHTTPRequestHandler) -> None:
    """Reset the connection, as a machine on the way that forgot it does."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()
