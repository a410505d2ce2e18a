# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model of Consul gives the answers of a real agent to the same requests, chosen by chance."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from devkit.agent import Agent

from .cluster import Cluster
from .consul import acl
from .consul.server import Answer, Blocked, Request, Server

# Few names, so that requests meet; some begin with others.
NAMES = ("a", "a/", "a/b", "a/b/c", "a/c", "ab", "b/x", "b/x/y", "c")
PREFIXES = ("a", "a/", "a/b", "b", "b/", "c/", "none/")
VALUES = ("", "1", "2", "a longer value")
VERBS = (
    *("set", "set", "set", "cas", "cas", "cas", "get", "get-tree", "get-tree", "delete", "delete-cas", "delete-tree"),
    *("check-index", "check-not-exists", "check-session", "lock", "lock", "unlock"),
)
RULES = """
key_prefix "" { policy = "read" }
key_prefix "a/" { policy = "write" }
key "a/b" { policy = "read" }
key_prefix "b/x" { policy = "deny" }
session_prefix "" { policy = "write" }
"""
ACL = {"enabled": True, "default_policy": "deny"}
_MANAGEMENT = "2f9c0d8e-6f1a-4f6b-9d4e-0a7f2a0f5b11"


class Pair:
    """A model and a real agent that get the same requests. Indexes and session IDs are translated."""

    def __init__(self, agent: Agent | Cluster, chance: random.Random, secret: str = "") -> None:
        """Begin with no keys in either.

        :param secret: the token of the requests; empty for none.
        """
        self.agent = agent
        self.chance = chance
        self.secret = secret
        self.sessions: list[str] = []
        # A real agent, as other requests of the same agent have moved its index.
        self.agent.kv.delete("", tree=True)
        tokens = {"": acl.ALL, secret: acl.parse(RULES)} if secret else None
        self.model = Server(new_id=self._last_session, tokens=tokens)
        self.real_index = {0: 0}
        self._time = 0.0
        # What the model has answered last.
        self.last: Any = None

    def _last_session(self) -> str:
        return self.sessions[-1]

    def operation(self) -> dict[str, Any]:
        """Return an operation. Its index is the model's."""
        verb = self.chance.choice(VERBS)
        key = self.chance.choice(PREFIXES if verb in ("get-tree", "delete-tree") else NAMES)
        facts: dict[str, Any] = {"Verb": verb, "Key": key}
        if verb in ("set", "cas", "lock", "unlock"):
            facts["Value"] = base64.b64encode(self.chance.choice(VALUES).encode()).decode()
            facts["Flags"] = self.chance.choice((0, 0, 7))
        if verb in ("cas", "delete-cas", "check-index"):
            found = self.model.keys.entries.get(key)
            right = found.modified if found is not None else 0
            facts["Index"] = right if self.chance.random() < 0.7 else self.chance.choice([*self.real_index])
        if verb in ("lock", "unlock", "check-session") and self.sessions:
            facts["Session"] = self.chance.choice(self.sessions)
        elif verb in ("lock", "unlock", "check-session"):
            facts["Session"] = "c0ffee00-0000-0000-0000-000000000000"
        return {"KV": facts}

    def ask(self, method: str, path: str, params: dict[str, str], body: Any = None) -> tuple[Any, Any]:
        """Send a request to both, and return both answers: code, index of the answer, and body."""
        text = "" if body is None else json.dumps(body)
        self._time += 1
        request = Request(method, path, params, text, self.secret, self._time)
        ours = self.model.answer(request)
        if isinstance(ours, Blocked):
            answer = self.model.unblock(ours, float("inf"))
            assert answer is not None
            ours = answer
        self.last = self._shown(ours)
        query = urllib.parse.urlencode(params)
        kv = self.agent.kv
        if self.secret:
            kv = type(kv)(kv.url, self.secret)
        code, headers, found = kv.call(
            method.upper(), f"{urllib.parse.quote(path.removeprefix('/v1/'))}?{query}", self._translated(body)
        )
        return self.last, self._real(code, headers, found)

    def _translated(self, body: Any) -> Any:
        if not isinstance(body, list):
            return body
        return [
            {"KV": {**one["KV"], "Index": self.real_index.get(one["KV"]["Index"], 1)}} if "Index" in one["KV"] else one
            for one in body
        ]

    def transact(self, operations: list[dict[str, Any]]) -> None:
        """Send a transaction to both, and compare the answers."""
        self.compare(operations, *self.ask("put", "/v1/txn", {}, operations))

    def compare(self, operations: list[dict[str, Any]], ours: Any, real: Any) -> None:
        """Compare the answers to a transaction."""
        self._learn(ours[2], real[2])
        assert self._without_indexes(ours) == self._without_indexes(real), operations
        self._compare_indexes(ours[2], real[2])

    def read(self) -> None:
        """Read a key, or names below a prefix, from both, and compare the answers."""
        if self.chance.random() < 0.4:
            key = self.chance.choice([name for name in NAMES if not name.endswith("/")])
            ours, real = self.ask("get", f"/v1/kv/{key}", {"consistent": ""})
            is_there = key in self.model.keys.entries
        else:
            key = self.chance.choice(PREFIXES)
            params = {"keys": "", "consistent": ""}
            if self.chance.random() < 0.7:
                params["separator"] = "/"
            ours, real = self.ask("get", f"/v1/kv/{key}", params)
            is_there = bool(self.model.keys.below(key))
        assert self._without_indexes(ours) == self._without_indexes(real), key
        if is_there:
            # What is missing has the index of all keys, which differs by what other requests changed.
            assert self.real_index.setdefault(int(ours[1]), int(real[1])) == int(real[1]), key

    def session(self) -> None:
        """Create, renew, read or end a session in both."""
        what = self.chance.choice(("create", "renew", "info", "destroy"))
        if what == "create" or not self.sessions:
            facts = {"TTL": "600s", "Behavior": self.chance.choice(("delete", "release")), "LockDelay": "0s"}
            # Nodes of the model do not fail, and so neither does the health of the server that creates it.
            code, _headers, found = self.agent.kv.call("PUT", "session/create", {**facts, "Checks": []})
            assert code == 200
            self.sessions.append(json.loads(found)["ID"])
            behavior = json.loads(self.agent.kv.call("GET", f"session/info/{self.sessions[-1]}")[2])[0]["Behavior"]
            body = json.dumps({"TTL": "600s", "Behavior": behavior, "LockDelay": "0s"})
            answer = self.model.answer(Request("put", "/v1/session/create", {}, body, self.secret, self._time))
            assert not isinstance(answer, Blocked)
            assert json.loads(answer.body)["ID"] == self.sessions[-1]
            return
        one = self.chance.choice(self.sessions)
        ours, real = self.ask("get" if what == "info" else "put", f"/v1/session/{what}/{one}", {})
        assert ours[0] == real[0], what
        if what == "destroy":
            assert ours[2] == real[2]
            self.sessions.remove(one)
            self.compare_all()
        elif ours[0] == 200:
            assert [(found["ID"], found["Behavior"]) for found in ours[2]] == [
                (found["ID"], found["Behavior"]) for found in real[2]
            ]

    def is_as(self, real: list[dict[str, Any]]) -> bool:
        """Return whether the model has these entries, whatever their indexes."""
        entries = self.model.keys.entries
        ours = [_plain(json.loads(self.model.keys.text(key))) for key in sorted(entries)]
        return ours == [_plain(one) for one in sorted(real, key=lambda one: str(one["Key"]))]

    def learn(self, real: list[dict[str, Any]]) -> None:
        """Learn the indexes of these entries, which the model has, and compare those that are known."""
        for one in real:
            entry = self.model.keys.entries[one["Key"]]
            for ours, theirs in ((entry.modified, one["ModifyIndex"]), (entry.created, one["CreateIndex"])):
                assert self.real_index.setdefault(ours, theirs) == theirs, one

    def step(self) -> None:
        """Send a request to both, and compare the answers."""
        luck = self.chance.random()
        if luck < 0.6:
            self.transact([self.operation() for _one in range(self.chance.choice((1, 1, 2, 5)))])
        elif luck < 0.85:
            self.read()
        else:
            self.session()

    def end(self) -> None:
        """End the sessions of the real servers."""
        for session in self.sessions:
            self.agent.kv.call("PUT", f"session/destroy/{session}")

    def compare_all(self) -> None:
        """Compare all keys, and learn their indexes."""
        ours, real = self.ask("put", "/v1/txn", {}, [{"KV": {"Verb": "get-tree", "Key": key}} for key in "abc"])
        self._learn(ours[2], real[2])
        assert self._without_indexes(ours) == self._without_indexes(real)
        self._compare_indexes(ours[2], real[2])

    def _learn(self, ours: Any, real: Any) -> None:
        """Remember which of the real indexes is which of the model's, for those that the model has just given."""
        for one, other in zip(_entries(ours), _entries(real), strict=False):
            if one["ModifyIndex"] == self.model.index:
                self.real_index.setdefault(one["ModifyIndex"], other["ModifyIndex"])

    def _compare_indexes(self, ours: Any, real: Any) -> None:
        for one, other in zip(_entries(ours), _entries(real), strict=True):
            for name in ("ModifyIndex", "CreateIndex"):
                assert self.real_index[one[name]] == other[name], (name, one, other)

    @staticmethod
    def _without_indexes(answer: Any) -> Any:
        """Return an answer without indexes, also without those in the texts of errors."""
        code, _index, body = answer
        if isinstance(body, dict) and body.get("Errors"):
            errors = [(one["OpIndex"], "".join(c for c in one["What"] if not c.isdigit())) for one in body["Errors"]]
            return code, errors
        if isinstance(body, dict):
            return code, [_plain(one) for one in _entries(body)]
        if isinstance(body, list) and body and isinstance(body[0], dict):
            return code, [_plain(one) for one in body]
        return code, body

    @staticmethod
    def _shown(answer: Answer) -> tuple[int, str, Any]:
        return answer.code, answer.headers.get("X-Consul-Index", ""), _parsed(answer.body)

    @staticmethod
    def _real(code: int, headers: Any, body: bytes) -> tuple[int, str, Any]:
        return code, headers.get("X-Consul-Index", ""), _parsed(body.decode())


