# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the node reaches Consul: address, TLS and token."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional
from urllib.parse import urlencode

from ..machine.errors import ConsulError, sanitize


@dataclass(frozen=True)
class Connection:
    """How to reach Consul.

    :param verify: False, True (the system's authorities), or the path of an authority's certificate.
    :param cert: client certificate and key, as paths; None for none.
    :param timeout: seconds that an answer may take.
    """

    host: str = "127.0.0.1"
    port: int = 8500
    scheme: str = "http"
    token: Optional[str] = field(default=None, repr=False)
    verify: Any = True
    cert: Optional[tuple[str, str]] = None
    datacenter: Optional[str] = None
    timeout: float = 10.0

    @property
    def url(self) -> str:
        """The address, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def headers(self) -> dict[str, str]:
        """Return the headers of a request. The token is never part of a URL."""
        return {"X-Consul-Token": self.token} if self.token else {}

    def path(self, path: str, query: Mapping[str, str]) -> str:
        """Return the path of a request with its query."""
        facts = {**query, **({"dc": self.datacenter} if self.datacenter else {})}
        return f"/v1/{path}?{urlencode(facts)}" if facts else f"/v1/{path}"

    def open(self, keep: bool = False) -> http.client.HTTPConnection:
        """Return a new connection.

        :param keep: whether it stays open for long. It is connected then, and TCP's keepalive notices a peer that is gone without a word.
        :raises ConsulError: if a certificate can't be read.
        :raises OSError: with ``keep``, if it can't be connected.
        """
        connection: http.client.HTTPConnection
        if self.scheme == "https":
            connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=self.timeout, context=self._context()
            )
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        if keep:
            connection.connect()
            _keep_alive(connection.sock)
        return connection

    def _context(self) -> Any:
        # Imported only for HTTPS, because it takes memory.
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.verify if isinstance(self.verify, str) else None)
            if self.verify is False:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.cert:
                context.load_cert_chain(*self.cert)
        except OSError as error:
            paths = ", ".join(one for one in (self.verify, *(self.cert or ())) if isinstance(one, str))
            # While certificates are renewed, the key may be that of the former one for a moment. So this is no reason to end.
            raise ConsulError(
                f"Consul at {self.url} can't be reached: a certificate can't be read ({sanitize(paths)}): {sanitize(str(error))}. Correct its path."
            ) from error
        return context


def _keep_alive(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
