# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An independent witness: follows all keys by raw blocking queries, and reads what happened from their indexes."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from devkit.kv import RawKV

View = Mapping[str, str]


@dataclass(frozen=True)
class Stamped:
    """A value and the Consul indexes at which its key came and changed last."""

    value: str
    created: int
    modified: int


def read(consul: RawKV, index: int = 0, seconds: int = 5) -> tuple[int, dict[str, Stamped]]:
    """Return all keys as they were at one index, as soon as there is one after ``index``."""
    code, headers, body = consul.call("GET", f"kv/?recurse&consistent&index={index}&wait={seconds}s")
    found = json.loads(body) if code == 200 else []
    return int(headers["X-Consul-Index"]), {
        one["Key"]: Stamped(base64.b64decode(one["Value"] or "").decode(), one["CreateIndex"], one["ModifyIndex"])
        for one in found
    }


class Watcher:
    """Checks every state of the keys that it sees, on a thread of its own.

    :param check: is given all keys of one moment, and raises AssertionError.
    """

    def __init__(self, consul: RawKV, check: Callable[[View], None]) -> None:
        self._consul = RawKV(consul.url, consul.token)
        self._check = check
        self._end: int | None = None
        self.views = 0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Watcher:
        self._index, keys = read(self._consul)
        self._see(self._index, keys)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_rest: object) -> None:
        self._end = read(self._consul)[0]
        # Something to wake it up with.
        self._consul.put("the-watch-is-over", "")
        self._thread.join(20)
        if kind is None:
            assert not self._thread.is_alive()
            assert not self.failures, "\n".join(self.failures[:5])

    def _see(self, index: int, keys: Mapping[str, Stamped]) -> None:
        self.views += 1
        try:
            self._check({key: one.value for key, one in keys.items()})
        except AssertionError as error:
            self.failures.append(f"at index {index}: {error}")

    def _follow(self) -> None:
        while self._end is None or self._index < self._end:
            try:
                index, keys = read(self._consul, self._index)
            except (OSError, ValueError) as error:
                self.failures.append(f"after index {self._index}, the watcher was blind: {error}")
                return
            if index != self._index:
                self._index = index
                self._see(index, keys)


@dataclass
class Timeline:
    """Who was down between which indexes, from the keys alone: the history opens, the report of a host ends it.

    Every entry of the history is written in the transaction that opens its gates, and a report once, so the
    indexes of these keys give the exact order of events, those that no watcher woke up for included.
    """

    keys: Mapping[str, Stamped]
    version: str
    roles: Mapping[str, str]
    opened: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reports = f"running/versions/{self.version}/"
        for key, one in self.keys.items():
            if key.startswith("upgrade/history/"):
                event = json.loads(one.value)
                if event["version"] == self.version and event["what"] == "open":
                    for host in event["hosts"]:
                        assert host not in self.opened, f"{host} was opened twice"
                        self.opened[host] = one.modified
            elif key.startswith(reports):
                self.ended[key[len(reports) :]] = one.created

    def most_at_once(self, roles: Sequence[str]) -> int:
        """Return how many hosts of these roles were open and not upgraded at once, at most."""
        hosts = [host for host in self.opened if self.roles[host] in roles]
        moves = [(self.opened[host], 1) for host in hosts] + [
            (self.ended[host], -1) for host in hosts if host in self.ended
        ]
        most = now = 0
        for at in sorted({index for index, _step in moves}):
            now += sum(step for index, step in moves if index == at)
            most = max(most, now)
        return most

    def check_order(self, role: str, first: str) -> None:
        """Make sure that no host of a role was admitted before the last one of another was upgraded."""
        last = max(self.ended[host] for host, its in self.roles.items() if its == first)
        early = [host for host, index in self.opened.items() if self.roles[host] == role and index < last]
        assert not early, f"opened before all of {first} were upgraded: {early}"
