# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model of Consul gives the answers of three real servers: while their leader is killed or stopped, to blocking queries, after a restore,
and when sessions end."""

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
from .consul.server import Blocked, Request, Server, Snapshot
from .network import _OLD, _OLDEST
from .test_model import NAMES, PREFIXES, Pair, seeded

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
        # Until when answers may be old (seconds).
        self._old_until = 0.0
        self._is_over = threading.Event()

    def run(self) -> float:
        """Let it happen, compare what was read, and return by how many seconds the oldest answer was old."""
        readers = [threading.Thread(target=self._read_on, args=(one,), daemon=True) for one in self._cluster.agents]
        gone = threading.Thread(target=self._come_back, daemon=True)
        try:
            for one in readers:
                one.start()
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
            # A server ends with the thread that has started it.
            self._cluster.restore()
            self._old_until = time.time() + _OLD
            for _number in range(5):
                self._write()
        finally:
            self._is_over.set()
            for one in readers:
                if one.ident is not None:
                    one.join()
        return max((self._age(one) for one in self._reads), default=0.0)

    def _come_back(self) -> None:
        until = time.monotonic() + self._seconds
        if self._how == signal.SIGSTOP:
            # They arrive now, and the server answers them when it goes on.
            asked = []
            while time.monotonic() < until:
                asked.append(threading.Thread(target=self._read, args=(self._leader,), daemon=True))
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
        if _shown(real) == self._states[-1].keys:
            pair.model.keys, pair.model.sessions = before.keys, before.sessions
        else:
            assert pair.is_as(real), f"neither before nor after {operations}: {real}"
            pair.learn(real)

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
        keys = _shown([entry["KV"] for entry in json.loads(body)["Results"] or []])
        self._reads.append(Read(sent, time.time(), one.http_port, keys))

    def _age(self, read: Read) -> float:
        """Return by how many seconds an answer was old when its request was sent, 0 if it was not."""
        ages = []
        for number, state in enumerate(self._states):
            if state.keys == read.keys and state.since <= read.answered:
                replaced = self._states[number + 1].known if number + 1 < len(self._states) else read.sent
                ages.append(max(0.0, read.sent - replaced))
        assert ages, f"{read} is nothing that the cluster ever was"
        assert not min(ages) or read.sent < self._old_until, f"{read} is old"
        return min(ages)


def _shown(entries: list[dict[str, Any]]) -> Shown:
    return {
        one["Key"]: (one["Value"] or None, one["Flags"], one["LockIndex"], one.get("Session", ""), one["ModifyIndex"])
        for one in entries
    }


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    """Three servers."""
    with Cluster(random.Random()) as cluster:
        yield cluster


@pytest.fixture
def cluster(servers: Cluster) -> Iterator[Cluster]:
    """Three servers, all of which run."""
    try:
        yield servers
    finally:
        servers.restore()


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
    with seeded() as chance:
        cluster.chance = chance
        pair = Pair(cluster, chance)
        for _number in range(5):
            pair.step()
        change = Change(cluster, pair, how, seconds)
        age = change.run()
        for _number in range(10):
            pair.step()
        pair.end()
    assert age <= _OLDEST
    assert {code for code, _text in change.refusals} <= {500}


class Query:
    """A blocking query on names below a prefix, sent to both."""

    def __init__(self, pair: Pair, prefix: str, seconds: int) -> None:
        """Send it to the model, and to a server from a thread, with the index of now."""
        self.prefix = prefix
        self._pair = pair
        params = {"keys": "", "consistent": "", "separator": "/"}
        path = f"kv/{prefix}?keys&consistent&separator=/"
        index = pair.agent.kv.call("GET", path)[1]["X-Consul-Index"]
        params |= {"index": str(pair.model.keys.index_below(prefix) or 1), "wait": f"{seconds * 1000}ms"}
        blocked = pair.model.answer(Request("get", f"/v1/kv/{prefix}", params, "", "", 0))
        assert isinstance(blocked, Blocked)
        self.blocked = blocked
        self._path = f"{path}&index={index}&wait={seconds}s"
        self._before = int(index)
        self._until = time.monotonic() + seconds
        self._answered = float("inf")
        self.code, self.index, self.names = 0, 0, None
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        code, headers, body = self._pair.agent.kv.call("GET", self._path)
        self._answered = time.monotonic()
        self.code, self.index = code, int(headers["X-Consul-Index"])
        self.names = json.loads(body) if code == 200 else None

    def has_ended(self, seconds: float) -> bool:
        """Return whether the server answers within some seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def compare(self, seconds: float) -> bool:
        """Compare whether both have ended, and the answers; return whether they have."""
        if self.has_ended(0) and self._answered > self._until:
            # On a busy machine, its time may be over before the write.
            return True
        ours = self._pair.model.unblock(self.blocked, 0)
        if ours is None:
            assert not self.has_ended(0), f"{self.prefix} ended with {self.index} after {self._before}: {self.names}"
            return False
        keys = self._pair.model.keys
        if not any(name.startswith(self.prefix) for name in (*keys.entries, *keys.graves)):
            # The index is that of all keys. Another write ends the query or does not, by where Consul's tree of keys has its nodes.
            return self.has_ended(0)
        assert self.has_ended(seconds), f"{self.prefix} did not end"
        assert self.index > self._before, self.prefix
        index = int(ours.headers["X-Consul-Index"])
        assert self._pair.real_index.setdefault(index, self.index) == self.index, self.prefix
        self.compare_answer(ours.code, ours.body)
        return True

    def compare_answer(self, code: int, body: str) -> None:
        """Compare an answer of the model with that of the server."""
        assert (code, json.loads(body) if code == 200 else None) == (self.code, self.names), self.prefix


