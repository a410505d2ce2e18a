# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Consul's API in this process, for tests that ask it thousands of times: keys, transactions, sessions, the catalog.

It stands in the place of the HTTP library of the transport, so all code of the collection is run. What it answers is what
Consul 1.8 answers, as far as the collection asks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import unquote

from ansible_collections.convoy.upgrade.plugins.module_utils._consul import transport
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


@dataclass
class Answer:
    """An answer to a request."""

    code: int
    body: str
    headers: Mapping[str, str] = field(default_factory=lambda: {"X-Consul-Index": "7"})


@dataclass
class MemoryConsul:
    """A Consul that keeps its keys in a dictionary.

    :param keys: key -> value.
    :param nodes: the names of the nodes in its catalog.
    :param spoil: called with method, path and answer of each request; returns what is answered instead.
    """

    keys: dict[str, bytes] = field(default_factory=dict)
    nodes: Sequence[str] = ()
    spoil: Callable[[str, str, Answer], Answer] = lambda _method, _path, answer: answer
    indexes: dict[str, int] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)
    index: int = 10
    requests: int = 0

    @contextmanager
    def in_place(self) -> Iterator[MemoryConsul]:
        """Let all connections that are made meanwhile lead here."""
        session = SimpleNamespace(mount=lambda *_: None, headers={}, close=lambda: None)
        http = {name: self._method(name) for name in ("get", "put", "delete")}
        with mock.patch.object(transport, "HTTPClient", lambda *_: SimpleNamespace(session=session, **http)):
            yield self

    def store(self) -> Store:
        """Return a store that talks to it while it is in place."""
        return Store(Settings())

    def write(self, key: str, value: object) -> None:
        """Write a key as a host does, without flags."""
        self.index += 1
        self.keys[key] = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.indexes[key] = self.index
        self.flags.pop(key, None)

    def data(self, key: str) -> Any:
        """Return the data in a key."""
        return json.loads(self.keys[key])

    def _method(self, method: str) -> Callable[..., Any]:
        def send(callback: Callable[[Answer], Any], path: str, params: Any = (), data: str = "") -> Any:
            self.requests += 1
            return callback(self.spoil(method, path, self._answer(method, unquote(path), dict(params), data)))

        return send

    def _answer(self, method: str, path: str, params: Mapping[str, str], data: str) -> Answer:
        if path == "/v1/txn":
            return self._transact(json.loads(data))
        if path.startswith("/v1/kv/"):
            return self._keys(path.removeprefix("/v1/kv/"), params)
        if path == "/v1/catalog/nodes":
            return _json([{"Node": name, "Address": "10.0.0.1", "Meta": {}} for name in self.nodes])
        if path == "/v1/health/state/any":
            return _json(
                [{"Node": name, "CheckID": "serfHealth", "Name": "s", "Status": "passing"} for name in self.nodes]
            )
        if path == "/v1/session/create":
            return _json({"ID": "9b1dd6e5"})
        return _json([] if method == "get" else True)

    def _keys(self, key: str, params: Mapping[str, str]) -> Answer:
        if "keys" not in params:
            return _json([self._entry(key)]) if key in self.keys else Answer(404, "")
        names = [name for name in sorted(self.keys) if name.startswith(key)]
        if "separator" in params:
            cut = [name[len(key) :].partition("/") for name in names]
            names = [*dict.fromkeys(key + head + slash for head, slash, _rest in cut)]
        return _json(names) if names else Answer(404, "")

    def _transact(self, operations: Sequence[Mapping[str, Any]]) -> Answer:
        for at, operation in enumerate(operations):
            why = self._refusal(operation["KV"])
            if why:
                return _json({"Results": None, "Errors": [{"OpIndex": at, "What": why}]}, 409)
        self.index += 1
        results = [{"KV": entry} for operation in operations for entry in self._do(operation["KV"])]
        return _json({"Results": results or None, "Errors": None})

    def _refusal(self, facts: Mapping[str, Any]) -> str:
        key, verb = facts["Key"], facts["Verb"]
        index = self._index(key) if key in self.keys else 0
        if verb in ("cas", "check-index") and facts["Index"] != index:
            return f'failed to set key "{key}", index is stale'
        if verb == "check-not-exists" and index:
            return f'key "{key}" exists'
        if verb == "get" and not index:
            return f'key "{key}" doesn\'t exist'
        if verb == "check-session" and self.locks.get(key) != facts["Session"]:
            return f'failed session check for key "{key}"'
        if verb == "lock" and self.locks.get(key, facts["Session"]) != facts["Session"]:
            return f'failed to lock key "{key}", lock is already held'
        return ""

    def _do(self, facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        key, verb = facts["Key"], facts["Verb"]
        if verb in ("set", "cas", "lock", "unlock"):
            self.keys[key] = base64.b64decode(facts.get("Value") or "")
            self.indexes[key] = self.index
            self.flags[key] = facts.get("Flags", 0)
            if verb == "lock":
                self.locks[key] = facts["Session"]
            yield {"Key": key, "Value": None, "ModifyIndex": self.index, "Flags": facts.get("Flags", 0)}
        elif verb == "delete":
            self.keys.pop(key, None)
        elif verb == "delete-tree":
            for name in [name for name in self.keys if name.startswith(key)]:
                del self.keys[name]
        elif verb == "get-tree":
            yield from (self._entry(name) for name in sorted(self.keys) if name.startswith(key))
        elif verb in ("get", "check-index", "check-session"):
            yield self._entry(key)

    def _index(self, key: str) -> int:
        return self.indexes.get(key, 5)

    def _entry(self, key: str) -> dict[str, Any]:
        value = base64.b64encode(self.keys[key]).decode() or None
        return {"Key": key, "Value": value, "ModifyIndex": self._index(key), "Flags": self.flags.get(key, 0)}


def _json(data: Any, code: int = 200) -> Answer:
    return Answer(code, json.dumps(data))
