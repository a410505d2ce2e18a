# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to Consul: one consistent read of the node's keys, and blocking queries to wait with."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Optional
from urllib.parse import quote

from ..machine.errors import ConsulError, Denied, sanitize
from ..machine.signals import Signals
from .connection import Connection

# The largest answer that is read. A read of web1 also returns the keys of web10, web100 and so on: about 1 KiB for each such host.
_MOST_BYTES = 64_000_000
# Python 3.9 allocates as many bytes as a read may return, for each read.
_PIECE_BYTES = 65_536
# Consul's indexes and flags are unsigned numbers of 64 bits.
_MOST_NUMBER = 2**64 - 1
_REMEDY = "Correct puppet_gate_consul, and enroll the node again."
# The check that stands for Consul's maintenance mode of a node, and how the reason in its notes begins if an agent run began it:
# `plugins/module_utils/_host/health_checks.py` has the same.
_MAINTENANCE, _REASON_BEGINS = "_node_maintenance", "convoy.upgrade: "
# Operations that return their key if they were executed.
_RETURNED = ("cas", "check-index")


@dataclass(frozen=True)
class ConsulKey:
    """A key as it was read; ``flags`` is the number that its writer stored beside the value."""

    value: bytes
    index: int
    flags: int = 0


@dataclass(frozen=True)
class HTTPReply:
    """The answer to a request; ``index`` is 0 if it has none."""

    status: int
    index: int
    body: bytes