@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.thorough)])
def test_the_same_writes_end_the_same_blocking_queries(cluster: Cluster, count: int) -> None:
    with seeded() as chance:
        cluster.chance = chance
        pair = Pair(cluster, chance)
        for _number in range(10):
            pair.step()
        for _number in range(count):
            queries = [Query(pair, prefix, 2) for prefix in sorted({*PREFIXES, *NAMES})]
            # They have to be there before the write.
            time.sleep(0.3)
            for _write in range(chance.choice((0, 1, 1, 2))):
                pair.step()
                time.sleep(0.1)
                queries = [one for one in queries if not one.compare(1)]
            for one in queries:
                assert one.has_ended(5), one.prefix
                answer = pair.model.unblock(one.blocked, one.blocked.until)
                assert answer is not None
                one.compare_answer(answer.code, answer.body)
        pair.end()


@pytest.mark.thorough
@pytest.mark.parametrize("_number", range(5))
def test_a_restore_leaves_what_it_leaves_in_the_model(cluster: Cluster, _number: int) -> None:
    with seeded() as chance:
        cluster.chance = chance
        pair = Pair(cluster, chance)
        for _number in range(15):
            pair.step()
        saved, (code, _headers, snapshot) = pair.model.snapshot(), cluster.kv.call("GET", "snapshot")
        assert code == 200
        for _number in range(15):
            pair.step()
        queries = [Query(pair, prefix, 30) for prefix in sorted({*PREFIXES, *NAMES})]
        time.sleep(0.3)
        ends = [pair.model.end(one.blocked) for one in queries]
        pair.model.restore(saved, 0)
        assert cluster.kv.call("PUT", "snapshot", snapshot)[0] == 200
        for query, end in zip(queries, ends, strict=True):
            assert query.has_ended(5), query.prefix
            query.compare_answer(end.code, end.body)
        pair.compare_all()
        for _number in range(20):
            pair.step()
        pair.end()


class Twins:
    """Sessions with the same ID in the model and in the cluster, each of which has locked the key of its name."""

    def __init__(self, cluster: Cluster) -> None:
        """Begin without keys and sessions."""
        self.cluster = cluster
        self.cluster.kv.delete("", tree=True)
        self._new = ""
        self.model = Server(new_id=lambda: self._new)
        # A session ends with the node of the agent that has created it. Nodes of the model do not fail.
        leader = cluster.leader()
        self._creator = next(one for one in cluster.agents if one is not leader)
        self.ids: dict[str, str] = {}
        self.renewed: dict[str, float] = {}
        # Name -> when it ended in the model, and in the cluster (seconds).
        self.ends: dict[str, float] = {}
        self.real_ends: dict[str, float] = {}

    def create(self, name: str, facts: dict[str, str]) -> None:
        """Create a session, and lock a key with it."""
        self._new = json.loads(self._creator.kv.call("PUT", "session/create", facts)[2])["ID"]
        self.model.answer(Request("put", "/v1/session/create", {}, json.dumps(facts), "", time.monotonic()))
        self.ids[name], self.renewed[name] = self._new, time.monotonic()
        assert self.lock(name, name) == (True, True)

    def lock(self, key: str, name: str) -> tuple[bool, bool]:
        """Try to lock a key; return whether that was so in the model and in the cluster."""
        body = [{"KV": {"Verb": "lock", "Key": key, "Value": "MQ==", "Session": self.ids[name]}}]
        ours, code, text = self._ask("put", "txn", body)
        assert code in (200, 409), text
        return ours == 200, code == 200

    def renew(self, name: str) -> None:
        """Renew a session."""
        ours, code, _text = self._ask("put", f"session/renew/{self.ids[name]}", None)
        assert ours == code
        if code == 200:
            self.renewed[name] = time.monotonic()

    def look(self) -> None:
        """Note which sessions have ended."""
        now = time.monotonic()
        self.model.expire(now)
        for name, identity in self.ids.items():
            if identity not in self.model.sessions.found:
                self.ends.setdefault(name, now)
            if name not in self.real_ends:
                code, _headers, body = self.cluster.kv.call("GET", f"session/info/{identity}?consistent")
                assert code == 200, body
                if not json.loads(body):
                    self.real_ends[name] = time.monotonic()

    def _ask(self, method: str, path: str, body: Any) -> tuple[int, int, str]:
        text = "" if body is None else json.dumps(body)
        ours = self.model.answer(Request(method, f"/v1/{path}", {}, text, "", time.monotonic()))
        assert not isinstance(ours, Blocked)
        code, _headers, found = self.cluster.kv.call(method.upper(), path, body)
        return ours.code, code, found.decode()


