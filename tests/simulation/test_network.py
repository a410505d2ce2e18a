# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network loses what it should lose, and the judge gets what a process has really read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import requests
from greenlet import getcurrent

from .consul.keys import Entry
from .consul.server import Answer, Server
from .network import Network, StateReading
from .stand_ins import BEGIN
from .world import Process, World

_LEDGER = "upgrade/ledger"
_READ = [{"KV": {"Verb": "get-tree", "Key": _LEDGER}}]


class Fixture:
    """A network with one line, and a process that uses it."""

    def __init__(self) -> None:
        self.world = World("network")
        server = Server(new_id=lambda: "5e55107e-0000-0000-0000-000000000000")
        server.index = 11
        server.keys.put(_LEDGER, Entry("MQ==", 11, 0))
        self.network = Network(self.world, server)
        self.port = self.network.line("planner1", 0.001)

    def run(self, act: Callable[[], Any]) -> Any:
        """Return what an act returns in a simulated process."""
        found: list[Any] = []
        process = Process(self.world, "planner1")
        process.start(lambda: found.append(act()))
        self.world.run(60, lambda: not process.is_alive)
        if process.error is not None:
            raise process.error
        return found[0]

    def ask(self, path: str, body: Any, params: Mapping[str, str] | None = None) -> Any:
        """Send a PUT from the current thread."""
        return self.network.send(self.port, "put", path, params or {}, json.dumps(body), "", 3.0)

    def last_reading(self) -> StateReading | None:
        """Return what the current thread has read last."""
        return self.network.lines[self.port].readings.get(getcurrent())


@pytest.mark.parametrize(("params", "value"), [({}, "1"), ({"consistent": "1"}, "2")])
def test_the_judge_records_which_keys_answered_a_read(params: dict[str, str], value: str) -> None:
    one = Fixture()

    def act() -> tuple[Any, StateReading | None]:
        one.world.wait(10)
        one.ask("/v1/txn", [{"KV": {"Verb": "set", "Key": _LEDGER, "Value": "Mg=="}}])
        one.network.lose_leader()
        one.network.choose_leader()
        # The new leader does not have the write yet.
        one.network.server.old_until = one.world.now + 1
        return one.ask("/v1/txn", _READ, params), one.last_reading()

    answer, reading = one.run(act)
    shown = json.loads(answer.body)["Results"][0]["KV"]["ModifyIndex"]
    assert reading is not None
    assert reading.entries()[_LEDGER] == (value, shown)


def test_a_lost_reply_may_be_that_of_a_request_for_a_session() -> None:
    one = Fixture()

    def act() -> Any:
        one.network.lines[one.port].lost_after = 1
        # A read is no request whose reply is lost so.
        one.ask("/v1/txn", _READ)
        with pytest.raises(requests.exceptions.ConnectionError):
            one.ask("/v1/session/create", {"Name": "run", "TTL": "10s", "Behavior": "delete"})
        return [*one.network.server.sessions.found]

    assert one.run(act) == ["5e55107e-0000-0000-0000-000000000000"]


_SET = {"KV": {"Verb": "set", "Key": "a", "Value": "MQ=="}}


@pytest.mark.parametrize(
    ("operations", "is_malformed"),
    [
        ([_SET] * 64, False),
        ([_SET] * 65, True),
        ([{"KV": {**_SET["KV"], "Value": "AAAA" * 2**17}}], True),
        ([{"KV": {**_SET["KV"], "Key": ""}}], True),
        ([{"KV": {**_SET["KV"], "Verb": "put"}}], True),
        ([{"KV": {**_SET["KV"], "Verb": "cas", "Index": 7}}], False),
        ([{"KV": {**_SET["KV"], "Verb": "lock", "Session": "5e55107e-0000-0000-0000-000000000000"}}], False),
    ],
    ids=("the most", "too many", "too large", "no key", "no such verb", "a conflict", "a session that has ended"),
)
def test_a_request_that_consul_never_takes_is_reported(operations: list[dict[str, Any]], is_malformed: bool) -> None:
    one = Fixture()
    one.run(lambda: one.ask("/v1/txn", operations))
    found = [text.startswith("planner1 sent put /v1/txn, and Consul answered 4") for text in one.network.malformed]
    assert found == ([True] if is_malformed else [])


def test_the_end_of_a_session_has_a_time() -> None:
    one = Fixture()

    def act() -> None:
        found = one.ask("/v1/session/create", {"Name": "run", "TTL": "10s", "Behavior": "delete"})
        session = json.loads(found.body)["ID"]
        one.ask(
            "/v1/txn", [{"KV": {"Verb": "lock", "Key": "upgrade/drivers/web1", "Value": "MQ==", "Session": session}}]
        )
        one.world.wait(40)

    one.run(act)
    assert [round(step.done_at - BEGIN) for step in one.network.steps if step.write is None][-1] == 20


def test_a_restore_ends_blocking_queries_with_what_there_was_before() -> None:
    one = Fixture()

    def act() -> list[str]:
        process = one.world.current
        assert process is not None
        answers: list[Answer] = []
        snapshot = one.network.server.snapshot()
        one.ask("/v1/txn", [{"KV": {**_SET["KV"], "Key": "upgrade/a"}}])
        params = {"keys": "", "index": str(one.network.server.index), "wait": "50000ms"}
        process.start_thread(
            lambda: answers.append(one.network.send(one.port, "get", "/v1/kv/upgrade/", params, "", "", 60.0))
        )
        one.world.wait(1)
        one.network.restore(snapshot)
        one.world.wait(1)
        return [name for answer in answers for name in json.loads(answer.body)]

    assert one.run(act) == ["upgrade/a", _LEDGER]


def test_all_ttls_begin_again_with_a_restore() -> None:
    one = Fixture()

    def act() -> list[bool]:
        identity = json.loads(one.ask("/v1/session/create", {"Name": "run", "TTL": "10s"}).body)["ID"]
        snapshot = one.network.server.snapshot()
        one.world.wait(15)
        one.network.restore(snapshot)
        found = []
        for seconds in (15, 10):
            one.world.wait(seconds)
            one.ask("/v1/txn", [_SET])
            found.append(identity in one.network.server.sessions.found)
        return found

    assert one.run(act) == [True, False]
