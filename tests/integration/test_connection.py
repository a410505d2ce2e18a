# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How Consul is reached, by options, group defaults and the environment, and what is said when it is not."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._model.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.look import look
from ansible_collections.convoy.upgrade.plugins.module_utils._store import client
from ansible_collections.convoy.upgrade.plugins.module_utils._store.settings import Settings, read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._store.store import Store
from devkit.agent import Agent, free_ports
from devkit.kv import RawKV
from integration.support.fleet import gates, names, seed
from integration.support.playbook import Runner, gate, info, plan, report

NOBODY = {"CONSUL_HTTP_ADDR": "127.0.0.1:1"}


def failure(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        look(Store(read_settings({"timeout": 0.2, **options}.get, environ or {})))
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


def test_every_module_says_that_nobody_answers(run: Runner) -> None:
    tasks = [plan(version="2"), info(), report("compute1", "2", "started"), gate(state="reset")]
    played = run(tasks, environ=NOBODY, play={"module_defaults": {"group/convoy.upgrade.consul": {"timeout": 0.1}}})
    for result in played:
        assert result["failed"]
        assert result["msg"] == (
            "Consul at http://127.0.0.1:1 can't be reached: Connection refused. "
            "Is its agent running, and are host, port and scheme (or CONSUL_HTTP_ADDR) right?"
        )
        assert result["failure"] == {"code": "unreachable", "message": result["msg"], "details": {}}


def test_a_name_that_nobody_has() -> None:
    error = failure({"host": "consul.invalid"})
    assert error.code == "unreachable"
    assert error.message.startswith("Consul at http://consul.invalid:8500 can't be reached: ")
    assert "NewConnectionError" not in error.message


def test_a_port_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        error = failure({"port": server.getsockname()[1]})
    assert error.code == "unreachable"
    assert "it gave no answer in time" in error.message


def test_a_port_that_speaks_something_else() -> None:
    class Greeter(answering(200, b"")):  # type: ignore[misc]
        def handle(self) -> None:
            self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    with speaking(Greeter) as port:
        error = failure({"port": port})
    assert error.code == "unreachable"
    assert "are host, port and scheme (or CONSUL_HTTP_ADDR) right?" in error.message


@pytest.mark.parametrize(
    ("code", "body", "expected", "words"),
    [
        (200, b"<html>It works!</html>", "consul_error", "is not Consul's API (no JSON came back). Check host and port."),
        (404, b"no such page", "consul_error", "answered 404: no such page."),
        (503, b"", "unreachable", "it answered 503, without a reason"),
        (500, b"No cluster leader", "unreachable", "it answered 500, No cluster leader"),
        (501, b"<html>" + b"x" * 5000, "unreachable", "it answered 501, <html>x"),
    ],
)
def test_a_web_server_that_is_not_consul(code: int, body: bytes, expected: str, words: str) -> None:
    with speaking(answering(code, body)) as port:
        error = failure({"port": port})
    assert error.code == expected
    assert words in error.message
    assert len(error.message) < 500


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        ({}, {"CONSUL_HTTP_ADDR": "unix:///var/run/consul.sock"}, "CONSUL_HTTP_ADDR: 'unix:///var/run/consul.sock' is no"),
        ({}, {"CONSUL_HTTP_ADDR": "consul:http"}, "CONSUL_HTTP_ADDR: 'consul:http' is no address of the form host:port"),
        ({}, {"CONSUL_HTTP_SSL": "perhaps"}, "CONSUL_HTTP_SSL: 'perhaps' is neither true nor false."),
        ({}, {"CONSUL_HTTP_SSL_VERIFY": "2"}, "CONSUL_HTTP_SSL_VERIFY: '2' is neither true nor false."),
        ({"timeout": 0.0}, {}, "timeout: 0.0 is not a number of seconds above 0."),
        ({"client_cert": __file__}, {}, "only client_cert is set."),
        ({}, {"CONSUL_CLIENT_KEY": __file__}, "only client_key is set."),
        ({"port": 99999}, {}, "port"),
        ({"host": "http://consul"}, {}, "host"),
        ({"token": "se\ncret"}, {}, "token"),
        ({"token": "secré†"}, {}, "token"),
    ],
)
def test_options_that_cannot_be_right(options: dict[str, Any], environ: dict[str, str], words: str) -> None:
    error = failure(options, environ)
    assert error.code == "bad_connection", error.message
    assert words in error.message
    assert "cr" not in error.message.replace("cert", "") or "token" not in options


