# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Consul's API as far as the collection asks, answered by a model of its servers. Sources: Consul 1.8's documentation and answers.

The servers are one state: what one of them has written, all have. Answers without C(consistent) may be old ones for a moment after a server
has become the leader. :mod:`simulation.test_model` compares the answers with those of a real agent.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

from . import acl
from .catalog import Catalog
from .keys import WRITES, Keys
from .sessions import Sessions

MOST_OPERATIONS = 64
# Of the body of a request (txn_max_req_len), in which values are in base64.
MOST_BYTES = 512 * 1024
_LONGEST_WAIT = 600.0


class Answer(NamedTuple):
    """An answer to a request."""

    code: int
    body: str
    headers: Mapping[str, str] = {}


class Body(str):
    """The results of a transaction.

    :param entries: the entries among them, as Consul's JSON has each.
    """

    __slots__ = ("entries",)

    entries: tuple[str, ...]

    @staticmethod
    def of(entries: tuple[str, ...]) -> Body:
        """Return the results that have these entries."""
        results = ", ".join(f'{{"KV": {text}}}' for text in entries)
        body = Body(f'{{"Results": [{results}], "Errors": null}}')
        body.entries = entries
        return body


@lru_cache(1000)
def operations_of(body: str) -> list[dict[str, Any]]:
    """Return the operations of a transaction. They are not to be changed, as others with the same text get the same."""
    found: list[dict[str, Any]] = json.loads(body)
    return found


@dataclass(frozen=True)
class Request:
    """A request to the API.

    :param at: when it arrives (seconds).
    """

    method: str
    path: str
    params: Mapping[str, str]
    body: str
    token: str
    at: float

    def operations(self) -> list[dict[str, Any]]:
        """Return the operations of a transaction, nothing for another request."""
        return operations_of(self.body) if self.path == "/v1/txn" else []


class Blocked(NamedTuple):
    """A blocking query that has no answer yet."""

    request: Request
    prefix: str
    index: int
    until: float


@dataclass
class Snapshot:
    """All that a server keeps."""

    keys: Keys
    sessions: Sessions
    index: int


