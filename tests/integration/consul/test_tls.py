# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS: each thing that can be wrong with it has its own clear message, and client certificates work."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings, read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.watch import BlockingQueries, Watch
from ansible_collections.convoy.upgrade.plugins.module_utils._host import leases
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from convoy_node.node.connection import Connection
from convoy_node.node.consul import Consul, WakeWatch
from devkit.agent import Agent
from integration.support.processes.tls import Authority, Pair
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.coverage import Coverage
from integration.support.runs.hook import example
from integration.support.runs.playbook import Runner, ask, gate, health, info, plan, report, wait_until
from integration.support.runs.push import WATCHED, in_groups, push_run, stopped, without_services
from no_signals import NoSignals
from written_services import Roles

pytestmark = pytest.mark.one_release


@dataclass(frozen=True)
class Secure:
    """An agent that asks for client certificates on its HTTPS port, and the certificates of its world."""

    agent: Agent
    ca: str
    other_ca: str
    client: Pair
    stranger: Pair


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    ours = Authority(tmp_path_factory.mktemp("ours"), "our-authority")
    others = Authority(tmp_path_factory.mktemp("others"), "other-authority")
    server = ours.sign("consul.example.com", "127.0.0.1")
    tls = {"key_file": server.key, "cert_file": server.cert, "ca_file": ours.cert, "verify_incoming_https": True}
    with Agent(tls) as agent:
        yield Secure(agent, ours.cert, others.cert, ours.sign("client"), others.sign("stranger"))


def settings(secure: Secure, **more: Any) -> Settings:
    cert = (secure.client.cert, secure.client.key)
    given = {
        "port": secure.agent.https_port,
        "scheme": "https",
        "verify": secure.ca,
        "cert": cert,
        "timeout": 2,
        **more,
    }
    return Settings(**given)


def failure(settings: Settings) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        read_fleet(Store(settings))
    return caught.value


