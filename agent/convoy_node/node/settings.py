# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of a node: a JSON file that the agent reads, and that Ansible takes as extra variables."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from ..machine.errors import BadSettings, BadToken, sanitize
from .connection import Connection
from .state import FOLDER

FILE = "/etc/convoy/node.json"
_MOST_BYTES = 1_000_000

_TEXT, _FLAG, _WHOLE, _SECONDS, _TEXTS, _ITEMS, _MAPPING = (
    "text",
    "flag",
    "whole",
    "seconds",
    "texts",
    "items",
    "mapping",
)

# The settings and their kinds. `ansible-doc -t role convoy.upgrade.puppet_gate` describes them; a test compares both.
KINDS: Mapping[str, str] = {
    "puppet_gate_host": _TEXT,
    "puppet_gate_role": _TEXT,
    "puppet_gate_default": _FLAG,
    "puppet_gate_bootstrap": _FLAG,
    "puppet_gate_version_file": _TEXT,
    "puppet_gate_fact": _TEXT,
    "puppet_gate_facts_file": _TEXT,
    "puppet_gate_repositories": _ITEMS,
    "puppet_gate_sources": _TEXT,
    "puppet_gate_upgrade_packages": _FLAG,
    "puppet_gate_services": _TEXT,
    "puppet_gate_services_timeout": _WHOLE,
    "puppet_gate_packages": _TEXTS,
    "puppet_gate_package_timeout": _SECONDS,
    "puppet_gate_package_lock_timeout": _WHOLE,
    "puppet_gate_puppet": _TEXT,
    "puppet_gate_puppet_schedule": _TEXT,
    "puppet_gate_puppet_interval": _WHOLE,
    "puppet_gate_puppet_splay": _WHOLE,
    "puppet_gate_puppet_pending": _FLAG,
    "puppet_gate_manifest": _TEXT,
    "puppet_gate_modulepath": _TEXTS,
    "puppet_gate_environment": _TEXT,
    "puppet_gate_arguments": _TEXTS,
    "puppet_gate_noop": _FLAG,
    "puppet_gate_puppet_timeout": _SECONDS,
    "puppet_gate_lock_timeout": _SECONDS,
    "puppet_gate_hooks_dir": _TEXT,
    "puppet_gate_hooks_timeout": _SECONDS,
    "puppet_gate_commands_dir": _TEXT,
    "puppet_gate_allowed_signers": _TEXT,
    "puppet_gate_require_signed_jobs": _FLAG,
    "puppet_gate_reboot": _TEXT,
    "puppet_gate_reboot_file": _TEXT,
    "puppet_gate_validation_dir": _TEXT,
    "puppet_gate_validation_timeout": _SECONDS,
    "puppet_gate_health": _FLAG,
    "puppet_gate_health_critical": _FLAG,
    "puppet_gate_health_ttl": _WHOLE,
    "puppet_gate_maintenance": _FLAG,
    "puppet_gate_agent": _MAPPING,
    "puppet_gate_lock_file": _TEXT,
    "puppet_gate_interval": _WHOLE,
    "puppet_gate_token_file": _TEXT,
    "upgrade_consul_host": _TEXT,
    "upgrade_consul_port": _WHOLE,
    "upgrade_consul_scheme": _TEXT,
    "upgrade_consul_token": _TEXT,
    "upgrade_consul_validate_certs": _FLAG,
    "upgrade_consul_ca_path": _TEXT,
    "upgrade_consul_client_cert": _TEXT,
    "upgrade_consul_client_key": _TEXT,
    "upgrade_consul_datacenter": _TEXT,
    "upgrade_consul_timeout": _SECONDS,
    "upgrade_consul_pass_limit": _SECONDS,
    "upgrade_consul_kv_prefix": _TEXT,
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "puppet_gate_puppet": ("apply", "agent"),
    "puppet_gate_puppet_schedule": ("agent", "external"),
    "puppet_gate_reboot": ("never", "file", "kernel"),
    "upgrade_consul_scheme": ("http", "https"),
}
_PATHS = ("puppet_gate_commands_dir", "puppet_gate_allowed_signers", "puppet_gate_services")
# A setting whose value no output may have.
_SECRET = "upgrade_consul_token"
_EXAMPLES = {
    _TEXT: 'text in quotes, such as "apply"',
    _FLAG: "true or false",
    _WHOLE: "a whole number above 0",
    _SECONDS: "a number above 0",
    _TEXTS: 'a list of texts, such as ["a", "b"]',
    _ITEMS: "a list of objects",
    _MAPPING: "an object",
}
# A request may not take longer: systemd ends an agent that has not reported for 180 seconds, as convoy-node.service says. It reports before each.
_MOST_TIMEOUT = 60.0
# These may be 0.
_FROM_ZERO = ("puppet_gate_package_lock_timeout", "puppet_gate_puppet_splay", "puppet_gate_lock_timeout")
_LAST_PORT = 65535
_MOST_PASS_LIMIT = 60
# What decides who reports, where, and whether.
_NEEDED_TO_REPORT = (
    "puppet_gate_host",
    "puppet_gate_role",
    "puppet_gate_default",
    "puppet_gate_noop",
    "puppet_gate_health",
    "puppet_gate_health_critical",
    "puppet_gate_agent",
    "puppet_gate_token_file",
    "puppet_gate_lock_file",
)
_OF_ROLE = "puppet_gate_"
_OF_AGENT = {"host", "port", "scheme"}
_ROLE = re.compile(r"([a-z]+)(\d+)(-.*)?")
# What Puppet accepts as the name of an environment, in which {version} stands for a version.
_ENVIRONMENT = re.compile(r"\w*", re.ASCII)
_NO_ENVIRONMENTS = ("main", "master", "server", "agent", "user")


