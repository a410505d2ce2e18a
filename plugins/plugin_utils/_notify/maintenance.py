# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Silences the alerts of hosts while they are being upgraded.

What is silenced follows from the rollout in Consul and from the silences in Alertmanager, so a process that is killed leaves nothing that
another one does not find. Each silence lasts some minutes and is renewed, so without any process it ends by itself.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlsplit

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._common.strict_values import parse_duration
from ...module_utils._consul.errors import Unreachable
from ...module_utils._host_states.state_names import UPGRADING
from ...module_utils._queries.follow import ProgressUpdate
from .settings_file import load_settings, refuse_unknown

# Seconds to connect, and to wait for an answer.
_TIMEOUTS = (3, 10)
# After an error, the next try comes after so many seconds, and without a change the silences are looked at again after at most so many.
_AGAIN = 5.0
_LONGEST_WAIT = 60.0
# A silence lasts at least as long (seconds): it is renewed at half of its time.
_SHORTEST = 60
_AUTHOR = "convoy.upgrade"
# The end of a comment. What precedes it is the host.
_SAYS = " is being upgraded to "


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence of this fleet.

    :param starts: as Alertmanager has it.
    :param until: unix seconds.
    """

    id: str
    host: str
    starts: str
    until: float


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """An Alertmanager, and how hosts are called there.

    :param matchers: label -> regular expression, in which ``{host}`` is the host.
    :param author: ``createdBy`` of the silences, which tells those of fleets apart.
    :param authorization: the header, such as ``Bearer ...``; empty for none.
    :param lasts: for how long a silence lasts (seconds).
    """

    url: str
    matchers: Mapping[str, str]
    author: str
    authorization: str
    lasts: int

    def __repr__(self) -> str:
        """Return it without what may be secret."""
        return f"Alertmanager({self.name!r})"

    @property
    def name(self) -> str:
        """What messages call it."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or "Alertmanager"

    def silences(self) -> list[Silence]:
        """Return the silences of this fleet that have not ended.

        :raises MaintenanceError: if it can't be reached or refuses.
        """
        found = []
        for one in self._call("GET", "silences") or ():
            host, says, _version = str(one.get("comment", "")).rpartition(_SAYS)
            if one.get("createdBy") == self.author and says and (one.get("status") or {}).get("state") != "expired":
                found.append(Silence(str(one["id"]), host, str(one["startsAt"]), _seconds(str(one["endsAt"]))))
        return found

    def begin(self, host: str, version: str, until: float, before: Silence | None = None) -> None:
        """Silence a host until a time (unix seconds).

        :param before: the silence that is renewed.
        :raises MaintenanceError: as for :meth:`silences`.
        """
        matchers = [
            {"name": label, "value": value.replace("{host}", re.escape(host)), "isRegex": True, "isEqual": True}
            for label, value in self.matchers.items()
        ]
        body = {
            "matchers": matchers,
            # One with another start would be another one.
            "startsAt": before.starts if before is not None else _text(runtime.now()),
            "endsAt": _text(until),
            "createdBy": self.author,
            "comment": f"{host}{_SAYS}{version}",
        }
        self._call("POST", "silences", body if before is None else {**body, "id": before.id})

    def end(self, silence: Silence) -> None:
        """End a silence.

        :raises MaintenanceError: as for :meth:`silences`.
        """
        self._call("DELETE", f"silence/{quote(silence.id, safe='')}")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        requests = import_module("requests")
        headers = {"User-Agent": _AUTHOR, **({"Authorization": self.authorization} if self.authorization else {})}
        try:
            answer = requests.request(
                method,
                f"{self.url.rstrip('/')}/api/v2/{path}",
                json=body,
                headers=headers,
                timeout=_TIMEOUTS,
                allow_redirects=False,
            )
            if answer.status_code != 200:
                raise MaintenanceError(f"{self.name} answered with status {answer.status_code}")
            return answer.json() if method == "GET" else None
        except requests.Timeout as error:
            raise MaintenanceError(f"{self.name} did not answer within {_TIMEOUTS[1]} s") from error
        except requests.ConnectionError as error:
            raise MaintenanceError(f"{self.name} can't be reached") from error
        except (requests.RequestException, ValueError) as error:
            raise MaintenanceError(f"{self.name} is no Alertmanager: its answer can't be read") from error


class MaintenanceError(Exception):
    """Why silences could not be changed, without a full stop."""