def _parsed(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.strip()


def _entries(body: Any) -> list[dict[str, Any]]:
    return [one["KV"] for one in (body or {}).get("Results") or []] if isinstance(body, dict) else []


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in ("CreateIndex", "ModifyIndex")}


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """An agent without ACLs."""
    with Agent() as agent:
        yield agent


@pytest.fixture(scope="module")
def guarded_agent() -> Iterator[tuple[Agent, str]]:
    """An agent with ACLs, and a token that may do some things."""
    tokens = {Agent.management_token_name(): _MANAGEMENT}
    with Agent({"acl": {**ACL, "tokens": tokens}}) as agent:
        code, _headers, body = agent.kv.call("PUT", "acl/policy", {"Name": "some", "Rules": RULES})
        assert code == 200, body
        code, _headers, body = agent.kv.call("PUT", "acl/token", {"Policies": [{"Name": "some"}]})
        assert code == 200, body
        yield agent, json.loads(body)["SecretID"]


@contextlib.contextmanager
def seeded() -> Iterator[random.Random]:
    """Yield chances, whose seed a failure names."""
    seed = random.randrange(10**9)
    try:
        yield random.Random(seed)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def compare(pair: Pair) -> None:
    """Send some requests to both."""
    for _number in range(pair.chance.randint(5, 30)):
        pair.step()
    pair.end()


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.thorough)])
def test_the_model_answers_as_a_real_agent_does(agent: Agent, count: int) -> None:
    for _number in range(count):
        with seeded() as chance:
            compare(Pair(agent, chance))


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.thorough)])
def test_the_model_refuses_and_hides_as_a_real_agent_does(guarded_agent: tuple[Agent, str], count: int) -> None:
    agent, secret = guarded_agent
    for _number in range(count):
        with seeded() as chance:
            compare(Pair(agent, chance, secret))


