# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the inventory plugin consul_fleet reaches Consul: requests and caches, tokens, certificates, client libraries."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from devkit.agent import Agent
from devkit.kv import RawKV
from devkit.wipe import wipe
from integration.support.fleets.catalog import Catalog
from integration.support.fleets.fleet import names, seed
from integration.support.processes.proxy import LossyProxy
from integration.support.processes.tls import Authority
from integration.support.runs.coverage import Coverage
from integration.support.runs.environments import OLD_LIBRARY, environment
from integration.support.runs.inventories import PLUGIN, Inventories
from thorough import quick


class CountingProxy(LossyProxy):
    """Notes the path of every request, and says of some that it hid something, as Consul 1.11 does."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.paths: list[str] = []
        self.hides = ""

    def _forward(self, handler: BaseHTTPRequestHandler, port: int) -> None:
        self.paths.append(handler.path.partition("?")[0])
        if self.hides and handler.path.startswith(self.hides):
            body = b'[{"Node": "compute1", "CheckID": "serfHealth", "Name": "Serf Health", "Status": "passing"}]'
            handler.send_response(200)
            handler.send_header("X-Consul-Results-Filtered-By-ACLs", "true")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        else:
            super()._forward(handler, port)

    @property
    def environ(self) -> dict[str, str]:
        return {"CONSUL_HTTP_ADDR": f"127.0.0.1:{self.port}"}


@pytest.fixture
def proxy(agent: Agent) -> Iterator[CountingProxy]:
    with CountingProxy(agent.http_port) as running:
        yield running


@pytest.mark.one_release
@pytest.mark.parametrize("count", [3, 300])
def test_the_number_of_requests_does_not_depend_on_the_number_of_hosts(
    shelf: Inventories, consul: RawKV, proxy: CountingProxy, count: int
) -> None:
    hosts = names(compute=count)
    seed(consul, hosts)
    # A rollout has begun. Without this key, holds may be hidden, which takes one more request.
    consul.put("upgrade/hold/", "")
    assert len(shelf(environ=proxy.environ).hosts) == count
    assert sorted(proxy.paths) == ["/v1/catalog/nodes", "/v1/health/state/any", "/v1/txn"]


@pytest.mark.thorough
def test_from_a_cache_no_request_is_sent_until_it_is_old_or_asked_something_else_or_a_playbook_runs(
    shelf: Inventories, consul: RawKV, proxy: CountingProxy, catalog: Catalog
) -> None:
    seed(consul, ["compute1"], "1", current="2")
    catalog.register("compute2", "10.0.0.2", {"wan": "192.0.2.2"}, rack="{{ 1 }}")
    cache = {
        "cache": True, "cache_plugin": "ansible.builtin.jsonfile", "cache_connection": str(shelf.folder / "cache"),
        "cache_timeout": 600, "cache_prefix": "fleet_", "token": "s3cret-t0ken",
    }  # fmt: skip
    first = shelf(environ=proxy.environ, **cache)
    assert set(first.hosts) == {"compute1", "compute2"}
    sent = len(proxy.paths)
    proxy.loses_all = True
    consul.put("running/versions/2/compute1", "1800000000")
    second = shelf(environ=proxy.environ, **cache)
    assert (second.hosts, second.groups) == (first.hosts, first.groups)
    # How the groups are called is none of Consul's business.
    assert shelf(environ=proxy.environ, state_prefix="is_", **cache).groups["is_upgrading"] == ["compute1", "compute2"]
    assert len(proxy.paths) == sent
    (kept,) = (shelf.folder / "cache").iterdir()
    assert kept.name.startswith("fleet_")
    assert "s3cret" not in kept.read_text()
    assert "192.0.2.2" not in kept.read_text()

    proxy.loses_all = False
    assert shelf(environ=proxy.environ, address="wan", **cache).hosts["compute2"]["ansible_host"] == "192.0.2.2"
    assert len(proxy.paths) > sent
    sent = len(proxy.paths)
    consul.put("running/versions/2/compute3", "1800000000")
    assert "compute3" not in shelf(environ=proxy.environ, address="wan", **cache).hosts
    assert len(proxy.paths) == sent
    # A playbook acts on what it reads.
    play = shelf.folder / "play.yml"
    play.write_text(json.dumps([{"hosts": "compute", "gather_facts": False, "tasks": []}]))
    path = shelf.write(address="wan", **cache)
    stdout = shelf.run("ansible-playbook", "-i", path, play, "--list-hosts", environ=proxy.environ)[0]
    assert "compute2" in stdout
    assert "compute3" in stdout
    assert len(proxy.paths) > sent
    sent = len(proxy.paths)
    consul.put("running/versions/2/compute4", "1800000000")
    assert "compute4" not in shelf(environ=proxy.environ, address="wan", **cache).hosts
    assert len(proxy.paths) == sent
    os.utime(kept, (1, 1))
    assert "compute4" in shelf(environ=proxy.environ, address="wan", **cache).hosts


@pytest.mark.thorough
@pytest.mark.one_release
def test_the_old_library_does_too(shelf: Inventories, consul: RawKV, catalog: Catalog) -> None:
    python = environment("python-consul", OLD_LIBRARY)
    code = "import consul, pathlib; print(pathlib.Path(consul.__file__).parents[1])"
    folder = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    seed(consul, ["compute1"])
    catalog.register("compute2")
    listed = shelf(environ={"PYTHONPATH": folder})
    assert set(listed.hosts) == {"compute1", "compute2"}, listed.errors


UNKNOWN = str(uuid.uuid4())


def new_token(kv: RawKV, rules: str) -> str:
    name = uuid.uuid4().hex
    assert kv.call("PUT", "acl/policy", {"Name": name, "Rules": rules})[0] == 200
    code, _headers, body = kv.call("PUT", "acl/token", {"Policies": [{"Name": name}]})
    assert code == 200, body
    return str(json.loads(body)["SecretID"])


@pytest.fixture
def guarded_shelf(guarded: Agent, tmp_path: Path, seen: Coverage) -> Inventories:
    wipe(guarded.kv)
    seed(guarded.kv, ["compute1"], gates={"global": "False"})
    Catalog(guarded.kv).register("compute2")
    return Inventories(tmp_path, guarded.environ, seen)


READS_KEYS = 'key_prefix "" { policy = "read" } '


@pytest.mark.thorough
def test_a_token_comes_from_the_file_the_environment_or_elsewhere_and_is_never_shown(
    guarded: Agent, guarded_shelf: Inventories
) -> None:
    token = new_token(guarded.kv, READS_KEYS + 'node_prefix "" { policy = "read" }')
    secret = guarded_shelf.folder / "secret"
    secret.write_text("pass")
    stdout, errors, code = guarded_shelf.run("ansible-vault", "encrypt_string", "--vault-password-file", secret, token)
    assert code == 0, errors
    in_vault = guarded_shelf.folder / "vault.consul_fleet.yml"
    in_vault.write_text(f"plugin: {PLUGIN}\ntoken: {stdout}\n")
    (guarded_shelf.folder / "token").write_text(f"{token}\n")
    results = [
        guarded_shelf("-vvvv", token=token),
        guarded_shelf("-vvvv", environ={"CONSUL_HTTP_TOKEN": token}),
        guarded_shelf("-vvvv", token="{{ lookup('ansible.builtin.file', 'token') }}"),
        guarded_shelf.read(in_vault, "--vault-password-file", secret),
    ]
    for listed in results:
        assert set(listed.of("convoy_state")) == {"compute1", "compute2"}, listed.errors
        assert token not in json.dumps(listed.hosts)
        assert token not in listed.errors
        assert listed.shared == {}
    printed = guarded_shelf.run("ansible-inventory", "-i", guarded_shelf.write(token=token), "--list", "-vvvv")
    assert token not in "".join(printed[:2])


@pytest.mark.one_release
@pytest.mark.parametrize(
    ("rules", "sentence"),
    quick(
        1,
        [
            (None, "does not know the token that it was given (ACL not found)"),
            ('node_prefix "" { policy = "read" }', "permission denied; the token that it was given may not do that"),
            (
                READS_KEYS,
                "hides nodes of its catalog from the token that it was given, and a host that is hidden would be missing",
            ),
        ],
    ),
)
def test_a_token_that_may_not_see_everything_is_refused(
    guarded: Agent, guarded_shelf: Inventories, rules: str | None, sentence: str
) -> None:
    token = new_token(guarded.kv, rules) if rules else UNKNOWN
    refusal = guarded_shelf.refusal("-vvvv", token=token)
    assert sentence in refusal
    assert token not in refusal


@pytest.mark.thorough
@pytest.mark.one_release
def test_without_a_token_nothing_is_taken_for_empty(guarded_shelf: Inventories) -> None:
    assert "permission denied; no token was given." in guarded_shelf.refusal()


@pytest.mark.thorough
@pytest.mark.one_release
def test_a_catalog_that_is_not_whole_is_refused(shelf: Inventories, proxy: CountingProxy, catalog: Catalog) -> None:
    catalog.register("compute1")
    proxy.hides = "/v1/catalog/nodes"
    assert "hides nodes of its catalog from requests without a token" in shelf.refusal(environ=proxy.environ)
    # Of the checks, those of services may be hidden, and are not asked for.
    proxy.hides = "/v1/health"
    assert shelf(environ=proxy.environ).of("convoy_health") == {"compute1": "passing"}


@pytest.mark.thorough
@pytest.mark.one_release
def test_https_with_client_certificates(tmp_path: Path, seen: Coverage) -> None:
    ours = Authority(tmp_path, "our-authority")
    server, client = ours.sign("consul.example.com", "127.0.0.1"), ours.sign("client")
    tls = {"key_file": server.key, "cert_file": server.cert, "ca_file": ours.cert, "verify_incoming_https": True}
    with Agent(tls) as agent:
        seed(agent.kv, ["compute1"])
        options = {
            "host": "127.0.0.1", "port": agent.https_port, "scheme": "https", "validate_certs": True, "timeout": 2,
            "client_cert": client.cert, "client_key": client.key, "datacenter": "dc1", "pass_limit": 30,
        }  # fmt: skip
        shelf = Inventories(tmp_path, {}, seen)
        assert list(shelf(ca_path=ours.cert, **options).hosts) == ["compute1"]
        assert "Set ca_path (or CONSUL_CACERT)" in shelf.refusal(**options)
