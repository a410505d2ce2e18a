# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes as threads of this process: they see their gates by a blocking query, take as long as their upgrade takes, and report.

Planners are other processes, so the processor time of nodes is never counted with theirs.
"""

from __future__ import annotations

import base64
import heapq
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent

KEYS = Keys()
_REPORTERS = 4
# Nodes stop within this time.
_WAIT = "1s"
# A planner may see the last report before the node has the answer to it (seconds).
_GRACE = 5.0
# Writes a report of a host: "started" or "upgraded". Returns how many requests it sent.
Report = Callable[[str, str], int]


class SimulatedNodes:
    """The nodes of a fleet whose gates are closed.

    :ivar opened: host -> when its gate was seen open (seconds of the monotonic clock).
    :ivar reported: host -> when Consul had its report that it is upgraded.
    """

    def __init__(
        self, agent: Agent, seconds: Mapping[str, float], roles: Mapping[str, str], reporter: Callable[[], Report]
    ) -> None:
        """Start them.

        :param seconds: host -> how long its upgrade takes. Other hosts never begin.
        :param roles: host -> role.
        :param reporter: returns what writes the reports of one thread.
        """
        self._kv = agent.kv
        self._seconds = seconds
        self._roles = roles
        self._reporter = reporter
        self._changed = threading.Condition()
        self._due: list[tuple[float, str, str]] = []
        self._is_over = False
        self._errors: list[BaseException] = []
        self.opened: dict[str, float] = {}
        self.reported: dict[str, float] = {}
        self.requests = 0
        acts = [self._watch, *[self._report] * _REPORTERS]
        self._threads = [threading.Thread(target=self._guarded, args=(act,), daemon=True) for act in acts]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float, goes_on: Callable[[], bool]) -> None:
        """Wait until all nodes have reported, and stop.

        :param goes_on: returns whether the planner still runs.
        :raises RuntimeError: a node failed. If the planner has ended too early, or it took too long, hosts are missing in ``reported``.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while len(self.reported) < len(self._seconds) and not self._errors and time.monotonic() < until:
                if not goes_on():
                    until = min(until, time.monotonic() + _GRACE)
                self._changed.wait(0.5)
        self.stop()
        if self._errors:
            raise RuntimeError("a simulated node failed") from self._errors[0]

    def stop(self) -> None:
        """Stop all threads; nothing writes to Consul after that."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            with self._changed:
                self._errors.append(error)
                self._changed.notify_all()

    def _watch(self) -> None:
        index = 0
        while not self._is_over:
            path = f"kv/{KEYS.gates}?recurse&index={index}&wait={_WAIT}"
            code, headers, body = self._kv.call("GET", path)
            at = time.monotonic()
            index = int(headers["X-Consul-Index"])
            found = json.loads(body) if code == 200 else []
            gates = {one["Key"]: base64.b64decode(one["Value"] or "") == b"True" for one in found}
            with self._changed:
                self.requests += 1
                for host in self._seconds:
                    if host not in self.opened and self._is_open(gates, host):
                        self.opened[host] = at
                        heapq.heappush(self._due, (at, host, "started"))
                self._changed.notify_all()

    def _is_open(self, gates: Mapping[str, bool], host: str) -> bool:
        keys = (KEYS.gate("host", host), KEYS.gate("role", self._roles[host]), KEYS.gate("global"))
        return next((gates[key] for key in keys if key in gates), False)

    def _report(self) -> None:
        report = self._reporter()
        while True:
            with self._changed:
                while not self._is_over and not (self._due and self._due[0][0] <= time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._is_over:
                    return
                _at, host, state = heapq.heappop(self._due)
            sent = report(host, state)
            at = time.monotonic()
            with self._changed:
                self.requests += sent
                if state == "upgraded":
                    self.reported[host] = at
                else:
                    heapq.heappush(self._due, (self.opened[host] + self._seconds[host], host, "upgraded"))
                self._changed.notify_all()


def agents(agent: Agent, version: str, roles: Mapping[str, str]) -> Callable[[], Report]:
    """Return reporters that write what `convoy-node` writes: a start that is refused unless the host is admitted, and an end."""

    def reporter() -> Report:
        store = Store(Settings(port=agent.http_port))

        def report(host: str, state: str) -> int:
            before = store.client.requests
            role = roles[host] if state == "started" else None
            write_report(store, HostReport(host, version, state, role=role, default=False))
            return store.client.requests - before

        return report

    return reporter


def bare_reports(agent: Agent, old: str, new: str) -> Callable[[], Report]:
    """Return reporters that move the host's key to the new version, as python-jiocloud's nodes do, and know no start."""

    def report(host: str, state: str) -> int:
        if state == "upgraded":
            value = base64.b64encode(str(time.time()).encode()).decode()
            moves = [
                {"KV": {"Verb": "set", "Key": KEYS.report(new, host), "Value": value}},
                {"KV": {"Verb": "delete", "Key": KEYS.report(old, host)}},
            ]
            code, _headers, body = agent.kv.call("PUT", "txn", moves)
            if code != 200:
                raise RuntimeError(f"{code}: {body!r}")
            return 1
        return 0

    return lambda: report


def ideal_seconds(seconds: Sequence[float], cap: int) -> float:
    """Return how long a sliding window takes: the next host begins at the moment at which another one ends."""
    slots = [0.0] * min(cap, len(seconds))
    for one in seconds:
        heapq.heapreplace(slots, slots[0] + one)
    return max(slots)


def latencies(opened: Sequence[float], reported: Sequence[float], cap: int) -> list[float]:
    """Return how long each free slot waited for its next host (seconds).

    The first report of a role frees the slot of the first host after its first ``cap`` hosts, and so on.

    :param opened: when hosts of one role were admitted.
    :param reported: when hosts of that role had reported.
    """
    return [gate - report for gate, report in zip(sorted(opened)[cap:], sorted(reported), strict=False)]
