# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP to the agent through the ``consul`` package, with a time limit, and with errors that say what to do.

Both of its makes are at home here, python-consul and py-consul. Their HTTP layer is used directly, because the
``Consul`` class on top of it lets environment variables win over what it is given (python-consul) and would put
the token into the URL, and from there into logs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any, NamedTuple

from .._common.errors import UpgradeError
from .._common.sanitize import sanitize, truncated_text
from .errors import Unreachable
from .settings import Settings


class _Redirected(Exception):
    """Whoever answers names somebody else who would."""


LIBRARY_ERROR: str | None = None
try:
    import requests
    from consul.std import HTTPClient
    from requests.adapters import HTTPAdapter
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()
else:

    class _WithDeadline(HTTPAdapter):
        """Puts a time limit on every request; python-consul itself has none and would wait for ever.

        It follows no one elsewhere either: the token would be sent along, as it is in a header that is not known to hold
        one.
        """

        seconds: float = 0

        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["timeout"] = self.seconds
            response = super().send(request, *args, **kwargs)
            if response.is_redirect:
                response.close()
                raise _Redirected(response.headers["Location"])
            return response


# What Ansible too shows instead of a secret.
_HIDDEN = "********"


class Reply(NamedTuple):
    """What Consul answered."""

    code: int
    headers: Any
    body: str


class Transport:
    """A connection to one agent. Not for use by several threads."""

    def __init__(self, settings: Settings) -> None:
        """Prepare the connection; nothing is sent yet.

        :raises UpgradeError: ``missing_library``, ``bad_connection`` for a file that can't be read.
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
        self._http = HTTPClient(settings.host, settings.port, settings.scheme, settings.verify, settings.cert)
        self._deadline = _WithDeadline()
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
        """Send one request, once.

        :param seconds: how long Consul may hold the request, beside the timeout of the settings.
        :raises UpgradeError: ``unreachable`` (:class:`Unreachable`), ``tls``, ``redirected``.
        """
        self.requests += 1
        query = [*params, ("dc", self.settings.datacenter)] if self.settings.datacenter else [*params]
        # Consul adds up to a sixteenth to the time that a blocking query may take.
        self._deadline.seconds = self.settings.timeout + seconds * 17 / 16
        body = {} if data is None else {"data": data}
        try:
            reply: Reply = getattr(self._http, method)(
                lambda reply: Reply(reply.code, reply.headers, reply.body), path, query, **body
            )
        except _Redirected as error:
            raise self._redirected(str(error)) from None
        except requests.exceptions.SSLError as error:
            raise self._tls(error) from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise self.unreachable(_reason(error)) from error
        token = self.settings.token
        if token and reply.code != 200 and token in reply.body:
            # Not everything that answers is Consul: some repeat the request in their error, which goes into messages.
            return reply._replace(body=reply.body.replace(token, _HIDDEN))
        return reply

    def unreachable(self, reason: str) -> Unreachable:
        """Return the error for a Consul that gave no answer."""
        return Unreachable(
            "unreachable",
            f"Consul at {self.settings.url} can't be reached: {reason}. "
            "Is its agent running, and are host, port and scheme (or CONSUL_HTTP_ADDR) right?",
        )

    def _redirected(self, target: str) -> UpgradeError:
        token = self.settings.token
        if token:
            target = target.replace(token, _HIDDEN)
        return UpgradeError(
            "redirected",
            f"What answers at {self.settings.url} sends us on to {truncated_text(target)}. Nothing is sent there, as the token would go "
            "along. If that is where Consul is, set host, port and scheme (or CONSUL_HTTP_ADDR) to it.",
        )

    def _tls(self, error: Exception) -> UpgradeError:
        reason = _reason(error)
        if "WRONG_VERSION_NUMBER" in reason.upper().replace(" ", "_"):
            advice = "The port speaks plain HTTP; set scheme to http, or use the HTTPS port."
        elif "certificate verify failed" in reason.lower().replace("_", " ") or "match" in reason:
            advice = (
                "Set ca_path (or CONSUL_CACERT) to the authority that signed its certificate, and host to its name."
            )
        else:
            advice = "Does it ask for a client certificate? Set client_cert and client_key."
        return UpgradeError("tls", f"No TLS connection to Consul at {self.settings.url}: {reason}. {advice}")


def _check_files(settings: Settings) -> None:
    cert, key = settings.cert or (None, None)
    for option, path in (("ca_path", settings.verify), ("client_cert", cert), ("client_key", key)):
        if isinstance(path, str) and not os.access(path, os.R_OK):
            raise UpgradeError("bad_connection", f"{option}: {path} is no file that can be read here.")


def _reason(error: BaseException) -> str:
    """Return the innermost cause in a few words; the libraries wrap it several times."""
    seen = error
    while True:
        inner = getattr(seen, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in seen.args if isinstance(arg, BaseException)), seen.__cause__)
        if inner is None or inner is seen:
            break
        seen = inner
    if isinstance(seen, TimeoutError) or "timed out" in str(seen):
        return "it gave no answer in time"
    text = sanitize(str(getattr(seen, "strerror", None) or seen))
    return text.rpartition(">: ")[2].strip().rstrip(".") or type(seen).__name__