@pytest.mark.thorough
def test_modules_and_lookup_reach_an_agent_that_requires_client_certificates(
    tmp_path: Path, secure: Secure, seen: Coverage
) -> None:
    run = Runner(tmp_path, {}, seen)
    options = {
        "host": "127.0.0.1", "port": secure.agent.https_port, "scheme": "https", "validate_certs": True, "timeout": 2.5,
        "ca_path": secure.ca, "client_cert": secure.client.cert, "client_key": secure.client.key, "datacenter": "dc1",
        "pass_limit": 30,
    }  # fmt: skip
    environ = {
        "CONSUL_HTTP_ADDR": f"127.0.0.1:{secure.agent.https_port}",
        "CONSUL_HTTP_SSL": "true",
        "CONSUL_CACERT": secure.ca,
        "CONSUL_CLIENT_CERT": secure.client.cert,
        "CONSUL_CLIENT_KEY": secure.client.key,
    }
    # This agent has no ACLs, so it takes any token; that it comes through is tested where there are some.
    options["token"] = "any"
    writes = [
        report("compute1", "0", "upgraded", **options),
        plan(version="1", instructions=UNLIMITED, **options),
        {"convoy.upgrade.consul_upgrade_hold": {"everything": True, "reason": "audit", **options}},
        {"convoy.upgrade.consul_upgrade_hold": {"everything": True, "state": "absent", **options}},
        {"convoy.upgrade.consul_upgrade_control": {"action": "rollback", "version": "0", **options}},
        plan(version="1", replace="0", instructions=UNLIMITED, **options),
        report("compute1", "1", "upgraded", **options),
        gate(scope="global", value=True, **options),
        health("puppet", **options),
    ]
    written = run(writes)
    assert [result["changed"] for result in written] == [True] * 9, written.stdout
    # This server has no ACLs.
    assert (
        "ACL support disabled" in run([{"convoy.upgrade.consul_upgrade_acl": {"kind": "viewer", **options}}])[0]["msg"]
    )
    options_of_report = {"folder": str(tmp_path), **options}
    assert not run([{"convoy.upgrade.consul_upgrade_rollout_report": options_of_report}])[0]["failed"]
    metrics = {"path": str(tmp_path / "convoy.prom"), **options}
    assert not run([{"convoy.upgrade.consul_upgrade_metrics": metrics}])[0]["failed"]
    # Where there is no rollout, following it ends at once.
    readers = [("schema", options), ("follow", {**options, "kv_prefix": "elsewhere"})]
    results = run([{f"convoy.upgrade.consul_upgrade_{name}": given} for name, given in readers])
    assert [result["failed"] for result in results] == [False] * 2, results.stdout
    noted = run(
        [{"convoy.upgrade.consul_upgrade_notify": {"hook": str(example(tmp_path)), **options}}], environ=WATCHED
    )
    assert not noted[0]["failed"], noted.stdout
    assert b'"epoch": ' in (secure.agent.kv.get("upgrade/notified") or b"")
    by_options = run([info(**options), ask("compute1", **options)])
    tasks = [
        *without_services(Roles(tmp_path / "roles"), {"compute1": "web"}, "1", options),
        push_run(state="started", **options),
        push_run(state="settled", play="dataplane"),
        stopped(),
    ]
    done = run(tasks, environ=WATCHED)
    assert [result["failed"] for result in done] == [False] * 5, done.stdout
    assert done[3]["done"]
    (tmp_path / "restart.yml").write_text("- ansible.builtin.debug:\n")
    job = {
        "upgrade_roles": {"web": {"plane": "dataplane"}},
        "tasks": str(tmp_path / "restart.yml"),
        "job": {},
        "instructions": UNLIMITED,
        **options,
        # No rollout is under way there.
        "kv_prefix": "elsewhere",
    }
    done = run([in_groups({"localhost": "web"}), {"convoy.upgrade.push_job": job}, stopped()], environ=WATCHED)
    assert [result["failed"] for result in done] == [False] * 3, done.stdout
    # The last run has given it another role, and planners have closed the gate of the role that has no host any more.
    asked = ask("compute1", role="web")
    by_environment = run([info(), asked], environ=environ)
    unverified = run([info(), asked], environ={**environ, "CONSUL_CACERT": "", "CONSUL_HTTP_SSL_VERIFY": "0"})
    refused = run([info(), asked], environ={**environ, "CONSUL_CACERT": secure.other_ca})
    for played in (by_options, by_environment, unverified):
        assert [result["failed"] for result in played] == [False, False], played.stdout
        assert played[1]["msg"] == [True]
    for result in refused:
        assert "certificate verify failed" in result["msg"]
        assert "Set ca_path (or CONSUL_CACERT) to the authority that signed its certificate" in result["msg"]
    assert refused[0]["failure"]["code"] == "tls"


def test_an_agent_of_a_node_waits_and_is_woken(secure: Secure) -> None:
    key, wide = "upgrade/wake/compute1", "config_state/enable_puppet/global"
    secure.agent.kv.put(key, "enrolled")
    secure.agent.kv.put(wide, "False")
    # Shorter than the wait: an answer that does not come in time is an error.
    to = Connection(
        port=secure.agent.https_port,
        scheme="https",
        verify=secure.ca,
        cert=(secure.client.cert, secure.client.key),
        timeout=1,
    )
    signals = NoSignals()
    with signals.pipe, signals.other_end, contextlib.closing(WakeWatch(to, [key, wide], signals)) as watch:
        watch.note(Consul(to).read([key, wide]))
        began = time.monotonic()
        assert not watch.wait(2.5, 10, lambda: False)
        assert 2.4 < time.monotonic() - began < 4
        threading.Timer(0.5, secure.agent.kv.put, [key, "1700000000"]).start()
        assert watch.wait(20, 20, lambda: False)
        assert time.monotonic() - began < 10
        assert watch.changed == {key}
        secure.agent.kv.put(wide, "True")
        assert watch.wait(20, 20, lambda: False)
        assert watch.changed == {wide}


def test_an_authority_that_signed_something_else(secure: Secure) -> None:
    error = failure(settings(secure, verify=secure.other_ca))
    assert error.code == "tls"
    assert "certificate verify failed" in error.message
    assert "Set ca_path (or CONSUL_CACERT) to the authority" in error.message


def test_an_authority_that_the_system_does_not_trust(secure: Secure) -> None:
    assert failure(settings(secure, verify=True)).code == "tls"


