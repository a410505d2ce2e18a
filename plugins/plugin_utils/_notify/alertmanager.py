# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Silences in Prometheus' Alertmanager."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ...module_utils._common import runtime
from .silences import Address, Silence, author_of, comment_of, host_of, lasts_of, mapping_of, read_section

SECTION = "alertmanager"


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """An Alertmanager, and how hosts are called there. It is a :class:`Monitoring`.

    :param matchers: label -> regular expression, in which ``{host}`` is the host.
    :param author: ``createdBy`` of the silences.
    :param lasts: for how long a silence lasts (seconds).
    """

    address: Address
    matchers: Mapping[str, str]
    author: str
    lasts: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.address.name

    def silences(self) -> list[Silence]:
        """Return the silences of this fleet that have not ended."""
        found = []
        for one in self.address.call("GET", "api/v2/silences") or ():
            host = host_of(one.get("comment"))
            if one.get("createdBy") == self.author and host and (one.get("status") or {}).get("state") != "expired":
                found.append(Silence(str(one["id"]), host, str(one["startsAt"]), _seconds(str(one["endsAt"]))))
        return found

    def begin(self, host: str, target: str, until: float, before: Silence | None = None) -> None:
        """Silence a host until a time (unix seconds).

        :param before: the silence that is renewed.
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
            "comment": comment_of(host, target),
        }
        self.address.call("POST", "api/v2/silences", body if before is None else {**body, "id": before.id})

    def end(self, silence: Silence) -> None:
        """End a silence."""
        self.address.call("DELETE", f"api/v2/silence/{quote(silence.id, safe='')}")


def read_alertmanager(settings: Mapping[Any, Any]) -> Alertmanager:
    """Return the Alertmanager of a settings file.

    :raises ValueError: for a mistake; its text is the end of a sentence.
    """
    found = read_section(settings, SECTION, ("matchers", "authorization"))
    matchers = mapping_of(found.get("matchers", {"instance": "{host}(:[0-9]+)?"}), f"{SECTION}.matchers")
    for label, value in matchers.items():
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(label)):
            raise ValueError(f"{SECTION}.matchers.{label} is not a label with a regular expression")
        try:
            re.compile(value.replace("{host}", "host"))
        except re.error as error:
            raise ValueError(f"{SECTION}.matchers.{label} is not a regular expression: {error}") from error
    # Without the host, a silence would be one of everything.
    if not any("{host}" in value for value in matchers.values()):
        raise ValueError(f"{SECTION}.matchers: none of them has {{host}}, so each silence would be one of all hosts")
    authorization = str(found.get("authorization") or "")
    headers = {"Authorization": authorization} if authorization else {}
    return Alertmanager(
        Address("Alertmanager", str(found["url"]), headers, ca_path=found.get("ca_path")),
        {str(label): str(value) for label, value in matchers.items()},
        author_of(found),
        lasts_of(found, SECTION),
    )


def _text(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03}Z"


def _seconds(text: str) -> float:
    """Return the time of a text that Alertmanager wrote (unix seconds); 0 if it is not one."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", text)
    try:
        return float(calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S"))) if found else 0.0
    except ValueError:
        return 0.0
