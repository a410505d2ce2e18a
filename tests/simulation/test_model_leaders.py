# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model of Consul gives the answers of three real servers, also while their leader is killed or stopped."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, NamedTuple

import pytest
from devkit.agent import Agent

from .cluster import Cluster
from .consul.server import Snapshot
from .network import _OLDEST
from .test_model import Pair

_TREES = [{"KV": {"Verb": "get-tree", "Key": key}} for key in "abc"]
_SECONDS = 30
# Key -> all that a read shows of it.
Shown = dict[str, tuple[Any, ...]]


class Was(NamedTuple):
    """Keys of the cluster: they were written between two times (seconds)."""

    since: float
    known: float
    keys: Shown


class Read(NamedTuple):
    """A default read: when it was sent and answered (seconds), by which server, and what it showed."""

    sent: float
    answered: float
    port: int
    keys: Shown


class Change:
    """A change of the leader, with reads and writes meanwhile.

    :param how: the signal that the leader gets.
    :param seconds: for how long it is gone.
    """

    def __init__(self, cluster: Cluster, pair: Pair, how: signal.Signals, seconds: float) -> None:
        self._cluster = cluster
        self._pair = pair
        self._how = how
        self._leader = cluster.leader()
        self._seconds = seconds
        self._states = [Was(time.time(), time.time(), self._keys())]
        self._reads: list[Read] = []
        # Answers of default reads that are no keys.
        self.refusals: set[tuple[int, str]] = set()
        self._is_over = threading.Event()

    def run(self) -> float:
        """Let it happen, compare what was read, and return by how many seconds the oldest answer was old."""
        readers = [threading.Thread(target=self._read_on, args=(one,)) for one in self._cluster.agents]
        for one in readers:
            one.start()
        gone = threading.Thread(target=self._come_back)
        try:
            for _number in range(3):
                self._write()
            if self._how == signal.SIGSTOP:
                self._cluster.signal(self._leader, self._how)
            else:
                self._leader.stop(self._how)
            gone.start()
            # What is killed must not be asked, and what is stopped does not answer.
            self._cluster.left_out = self._leader
            if self._how == signal.SIGSTOP and self._pair.chance.random() < 0.7:
                # A write that is sent on to a leader that is stopped waits for it.
                while gone.is_alive() and self._cluster.leader_now() is None:
                    time.sleep(0.05)
            while gone.is_alive():
                self._write()
            self._cluster.left_out = None
            self._cluster.wait()
            for _number in range(5):
                self._write()
        finally:
            self._cluster.left_out = None
            self._is_over.set()
            for one in readers:
                one.join()
        return max((self._age(one) for one in self._reads), default=0.0)

    def _come_back(self) -> None:
        until = time.monotonic() + self._seconds
        if self._how == signal.SIGSTOP:
            # They arrive now, and the server answers them when it goes on.
            asked = []
            while time.monotonic() < until:
                asked.append(threading.Thread(target=self._read, args=(self._leader,)))
                asked[-1].start()
                time.sleep(0.1)
            self._cluster.signal(self._leader, signal.SIGCONT)
            for one in asked:
                one.join()
        else:
            time.sleep(self._seconds)

    def _keys(self) -> Shown:
        model, real_index = self._pair.model, self._pair.real_index
        return {
            key: (entry.value, entry.flags, entry.locks, entry.session, real_index[entry.modified])
            for key, entry in model.keys.entries.items()
        }

    def _write(self) -> None:
        """Send a write to any server. If it is not answered, it was done or was not done."""
        pair = self._pair
        operations = [pair.operation() for _one in range(pair.chance.choice((1, 2)))]
        before, since = pair.model.snapshot(), time.time()
        try:
            answer, real = pair.ask("put", "/v1/txn", {"consistent": ""}, operations)
        except (OSError, HTTPException):
            real = (500, "", "no answer")
            answer = pair.last
        if real[0] in (200, 409):
            pair.compare(operations, answer, real)
        else:
            assert real[0] == 500, real
            self._find_out(before, operations)
        now = self._keys()
        if now != self._states[-1].keys:
            self._states.append(Was(since, time.time(), now))

    def _find_out(self, before: Snapshot, operations: list[dict[str, Any]]) -> None:
        """Let the model know whether a write was done."""
        until = time.monotonic() + _SECONDS
        while True:
            try:
                found = self._cluster.kv.call("PUT", "txn?consistent", _TREES, timeout=20)
            except (OSError, HTTPException):
                found = (500, {}, b"")
            if found[0] == 200:
                break
            assert time.monotonic() < until, found
        pair = self._pair
        real = [one["KV"] for one in json.loads(found[2])["Results"] or []]
        if pair.is_as(real):
            pair.learn(real)
            return
        pair.model.keys, pair.model.sessions = before.keys, before.sessions
        assert pair.is_as(real), f"neither before nor after {operations}: {real}"

    def _read_on(self, one: Agent) -> None:
        while not self._is_over.is_set():
            self._read(one)
            time.sleep(0.002)

    def _read(self, one: Agent) -> None:
        sent = time.time()
        try:
            code, _headers, body = one.kv.call("PUT", "txn", _TREES, timeout=60)
        except (OSError, HTTPException):
            return
        if code != 200:
            self.refusals.add((code, body.decode()))
            return
        found = [entry["KV"] for entry in json.loads(body)["Results"] or []]
        keys = {
            entry["Key"]: (
                entry["Value"] or None,
                entry["Flags"],
                entry["LockIndex"],
                entry.get("Session", ""),
                entry["ModifyIndex"],
            )
            for entry in found
        }
        self._reads.append(Read(sent, time.time(), one.http_port, keys))

    def _age(self, read: Read) -> float:
        """Return by how many seconds an answer was old when its request was sent, 0 if it was not."""
        ages = []
        for number, state in enumerate(self._states):
            if state.keys == read.keys and state.since <= read.answered:
                replaced = self._states[number + 1].known if number + 1 < len(self._states) else read.sent
                ages.append(max(0.0, read.sent - replaced))
        assert ages, f"{read} is nothing that the cluster ever was"
        return min(ages)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three servers."""
    with Cluster(random.Random()) as cluster:
        yield cluster


_THOROUGH = [
    (how, seconds) for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP) for seconds in (0.0, 0.5, 3.0, 8.0)
]


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        (signal.SIGKILL, 0.1),
        *(pytest.param(*one, marks=pytest.mark.thorough, id=f"{one[0].name}-{one[1]}") for one in _THOROUGH),
    ],
)
def test_the_model_answers_as_servers_do_whose_leader_changes(
    cluster: Cluster, how: signal.Signals, seconds: float
) -> None:
    seed = random.randrange(10**9)
    cluster.chance = chance = random.Random(seed)
    try:
        pair = Pair(cluster, chance)
        for _number in range(5):
            pair.step()
        change = Change(cluster, pair, how, seconds)
        age = change.run()
        for _number in range(10):
            pair.step()
        pair.end()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        for one in cluster.agents:
            if one.process is None:
                one.launch()
        cluster.wait()
    assert age <= _OLDEST
    assert {code for code, _text in change.refusals} <= {500}
