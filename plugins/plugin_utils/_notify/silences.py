# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Silences of hosts in a monitoring system, and how such a system is called."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import is_job, job_id
from ...module_utils._common.strict_values import parse_duration
from .settings_file import refuse_unknown

# ``createdBy`` or ``author`` of silences, before the name of the fleet.
AUTHOR = "convoy.upgrade"
# Seconds to connect, and to wait for an answer.
_TIMEOUTS = (3, 10)
# A silence lasts at least as long (seconds): it is renewed at half of its time.
_SHORTEST = 60
# What a comment says of a host, which precedes it: that it is upgraded to a version, or runs a job.
_UPGRADES, _RUNS = " is being upgraded to ", " runs the job "


class MaintenanceError(Exception):
    """Why silences could not be changed, without a full stop."""


class UnknownHost(MaintenanceError):
    """The monitoring system has no such host, so only this host can't be silenced."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence of this fleet.

    :param starts: as the monitoring system has it.
    :param until: unix seconds.
    """

    id: str
    host: str
    starts: str
    until: float


class Monitoring(Protocol):
    """A monitoring system that can silence hosts. Each method raises :class:`MaintenanceError` if it can't be reached or refuses."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def lasts(self) -> int:
        """For how long a silence lasts (seconds)."""

    def silences(self) -> list[Silence]:
        """Return the silences of this fleet that have not ended."""

    def begin(self, host: str, target: str, until: float, before: Silence | None = None) -> None:
        """Silence a host until a time (unix seconds).

        :param target: that of the rollout, which the comment names.
        :param before: the silence that is renewed.
        """

    def end(self, silence: Silence) -> None:
        """End a silence."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a monitoring system is.

    :param kind: what it is, such as ``Alertmanager``.
    :param headers: of each request; they may be secret.
    :param login: user and password; None for none.
    :param ca_path: a file with authorities, None for those of the system.
    """

    kind: str
    url: str
    headers: Mapping[str, str]
    login: tuple[str, str] | None = None
    ca_path: str | None = None

    def __repr__(self) -> str:
        """Return it without what may be secret."""
        return f"Address({self.name!r})"

    @property
    def name(self) -> str:
        """What messages call it."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or self.kind

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        accepted: Collection[int] = (200,),
    ) -> Any:
        """Return the decoded answer to a request; None if it is empty.

        :param body: sent as JSON.
        :param accepted: the status codes of an answer.
        :raises MaintenanceError: if there is no answer, or it has another status.
        """
        requests = import_module("requests")
        try:
            answer = requests.request(
                method,
                f"{self.url.rstrip('/')}/{path}",
                json=body,
                headers={"User-Agent": AUTHOR, "Accept": "application/json", **self.headers, **(headers or {})},
                auth=self.login,
                timeout=_TIMEOUTS,
                allow_redirects=False,
                verify=self.ca_path or True,
            )
            if answer.status_code not in accepted:
                raise MaintenanceError(f"{self.name} answered with status {answer.status_code}")
            return answer.json() if answer.content else None
        except requests.Timeout as error:
            raise MaintenanceError(f"{self.name} did not answer within {_TIMEOUTS[1]} s") from error
        except requests.exceptions.SSLError as error:
            raise MaintenanceError(
                f"the certificate of {self.name} can't be verified; ca_path names its authority"
            ) from error
        except requests.ConnectionError as error:
            raise MaintenanceError(f"{self.name} can't be reached") from error
        except (requests.RequestException, ValueError, OSError) as error:
            raise MaintenanceError(f"{self.name} is no {self.kind}: its answer can't be read") from error


def comment_of(host: str, target: str) -> str:
    """Return the comment of a silence.

    :param target: that of the rollout: a version or a job.
    """
    return f"{host}{_RUNS}{job_id(target)}" if is_job(target) else f"{host}{_UPGRADES}{target}"


def host_of(comment: object) -> str:
    """Return the host that a comment is about; empty if it is not one of ours."""
    return max((str(comment).rpartition(says)[0] for says in (_UPGRADES, _RUNS)), key=len)


def author_of(found: Mapping[Any, Any]) -> str:
    """Return the author of the silences, which tells those of fleets apart."""
    return f"{AUTHOR} {found.get('name') or ''}".strip()


def read_section(settings: Mapping[Any, Any], section: str, keys: Collection[str]) -> Mapping[Any, Any]:
    """Return a section of a settings file that names a monitoring system.

    :param keys: those that only this kind of system has.
    :raises ValueError: if it has no usable ``url``, or a key that is not known; its text is the end of a sentence.
    """
    found = mapping_of(settings.get(section), section)
    refuse_unknown(found, ("url", *keys, "name", "ca_path", "lasts"), f"{section}.")
    url = str(found.get("url") or "")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError(f"{section}.url is not a URL that begins with https:// or http://")
    return found


def lasts_of(found: Mapping[Any, Any], section: str) -> int:
    """Return for how long a silence lasts (seconds).

    :raises ValueError: if it is no duration, or too short.
    """
    try:
        lasts = parse_duration(found.get("lasts", "15m"), "lasts")
    except UpgradeError as error:
        raise ValueError(f"{section}.lasts is not a duration, such as 15m") from error
    if lasts < _SHORTEST:
        raise ValueError(f"{section}.lasts is shorter than {_SHORTEST} s")
    return lasts


def mapping_of(value: object, where: str) -> Mapping[Any, Any]:
    """Return a value that has to be a mapping.

    :raises ValueError: if it is another value, or empty.
    """
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{where} is not a mapping of names to values")
    return value
