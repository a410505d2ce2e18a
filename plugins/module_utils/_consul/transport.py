# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP requests to the agent through the ``consul`` package, with a timeout, and with errors that say what to do.

Both packages that provide it work: python-consul and py-consul. Only their HTTP layer is used. The ``Consul`` class above it
puts the token into the URL, and so into logs; that of python-consul also prefers environment variables to its arguments.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import sys
import traceback
from collections.abc import Iterable
from typing import Any, NamedTuple

from .._common.errors import UpgradeError
from .._common.sanitize import sanitize, truncated_text
from .errors import Unreachable
from .settings import Settings


class _Redirected(Exception):
    """The server answered with a redirect."""


LIBRARY_ERROR: str | None = None
try:
    import requests
    from consul.std import HTTPClient
    from requests.adapters import HTTPAdapter
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()
else:

    class _WithDeadline(HTTPAdapter):
        """Sets a timeout on every request, because python-consul has none and would wait forever.

        It does not follow redirects: requests does not know that the header holds a token, and would send it to the new server. An agent on this
        machine is asked without a proxy, as the ``consul`` command does.
        """

        seconds: float = 0
        is_local = False

        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["timeout"] = self.seconds
            if self.is_local:
                kwargs["proxies"] = {}
            response = super().send(request, *args, **kwargs)
            if response.is_redirect:
                response.close()
                raise _Redirected(response.headers["Location"])
            return response


# Ansible prints the same instead of a secret.
_HIDDEN = "********"


class Reply(NamedTuple):
    """An HTTP answer."""

    code: int
    headers: Any
    body: str


class Transport:
    """A connection to one agent. Not for use by several threads."""

    def __init__(self, settings: Settings) -> None:
        """Check the files of the settings, and create the HTTP client.

        :raises UpgradeError: ``missing_library``; ``bad_connection`` if a certificate can't be read.
        """
        if LIBRARY_ERROR is not None:
            raise UpgradeError(
                "missing_library",
                f"The Python library 'consul' is missing for {sys.executable}: install it there with "
                "'pip install py-consul' (Python 3.10 or later).",
                exception=LIBRARY_ERROR,
            )
        _check_files(settings)
        self.settings = settings
        self.requests = 0
        self._http = HTTPClient(settings.host, settings.port, settings.scheme, _trusted(settings), settings.cert)
        self._deadline = _WithDeadline()
        self._deadline.is_local = _is_loopback(settings.host)
        self._http.session.mount(f"{settings.scheme}://", self._deadline)
        if settings.token:
            self._http.session.headers["X-Consul-Token"] = settings.token

    def send(
        self,
        method: str,
        path: str,
        params: Iterable[tuple[str, str]] = (),
        data: str | None = None,
        seconds: float = 0,
    ) -> Reply:
        """Send one request, without retries.

        :param seconds: for how long a blocking query may wait, in addition to the timeout of the settings.
        :raises UpgradeError: ``unreachable`` (:class:`Unreachable`), ``tls``, ``redirected``.
        """
        self.requests += 1
        query = [*params, ("dc", self.settings.datacenter)] if self.settings.datacenter else [*params]
        # Consul adds up to a sixteenth to the wait of a blocking query.
        self._deadline.seconds = self.settings.timeout + seconds * 17 / 16
        body = {} if data is None else {"data": data}
        try:
            reply: Reply = getattr(self._http, method)(
                lambda reply: Reply(reply.code, reply.headers, reply.body), path, query, **body
            )
        except _Redirected as error:
            raise self._redirected(str(error)) from None
        except requests.exceptions.SSLError as error:
            reason = _reason(error)
            # A balancer without a server behind it, or an agent that starts, ends the connection before there is TLS.
            raise (self.unreachable(reason) if _is_cut(reason) else self._tls(reason)) from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise self.unreachable(_reason(error)) from error
        token = self.settings.token
        if token and reply.code != 200 and token in reply.body:
            # Servers other than Consul may repeat the request in their error, which goes into messages.
            return reply._replace(body=reply.body.replace(token, _HIDDEN))
        return reply

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        self._http.session.close()

    def unreachable(self, reason: str) -> Unreachable:
        """Return the error for an agent that gave no valid answer.

        :param reason: the end of a sentence, without its full stop.
        """
        return Unreachable(
            "unreachable",
            f"Consul at {self.settings.url} can't be reached: {reason}. "
            "Check that its agent is running, and that host, port and scheme (or CONSUL_HTTP_ADDR) are right.",
        )

    def _redirected(self, target: str) -> Unreachable:
        # A proxy may redirect only for a while, such as to its login.
        token = self.settings.token
        if token:
            target = target.replace(token, _HIDDEN)
        return Unreachable(
            "redirected",
            f"The server at {self.settings.url} redirects to {truncated_text(target)}. Nothing is sent there, because the token would be sent "
            "too. If Consul is there, set host, port and scheme (or CONSUL_HTTP_ADDR) to that address.",
        )

    def _tls(self, reason: str) -> UpgradeError:
        if "WRONG_VERSION_NUMBER" in reason.upper().replace(" ", "_"):
            advice = "The port speaks plain HTTP; set scheme to http, or use the HTTPS port."
        elif "certificate verify failed" in reason.lower().replace("_", " ") or "match" in reason:
            advice = (
                "Set ca_path (or CONSUL_CACERT) to the authority that signed its certificate, and host to its name."
            )
        else:
            advice = "If it requires a client certificate, set client_cert and client_key."
        return UpgradeError("tls", f"No TLS connection to Consul at {self.settings.url}: {reason}. {advice}")


def _trusted(settings: Settings) -> bool | str:
    """Return what requests trusts. Without a path, it would trust authorities of its own, and not those that the node agent and the system trust."""
    own = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if settings.verify is not True or settings.scheme != "https" or own:
        return settings.verify
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or True


def _is_cut(reason: str) -> bool:
    """Return whether the other end closed the connection during the handshake, in the words of any OpenSSL."""
    return re.search("(?<![a-z])eof(?![a-z])", reason, re.IGNORECASE) is not None


def _is_loopback(host: str) -> bool:
    """Return whether a host name or address is that of this machine."""
    try:
        # In an address of an agent, IPv6 has brackets.
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_files(settings: Settings) -> None:
    cert, key = settings.cert or (None, None)
    for option, path in (("ca_path", settings.verify), ("client_cert", cert), ("client_key", key)):
        if isinstance(path, str) and not os.access(path, os.R_OK):
            raise UpgradeError("bad_connection", f"{option}: {path} is not a file that can be read.")


def _reason(error: BaseException) -> str:
    """Return the innermost cause in a few words; the libraries wrap it several times."""
    cause = error
    while True:
        inner = getattr(cause, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in cause.args if isinstance(arg, BaseException)), cause.__cause__)
        if inner is None or inner is cause:
            break
        cause = inner
    if isinstance(cause, TimeoutError) or "timed out" in str(cause):
        return "it gave no answer in time"
    text = sanitize(str(getattr(cause, "strerror", None) or cause))
    return text.rpartition(">: ")[2].strip().rstrip(".") or type(cause).__name__