class Consul:
    """The Consul that a node talks to. Each request has a connection of its own, except blocking queries."""

    def __init__(self, connection: Connection, alive: Callable[[], None] = lambda: None) -> None:
        """Prepare; nothing is sent yet.

        :param alive: is called before each request, because several slow ones in a row may take longer than systemd waits for a sign of life.
        """
        self._to = connection
        self._alive = alive
        # The newest time that an answer had (unix seconds), by the clock of the machine that answered; 0 for none.
        self.time = 0.0

    def read(self, keys: Sequence[str], folder: str = "") -> dict[str, ConsulKey]:
        """Return those of the keys that exist, from one atomic and consistent read: one request.

        A server that has just restarted may answer other reads with old values: a closed gate could be missing, which means open.

        :param folder: a key below which there may be many others, which are not read. It takes a second request if it does not exist.
        :raises ConsulError: also :class:`Denied`.
        """
        # A single key in a transaction must exist, but a tree need not. The tree also has the keys that only begin like the key.
        operations = [{"KV": {"Verb": "get-tree", "Key": key}} for key in keys]
        if folder:
            operations.append({"KV": {"Verb": "get", "Key": folder}})
        reply = self.send(
            "PUT", "txn", {"consistent": ""}, json.dumps(operations).encode(), conflict_is_well=bool(folder)
        )
        if reply.status == 409:
            return self.read(keys)
        requested = {*keys, folder}
        entries = self._results(self._parsed(reply.body))
        return {key: entry for key, entry in entries.items() if key in requested}

    def get(self, key: str) -> Optional[ConsulKey]:
        """Return a key from a consistent read of it alone; None if it is missing.

        :raises ConsulError: also :class:`Denied`.
        """
        reply = self.send("GET", f"kv/{quote(key)}", {"consistent": ""}, missing_is_well=True)
        if reply.status == 404:
            return None
        found = self._parsed(reply.body)
        if not isinstance(found, list) or len(found) != 1:
            raise self._not_consul()
        name, entry = self._entry(found[0])
        if name != key:
            raise self._not_consul()
        return entry

    def create(self, key: str, value: str) -> None:
        """Create a key unless it exists.

        :raises ConsulError: also :class:`Denied`.
        """
        self.send("PUT", f"kv/{quote(key)}", {"cas": "0"}, value.encode())

    def write(self, operations: Sequence[Mapping[str, Any]]) -> Optional[dict[str, ConsulKey]]:
        """Execute a transaction, all or nothing.

        :param operations: operations on keys, as Consul's API describes them; values are not encoded yet.
        :returns: the keys that it wrote or read; None if a comparison failed, and nothing was written.
        :raises ConsulError: also :class:`Denied`. The transaction may have been executed, unless it is that.
        """
        encoded = [
            {"KV": {**one, **({"Value": base64.b64encode(one["Value"]).decode()} if "Value" in one else {})}}
            for one in operations
        ]
        reply = self.send("PUT", "txn", {}, json.dumps(encoded).encode(), conflict_is_well=True)
        found = self._parsed(reply.body)
        if reply.status == 409:
            errors = found.get("Errors") if isinstance(found, dict) else None
            if not isinstance(errors, list) or not errors or not all(isinstance(one, dict) for one in errors):
                raise self._not_consul()
            if any("Permission denied" in str(one.get("What")) for one in errors):
                raise self._denied(str(errors[0].get("What")))
            return None
        entries = self._results(found)
        # Anything else than Consul could answer with an empty list, and nothing would have been written.
        if any(one["Key"] not in entries for one in operations if one["Verb"] in _RETURNED):
            raise self._not_consul()
        return entries

    def checks(self) -> Mapping[str, Any]:
        """Return the checks of the local agent: ID -> facts.

        :raises ConsulError: also :class:`Denied`.
        """
        found = self._json("GET", "agent/checks", {})
        if not isinstance(found, dict):
            raise self._not_consul()
        return found

    def update_check(self, name: str, status: str, output: str) -> None:
        """Set status and output of a check of the local agent, which also renews it.

        :raises ConsulError: also :class:`Denied`.
        """
        body = json.dumps({"Status": status, "Output": output}).encode()
        self.send("PUT", f"agent/check/update/{quote(name)}", {}, body)

    def has_own_maintenance(self) -> bool:
        """Return whether the local agent's node is in maintenance mode, with a reason of ours.

        :raises ConsulError: also :class:`Denied`.
        """
        found = self.checks().get(_MAINTENANCE)
        return isinstance(found, dict) and str(found.get("Notes")).startswith(_REASON_BEGINS)

    def end_maintenance(self) -> None:
        """End the maintenance mode of the local agent's node.

        :raises ConsulError: also :class:`Denied`.
        """
        self.send("PUT", "agent/maintenance", {"enable": "false"})

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Optional[bytes] = None,
        missing_is_well: bool = False,
        conflict_is_well: bool = False,
    ) -> HTTPReply:
        """Send a request; return the answer.

        :param missing_is_well: whether the key of the request may be missing.
        :param conflict_is_well: whether a comparison of the request may fail.
        :raises ConsulError: also :class:`Denied`.
        """
        self._alive()
        connection = self._to.open()
        try:
            connection.request(method, self._to.path(path, query), body, self._to.headers())
            return self.answer(connection, missing_is_well, conflict_is_well)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self.unreachable(error) from error
        finally:
            connection.close()

    def answer(
        self, connection: http.client.HTTPConnection, missing_is_well: bool = False, conflict_is_well: bool = False
    ) -> HTTPReply:
        """Return the answer to a request that was sent.

        :param missing_is_well: whether the key of the request may be missing.
        :param conflict_is_well: whether a comparison of the request may fail.
        :raises ConsulError: also :class:`Denied`.
        """
        response = connection.getresponse()
        body = self._body(response)
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            self.time = max(self.time, parsedate_to_datetime(response.headers.get("Date") or "").timestamp())
        index = response.headers.get("X-Consul-Index") or "0"
        # A 404 without an index is that of another server, such as a proxy.
        if response.status == 200 or (response.status == 404 and missing_is_well and index != "0"):
            return HTTPReply(response.status, int(index) if index.isdecimal() and len(index) <= 20 else 0, body)
        if response.status == 409 and conflict_is_well:
            return HTTPReply(response.status, 0, body)
        text = sanitize(body[:300].decode("utf-8", "replace").strip(), 300)
        if self._to.token:
            text = text.replace(self._to.token, "********")
        if response.status == 403 or "Permission denied" in text or "ACL not found" in text:
            raise self._denied(text or str(response.status))
        raise ConsulError(
            f"Consul at {self._to.url} answered {response.status}: {text or 'no reason given'}. Look at the log of Consul there."
        )

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        body = bytearray()
        while piece := response.read(_PIECE_BYTES):
            body += piece
            if len(body) > _MOST_BYTES:
                raise ConsulError(
                    f"{self._to.url}: the answer is larger than {_MOST_BYTES // 1_000_000} MB, and can't be used. If too many hosts have names that "
                    "begin with the name of this node, rename it."
                )
        return bytes(body)

    def unreachable(self, error: BaseException) -> ConsulError:
        """Return the error for a Consul that does not answer."""
        reason = (
            "no answer in time"
            if isinstance(error, (TimeoutError, socket.timeout))
            else str(error) or type(error).__name__
        )
        return ConsulError(
            f"Consul at {self._to.url} can't be reached: {sanitize(reason, 200)}. Look at it with systemctl status consul on that host."
        )

    def _denied(self, text: str) -> Denied:
        return Denied(
            f"Consul at {self._to.url} refused the node's token: {sanitize(text, 300)}. Give the node a token that works: run "
            "consul_upgrade_acl with kind=node, and enroll the node again."
        )

    def _json(self, method: str, path: str, query: Mapping[str, str], data: Any = None) -> Any:
        return self._parsed(self.send(method, path, query, None if data is None else json.dumps(data).encode()).body)

    def _parsed(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise ConsulError(
                f"{self._to.url}: what answers there is not Consul, as its answer is not JSON. {_REMEDY}"
            ) from None

    def _results(self, found: Any) -> dict[str, ConsulKey]:
        """Return the keys in the answer to a transaction that was executed."""
        if not isinstance(found, dict) or "Results" not in found or found.get("Errors"):
            raise self._not_consul()
        results = found["Results"] if found["Results"] is not None else []
        if not isinstance(results, list) or not all(isinstance(one, dict) for one in results):
            raise self._not_consul()
        return dict(self._entry(one.get("KV")) for one in results)

    def _entry(self, found: Any) -> tuple[str, ConsulKey]:
        """Return a key and its entry, as Consul describes it."""
        if not isinstance(found, dict):
            raise self._not_consul()
        # A key without a value has null, and so have keys that were written.
        key, value = found.get("Key"), found.get("Value")
        if not isinstance(key, str) or not (value is None or isinstance(value, str)):
            raise self._not_consul()
        try:
            content = base64.b64decode(value or "", validate=True)
        except ValueError:
            raise self._not_consul() from None
        return key, ConsulKey(content, self._number(found.get("ModifyIndex")), self._number(found.get("Flags")))

    def _number(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_NUMBER:
            raise self._not_consul()
        return value

    def _not_consul(self) -> ConsulError:
        return ConsulError(f"{self._to.url}: the answer is not one of Consul's. {_REMEDY}")


class WakeWatch:
    """Blocking queries on single keys, one connection for each. A query is never abandoned, because Consul would go on with it.

    They allow stale answers, which any server gives without asking the others. What they return is only a reason to read again.
    """

    def __init__(
        self,
        connection: Connection,
        keys: Iterable[str],
        signals: Signals,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """Send nothing yet.

        :param signals: a signal ends the wait for a moment.
        :param alive: is called before each step of a connection that may be slow, as for :class:`Consul`.
        """
        self._to = connection
        self._signals = signals
        self._alive = alive
        self._consul = Consul(connection)
        self._queries = {key: _Query(key) for key in keys}
        # The keys whose change ended the last wait.
        self.changed: set[str] = set()

    def note(self, entries: Mapping[str, ConsulKey]) -> None:
        """Note the indexes of a consistent read: only what is newer counts as a change."""
        for key, query in self._queries.items():
            if key in entries:
                query.seen = entries[key].index

    def wait(self, seconds: float, every: float, pause: Callable[[], bool]) -> bool:
        """Wait until a key has changed, at most for ``seconds``; return whether one has.

        :param every: seconds between calls of ``pause``, which ends the wait if it returns True.
        :raises ConsulError: also :class:`Denied`. The next call sends the queries again.
        """
        until = time.monotonic() + seconds
        self.changed = set()
        try:
            for query in self._queries.values():
                if query.connection is None or not query.is_sent:
                    self._ask(query, seconds)
            while True:
                left = until - time.monotonic()
                sockets = {
                    query.connection.sock: query for query in self._queries.values() if query.connection is not None
                }
                readable, _write, _errors = select.select(
                    [*sockets, self._signals.pipe], [], [], max(0.0, min(left, every))
                )
                self._signals.drain()
                ready = [one for one in readable if one in sockets]
                # All answers are taken, so that each query is sent again.
                self.changed = {sockets[one].key for one in ready if self._take(sockets[one])}
                if self.changed:
                    return True
                for one in ready:
                    self._ask(sockets[one], max(1.0, until - time.monotonic()))
                if pause() or time.monotonic() >= until:
                    return False
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise self._consul.unreachable(error) from error
        except ConsulError:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        for query in self._queries.values():
            if query.connection is not None:
                query.connection.close()
            query.connection, query.is_sent = None, False

    def _ask(self, query: _Query, seconds: float) -> None:
        if query.connection is None:
            self._connect(query)
        assert query.connection is not None
        facts = {"stale": "", "index": str(max(1, query.seen)), "wait": f"{max(1, int(seconds * 1000))}ms"}
        query.connection.request("GET", self._to.path(f"kv/{quote(query.key)}", facts), headers=self._to.headers())
        query.is_sent = True
        query.asked = max(1, query.seen)

    def _connect(self, query: _Query) -> None:
        self._alive()
        query.connection = self._to.open(keep=True)
        if self._to.scheme == "https":
            # The session tickets of TLS 1.3 come after the handshake, and make the socket readable like an answer. They come before the first
            # answer, and so this request takes them.
            self._alive()
            query.connection.request(
                "GET", self._to.path(f"kv/{quote(query.key)}", {"stale": ""}), headers=self._to.headers()
            )
            self._consul.answer(query.connection, missing_is_well=True)

    def _take(self, query: _Query) -> bool:
        """Take an answer; return whether the key has changed."""
        assert query.connection is not None
        self._alive()
        index = self._consul.answer(query.connection, missing_is_well=True).index
        query.is_sent = False
        if not index:
            # What answers every query at once would be asked again at once.
            raise ConsulError(f"{self._to.url}: the answer is not one of Consul's, as it has no index.")
        if index < query.asked:
            # Consul was restored from a snapshot, or another server answers that is behind. Either way the agent reads again.
            query.seen = index
            return True
        changed = index > query.asked
        query.seen = max(query.seen, index)
        return changed


class _Query:
    """A blocking query on one key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.seen = 0
        self.asked = 0
        self.is_sent = False
        self.connection: Optional[http.client.HTTPConnection] = None