_SESSIONS = {
    "deletes": {"TTL": "10s", "Behavior": "delete", "LockDelay": "0s"},
    "releases": {"TTL": "10s", "Behavior": "release", "LockDelay": "0s"},
    "delays": {"TTL": "10s", "Behavior": "release", "LockDelay": "3s"},
    "deletes and delays": {"TTL": "11s", "Behavior": "delete", "LockDelay": "2s"},
    "is renewed": {"TTL": "10s", "Behavior": "delete", "LockDelay": "0s"},
    "never ends": {"Behavior": "delete", "LockDelay": "0s"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("event", ["none", "kill", "stop", "restore"])
def test_sessions_end_when_those_of_the_model_do(cluster: Cluster, event: str) -> None:
    cluster.chance = random.Random()
    twins, began = Twins(cluster), time.monotonic()
    model, leader = twins.model, cluster.leader()
    for name, facts in _SESSIONS.items():
        twins.create(name, facts)
    saved, snapshot = model.snapshot(), cluster.kv.call("GET", "snapshot")[2]
    all_renewed, renewed_at, locked = began, began + 4, {}
    is_due, is_renewed = event != "none", False
    while len(twins.real_ends) < len(_SESSIONS) - 1 or len(twins.ends) < len(_SESSIONS) - 1:
        now = time.monotonic()
        assert now < began + 60, (twins.ends, twins.real_ends)
        if not is_renewed and now > renewed_at:
            twins.renew("is renewed")
            is_renewed = True
        if is_due and now > began + 7:
            is_due = False
            if event == "restore":
                model.restore(saved, now)
                assert cluster.kv.call("PUT", "snapshot", snapshot)[0] == 200
                all_renewed = now
            else:
                all_renewed = _change_leader(cluster, leader, is_killed=event == "kill")
                model.sessions.renew_all(all_renewed)
        twins.look()
        for key in ("delays", "deletes and delays"):
            if key in twins.real_ends and key in twins.ends and key not in locked:
                ours, real = twins.lock(key, "never ends")
                # Both are over at almost the same moment.
                if ours and real:
                    locked[key] = time.monotonic()
        time.sleep(0.1)
    for name, end in twins.real_ends.items():
        assert abs(end - twins.ends[name]) < 2, (name, end - began, twins.ends[name] - began)
        ttl = float(_SESSIONS[name]["TTL"].removesuffix("s"))
        assert ttl <= end - twins.renewed[name], name
        assert end - max(twins.renewed[name], all_renewed) < 2 * ttl + 2, name
    while len(locked) < 2:
        for key in {"delays", "deletes and delays"} - {*locked}:
            if all(twins.lock(key, "never ends")):
                locked[key] = time.monotonic()
        time.sleep(0.1)
    assert abs(locked["delays"] - twins.real_ends["delays"] - 3) < 2
    assert abs(locked["deletes and delays"] - twins.real_ends["deletes and delays"] - 2) < 2
    found = cluster.kv.entries()
    ours = {key: (one.value, one.session, one.locks) for key, one in model.keys.entries.items()}
    assert ours == {one["Key"]: (one["Value"], one.get("Session", ""), one["LockIndex"]) for one in found}
    cluster.kv.call("PUT", f"session/destroy/{twins.ids['never ends']}")


def _change_leader(cluster: Cluster, leader: Agent, *, is_killed: bool) -> float:
    """Let another server lead, and return since when it does (seconds)."""
    if is_killed:
        leader.stop(signal.SIGKILL)
    else:
        cluster.signal(leader, signal.SIGSTOP)
        cluster.left_out = leader
    cluster.leader()
    at = time.monotonic()
    if not is_killed:
        cluster.signal(leader, signal.SIGCONT)
        cluster.left_out = None
    cluster.wait()
    return at