@dataclass(frozen=True)
class NodeSettings:
    """The settings that the agent itself needs. The rest is Ansible's.

    :param data: all settings as they are in the file.
    :param consul_agent: how to reach the Consul agent of the node, which has its checks.
    :param interval: seconds after which the gate is read again in any case.
    :param puppet_interval: seconds between two runs of Puppet; None if something else runs it.
    :param services: the folder with the tasks of the services of the node, in which ``{version}`` may stand for a version; empty for none.
    :param commands_dir: the folder of the commands that jobs may run.
    :param allowed_signers: the file with the keys that may sign jobs.
    :param require_signed_jobs: whether jobs without such a signature are refused.
    """

    host: str
    role: str
    connection: Connection
    data: Mapping[str, Any]
    consul_agent: Connection = field(default_factory=Connection)
    prefix: str = ""
    default: bool = True
    bootstrap: bool = False
    noop: bool = False
    version_file: str = "/etc/convoy/version"
    interval: int = 300
    puppet_interval: Optional[int] = 1800
    puppet_splay: int = 1800
    puppet_pending: bool = False
    health: bool = True
    health_critical: bool = False
    health_ttl: int = 3600
    maintenance: bool = False
    token_file: Optional[str] = None
    services: str = ""
    commands_dir: str = "/etc/convoy/commands.d"
    allowed_signers: str = "/etc/convoy/allowed_signers"
    require_signed_jobs: bool = False

    @property
    def is_external(self) -> bool:
        """Whether something else runs Puppet, and is kept out by Puppet's own lock while the gate is closed."""
        return self.puppet_interval is None


def read_settings(path: str = FILE, needs_token: bool = True) -> NodeSettings:
    """Return the settings of a file.

    :param needs_token: whether a token that can't be read is an error. Otherwise the settings are without it.
    :raises BadSettings: if the file can't be read, a setting is unknown or has a wrong value, or, as :class:`BadToken`, the token can't be read.
    """
    data = _parsed(path)
    for name, value in data.items():
        _check(path, name, value)
    return _settings(path, data, needs_token)


def usable_settings(path: str) -> NodeSettings:
    """Return the settings of a file without those that can't be used, and without a token that can't be read.

    With them, a node that never had others can report the mistake.

    :raises BadSettings: if it is not certain which host, role and Consul they mean, or whether the node may report anything.
    """
    data, usable = _parsed(path), {}
    for name, value in data.items():
        try:
            _check(path, name, value)
        except BadSettings:
            if not _is_dispensable(name, data):
                raise
        else:
            usable[name] = value
    return _settings(path, usable, needs_token=False)


