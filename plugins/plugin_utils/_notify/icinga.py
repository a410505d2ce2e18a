# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downtimes in Icinga 2, of a host and all its services.

A downtime can't be made longer there. To renew one, another one begins, and the first one ends by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...module_utils._common import runtime
from .silences import (
    Address,
    MaintenanceError,
    Silence,
    UnknownHost,
    author_of,
    comment_of,
    host_of,
    lasts_of,
    read_section,
)

SECTION = "icinga"
_DOWNTIMES = "v1/objects/downtimes"
_OURS = "downtime.author == author && downtime.service_name == service"
_OF_HOST = "downtime.author == author && downtime.host_name == name"


@dataclass(frozen=True, slots=True)
class Icinga:
    """An Icinga 2 with its API, and how hosts are called there. It is a :class:`Monitoring`.

    :param host_name: the name of a host there, in which ``{host}`` is the host.
    :param author: of the downtimes.
    :param lasts: for how long a downtime lasts (seconds).
    """

    address: Address
    host_name: str
    author: str
    lasts: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.address.name

    def silences(self) -> list[Silence]:
        """Return the downtimes of this fleet's hosts that have not ended."""
        # A GET with a body: filters with values of their own are safe for any name.
        query = {
            "filter": _OURS,
            "filter_vars": {"author": self.author, "service": ""},
            "attrs": ["comment", "start_time", "end_time"],
        }
        answer = self.address.call("POST", _DOWNTIMES, query, headers={"X-HTTP-Method-Override": "GET"})
        found = []
        for one in self._results(answer):
            facts = one.get("attrs") or {}
            host, until = host_of(facts.get("comment")), float(facts.get("end_time") or 0)
            if host and until > runtime.now():
                found.append(Silence(str(one.get("name")), host, str(facts.get("start_time")), until))
        return found

    def begin(self, host: str, target: str, until: float, before: Silence | None = None) -> None:  # noqa: ARG002  Monitoring has it; Icinga renews no downtime
        """Begin a downtime of a host and its services that ends at a time (unix seconds).

        :raises UnknownHost: if Icinga does not have the host.
        """
        name = self.host_name.replace("{host}", host)
        body = {
            "type": "Host",
            "filter": "host.name == name",
            "filter_vars": {"name": name},
            "author": self.author,
            "comment": comment_of(host, target),
            "start_time": int(runtime.now()),
            "end_time": int(until),
            "fixed": True,
            "all_services": True,
        }
        if not self._act("schedule-downtime", body):
            raise UnknownHost(f"{self.name} has no host {name}")

    def end(self, silence: Silence) -> None:
        """End all downtimes of the silence's host that this fleet began."""
        body = {
            "type": "Downtime",
            "filter": _OF_HOST,
            "filter_vars": {"author": self.author, "name": self.host_name.replace("{host}", silence.host)},
        }
        self._act("remove-downtime", body)

    def _act(self, action: str, body: Mapping[str, Any]) -> list[Any]:
        """Return the results of an action, one for each object that it concerned."""
        # An action that concerns no object has status 404, or 500 and no results.
        answer = self.address.call("POST", f"v1/actions/{action}", body, accepted=(200, 404, 500))
        if isinstance(answer, Mapping) and answer.get("error") == 404 and "results" not in answer:
            return []
        found = self._results(answer)
        for one in found:
            if one.get("code") != 200:
                raise MaintenanceError(f"{self.name} answered {action} with code {one.get('code')}")
        return found

    def _results(self, answer: Any) -> list[Any]:
        found = answer.get("results") if isinstance(answer, Mapping) else None
        if not isinstance(found, list):
            raise MaintenanceError(f"{self.name} is no Icinga 2: its answer has no results")
        return found


def read_icinga(settings: Mapping[Any, Any]) -> Icinga:
    """Return the Icinga of a settings file.

    :raises ValueError: for a mistake; its text is the end of a sentence.
    """
    found = read_section(settings, SECTION, ("user", "password", "host_name"))
    host_name = str(found.get("host_name", "{host}"))
    if "{host}" not in host_name:
        raise ValueError(f"{SECTION}.host_name has no {{host}}, so all hosts would be the same one there")
    for key in ("user", "password"):
        if not found.get(key):
            raise ValueError(f"{SECTION}.{key} is missing; it is that of an ApiUser")
    login = (str(found["user"]), str(found["password"]))
    address = Address("Icinga 2", str(found["url"]), {}, login, ca_path=found.get("ca_path"))
    return Icinga(address, host_name, author_of(found), lasts_of(found, SECTION))