@pytest.mark.parametrize(
    "operations",
    [
        [{"Verb": "set", "Key": f"a/{number}", "Value": "MQ=="} for number in range(65)],
        [{"Verb": "set", "Key": "a", "Value": "AAAA" * (2**17 - 100)}],
        [{"Verb": "set", "Key": "", "Value": "MQ=="}],
        [{"Verb": "put", "Key": "a", "Value": "MQ=="}],
        [{"Verb": "lock", "Key": "a", "Value": "MQ==", "Session": ""}],
    ],
    ids=("too many", "large", "no key", "no such verb", "no session"),
)
def test_the_model_refuses_what_no_agent_takes(agent: Agent, operations: list[dict[str, Any]]) -> None:
    ours, real = Pair(agent, random.Random(1)).ask("put", "/v1/txn", {}, [{"KV": one} for one in operations])
    assert ours[0] == real[0]
    if ours[0] == 409:
        assert ours[2]["Errors"] == real[2]["Errors"]


def test_the_model_finds_the_checks_that_a_real_agent_finds(agent: Agent) -> None:
    model = Server(new_id=lambda: "")
    checks = ("serfHealth", "puppet", "a\\b", "puppet agent")
    for node in ("web2", "web1"):
        model.catalog.add(node)
        for check in checks if node == "web1" else checks[:2]:
            status = "critical" if check == "puppet" else "passing"
            model.catalog.set(node, check, status)
            name = model.catalog.checks[node][check][0]
            facts = {"Node": node, "CheckID": check, "Name": name, "Status": status}
            body = {"Node": node, "Address": "127.0.0.1", "Check": facts}
            assert agent.kv.call("PUT", "catalog/register", body)[0] == 200
    filters = [
        'CheckID == "puppet"',
        'CheckID == "serfHealth" or Name == "puppet"',
        'Name == "a\\\\b" or CheckID == "puppet agent"',
        'Name == "a \\"quoted\\" one"',
        'CheckID == "none"',
    ]
    for path, params in [
        ("catalog/nodes", {}),
        *(("health/state/any", {"filter": expression}) for expression in filters),
    ]:
        ours = model.answer(Request("get", f"/v1/{path}", params, "", "", 0))
        assert not isinstance(ours, Blocked)
        code, _headers, body = agent.kv.call("GET", f"{path}?{urllib.parse.urlencode({**params, 'consistent': ''})}")
        assert ours.code == code, body
        if code != 200:
            continue
        names = ("Node", "CheckID", "Name", "Status") if params else ("Node", "Address")
        found = [
            sorted([one[name] for name in names] for one in json.loads(answer) if one["Node"].startswith("web"))
            for answer in (ours.body, body.decode())
        ]
        assert found[0] == found[1], params
        assert found[0] or "none" in params["filter"]
    for node in ("web1", "web2"):
        agent.kv.call("PUT", "catalog/deregister", {"Node": node})


def test_default_reads_are_old_after_a_change_of_leader_and_consistent_ones_are_not() -> None:
    server = Server(new_id=lambda: "")
    body = json.dumps([{"KV": {"Verb": "set", "Key": "a", "Value": "MQ=="}}])
    server.answer(Request("put", "/v1/txn", {}, body, "", 0))
    server.old, server.old_until = type(server.keys)(), 1.0
    codes = []
    for at, params in ((0.5, {}), (0.5, {"consistent": ""}), (1.5, {})):
        answer = server.answer(Request("get", "/v1/kv/a", params, "", "", at))
        assert not isinstance(answer, Blocked)
        codes.append(answer.code)
    assert codes == [404, 200, 200]
