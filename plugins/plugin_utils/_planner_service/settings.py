# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of a planner service: one file without secrets, and a file with the token."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import check_name
from ...module_utils._consul.settings import Settings, read_settings
from ...module_utils._module import CONNECTION_OPTIONS
from .._notify.maintenance import read_maintenance
from .._notify.messenger import Messenger, read_targets
from .._notify.settings_file import load_settings, refuse_unknown
from .._notify.silences import Monitoring

_KEYS = ("name", "consul", "token_file", "fleet", "page", "metrics_file", "notify", "maintenance")
_CONSUL = tuple(name for name in CONNECTION_OPTIONS if name != "token")
# Seconds that messages for one event may take.
_NOTIFY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a planner service.

    :param name: its name among the planner services of the fleet.
    :param consul: how to reach Consul.
    :param fleet: host -> role, for hosts that never reported, and for names without a role.
    :param page: folder of the live page; empty for none.
    :param metrics_file: file of the metrics; empty for none.
    :param messenger: sends notifications; None for none.
    :param monitoring: where alerts of hosts are silenced while they are being upgraded.
    """

    name: str
    consul: Settings
    fleet: Mapping[str, str]
    page: str = ""
    metrics_file: str = ""
    messenger: Messenger | None = None
    monitoring: tuple[Monitoring, ...] = ()


def read_service_settings(file: str, environ: Mapping[str, str]) -> ServiceSettings:
    """Return the settings in a file.

    :raises ValueError: for the first mistake; its text is a sentence that names the file.
    """
    loader = DataLoader()
    try:
        data = _load(loader, file)
        if not isinstance(data, Mapping):
            raise ValueError("it is not a mapping of names to values")
        refuse_unknown(data, _KEYS)
        return ServiceSettings(
            name=_name(data),
            consul=_consul(data, environ),
            fleet=_fleet(data.get("fleet"), loader),
            page=_path(data, "page"),
            metrics_file=_path(data, "metrics_file"),
            messenger=_messenger(_path(data, "notify"), loader),
            monitoring=_monitoring(_path(data, "maintenance"), loader),
        )
    except (ValueError, UpgradeError) as error:
        raise ValueError(f"{file}: {str(error).rstrip('.')}. Correct it, then start the service again.") from error


def _name(data: Mapping[str, Any]) -> str:
    name = _path(data, "name") or socket.gethostname()
    return check_name("part", name, "name")


def _consul(data: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    given = data.get("consul") or {}
    if not isinstance(given, Mapping):
        raise ValueError("consul is not a mapping of names to values")
    refuse_unknown(given, _CONSUL, "consul.")
    options = dict(given)
    token = _token(_path(data, "token_file"))
    if token:
        options["token"] = token
    checked = ArgumentSpecValidator(CONNECTION_OPTIONS).validate(options)
    if checked.error_messages:
        raise ValueError(f"consul: {'; '.join(checked.error_messages)}")
    return read_settings(checked.validated_parameters.get, environ)


def _token(file: str) -> str:
    """Return the token in a file; empty for no file.

    :raises ValueError: if it can't be read, or others may read it.
    """
    if not file:
        return ""
    try:
        mode = Path(file).stat().st_mode
        text = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"token_file: {file} can't be read ({error})") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"token_file: other users may open {file}; run chmod 0600 {file}")
    if not text:
        raise ValueError(f"token_file: {file} is empty")
    return text


def _fleet(value: object, loader: DataLoader) -> Mapping[str, str]:
    """Return the fleet: a mapping, or the name of a file with one."""
    where = "fleet"
    if isinstance(value, str):
        where = f"fleet: {value}"
        try:
            value = _load(loader, value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(host, str) and isinstance(role, str) for host, role in value.items()
    ):
        raise ValueError(f"{where} does not map hosts to their roles")
    return {str(host): str(role) for host, role in value.items()}


def _messenger(file: str, loader: DataLoader) -> Messenger | None:
    if not file:
        return None
    try:
        found = _load(loader, file)
        if not isinstance(found, Mapping):
            raise ValueError("it has no targets; hooks with tasks are called by runs of playbooks only")
        return Messenger(file, tuple(read_targets(found)), str(found.get("page", "")), _NOTIFY_SECONDS)
    except ValueError as error:
        raise ValueError(f"notify: {file}: {error}") from error


def _monitoring(file: str, loader: DataLoader) -> tuple[Monitoring, ...]:
    if not file:
        return ()
    try:
        _load(loader, file)
    except ValueError as error:
        raise ValueError(f"maintenance: {file}: {error}") from error
    return tuple(read_maintenance(loader, file))


def _load(loader: DataLoader, file: str) -> Any:
    """Return the content of a file.

    :raises ValueError: if it can't be read, or has a value of ansible-vault; its text is the end of a sentence.
    """
    found = load_settings(loader, file)
    encrypted = next(_encrypted(found), None)
    if encrypted is not None:
        raise ValueError(
            f"{encrypted or 'its content'} is a value of ansible-vault, and a planner service has no vault password; write it without !vault, and run "
            f"chmod 0600 {file}"
        )
    return found


def _encrypted(value: Any, path: str = "") -> Iterator[str]:
    """Yield where the values of ansible-vault are."""
    # Their class is another one in each release.
    if type(value).__name__ in ("EncryptedString", "AnsibleVaultEncryptedUnicode"):
        yield path
    elif isinstance(value, Mapping):
        for name, below in value.items():
            yield from _encrypted(below, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for at, below in enumerate(value):
            yield from _encrypted(below, f"{path}[{at}]")


def _path(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key, "")
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} is not a text")
    return value or ""
