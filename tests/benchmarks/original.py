# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The algorithm of python-jiocloud's upgrade loop (``jiocloud/upgrade.py``), written again, as a peer.

It reads ``current_version``. If that is another one, it deletes all gates, closes the global one, and sets ``current_version``. Then a pass follows the
other, with a sleep of 15 s in between, until no host is left. A pass

1. reads ``current_version``,
2. reads all reports, to get the versions that hosts run,
3. reads the reports of each of these versions, one request each,
4. reads all gates,
5. sorts hosts into upgraded, upgrading (a gate is open) and pending, and leaves out roles that wait for another role,
6. for each other role: if its cap has room for all of its pending hosts, sets the gate of the role and deletes the gates of its hosts; otherwise sets
   the gates of as many pending hosts as have room, by name. To set a key takes two requests, because its library, consulate, reads the key first; to
   delete one takes one.

So for two versions, a pass by itself takes six requests, and each further one of the same run five; besides two for each gate. Nothing is a transaction,
so it must not run twice at once. Three things favour it here: the connection stays open, reports and gates are where ``convoy.upgrade`` has them, so that
the same nodes serve both, and simulated nodes treat a missing gate as closed, while in real fleets it is open, so that the first write would admit every
host.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

SLEEP = 15.0
_REPORTS, _GATES, _VERSION = "running/versions", "config_state/enable_puppet", "current_version"
_ROLE = re.compile(r"([a-z]+)\d+")


@dataclass(slots=True)
class OriginalLoop:
    """The loop.

    :param cap: the cap of every role.
    :param order: role -> the role that it waits for.
    :param sleep: seconds between two passes.
    """

    port: int
    version: str
    cap: int
    order: Mapping[str, str] = field(default_factory=dict)
    sleep: float = SLEEP
    _line: http.client.HTTPConnection = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the connection."""
        self._line = http.client.HTTPConnection("127.0.0.1", self.port)

    def run(self, most_passes: int = 0) -> list[float]:
        """Upgrade the fleet.

        :param most_passes: end after so many passes; 0 for as many as it takes.
        :returns: the duration of each pass (seconds).
        """
        if self._tree(_VERSION).get(_VERSION) != self.version:
            self._ask("DELETE", f"{_GATES}?recurse")
            self._put(f"{_GATES}/global", "False")
            self._put(_VERSION, self.version)
        seconds: list[float] = []
        while True:
            began = time.monotonic()
            is_over = self._pass()
            seconds.append(time.monotonic() - began)
            if is_over or len(seconds) == most_passes:
                return seconds
            time.sleep(self.sleep)

    def status(self) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]], Mapping[str, list[str]]]:
        """Return role -> hosts, for those that are upgrading, pending and upgraded."""
        current = self._tree(_VERSION).get(_VERSION, "")
        versions = {key.split("/")[2] for key in self._tree(_REPORTS)}
        running = {version: self._hosts(version) for version in versions}
        upgraded = running.pop(current, set())
        gates = self._tree(_GATES)
        upgrading: dict[str, list[str]] = defaultdict(list)
        pending: dict[str, list[str]] = defaultdict(list)
        done: dict[str, list[str]] = defaultdict(list)
        for host in upgraded:
            done[_role(host)].append(host)
        for host in set().union(*running.values()):
            (upgrading if _is_open(gates, host) else pending)[_role(host)].append(host)
        return upgrading, pending, done

    def _pass(self) -> bool:
        """Make a pass; return whether all hosts are upgraded."""
        upgrading, pending, done = self.status()
        for role, hosts in pending.items():
            if self.order.get(role) in upgrading or self.order.get(role) in pending:
                continue
            room = self.cap - len(upgrading.get(role, ()))
            if room >= len(hosts):
                self._put(f"{_GATES}/role/{role}", "True")
                for host in (*upgrading.get(role, ()), *done.get(role, ()), *hosts):
                    self._ask("DELETE", f"{_GATES}/host/{host}")
            else:
                for host in sorted(hosts)[: max(0, room)]:
                    self._put(f"{_GATES}/host/{host}", "True")
        return not upgrading and not pending

    def _hosts(self, version: str) -> set[str]:
        return {key.rsplit("/", 1)[1] for key in self._tree(f"{_REPORTS}/{version}/")}

    def _tree(self, prefix: str) -> dict[str, str]:
        body = self._ask("GET", f"{quote(prefix)}?recurse")
        found: list[dict[str, Any]] = json.loads(body) if body else []
        return {one["Key"]: base64.b64decode(one["Value"] or "").decode() for one in found}

    def _put(self, key: str, value: str) -> None:
        self._ask("GET", quote(key))
        self._ask("PUT", quote(key), value)

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        self._line.request(method, f"/v1/kv/{path}", body)
        reply = self._line.getresponse()
        found = reply.read()
        if reply.status not in (200, 404):
            raise RuntimeError(f"{method} {path}: {reply.status} {found!r}")
        return found if reply.status == 200 else b""


def _role(host: str) -> str:
    found = _ROLE.match(host)
    if found is None:
        raise ValueError(host)
    return found[1]


def _is_open(gates: Mapping[str, str], host: str) -> bool:
    for name in (f"host/{host}", f"role/{_role(host)}", "global"):
        value = gates.get(f"{_GATES}/{name}")
        if value is not None:
            return value == "True"
    return True
