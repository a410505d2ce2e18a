# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A proxy before Consul that loses transactions, or the replies to them, as a failing network does."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PASS, LOSE_REQUEST, LOSE_REPLY = "pass", "lose request", "lose reply"


class LossyProxy:
    """Forwards to a Consul agent.

    It counts the transactions that read and those that write.

    ``delay`` and ``write_delay`` are for how long it holds transactions that read, and those that write (seconds).

    :param fates: what happens to the first transactions that write, one after the other; all others pass.
    """

    def __init__(self, port: int, fates: Sequence[str] = ()) -> None:
        self.fates = list(fates)
        self.writes = self.reads = 0
        self.loses_all = False
        self.delay = self.write_delay = 0.0
        self.after_write: Callable[[], None] = lambda: None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._forward(self, port)

            def do_PUT(self) -> None:
                proxy._forward(self, port)

            def log_message(self, *_arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _forward(self, handler: BaseHTTPRequestHandler, port: int) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        transacts = handler.path.startswith("/v1/txn")
        writes = transacts and _writes(body)
        self.reads += transacts and not writes
        if transacts:
            time.sleep(self.write_delay if writes else self.delay)
        fate = LOSE_REQUEST if self.loses_all else PASS
        if writes and not self.loses_all:
            self.writes += 1
            fate = self.fates.pop(0) if self.fates else PASS
        if fate == LOSE_REQUEST:
            _reset(handler)
            return
        upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        upstream.request(handler.command, handler.path, body, {"Content-Type": "application/json"})
        reply = upstream.getresponse()
        content = reply.read()
        upstream.close()
        if writes:
            self.after_write()
        if fate == LOSE_REPLY:
            _reset(handler)
            return
        handler.send_response(reply.status)
        for name in ("X-Consul-Index", "Content-Type"):
            if reply.getheader(name):
                handler.send_header(name, str(reply.getheader(name)))
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


def _writes(body: bytes) -> bool:
    return any(not one["KV"]["Verb"].startswith("get") for one in json.loads(body))


def _reset(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection with a RST, as if the other side had gone."""
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.shutdown(socket.SHUT_RD)
    handler.connection.close()