@dataclass
class Server:
    """A model of Consul's servers.

    :param tokens: secret -> policy; the empty one is for requests without a token. None if there are no ACLs.
    :param new_id: returns a new session ID.
    """

    new_id: Callable[[], str]
    node: str = "consul1"
    keys: Keys = field(default_factory=Keys)
    sessions: Sessions = field(default_factory=Sessions)
    catalog: Catalog = field(default_factory=Catalog)
    tokens: dict[str, acl.Policy] | None = None
    index: int = 10
    has_leader: bool = True
    # What default reads are answered with for a moment, and until when.
    old: Keys | None = None
    old_until: float = 0.0

    def __post_init__(self) -> None:
        """Add the node of the server itself."""
        self.catalog.add(self.node)

    def snapshot(self) -> Snapshot:
        """Return a copy of all that is kept."""
        return Snapshot(self.keys.copy(), copy.deepcopy(self.sessions), self.index)

    def restore(self, snapshot: Snapshot, now: float) -> None:
        """Put a snapshot back. Indexes go on from where they were, all TTLs begin again, and lock-delays are forgotten."""
        self.keys = snapshot.keys.copy()
        self.sessions = copy.deepcopy(snapshot.sessions)
        self.sessions.delays.clear()
        self.sessions.renew_all(now)
        self.index += 1

    def answer(self, request: Request) -> Answer | Blocked:
        """Answer a request, or block it."""
        policy = self._policy(request.token)
        if policy is None:
            return Answer(403, "ACL not found")
        if not self.has_leader:
            return Answer(500, "No cluster leader")
        path = unquote(request.path)
        if path == "/v1/txn":
            return self._transact(request, policy)
        if path.startswith("/v1/kv/") and request.method == "get":
            return self._read(request, path.removeprefix("/v1/kv/"), policy)
        if path.startswith("/v1/session/"):
            return self._session(request, *path.removeprefix("/v1/session/").partition("/")[::2], policy)
        if path == "/v1/catalog/nodes":
            return _json([one for one in self.catalog.nodes() if policy.may("node", one["Node"])], self.index)
        if path == "/v1/health/state/any":
            try:
                found = self.catalog.matching(request.params.get("filter", ""))
            except ValueError as error:
                return Answer(500, str(error))
            return _json([one for one in found if policy.may("node", one["Node"])], self.index)
        raise AssertionError(f"The model does not know {request.method} {path}.")

    def unblock(self, blocked: Blocked, now: float) -> Answer | None:
        """Return the answer to a blocked query, None if it still has to wait."""
        if self.keys.index_below(blocked.prefix) <= blocked.index and now < blocked.until:
            return None
        policy = self._policy(blocked.request.token)
        if policy is None:
            return Answer(403, "ACL not found")
        return self._names(blocked.prefix, blocked.request.params, policy, self.keys)

    def end(self, blocked: Blocked) -> Answer:
        """Return the answer to a blocked query that a restore ends: what there was before the restore."""
        answer = self.unblock(blocked._replace(index=-1), blocked.until)
        assert answer is not None
        return answer

    def expire(self, now: float) -> list[str]:
        """End the sessions whose time is over, and return their IDs."""
        ended = self.sessions.expired(now)
        for identity in ended:
            self.index += 1
            self.sessions.end(identity, self.keys, self.index, now)
        return ended

    def _policy(self, token: str) -> acl.Policy | None:
        return acl.ALL if self.tokens is None else self.tokens.get(token)

    def _transact(self, request: Request, policy: acl.Policy) -> Answer:
        keys = self.keys_for(request)
        # A read of the same keys has the same answer.
        known = keys.answers.get(request.body) if policy is acl.ALL else None
        if known is not None:
            return cast("Answer", known)
        size = len(request.body.encode())
        if size > MOST_BYTES:
            return Answer(413, f"Request body({size} bytes) too large, max size: {MOST_BYTES} bytes.")
        operations = request.operations()
        if len(operations) > MOST_OPERATIONS:
            return Answer(413, f"Transaction contains too many operations ({len(operations)} > {MOST_OPERATIONS})")
        refused = [
            {"OpIndex": number, "What": why}
            for number, one in enumerate(operations)
            if (why := _refusal(policy, one["KV"]["Verb"], one["KV"]["Key"]) or self._delayed(one["KV"], request.at))
        ]
        if refused:
            return Answer(409, json.dumps({"Results": None, "Errors": refused}))
        writes = any(one["KV"]["Verb"] in WRITES for one in operations)
        if writes:
            self.index += 1
        results, errors = (self.keys if writes else keys).apply(
            operations, self.index, self.sessions.found.__contains__
        )
        if errors:
            return Answer(409, json.dumps({"Results": None, "Errors": errors}))
        answer = Answer(
            200, Body.of(tuple(one.text for one in results if policy is acl.ALL or policy.may("key", one.key)))
        )
        if policy is acl.ALL and not writes:
            keys.answers[request.body] = answer
        return answer

    def _delayed(self, operation: Mapping[str, Any], now: float) -> str:
        """Return why a key can't be locked yet, nothing if it can."""
        key = operation["Key"]
        is_delayed = operation["Verb"] == "lock" and self.sessions.delays.get(key, now) > now
        return f'failed to lock key "{key}" due to lock delay' if is_delayed else ""

    def keys_for(self, request: Request) -> Keys:
        """Return the keys that a read is answered with: the old ones only where Consul may, in a default read after a change of leader."""
        if "consistent" in request.params or self.old is None or request.at >= self.old_until:
            return self.keys
        return self.old

    def _read(self, request: Request, key: str, policy: acl.Policy) -> Answer | Blocked:
        keys = self.keys_for(request)
        if "keys" not in request.params:
            if "index" in request.params:
                raise AssertionError("The model does not know blocking queries on a single key.")
            if not policy.may("key", key):
                return Answer(403, "Permission denied")
            headers = {"X-Consul-Index": str(keys.index_of(key) or 1)}
            found = keys.entries.get(key)
            return Answer(404, "", headers) if found is None else Answer(200, f"[{keys.text(key)}]", headers)
        index = int(request.params.get("index", 0))
        if index and keys.index_below(key) <= index:
            wait = request.params.get("wait", "")
            seconds = float(wait.removesuffix("ms")) / 1000 if wait.endswith("ms") else 300.0
            return Blocked(request, key, index, request.at + min(seconds, _LONGEST_WAIT))
        return self._names(key, request.params, policy, keys)

    def _names(self, prefix: str, params: Mapping[str, str], policy: acl.Policy, keys: Keys) -> Answer:
        names = [name for name in keys.below(prefix) if policy is acl.ALL or policy.may("key", name)]
        separator = params.get("separator")
        if separator:
            cut = [name[len(prefix) :].partition(separator) for name in names]
            names = list(dict.fromkeys(prefix + head + mark for head, mark, _rest in cut))
        headers = {"X-Consul-Index": str(keys.index_below(prefix) or 1)}
        return Answer(200, json.dumps(names), headers) if names else Answer(404, "", headers)

    def _session(self, request: Request, verb: str, identity: str, policy: acl.Policy) -> Answer:
        if verb == "info":
            found = self.sessions.found.get(identity)
            visible = found is not None and policy.may("session", self.node)
            return _json([found.shown(self.node)] if found is not None and visible else [], self.index)
        if not policy.may("session", self.node, write=True):
            return Answer(403, "Permission denied")
        if verb == "create":
            identity = self.new_id()
            self.index += 1
            self.sessions.create(identity, json.loads(request.body or "{}"), self.index, request.at)
            return _json({"ID": identity}, None)
        if verb == "renew":
            if not self.sessions.renew(identity, request.at):
                return Answer(404, f"Session id '{identity}' not found")
            return _json([self.sessions.found[identity].shown(self.node)], None)
        if verb == "destroy":
            if identity in self.sessions.found:
                self.index += 1
                self.sessions.end(identity, self.keys, self.index, request.at)
            return _json(True, None)
        raise AssertionError(f"The model does not know session/{verb}.")


def _refusal(policy: acl.Policy, verb: str, key: str) -> str:
    """Return why an operation may not be tried, nothing if it may. Results of reads are left out afterwards instead."""
    if verb == "delete-tree":
        return "" if policy.may_all_below(key) else "Permission denied"
    if not key:
        return "Must provide key"
    # A check that a key does not exist counts as a write.
    if verb in ("get", "get-tree") or policy.may("key", key, write=verb not in ("check-index", "check-session")):
        return ""
    return "Permission denied"


def _json(data: Any, index: int | None) -> Answer:
    return Answer(200, json.dumps(data), {} if index is None else {"X-Consul-Index": str(index)})
