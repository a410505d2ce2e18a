# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network between simulated processes and the model of Consul: delays, lost requests, lost replies, a leader that is gone.

It stands in the place of the HTTP library of the transport, so all code of the collection above that runs.

Real servers answer 500 with other texts too while their leader changes, such as "leadership lost while committing log" or "rpc error making call:
EOF". Such a write may have been done. To the collection, that is the same as a lost reply, which there is here.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import requests
from fire.journal import Reading, Write, text
from fire.replay import Entry, Restore, State, Step

from .consul.keys import WRITES, Keys
from .consul.server import Answer, Blocked, Request, Server, Snapshot, operations_of
from .stand_ins import BEGIN, current
from .world import TIMED_OUT, Wait, World

_LEDGER = "upgrade/ledger"
# The answers that Consul gives to requests which are well-formed and not too large.
_CODES = (200, 403, 404, 409, 500)
# Parts of what it says of a transaction that was refused as others wrote, or as the token may not do that.
_REFUSALS = ("stale", "exist", "index check", "session check", "lock", "invalid session", "Permission denied")
# A server keeps a request for so long while there is no leader (rpc_hold_timeout).
_HELD = 7.0
# So many characters of a refusal are printed.
_SHOWN = 200
# No message is quicker (seconds).
_LEAST = 0.0002
# Default reads of a server that has just become the leader are old for so long at most, and by so much (seconds). A leader that was stopped answers some
# before it knows that it is none any more: 3.1 s old ones on a busy machine.
_OLD, _OLDEST = 1.0, 4.0


class StateReading(Reading):
    """What a process has read, without the JSON of it.

    :param found: the keys of that moment.
    """

    def __init__(self, number: int, at: float, found: State) -> None:
        super().__init__(number, at, b"")
        self.state = found

    def entries(self) -> dict[str, tuple[str, int]]:
        """Return key -> value and ModifyIndex."""
        return {key: (one.value, one.index) for key, one in self.state.items()}


@dataclass
class Line:
    """The way of one process to Consul.

    :param delay: seconds for each direction, at most.
    :param lost_before: how many of the next writes are lost, ``lost_after`` how many replies to them.
    :param lost_at: when a reply was lost last, because it was cut (seconds of the night).
    :param token: used instead of that of the process, if it is not empty.
    :param readings: thread -> what it has read last of all that a planner needs. Threads of one process plan by what they have read themselves.
    """

    name: str
    delay: float
    is_cut: bool = False
    lost_before: int = 0
    lost_after: int = 0
    lost_at: float = float("-inf")
    token: str = ""
    readings: dict[Any, StateReading] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Sent:
    """A request on its way.

    :param at: when it was sent (unix seconds).
    :param reading: what its sender had read by then.
    """

    line: Line
    wait: Wait
    at: float
    reading: StateReading | None
    method: str
    path: str
    params: Mapping[str, str]
    body: str
    token: str

    @cached_property
    def is_write(self) -> bool:
        """Whether it is a transaction that writes."""
        return any(one["Verb"] in WRITES for one in self.operations)

    @cached_property
    def may_change(self) -> bool:
        """Whether it may change what Consul has: a transaction that writes, or such as a request for a session."""
        return self.is_write if self.path == "/v1/txn" else self.method != "get"

    @cached_property
    def operations(self) -> list[dict[str, Any]]:
        """The operations of a transaction."""
        return [one["KV"] for one in operations_of(self.body)] if self.path == "/v1/txn" else []