class Maintenance:
    """Keeps the hosts that are being upgraded silenced, in a thread of its own, which can delay nothing else.

    :ivar warning: what does not work now; empty for nothing.
    """

    def __init__(self, alertmanager: Alertmanager) -> None:
        """Change nothing before the first read."""
        self._alertmanager = alertmanager
        self._changed = runtime.condition()
        self._wanted: Mapping[str, str] = {}
        # Hosts of the fleet. Silences of other hosts are left alone.
        self._known: frozenset[str] = frozenset()
        self._reads = 0
        self._is_over = False
        self.warning = ""
        self._thread = runtime.start_thread(self._run)

    def update(self, read: ProgressUpdate | Unreachable | None) -> None:
        """Silence the hosts that are being upgraded, and end the silences of all others of the fleet.

        :param read: None, or the error if Consul can't be reached, changes nothing.
        """
        if not isinstance(read, ProgressUpdate):
            return
        version = read.progress.version
        wanted = {host: version for host, view in read.hosts.items() if view.state == UPGRADING}
        with self._changed:
            if wanted != self._wanted or not self._reads:
                self._wanted, self._known = wanted, frozenset(read.hosts)
                self._reads += 1
                self._changed.notify_all()

    def close(self, seconds: float = 15.0) -> None:
        """Make the last changes. Silences of hosts that are still being upgraded end by themselves, unless another process renews them.

        :param seconds: how long this may take.
        """
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        done = 0
        while True:
            with self._changed:
                # Silences are renewed at half of their time, and looked at a little earlier.
                wait = min(_LONGEST_WAIT, self._alertmanager.lasts / 4) if not self.warning else _AGAIN
                if not self._is_over and self._reads == done:
                    self._changed.wait(wait)
                over, reads, wanted, known = self._is_over, self._reads, self._wanted, self._known
            if reads:
                try:
                    self._sync(wanted, known)
                    self.warning = ""
                except MaintenanceError as error:
                    self.warning = f"Alerts of {listing(list(wanted), 3) or 'hosts'} may not be silenced as they should: {error}. It is tried again."
                except Exception as error:
                    self.warning = f"Alerts are not silenced: {error!r}. It is tried again."
            done = reads
            if over:
                return

    def _sync(self, wanted: Mapping[str, str], known: frozenset[str]) -> None:
        """Let the silences be as they should."""
        place, now = self._alertmanager, runtime.now()
        found: dict[str, list[Silence]] = {}
        for silence in place.silences():
            found.setdefault(silence.host, []).append(silence)
        for host, version in wanted.items():
            latest = max(found.get(host, ()), key=lambda one: one.until, default=None)
            if latest is None or latest.until < now + place.lasts / 2:
                place.begin(host, version, now + place.lasts, latest)
        for host, silences in found.items():
            if host in known and host not in wanted:
                for silence in silences:
                    place.end(silence)


def read_maintenance(loader: Any, file: str) -> Alertmanager:
    """Return the Alertmanager that a settings file names.

    :param loader: Ansible's.
    :raises UpgradeError: ``bad_maintenance``.
    """
    try:
        return _alertmanager(load_settings(loader, file))
    except ValueError as error:
        why = f"maintenance: {file}: {error}. Nothing was done: correct the file, or give another one."
        raise UpgradeError("bad_maintenance", why, file=file) from error


def _alertmanager(settings: object) -> Alertmanager:
    whole = _mapping(settings, "it")
    refuse_unknown(whole, ("alertmanager",))
    found = _mapping(whole.get("alertmanager"), "alertmanager")
    refuse_unknown(found, ("url", "matchers", "name", "authorization", "lasts"), "alertmanager.")
    url = str(found.get("url") or "")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError("alertmanager.url is not a URL that begins with https:// or http://")
    matchers = _mapping(found.get("matchers", {"instance": "{host}(:[0-9]+)?"}), "alertmanager.matchers")
    for label, value in matchers.items():
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(label)):
            raise ValueError(f"alertmanager.matchers.{label} is not a label with a regular expression")
        try:
            re.compile(value.replace("{host}", "host"))
        except re.error as error:
            raise ValueError(f"alertmanager.matchers.{label} is not a regular expression: {error}") from error
    # Without the host, a silence would be one of everything.
    if not any("{host}" in value for value in matchers.values()):
        raise ValueError("alertmanager.matchers: none of them has {host}, so each silence would be one of all hosts")
    try:
        lasts = parse_duration(found.get("lasts", "15m"), "lasts")
    except UpgradeError as error:
        raise ValueError("alertmanager.lasts is not a duration, such as 15m") from error
    if lasts < _SHORTEST:
        raise ValueError(f"alertmanager.lasts is shorter than {_SHORTEST} s")
    name = str(found.get("name") or "")
    return Alertmanager(
        url,
        {str(label): str(value) for label, value in matchers.items()},
        f"{_AUTHOR} {name}".strip(),
        str(found.get("authorization") or ""),
        lasts,
    )


def _mapping(value: object, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{where} is not a mapping of names to values")
    return value


def _text(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03}Z"


def _seconds(text: str) -> float:
    """Return the time of a text that Alertmanager wrote (unix seconds); 0 if it is not one."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", text)
    try:
        return float(calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S"))) if found else 0.0
    except ValueError:
        return 0.0