def test_a_token_from_a_file_may_end_with_a_line_break(agent: Agent) -> None:
    settings = read_settings({"port": agent.http_port, "token": "secret\n"}.get, {})
    assert settings.token == "secret"
    assert "secret" not in repr(settings)


def test_the_defaults_of_the_group_reach_every_module(run: Runner, agent: Agent, consul: RawKV) -> None:
    seed(consul, ["compute1"], prefix="east/")
    connection = {"host": "127.0.0.1", "port": agent.http_port, "scheme": "http", "kv_prefix": "east"}
    tasks = [
        plan(version="2", wait=True, wait_timeout=0, instructions={"rolling_rules": {"global": 1}}),
        report("compute1", "2", "upgraded"), info(), gate(scope="global", value=True),
    ]  # fmt: skip
    played = run(tasks, environ=NOBODY, play={"module_defaults": {"group/convoy.upgrade.consul": connection}})
    assert [result["failed"] for result in played] == [True, False, False, False]
    assert played[0]["failure"]["code"] == "timeout"
    assert gates(consul, "east/") == {"global": "True", "host/compute1": "True"}
    assert played[2]["status"]["upgraded"] == ["compute1"]
    assert {key for key in consul.tree() if not key.startswith("east/")} == set()


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
def test_the_address_may_have_a_scheme(agent: Agent, consul: RawKV, form: str) -> None:
    seed(consul, ["compute1"])
    view = look(Store(read_settings({}.get, {"CONSUL_HTTP_ADDR": form.format(agent.address)})))
    assert list(view.plan.hosts) == ["compute1"]


def test_without_the_library_a_module_says_how_to_get_it(run: Runner, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = str(bare / "bin" / "python")
    played = run([info(), report("compute1", "2", "started")], python=python)
    for result in played:
        assert result["failed"]
        assert result["msg"].startswith(f"The Python library 'consul' is missing for {python}: install it there with ")
        assert "'pip install py-consul'" in result["msg"]
        assert result["failure"]["code"] == "missing_library"


def test_without_the_library_the_lookup_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LIBRARY_ERROR", "Traceback ...")
    with pytest.raises(UpgradeError, match="The Python library 'consul' is missing for ") as caught:
        Store(Settings())
    assert caught.value.code == "missing_library"


@pytest.fixture(scope="session")
def python_consul() -> Path:
    """Return a folder with the library that py-consul continues."""
    folder = Path(__file__).parents[2] / ".cache" / "python-consul-1.1.0"
    if not (folder / "consul" / "std.py").exists():
        wanted = ["python-consul==1.1.0", "six"]
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *wanted]
        if subprocess.run(command, check=False).returncode:
            pytest.fail("python-consul could not be installed")
    return folder


def test_the_older_library_does_as_well(run: Runner, agent: Agent, consul: RawKV, python_consul: Path) -> None:
    fleet = names(compute=2)
    seed(consul, fleet, "1 old")
    environ = {"PYTHONPATH": str(python_consul), "CONSUL_HTTP_ADDR": agent.address}
    code = "import consul; print(consul.__file__, consul.__version__)"
    shown = subprocess.run([sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True).stdout
    assert shown.split() == [str(python_consul / "consul" / "__init__.py"), "1.1.0"]
    nobody = free_ports(1)[0]
    played = run(
        [
            plan(version="2 new", instructions={"rolling_rules": {"global": 1}}),
            report("compute1", "2 new", "started"),
            report("compute1", "2 new", "upgraded"),
            plan(wait=True, wait_timeout=1),
            info(name="compute2"),
            gate(scope="host", name="compute2", state="absent"),
            {"ansible.builtin.debug": {"msg": "{{ query('convoy.upgrade.enable_puppet', *fleet) }}"}},
            info(port=nobody, timeout=0.3),
        ],
        environ=environ,
        extra_vars={"fleet": list(fleet)},
    )
    assert [result["failed"] for result in played] == [False, False, False, True, False, False, False, True]
    assert played[3]["failure"]["code"] == "timeout"
    assert [one["host"] for one in played[3]["transitions"]] == ["compute2"]
    assert played[4]["host"]["state"] == "upgrading"
    assert played[6]["msg"] == [True, False]
    assert "can't be reached: Connection refused." in played[7]["msg"]
    assert gates(consul) == {"global": "False", "host/compute1": "True"}
    assert set(consul.tree("running/")) == {"running/versions/1 old/compute2", "running/versions/2 new/compute1"}
