# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent makes of answers that are none of Consul's: an unknown outcome, never a success and never a missing key."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from convoy_node.machine.errors import ConsulError, Denied
from convoy_node.node.connection import Connection
from convoy_node.node.consul import Consul, ConsulKey, WakeWatch
from no_signals import NoSignals

INDEX = {"X-Consul-Index": "7"}
PAIR = {"Key": "a", "Value": "eA==", "ModifyIndex": 7, "Flags": 0}


class Server:
    """An HTTP server that gives one answer to everything."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        self.headers = INDEX
        self.date: str | None = None
        self.paths: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.paths.append(self.path)
                self.send_response(server.status)
                for name, value in {**server.headers, "Content-Length": str(len(server.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(server.body)

            do_PUT = do_GET

            def date_time_string(self, *_time: Any, **_named: Any) -> str:
                return super().date_time_string() if server.date is None else server.date

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.connection = Connection(port=self.http.server_address[1], timeout=10)
        self.consul = Consul(self.connection)

    def gives(self, body: Any, status: int = 200) -> Consul:
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.consul


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield found
    found.http.shutdown()
    thread.join()
    found.http.server_close()


def pair(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**PAIR, **changes}.items() if value is not ...}


# Each differs from PAIR in one value.
BAD_PAIRS = [
    b'{"Key": "a", "Value": "eA==", "ModifyIndex": 1e999, "Flags": 0}',
    b'{"Key": "a", "Value": "eA==", "ModifyIndex": 7, "Flags": Infinity}',
    b'{"Key": "a", "Value": "eA==", "ModifyIndex": 7, "Flags": 1e999}',
    b'{"Key": "a", "Value": "eA==", "ModifyIndex": NaN, "Flags": 0}',
    *(json.dumps(pair(ModifyIndex=value)).encode() for value in (..., None, "7", 7.0, True, -1, 2**64, [])),
    *(json.dumps(pair(Flags=value)).encode() for value in (..., None, "0", 0.5, False, -1, 2**64, {})),
    *(json.dumps(pair(Key=value)).encode() for value in (..., None, 1, [], {})),
    *(json.dumps(pair(Value=value)).encode() for value in (1, [], {}, True, "eA", "e A==", "\u00e9")),
    *(b"null", b"1", b'"a"', b"[]", b"{}"),
]
NOT_CONSUL = [b"", b"null", b"1", b'"ok"', b"true", b"{", b"<html>", b"[" * 100_000, b"\xff"]


@pytest.mark.parametrize("text", BAD_PAIRS)
def test_a_key_with_a_value_that_consul_does_not_send_is_an_error(text: bytes, server: Server) -> None:
    results = b'{"Results": [{"KV": %s}], "Errors": null}' % text
    with pytest.raises(ConsulError, match=r"is not one of Consul's"):
        server.gives(results).read(["a"])
    with pytest.raises(ConsulError, match=r"is not one of Consul's"):
        server.gives(results).write([{"Verb": "cas", "Key": "a", "Value": b"x", "Index": 0}])
    with pytest.raises(ConsulError, match=r"is not one of Consul's"):
        server.gives(b"[%s]" % text).get("a")


def test_what_consul_sends_is_read(server: Server) -> None:
    entry = ConsulKey(b"x", 7, 0)
    assert server.gives({"Results": [{"KV": PAIR}, {"KV": pair(Key="ab")}], "Errors": None}).read(["a"]) == {"a": entry}
    assert server.gives([PAIR]).get("a") == entry
    assert server.gives([pair(Value=None, ModifyIndex=2**64 - 1, Flags=2**64 - 1)]).get("a") == ConsulKey(
        b"", 2**64 - 1, 2**64 - 1
    )
    assert server.gives(b"", 404).get("a") is None
    for nothing in ([], None):
        assert server.gives({"Results": nothing, "Errors": None}).read(["a"]) == {}
        assert server.gives({"Results": nothing}).write([{"Verb": "delete-cas", "Key": "a", "Index": 7}]) == {}


@pytest.mark.parametrize(
    "text", [*NOT_CONSUL, b"[]", b"{}", b'{"Results": {}}', b'{"Results": [1]}', b'{"Results": "x"}']
)
def test_an_answer_that_is_none_of_consul_s_is_an_error(text: bytes, server: Server) -> None:
    consul = server.gives(text)
    for ask in (
        lambda: consul.read(["a"]),
        lambda: consul.get("a"),
        lambda: consul.write([{"Verb": "delete-cas", "Key": "a", "Index": 7}]),
    ):
        with pytest.raises(ConsulError, match="Consul"):
            ask()
    if not text.startswith(b"{"):
        with pytest.raises(ConsulError, match="Consul"):
            consul.checks()


def test_the_keys_of_hosts_whose_names_begin_like_that_of_the_node_may_be_many(server: Server) -> None:
    # So many hosts with names that begin with web1, as a fleet of 100,000 has.
    others = [{"KV": pair(Key=f"a{number}", Value="eHh4" * 100)} for number in range(11_110)]
    consul = server.gives({"Results": [{"KV": PAIR}, *others], "Errors": None})
    assert len(server.body) > 4_000_000
    assert consul.read(["a"]) == {"a": ConsulKey(b"x", 7, 0)}


def test_an_answer_that_is_too_large_is_an_error_of_its_own(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy_node.node.consul._MOST_BYTES", 50)
    server.gives({"Results": None})
    server.consul.read(["a"])
    with pytest.raises(ConsulError, match="the answer is larger than"):
        server.gives({"Results": [{"KV": PAIR}], "Errors": None}).read(["a"])


def test_a_small_answer_takes_little_memory(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int | None] = []
    read = http.client.HTTPResponse.read

    def note(response: http.client.HTTPResponse, amt: int | None = None) -> bytes:
        sizes.append(amt)
        return read(response, amt)

    monkeypatch.setattr(http.client.HTTPResponse, "read", note)
    assert server.gives([PAIR]).get("a") == ConsulKey(b"x", 7, 0)
    # Python 3.9 allocates that many bytes.
    assert sizes and all(size is not None and size <= 65_536 for size in sizes)


def test_a_single_key_has_to_be_the_one_that_was_asked_for(server: Server) -> None:
    for found in ([], [PAIR, PAIR], [pair(Key="b")]):
        with pytest.raises(ConsulError, match=r"is not one of Consul's"):
            server.gives(found).get("a")


WRITE = [
    {"Verb": "cas", "Key": "a", "Value": b"x", "Index": 0},
    {"Verb": "check-index", "Key": "b", "Index": 7},
    {"Verb": "get-tree", "Key": "c"},
]


def test_gates_are_read_consistently(server: Server) -> None:
    """A server that has just restarted answers other reads with old gates."""
    results = {"Results": [{"KV": PAIR}]}
    server.gives(results).read(["a"])
    server.gives(results).read(["a"], folder="b")
    server.gives([PAIR]).get("a")
    assert len(server.paths) == 3
    for path in server.paths:
        assert "consistent" in parse_qs(urlsplit(path).query, keep_blank_values=True), path
        assert "stale" not in path


def test_a_write_has_to_return_what_it_wrote_and_compared(server: Server) -> None:
    both = [{"KV": pair(Value=None)}, {"KV": pair(Key="b")}]
    assert server.gives({"Results": both, "Errors": None}).write(WRITE) == {
        "a": ConsulKey(b"", 7),
        "b": ConsulKey(b"x", 7),
    }
    for results in ([], None, both[:1], both[1:], [{"KV": pair(Key="other")}]):
        with pytest.raises(ConsulError, match=r"is not one of Consul's"):
            server.gives({"Results": results, "Errors": None}).write(WRITE)
    # Errors mean that nothing was written, and come with another status.
    with pytest.raises(ConsulError, match=r"is not one of Consul's"):
        server.gives({"Results": both, "Errors": [{"OpIndex": 0, "What": "x"}]}).write(WRITE)


def test_a_conflict_has_to_say_what_failed(server: Server) -> None:
    errors = [{"OpIndex": 0, "What": "failed index check for key"}]
    assert server.gives({"Results": None, "Errors": errors}, 409).write(WRITE) is None
    for wrong in (None, [], {}, "x", True, [1], [None]):
        with pytest.raises(ConsulError, match=r"is not one of Consul's"):
            server.gives({"Results": [{"KV": PAIR}, {"KV": pair(Key="b")}], "Errors": wrong}, 409).write(WRITE)
    for text in NOT_CONSUL:
        with pytest.raises(ConsulError, match="Consul"):
            server.gives(text, 409).write(WRITE)
    errors[0]["What"] = "Permission denied"
    with pytest.raises(Denied):
        server.gives({"Errors": errors}, 409).write(WRITE)


@pytest.mark.parametrize("index", ["", "0", "x", "-1", "1e999", "9" * 400])
def test_a_query_whose_answer_has_no_index_is_an_error_and_not_a_change(index: str, server: Server) -> None:
    server.headers = {"X-Consul-Index": index} if index else {}
    server.gives([PAIR])
    signals = NoSignals()
    with signals.pipe, signals.other_end:
        watch = WakeWatch(server.connection, ["a"], signals)
        with pytest.raises(ConsulError, match="it has no index"):
            watch.wait(5, 5, lambda: False)


def test_each_step_of_a_watch_that_may_be_slow_comes_after_a_sign_of_life(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    connect = Connection.open

    def connect_plainly(_to: Connection, keep: bool = False) -> http.client.HTTPConnection:
        done.append("connect")
        return connect(server.connection, keep)

    monkeypatch.setattr(Connection, "open", connect_plainly)
    server.gives([PAIR])
    signals = NoSignals()
    with signals.pipe, signals.other_end:
        to = replace(server.connection, scheme="https")
        watch = WakeWatch(to, ["a", "b"], signals, lambda: done.append("alive"))
        watch.wait(5, 5, lambda: False)
        watch.close()
    # With HTTPS, each connection takes a first answer. Then come the answers of the queries.
    assert done[:6] == ["alive", "connect", "alive"] * 2
    assert set(done[6:]) == {"alive"}


def test_a_host_name_that_can_t_be_one_is_a_consul_that_can_t_be_reached() -> None:
    with pytest.raises(ConsulError, match=r"can't be reached: .*systemctl status consul"):
        Consul(Connection(host="a..b")).read(["a"])


@pytest.mark.parametrize(
    ("date", "found"),
    [
        ("Wed, 18 May 2033 03:33:20 GMT", 2_000_000_000),
        ("", None),
        ("yesterday", None),
        ("Wed, 99 May 2033 03:33:20 GMT", None),
    ],
)
def test_the_time_of_the_newest_answer_is_known(date: str, found: float | None, server: Server) -> None:
    consul = server.gives([PAIR])
    assert consul.time == 0
    consul.get("a")
    own = consul.time
    assert abs(own - time.time()) < 60
    server.date = date
    consul.get("a")
    assert consul.time == (found or own)
    # An earlier time does not take its place.
    server.date = "Thu, 01 Jan 1970 00:00:01 GMT"
    consul.get("a")
    assert consul.time == (found or own)