def test_modules_and_the_agent_trust_the_authorities_that_the_system_trusts(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", secure.ca)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    secure.agent.kv.put("current_version", "2")
    assert read_fleet(Store(settings(secure, verify=True))).snapshot.current_version == "2"
    to = Connection(port=secure.agent.https_port, scheme="https", cert=(secure.client.cert, secure.client.key))
    assert Consul(to).read(["current_version"])["current_version"].value == b"2"


def test_a_name_that_the_certificate_does_not_have(secure: Secure) -> None:
    error = failure(settings(secure, host="localhost"))
    assert error.code == "tls"
    assert "localhost" in error.message
    assert "and host to its name" in error.message


@pytest.mark.parametrize("cert", ["none", "stranger"])
def test_a_client_certificate_that_is_missing_or_signed_by_others(secure: Secure, cert: str) -> None:
    pair = None if cert == "none" else (secure.stranger.cert, secure.stranger.key)
    error = failure(settings(secure, cert=pair))
    assert error.code == "tls", error.message
    assert "If it requires a client certificate, set client_cert and client_key" in error.message


def test_https_to_the_http_port(secure: Secure) -> None:
    error = failure(settings(secure, port=secure.agent.http_port))
    assert error.code == "tls", error.message
    assert "The port speaks plain HTTP; set scheme to http, or use the HTTPS port." in error.message


def test_http_to_the_https_port(secure: Secure) -> None:
    error = failure(settings(secure, scheme="http", timeout=0.2))
    # Consul answers and resets the connection at once, and which of the two gets here first is a matter of luck.
    hint = "speaks HTTPS: set scheme to https (or CONSUL_HTTP_SSL=true)"
    assert hint in error.message or "host, port and scheme (or CONSUL_HTTP_ADDR) are right." in error.message


@pytest.mark.parametrize("option", ["ca_path", "client_cert", "client_key"])
def test_a_file_that_is_not_there(secure: Secure, option: str) -> None:
    given: dict[str, Any] = {
        "port": secure.agent.https_port, "scheme": "https", "ca_path": secure.ca,
        "client_cert": secure.client.cert, "client_key": secure.client.key, option: "/no/such.pem",
    }  # fmt: skip
    with pytest.raises(UpgradeError) as caught:
        read_fleet(Store(read_settings(given.get, {})))
    assert caught.value.code == "bad_connection"
    assert caught.value.message.startswith(f"{option}: /no/such.pem ")


def test_a_file_that_holds_no_certificate(secure: Secure, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("not a certificate")
    assert failure(settings(secure, verify=str(empty))).code == "tls"
    assert failure(settings(secure, cert=(str(empty), secure.client.key))).code == "tls"


def test_a_watch_outlasts_a_certificate_that_is_missing_for_a_moment(secure: Secure, tmp_path: Path) -> None:
    folder, ca = "upgrade/hold/", tmp_path / "ca.pem"
    to = settings(secure, verify=str(ca))
    queries = BlockingQueries(to)
    with contextlib.closing(queries):
        watch = Watch(to, (folder,), queries)
        # Before the first request, and while a query waits.
        for number in range(2):
            assert watch.wait(watch.mark(), 10)
            secure.agent.kv.put(f"{folder}host/compute{number}", "{}")
            wait_until(lambda: queries.error is not None and queries.error.code == "bad_connection", what="its error")
            shutil.copy(secure.ca, ca)
            wait_until(lambda: queries.error is None, what="its next answer")
            mark = watch.mark()
            secure.agent.kv.put(f"{folder}host/compute{number}", '{"reason": "disk"}')
            assert watch.wait(mark, 10)
            ca.unlink()
            secure.agent.kv.put(f"{folder}host/compute{number}", "{}")


def test_a_session_is_renewed_again_after_a_certificate_was_missing_for_a_moment(
    secure: Secure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_EVERY", 0.2)
    ca, store = tmp_path / "ca.pem", Store(settings(secure))
    session = leases.open_session(store)
    arguments = (settings(secure, verify=str(ca)), session, threading.Event())
    thread = threading.Thread(target=leases.renew_session, args=arguments, daemon=True)
    thread.start()
    time.sleep(1)
    assert thread.is_alive()
    shutil.copy(secure.ca, ca)
    store.client.close_session(session)
    # It ends by itself when Consul answers that the session has ended.
    thread.join(10)
    assert not thread.is_alive()