def _is_dispensable(name: str, data: Mapping[str, Any]) -> bool:
    """Return whether who reports, where, and whether is certain without a setting that can't be used."""
    if not name.startswith(_OF_ROLE) or name in _NEEDED_TO_REPORT:
        return False
    if name in KINDS:
        return True
    # What has an unknown name may be the host, the role, or another setting that is needed. All begin alike, so the rest of the names counts.
    needed = [one[len(_OF_ROLE) :] for one in _NEEDED_TO_REPORT]
    is_named = bool(data.get("puppet_gate_host") and data.get("puppet_gate_role"))
    return is_named and not difflib.get_close_matches(name[len(_OF_ROLE) :], needed, n=1)


def _settings(path: str, data: Mapping[str, Any], needs_token: bool) -> NodeSettings:
    host = str(data.get("puppet_gate_host") or socket.gethostname().partition(".")[0])
    if not host or "/" in host or not host.isprintable() or host != host.strip():
        raise BadSettings(f"{path}: puppet_gate_host {sanitize(repr(host))} can't be the name of a host. Correct it.")
    role = str(data.get("puppet_gate_role") or "")
    if not role:
        found = _ROLE.search(host)
        if found is None:
            raise BadSettings(
                f"{path}: no role can be found in the name {host}, so the gate of its role is unknown. Set puppet_gate_role."
            )
        role = found[1]
    if "/" in role or not role.isprintable() or role != role.strip():
        raise BadSettings(f"{path}: puppet_gate_role {sanitize(repr(role))} can't be the name of a role. Correct it.")
    try:
        token, token_file = _token(path, data)
    except BadToken:
        if needs_token:
            raise
        token = token_file = None
    interval = data.get("puppet_gate_puppet_interval", 1800)
    connection = _connection(path, data, token)
    return NodeSettings(
        host,
        role,
        connection,
        data,
        consul_agent=_consul_agent(path, data.get("puppet_gate_agent", {}), connection),
        prefix=_prefix(str(data.get("upgrade_consul_kv_prefix", ""))),
        default=data.get("puppet_gate_default", True),
        bootstrap=data.get("puppet_gate_bootstrap", False),
        noop=data.get("puppet_gate_noop", False),
        version_file=data.get("puppet_gate_version_file", "/etc/convoy/version"),
        interval=data.get("puppet_gate_interval", 300),
        puppet_interval=None if data.get("puppet_gate_puppet_schedule") == "external" else interval,
        puppet_splay=data.get("puppet_gate_puppet_splay", interval),
        puppet_pending=data.get("puppet_gate_puppet_pending", False),
        health=data.get("puppet_gate_health", True),
        health_critical=data.get("puppet_gate_health_critical", False),
        health_ttl=data.get("puppet_gate_health_ttl", 3600),
        maintenance=data.get("puppet_gate_maintenance", False),
        token_file=token_file,
        services=data.get("puppet_gate_services", ""),
        commands_dir=data.get("puppet_gate_commands_dir") or "/etc/convoy/commands.d",
        allowed_signers=data.get("puppet_gate_allowed_signers") or "/etc/convoy/allowed_signers",
        require_signed_jobs=data.get("puppet_gate_require_signed_jobs", False),
    )


def last_good(path: str) -> str:
    """Return where the last settings of a file are stored that could be used. With them, the agent can report that the present ones can't.

    Each settings file has its own, so that no host is reported under the name of another one.

    :param path: the settings file.
    """
    if path == FILE:
        return f"{FOLDER}/node.json"
    return f"{FOLDER}/node-{hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:8]}.json"


def keep_last_good(settings: NodeSettings, path: str) -> None:
    """Store settings that could be used, where :func:`last_good` says. A disk that is full is no reason to stop.

    :param path: the settings file.
    """
    text = json.dumps(dict(settings.data), indent=2, sort_keys=True)
    file = Path(last_good(path))
    try:
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            return
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
        new.replace(file)
    except OSError:
        return


