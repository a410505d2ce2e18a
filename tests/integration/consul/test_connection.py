# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How Consul is reached, by options, group defaults and the environment, and the error when it is not."""

from __future__ import annotations

import http.server
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul import transport
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings, read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store_pool import StorePool
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import seed
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner, gate, health, info, plan, report

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release

CLOSED_PORT = {"CONSUL_HTTP_ADDR": "127.0.0.1:1"}


def failure(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        read_fleet(Store(read_settings({"timeout": 0.2, **options}.get, environ or {})))
    return caught.value


@contextmanager
def speaking(handler: Any) -> Iterator[int]:
    """Have something that is not Consul listen on a port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def test_a_session_whose_answer_was_lost_is_opened_again() -> None:
    answers = ["", '{"ID": "a session"}']

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            answer = answers.pop(0)
            if answer:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer.encode())

        def log_message(self, *_arguments: Any) -> None:
            pass

    with speaking(Handler) as port:
        assert Store(Settings(port=port)).client.open_session("a test", 15) == "a session"
    assert answers == []


def test_a_pool_that_is_closed_leaves_no_connection(store: Store) -> None:
    def connections() -> set[str]:
        """Return the local ends of the connections to Consul."""
        rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
        # The state 01 is an established connection.
        return {row[1] for row in rows if row[2] == f"0100007F:{store.settings.port:04X}" and row[3] == "01"}

    pool = StorePool(store.settings)
    before = connections()
    with pool.store() as one, pool.store() as other:
        for each in (one, other):
            each.client.get("upgrade/nothing")
        new = connections() - before
    assert len(new) == 2
    pool.close()
    assert connections().isdisjoint(new)


def test_an_agent_on_this_machine_is_asked_without_a_proxy(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert read_fleet(Store(store.settings)).snapshot.current_version is None


def test_a_write_that_is_too_large_for_consul_says_what_makes_it_smaller(store: Store, consul: RawKV) -> None:
    with pytest.raises(UpgradeError) as caught:
        store.client.write([put("upgrade/ledger", "x" * 400_000)])
    assert re.fullmatch(
        r"Consul at \S+ answered 413: Request body\(\d+ bytes\) too large, max size: 524288 bytes. See [^ ]*txn_max_req_len. This write changed nothing. Each "
        r"write of a planner contains the rules and the names of the hosts of a job under way or, in a rollback, of broken hosts: name roles or groups in "
        r"place of hosts, or raise limits.txn_max_req_len in the configuration of Consul's agents. Then run the same command again.",
        caught.value.message,
    )
    assert consul.tree() == {}


def answering(code: int, body: bytes) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT

        def log_message(self, *_arguments: Any) -> None:
            pass

    return Handler


def handling(act: Callable[[Any], object]) -> Any:
    """Return a handler that does this with each connection."""

    class Handler(answering(200, b"")):
        def handle(self) -> None:
            act(self)

    return Handler


@pytest.mark.thorough
def test_every_module_says_that_consul_does_not_answer(run: Runner) -> None:
    tasks = [
        plan(version="2", instructions=UNLIMITED),
        info(),
        report("compute1", "2", "started"),
        gate(state="reset"),
        health("puppet"),
    ]
    played = run(
        tasks, environ=CLOSED_PORT, play={"module_defaults": {"group/convoy.upgrade.consul": {"timeout": 0.1}}}
    )
    for result in played:
        assert result["failed"]
        assert result["failure"]["message"] == (
            "Consul at http://127.0.0.1:1 can't be reached: Connection refused. "
            "Check that its agent is running, and that host, port and scheme (or CONSUL_HTTP_ADDR) are right."
        )
        assert (result["failure"]["code"], result["failure"]["details"]) == ("unreachable", {})
        assert result["msg"] == f"[unreachable] {result['failure']['message']}"


def test_an_unknown_host_name() -> None:
    error = failure({"host": "consul.invalid"})
    assert error.code == "unreachable"
    assert error.message.startswith("Consul at http://consul.invalid:8500 can't be reached: ")
    assert "NewConnectionError" not in error.message


def test_a_port_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        error = failure({"port": server.getsockname()[1]})
    assert error.code == "unreachable"
    assert "it gave no answer in time" in error.message


def test_a_connection_that_ends_before_there_is_tls() -> None:
    """As a balancer without a server behind it, or an agent that starts, ends it: that passes."""
    # All of it is read, so that the connection is closed and not reset.
    with speaking(handling(lambda one: one.connection.recv(65536))) as port:
        error = failure({"port": port, "scheme": "https"})
    assert isinstance(error, Unreachable)
    assert "EOF" in error.message


def test_a_port_with_another_protocol() -> None:
    with speaking(handling(lambda one: one.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n"))) as port:
        error = failure({"port": port})
    assert error.code == "unreachable"
    assert "host, port and scheme (or CONSUL_HTTP_ADDR) are right." in error.message


@pytest.mark.parametrize(
    ("code", "body", "expected", "message"),
    [
        (
            200,
            b"<html>It works!</html>",
            "unreachable",
            "what answers there is not Consul's API (it answered with a web page, code 200)",
        ),
        (404, b"404 page not found", "unreachable", "not Consul's API (it answered 404, 404 page not found)"),
        (403, b"", "unreachable", "not Consul's API (it answered 403, without a reason)"),
        (403, b"Permission denied", "denied", "permission denied; no token was given."),
        (
            403,
            b"Endpoint is blocked by agent configuration",
            "consul_error",
            "Endpoint is blocked by agent configuration.",
        ),
        (401, b"ACL support disabled", "consul_error", "answered 401: ACL support disabled."),
        (400, b"Bad request: missing value", "consul_error", "answered 400: Bad request: missing value."),
        (503, b"", "unreachable", "it answered 503, without a reason"),
        (500, b"No cluster leader", "unreachable", "it answered 500, No cluster leader"),
        (501, b"<html>" + b"x" * 5000, "unreachable", "it answered with a web page, code 501"),
    ],
)
def test_a_web_server_that_is_not_consul(code: int, body: bytes, expected: str, message: str) -> None:
    with speaking(answering(code, body)) as port:
        error = failure({"port": port})
    assert error.code == expected
    assert message in error.message
    assert len(error.message) < 500


@pytest.mark.parametrize("body", [b"404 page not found", b"Cannot PUT /v1/session/renew/5f1b", b"<html>no</html>"])
def test_the_404_of_another_server_does_not_say_that_a_session_has_ended(body: bytes) -> None:
    """A push run would give up its hosts."""
    with speaking(answering(404, body)) as port, pytest.raises(Unreachable):
        Store(Settings(port=port, timeout=0.2)).client.renew_session("5f1b")

    class WithoutIt(answering(404, b"Session id '5f1b' not found")):
        do_GET = answering(200, b"[]").do_GET

    with speaking(WithoutIt) as port:
        assert not Store(Settings(port=port, timeout=0.2)).client.renew_session("5f1b")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_with_the_token(code: int) -> None:
    tokens: list[str | None] = []

    class Elsewhere(answering(200, b"[]")):
        def do_PUT(self) -> None:
            tokens.append(self.headers.get("X-Consul-Token"))
            super().do_PUT()

        do_GET = do_DELETE = do_PUT

    with speaking(Elsewhere) as other:

        class Redirecting(answering(code, b"")):
            def end_headers(self) -> None:
                self.send_header("Location", f"http://localhost:{other}{self.path}?token=s3cr3t")
                super().end_headers()

            do_DELETE = answering(code, b"").do_PUT

        with speaking(Redirecting) as port:
            client = Store(Settings(port=port, token="s3cr3t", timeout=0.3)).client
            for request in (
                lambda: client.read(["upgrade/"]),
                lambda: client.get("upgrade/ledger"),
                lambda: client.write([]),
                client.nodes,
                lambda: client.put_to_agent("check/register", {}),
                lambda: client.wait_for_change_below("upgrade/", 1, 1),
                lambda: client.delete_acl("token/x"),
                lambda: client.renew_session("x"),
            ):
                with pytest.raises(UpgradeError) as caught:
                    request()
                assert caught.value.code == "redirected"
                assert caught.value.message.startswith(
                    f"The server at http://127.0.0.1:{port} redirects to http://localhost:{other}/v1/"
                )
                assert "s3cr3t" not in caught.value.message
    assert tokens == []


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        (
            {},
            {"CONSUL_HTTP_ADDR": "unix:///var/run/consul.sock"},
            "CONSUL_HTTP_ADDR: 'unix:///var/run/consul.sock' is not an address",
        ),
        (
            {},
            {"CONSUL_HTTP_ADDR": "consul:http"},
            "CONSUL_HTTP_ADDR: 'consul:http' is not an address of the form host:port",
        ),
        ({}, {"CONSUL_HTTP_SSL": "perhaps"}, "CONSUL_HTTP_SSL: 'perhaps' is neither true nor false."),
        ({}, {"CONSUL_HTTP_SSL_VERIFY": "2"}, "CONSUL_HTTP_SSL_VERIFY: '2' is neither true nor false."),
        ({"timeout": 0.0}, {}, "timeout: 0.0 is not a number of seconds above 0."),
        ({"client_cert": __file__}, {}, "only client_cert is set."),
        ({}, {"CONSUL_CLIENT_KEY": __file__}, "only client_key is set."),
        ({"port": 0}, {}, "port: 0 is not a port; give a number from 1 to 65535."),
        ({"port": 99999}, {}, "port: 99999 is not a port; give a number from 1 to 65535."),
        ({"host": "http://consul"}, {}, "host: 'http://consul' is neither the name nor the address of a host."),
        ({"token": "secret\nsecret"}, {}, "token: it has a line break or another character that tokens don't have."),
        ({"token": "secret†"}, {}, "token: it has a line break or another character that tokens don't have."),
        ({}, {"CONSUL_HTTP_TOKEN": "secret\x00"}, "token: it has a line break or another character"),
    ],
)
def test_options_that_cannot_be_right(options: dict[str, Any], environ: dict[str, str], message: str) -> None:
    error = failure(options, environ)
    assert error.code == "bad_connection", error.message
    assert message in error.message
    assert "secret" not in error.message


def test_a_token_from_a_file_may_end_with_a_line_break(agent: Agent) -> None:
    settings = read_settings({"port": agent.http_port, "token": "secret\n"}.get, {})
    assert settings.token == "secret"
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
def test_the_address_may_have_a_scheme(agent: Agent, consul: RawKV, form: str) -> None:
    seed(consul, ["compute1"])
    view = read_fleet(Store(read_settings({}.get, {"CONSUL_HTTP_ADDR": form.format(agent.address)})))
    assert list(view.plan.hosts) == ["compute1"]


def test_without_the_library_the_lookup_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LIBRARY_ERROR", "Traceback ...")
    with pytest.raises(UpgradeError, match="The Python library 'consul' is missing for ") as caught:
        Store(Settings())
    assert caught.value.code == "missing_library"
