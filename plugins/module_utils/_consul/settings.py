# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How to reach Consul: the connection options of modules, lookups and everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .._common.errors import UpgradeError

DEFAULT_HOST, DEFAULT_PORT, DEFAULT_SCHEME, DEFAULT_TIMEOUT = "127.0.0.1", 8500, "http", 10.0
DEFAULT_PASS_LIMIT = 5.0
# A planner does not see what fails after its read, so it must not admit hosts much later.
MOST_PASS_LIMIT = 60.0

_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on", "t"), True),
    **dict.fromkeys(("false", "0", "no", "off", "f"), False),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a Consul agent.

    :param verify: False, True (the system's authorities) or the path of an authority's certificate.
    :param cert: client certificate and key, as paths; None for none.
    :param timeout: seconds that one request may take, and for which reads from an unreachable Consul are tried again.
    :param kv_prefix: the prefix of all keys: empty, or text that ends with a slash.
    :param pass_limit: seconds after a planner's read in which it may admit hosts.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    scheme: str = DEFAULT_SCHEME
    token: str | None = field(default=None, repr=False)
    verify: bool | str = True
    cert: tuple[str, str] | None = None
    datacenter: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    kv_prefix: str = ""
    pass_limit: float = DEFAULT_PASS_LIMIT

    @property
    def url(self) -> str:
        """Return the agent's URL, for messages."""
        return f"{self.scheme}://{self.host}:{self.port}"


def read_settings(option: Callable[[str], Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings from options; the environment variables of Consul's own tools are the fallbacks.

    :param option: returns an option's value by its name, None if it is not set.
    :raises UpgradeError: ``bad_connection``.
    """
    _refuse_other_keys(environ)
    scheme, host, port = _address(environ.get("CONSUL_HTTP_ADDR", ""))
    # As for Consul's own tools, an address with http:// does not end TLS that was asked for: tokens would travel in clear text.
    if _boolean(environ, "CONSUL_HTTP_SSL", default=False):
        scheme = "https"
    validate = option("validate_certs")
    if validate is None:
        validate = _boolean(environ, "CONSUL_HTTP_SSL_VERIFY", default=True)
    ca_path = option("ca_path") or environ.get("CONSUL_CACERT")
    timeout = option("timeout")
    if timeout is not None and timeout <= 0:
        raise UpgradeError("bad_connection", f"timeout: {timeout} is not a number of seconds above 0.")
    limit = option("pass_limit")
    if limit is not None and not 0 < limit <= MOST_PASS_LIMIT:
        raise UpgradeError(
            "bad_connection", f"pass_limit: {limit} is not a number of seconds above 0 and up to {MOST_PASS_LIMIT:.0f}."
        )
    prefix = (option("kv_prefix") or "").strip("/")
    return Settings(
        host=_host(option("host") or host or DEFAULT_HOST),
        port=_port(option("port"), port),
        scheme=option("scheme") or scheme or DEFAULT_SCHEME,
        token=_token(_given_token(option("token") or "", environ)),
        verify=(ca_path or True) if validate else False,
        cert=_certificate(option, environ),
        datacenter=option("datacenter"),
        timeout=float(DEFAULT_TIMEOUT if timeout is None else timeout),
        pass_limit=float(DEFAULT_PASS_LIMIT if limit is None else limit),
        kv_prefix=f"{prefix}/" if prefix else "",
    )


def _refuse_other_keys(environ: Mapping[str, str]) -> None:
    """Refuse to work beside the keys that the environment asks for: those of another namespace or partition are another fleet."""
    for name in ("CONSUL_NAMESPACE", "CONSUL_PARTITION"):
        text = environ.get(name, "").strip()
        if text not in ("", "default"):
            raise UpgradeError(
                "bad_connection",
                f"{name}: {text!r} is not supported: the keys of a fleet are in the default namespace and partition, and those of another one would be "
                f"another fleet. Run unset {name}; to keep fleets apart, give each its own kv_prefix.",
            )


def _given_token(token: str, environ: Mapping[str, str]) -> str:
    """Return the token of the option, else that of the file or the variable in the environment, as Consul's own tools choose.

    :param token: the option, for which Ansible may have read the variable already.
    """
    from_variable, file = environ.get("CONSUL_HTTP_TOKEN", ""), environ.get("CONSUL_HTTP_TOKEN_FILE", "")
    if not file or token not in ("", from_variable):
        return token or from_variable
    try:
        found = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UpgradeError(
            "bad_connection",
            f"CONSUL_HTTP_TOKEN_FILE: {file!r} can't be read ({why}). Give the absolute path of a file that this user can read, or unset it.",
        ) from error
    if not found:
        raise UpgradeError(
            "bad_connection", f"CONSUL_HTTP_TOKEN_FILE: {file!r} is empty. Write the token to it, or unset it."
        )
    return found


def _address(text: str) -> tuple[str | None, str | None, int | None]:
    if not text:
        return None, None, None
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        if parts.scheme in ("", "http", "https") and parts.hostname and not parts.path.strip("/"):
            return parts.scheme or None, parts.hostname, parts.port
    except ValueError:
        pass
    raise UpgradeError(
        "bad_connection",
        f"CONSUL_HTTP_ADDR: {text!r} is not an address of the form host:port or https://host:port "
        "(Unix sockets are not supported).",
    )


def _host(host: str) -> str:
    """Return the host as a URL has it: an IPv6 address gets brackets."""
    if any(sign in host for sign in "/?#@ "):
        raise UpgradeError(
            "bad_connection",
            f"host: {host!r} is neither the name nor the address of a host. Scheme and port have options of their own.",
        )
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _port(given: int | None, from_address: int | None) -> int:
    port = from_address or DEFAULT_PORT if given is None else given
    if not 0 < port < 65536:
        raise UpgradeError("bad_connection", f"port: {port} is not a port; give a number from 1 to 65535.")
    return port


def _token(token: str) -> str | None:
    # A token from a file may end with a line break, which a header can't have.
    token = token.strip()
    if not (token.isascii() and token.isprintable()):
        raise UpgradeError(
            "bad_connection",
            "token: it has a line break or another character that tokens don't have. It is not shown here; check where "
            "it comes from (the option, CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE).",
        )
    return token or None


def _boolean(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(name, "").strip()
    value = _BOOLEANS.get(text.lower()) if text else default
    if value is None:
        raise UpgradeError("bad_connection", f"{name}: {text!r} is neither true nor false.")
    return value


def _certificate(option: Callable[[str], Any], environ: Mapping[str, str]) -> tuple[str, str] | None:
    cert = option("client_cert") or environ.get("CONSUL_CLIENT_CERT")
    key = option("client_key") or environ.get("CONSUL_CLIENT_KEY")
    if bool(cert) != bool(key):
        raise UpgradeError(
            "bad_connection",
            "client_cert and client_key (CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY) go together: "
            f"only {'client_cert' if cert else 'client_key'} is set.",
        )
    return (cert, key) if cert and key else None