def forget_last_good() -> list[NodeSettings]:
    """Remove what :func:`keep_last_good` has stored; return what could be read of it.

    :raises OSError: if it can't be removed.
    """
    found = []
    for file in Path(FOLDER).glob("node*.json"):
        with contextlib.suppress(BadSettings):
            found.append(read_settings(str(file), needs_token=False))
        file.unlink()
    return found


def is_external(path: str) -> bool:
    """Return whether something else runs Puppet, as settings say that can't be used, or the last ones that could.

    :param path: the settings file.
    """
    for file in (path, last_good(path)):
        with contextlib.suppress(BadSettings):
            if _parsed(file).get("puppet_gate_puppet_schedule") == "external":
                return True
    return False


def _parsed(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadSettings(
            f"{path} can't be read: {error.strerror}. {_remedy(error, 'Write the settings of this node there, or enroll it again.')}"
        ) from error
    if not text.strip():
        raise BadSettings(f"{path} is empty. Write the settings of this node there, or enroll it again.")
    try:
        data = json.loads(text)
    except RecursionError:
        raise BadSettings(f"{path} is nested too deeply. Correct it, or enroll the node again.") from None
    except ValueError as error:
        raise BadSettings(
            f"{path} is not JSON: {sanitize(str(error))}. Correct it, or enroll the node again."
        ) from None
    if not isinstance(data, dict) or len(text) > _MOST_BYTES:
        raise BadSettings(f"{path} is not an object with the settings of a node. Correct it, or enroll the node again.")
    return data


def _check(path: str, name: str, value: Any) -> None:
    kind = KINDS.get(name)
    if kind is None:
        close = difflib.get_close_matches(name, KINDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise BadSettings(f"{path}: {sanitize(name, 100)} is not a setting{hint} Correct or remove it.")
    if not _fits(name, kind, value):
        if name == _SECRET:
            # Not even a part of it is shown.
            raise BadSettings(f"{path}: {name} is no text, and not shown here; give {_EXAMPLES[kind]}.")
        raise BadSettings(f"{path}: {name} is {sanitize(json.dumps(value), 100)}; give {_EXAMPLES[kind]}.")
    if name == "puppet_gate_environment":
        _check_environment(path, value)
    if (
        name == "puppet_gate_sources"
        and value not in ("", "consul")
        and not (value.startswith("/") and "{version}" in value)
    ):
        raise BadSettings(
            f"{path}: puppet_gate_sources is {sanitize(json.dumps(value), 100)}; give consul, or the path of a folder with {{version}} in it, such "
            "as /srv/fleet/{version}/sources."
        )
    if name == "upgrade_consul_port" and value > _LAST_PORT:
        raise BadSettings(f"{path}: {name} is {value}; give a port from 1 to {_LAST_PORT}.")
    if name == "upgrade_consul_pass_limit" and value > _MOST_PASS_LIMIT:
        raise BadSettings(f"{path}: {name} is {value}; give a number above 0 and up to {_MOST_PASS_LIMIT}.")
    if name == "upgrade_consul_host" and any(sign in value for sign in "/?#@ "):
        raise BadSettings(
            f"{path}: {name} is {sanitize(json.dumps(value), 100)}; give the name or the address of a host. Scheme and port have settings of their own."
        )
    if name in _PATHS and value and not value.startswith("/"):
        raise BadSettings(f"{path}: {name} is {sanitize(json.dumps(value), 100)}; give a path that begins with /.")
    choices = _CHOICES.get(name, ())
    if choices and value not in choices:
        raise BadSettings(f"{path}: {name} is {sanitize(json.dumps(value), 100)}; give one of {', '.join(choices)}.")


def _check_environment(path: str, value: str) -> None:
    if value in _NO_ENVIRONMENTS or not _ENVIRONMENT.fullmatch(value.replace("{version}", "")):
        raise BadSettings(
            f"{path}: puppet_gate_environment is {sanitize(json.dumps(value), 100)}; give the name of an environment, with letters, digits "
            "and _, in which {version} may stand for the version, such as release_{version}."
        )


def _fits(name: str, kind: str, value: Any) -> bool:
    if kind == _TEXT:
        return isinstance(value, str)
    if kind == _FLAG:
        return isinstance(value, bool)
    if kind in (_WHOLE, _SECONDS):
        is_number = isinstance(value, int if kind == _WHOLE else (int, float)) and not isinstance(value, bool)
        return is_number and (value > 0 or (value == 0 and name in _FROM_ZERO)) and value < 10**9
    if kind == _MAPPING:
        return isinstance(value, dict)
    return isinstance(value, list) and all(isinstance(one, str if kind == _TEXTS else dict) for one in value)


def _token(path: str, data: Mapping[str, Any]) -> tuple[Optional[str], Optional[str]]:
    """Return the token and the file that it is from; None without a token.

    :raises BadToken: if the file can't be read, or has no token.
    """
    given = str(data.get(_SECRET) or "").strip()
    if given:
        if not (given.isascii() and given.isprintable()):
            raise BadSettings(f"{path}: {_SECRET} has characters that tokens don't have. Correct it.")
        return given, None
    file = data.get("puppet_gate_token_file")
    if not file:
        return None, None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        remedy = _remedy(error, "Write the Consul token of this node there.")
        raise BadToken(f"{path}: the token file {file} can't be read: {reason}. {remedy}") from None
    if not token or not (token.isascii() and token.isprintable()):
        raise BadToken(
            f"{path}: the token file {file} is empty or has characters that tokens don't have. Write the Consul token there."
        )
    return token, file


def _remedy(error: Exception, otherwise: str) -> str:
    """Return what to do about a file that can't be read. Only root may read the files of a node."""
    is_denied = isinstance(error, PermissionError) and os.geteuid() != 0
    return "Run convoy-node as root." if is_denied else otherwise


def _connection(path: str, data: Mapping[str, Any], token: Optional[str]) -> Connection:
    """Return how to reach Consul. What is refused here and in :func:`_check` is what agent runs refuse; a test compares both.

    :raises BadSettings: if a certificate has no key, or a key no certificate.
    """
    cert, key = data.get("upgrade_consul_client_cert"), data.get("upgrade_consul_client_key")
    if bool(cert) != bool(key):
        there, missing = ("client_cert", "client_key") if cert else ("client_key", "client_cert")
        raise BadSettings(
            f"{path}: upgrade_consul_{there} is set, and upgrade_consul_{missing} is not. They go together: set both, or none."
        )
    validate = data.get("upgrade_consul_validate_certs", True)
    return Connection(
        host=(data.get("upgrade_consul_host") or "127.0.0.1").strip("[]"),
        port=data.get("upgrade_consul_port", 8500),
        scheme=data.get("upgrade_consul_scheme", "http"),
        token=token,
        verify=(data.get("upgrade_consul_ca_path") or True) if validate else False,
        cert=(cert, key) if cert and key else None,
        datacenter=data.get("upgrade_consul_datacenter"),
        timeout=min(float(data.get("upgrade_consul_timeout", 10)), _MOST_TIMEOUT),
    )


def _consul_agent(path: str, given: Mapping[str, Any], connection: Connection) -> Connection:
    """Return how to reach the Consul agent of the node: as agent runs do, with the token and the certificates of the other connection.

    :raises BadSettings: if the address can't be one.
    """
    host, port, scheme = given.get("host", "127.0.0.1"), str(given.get("port", 8500)), given.get("scheme", "http")
    # Templates of Ansible may have made the port a text.
    if (
        not (isinstance(host, str) and host)
        or not (port.isdecimal() and 0 < int(port[:6]) <= _LAST_PORT)
        or scheme not in _CHOICES["upgrade_consul_scheme"]
        or given.keys() - _OF_AGENT
    ):
        # What does not belong there may be a token.
        shown = {name: value if name in _OF_AGENT or isinstance(value, int) else "..." for name, value in given.items()}
        raise BadSettings(
            f"{path}: puppet_gate_agent is {sanitize(json.dumps(shown), 100)}; give host, port and scheme (http or https) of the node's Consul agent, "
            'such as {"port": 8501, "scheme": "https"}.'
        )
    return replace(connection, host=host.strip("[]"), port=int(port), scheme=scheme)


def _prefix(text: str) -> str:
    return f"{text.strip('/')}/" if text.strip("/") else ""