class Network:
    """All lines, and the server at their end. It notes every step of the keys.

    :param now: the keys as they are, ``base`` those of the beginning.
    :param listeners: called with each step.
    :param arrived: called with each request that is answered at once, and the code of that answer, which is on its way by then.
    """

    def __init__(self, world: World, server: Server) -> None:
        """Begin with the keys of the server."""
        self.world = world
        self.server = server
        self.lines: dict[int, Line] = {}
        self.base: State = self._state()
        self.steps: list[Step] = []
        self.restores: list[Restore] = []
        # When the last one was (seconds of the night).
        self.restored_at = float("-inf")
        self.listeners: list[Callable[[Step], None]] = []
        self.arrived: list[Callable[[Sent, int], None]] = []
        self.requests = 0
        # Sentences on requests that no code of the product may send.
        self.malformed: list[str] = []
        self._readings = 0
        # Prefix -> its blocking queries, and the index at which they were checked last.
        self._blocked: dict[str, list[tuple[Blocked, Sent]]] = {}
        self._answered_at: dict[str, int] = {}
        self._held: list[Sent] = []
        self._next_end: float | None = None
        self.now: State = self.base
        # The keys of the last seconds: since when they were so, as the server has them, and as the judge has them.
        self._earlier: deque[tuple[float, Keys, State]] = deque([(0.0, server.keys.copy(), self.base)])
        # What the server's old keys are for the judge.
        self._old: State = self.base

    def line(self, name: str, delay: float) -> int:
        """Make a line; return its port."""
        port = 20000 + len(self.lines)
        self.lines[port] = Line(name, delay)
        return port

    def send(self, port: int, method: str, path: str, params: Any, body: str, token: str, seconds: float) -> Answer:
        """Send a request from the current thread, and wait for the answer.

        :raises requests.exceptions.RequestException: as the HTTP library does.
        """
        world, line = self.world, self.lines[port]
        self.requests += 1
        wait = world.new_wait()
        sent = Sent(
            line,
            wait,
            self._clock(),
            line.readings.get(wait.thread),
            method,
            path,
            dict(params),
            body,
            line.token or token,
        )
        arrives = world.chance.uniform(_LEAST, line.delay)
        if line.is_cut:
            world.wake(wait, _Broken("the network is cut"), min(seconds, 0.5))
        elif line.lost_before and sent.may_change:
            line.lost_before -= 1
            world.wake(wait, _Broken("the connection was reset"), arrives)
        else:
            world.call(lambda: self._arrive(sent), arrives)
        found = world.wait_on(wait, seconds)
        if found is TIMED_OUT:
            raise requests.exceptions.ReadTimeout("timed out")
        if isinstance(found, _Broken):
            raise requests.exceptions.ConnectionError(str(found))
        answer: Answer = found[0]
        reading: StateReading | None = found[1]
        if reading is not None:
            line.readings[wait.thread] = reading
        return answer

    def _clock(self) -> float:
        return BEGIN + self.world.now

    def _arrive(self, sent: Sent) -> None:
        """Carry out a request, or keep it while there is no leader."""
        server = self.server
        if not server.has_leader:
            self._held.append(sent)
            self.world.call(lambda: self._give_up(sent), _HELD)
            return
        before, index = self.now, server.index
        request = Request(sent.method, sent.path, sent.params, sent.body, sent.token, self.world.now)
        found = server.answer(request)
        if isinstance(found, Blocked):
            self._blocked.setdefault(found.prefix, []).append((found, sent))
            self.world.call(lambda: self._time_out(found, sent), found.until - self.world.now)
            return
        if _is_malformed(found):
            self.malformed.append(
                f"{sent.line.name} sent {sent.method} {sent.path}, and Consul answered {found.code}: {found.body[:_SHOWN]}"
            )
        reading = None
        if sent.is_write:
            if found.code == 200:
                write = Write(sent.line.name, sent.operations, sent.reading, sent.at, server.index, True, True)
                write.answered_at = self._clock()
                self._note(before, write)
        elif sent.operations and found.code == 200 and any(one["Key"].endswith(_LEDGER) for one in sent.operations):
            self._readings += 1
            reading = StateReading(
                self._readings, sent.at, before if server.keys_for(request) is server.keys else self._old
            )
        elif server.index != index:
            self._note(before, None)
        if server.index != index:
            self._unblock()
        if sent.line.lost_after and sent.may_change:
            sent.line.lost_after -= 1
            self._reply(sent, _Broken("the connection was reset"))
        else:
            self._reply(sent, (found, reading))
        for listener in self.arrived:
            listener(sent, found.code)
        self._plan_expiry()

    def _reply(self, sent: Sent, what: Any) -> None:
        # What is sent on a line that is cut never arrives, and the time of the sender runs out.
        if sent.line.is_cut:
            sent.line.lost_at = self.world.now
        else:
            self.world.wake(sent.wait, what, self.world.chance.uniform(_LEAST, sent.line.delay))

    def _unblock(self) -> None:
        """Answer the blocking queries on what has changed."""
        if not self.server.has_leader:
            return
        for prefix, queries in self._blocked.items():
            index = self.server.keys.index_below(prefix)
            if not queries or index == self._answered_at.get(prefix):
                continue
            self._answered_at[prefix] = index
            self._blocked[prefix] = [one for one in queries if not self._is_answered(*one)]

    def _is_answered(self, blocked: Blocked, sent: Sent) -> bool:
        answer = self.server.unblock(blocked, self.world.now)
        if answer is not None:
            self._reply(sent, (answer, None))
        return answer is not None

    def _time_out(self, blocked: Blocked, sent: Sent) -> None:
        queries = self._blocked.get(blocked.prefix, [])
        if (blocked, sent) in queries and self.server.has_leader:
            queries.remove((blocked, sent))
            self._is_answered(blocked, sent)

    def _give_up(self, sent: Sent) -> None:
        if sent in self._held:
            self._held.remove(sent)
            self._reply(sent, (Answer(500, "No cluster leader"), None))

    def _plan_expiry(self) -> None:
        end = self.server.sessions.next_end()
        if end is not None and end != self._next_end:
            self._next_end = end
            self.world.call(self._expire, end - self.world.now)

    def _expire(self) -> None:
        if self.server.has_leader and self.server.expire(self.world.now):
            self._note(self.now, None)
            self._unblock()
        self._next_end = None
        self._plan_expiry()

    def _note(self, before: State, write: Write | None) -> None:
        self.now = self._state(before, write)
        self._remember()
        step = Step(self.server.index, before, self.now, write, self._clock())
        self.steps.append(step)
        for listener in self.listeners:
            listener(step)

    def _state(self, before: State | None = None, write: Write | None = None) -> State:
        """Return the keys as the judge has them; after a write, only what it names is read."""
        entries = self.server.keys.entries
        if before is None:
            return {key: _entry(one) for key, one in entries.items()}
        if write is None or any(one["Verb"] == "delete-tree" for one in write.operations):
            return {key: _same(before.get(key), one) for key, one in entries.items()}
        found = dict(before)
        for key in {one["Key"] for one in write.operations}:
            if key in entries:
                found[key] = _entry(entries[key])
            else:
                found.pop(key, None)
        return found

    def _remember(self) -> None:
        """Keep the keys of now, with which a leader of the next seconds may answer default reads for a moment."""
        earlier, now = self._earlier, self.world.now
        earlier.append((now, self.server.keys.copy(), self.now))
        while len(earlier) > 1 and earlier[1][0] < now - _OLDEST:
            earlier.popleft()

    def lose_leader(self) -> None:
        """Let the leader be gone."""
        self.server.has_leader = False

    def choose_leader(self) -> None:
        """Let there be a leader again, who carries out what was held."""
        server = self.server
        server.has_leader = True
        server.sessions.renew_all(self.world.now)
        chance, now = self.world.chance, self.world.now
        known_at = now - chance.uniform(0.0, _OLDEST)
        kept = [one for one in self._earlier if one[0] <= known_at] or [self._earlier[0]]
        _at, server.old, self._old = kept[-1]
        server.old_until = now + chance.uniform(0.0, _OLD)
        self.world.call(self._catch_up, server.old_until - now)
        held, self._held = self._held, []
        for sent in held:
            self._arrive(sent)
        self._unblock()

    def _catch_up(self) -> None:
        """Answer the blocking queries that old keys have kept waiting."""
        self._answered_at = {}
        self._unblock()

    def ledger(self) -> dict[str, Any]:
        """Return the ledger, empty if there is none."""
        entry = self.now.get(_LEDGER)
        found: dict[str, Any] = json.loads(entry.value) if entry is not None else {}
        return found

    def epoch(self) -> int:
        """Return the epoch of the ledger, 0 if there is none."""
        return int(self.ledger().get("epoch", 0))

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back; all blocking queries end with what there was before."""
        before = self.now
        blocked, self._blocked, self._answered_at = self._blocked, {}, {}
        for one, sent in (pair for queries in blocked.values() for pair in queries):
            self._reply(sent, (self.server.end(one), None))
        self.server.restore(snapshot, self.world.now)
        self.restored_at = self.world.now
        self.now = self._state()
        self._remember()
        self.restores.append(Restore(self.server.index, snapshot.index))
        step = Step(self.server.index, before, self.now, None, self._clock(), is_restore=True)
        self.steps.append(step)
        for listener in self.listeners:
            listener(step)


def _is_malformed(answer: Answer) -> bool:
    """Return whether an answer says that the request was malformed or too large, whatever the keys are."""
    if answer.code != 409:
        return answer.code not in _CODES
    errors = json.loads(answer.body)["Errors"]
    return not all(any(part in one["What"] for part in _REFUSALS) for one in errors)


class _Broken(Exception):
    """A connection that ended without an answer."""


def _same(before: Entry | None, entry: Any) -> Entry:
    """Return an entry as the judge has it; the same object as before if it has not changed."""
    return before if before is not None and before.index == entry.modified else _entry(entry)


def _entry(entry: Any) -> Entry:
    return Entry(text(entry.value), entry.modified, entry.flags)


class Adapter:
    """Stands in the place of the HTTP adapter of the transport, which sets a time for each request.

    :param seconds: for how long a request may take.
    """

    seconds: float = 0


class HTTPClient:
    """Stands in the place of the class of the same name of the C(consul) package."""

    def __init__(self, _host: str, port: int, *_more: Any) -> None:
        """Remember the port, which is that of a line."""
        self._port = port
        self._adapters: list[Any] = []
        self.session = SimpleNamespace(
            mount=lambda _prefix, adapter: self._adapters.append(adapter), headers={}, close=lambda: None
        )

    def get(self, callback: Callable[[Any], Any], path: str, params: Any = ()) -> Any:
        """Send a GET."""
        return self._send("get", callback, path, params, "")

    def put(self, callback: Callable[[Any], Any], path: str, params: Any = (), data: str = "") -> Any:
        """Send a PUT."""
        return self._send("put", callback, path, params, data)

    def delete(self, callback: Callable[[Any], Any], path: str, params: Any = (), data: str = "") -> Any:
        """Send a DELETE."""
        return self._send("delete", callback, path, params, data)

    def _send(self, method: str, callback: Callable[[Any], Any], path: str, params: Any, data: str) -> Any:
        found = current()
        if found is None:
            raise requests.exceptions.ConnectionError("the world has ended")
        network = networks[found[0]]
        token = self.session.headers.get("X-Consul-Token", "")
        return callback(network.send(self._port, method, unquote(path), params, data, token, self._adapters[0].seconds))


# The network of each world.
networks: dict[World, Network] = {}
