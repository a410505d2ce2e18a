# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ACLs: tokens that are wrong, missing or too weak get a clear error, never a yes, and are never shown."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put, remove, remove_tree
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate as ask_store
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import write_report as report_to
from ansible_collections.convoy.upgrade.plugins.module_utils._host.job_report import write_job_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.restored_consul import RepeatedRead
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import progress_update
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage
from convoy_node.gate_reading import GateReading
from convoy_node.node.connection import Connection
from convoy_node.node.settings import NodeSettings
from convoy_node.node.state import PuppetRuns
from devkit.agent import Agent
from devkit.kv import RawKV
from devkit.wipe import wipe
from integration.support.fleets.fleet import GATES, gates, names, seed
from integration.support.processes.guarded import MASTER
from integration.support.processes.tls import Authority
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.coverage import Coverage
from integration.support.runs.playbook import Runner, Task, ask, gate, health, info, plan, report
from integration.support.runs.shipped import Shipped, inventory

pytestmark = pytest.mark.one_release

UNKNOWN = str(uuid.uuid4())
ALL_BUT = 'key_prefix "" {{ policy = "read" }} key_prefix "{}" {{ policy = "deny" }}'


@pytest.fixture
def kv(guarded: Agent) -> RawKV:
    wipe(guarded.kv)
    seed(guarded.kv, names(compute=2), gates={"global": "False"})
    return guarded.kv


def new_token(kv: RawKV, rules: str) -> str:
    """Return the secret of a new token that may do what the rules say."""
    name = uuid.uuid4().hex
    code, _headers, body = kv.call("PUT", "acl/policy", {"Name": name, "Rules": rules})
    assert code == 200, body
    code, _headers, body = kv.call("PUT", "acl/token", {"Policies": [{"Name": name}]})
    assert code == 200, body
    return str(json.loads(body)["SecretID"])


def store_with(guarded: Agent, token: str | None) -> Store:
    return Store(Settings(port=guarded.http_port, token=token, timeout=2))


def folders(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Make a folder for each of two authorities."""
    for name in ("our-authority", "other-authority"):
        (tmp_path / name).mkdir()
        yield tmp_path / name, name


@contextmanager
def echo() -> Iterator[int]:
    """Answer all requests with an error that repeats them, as some proxies do; give the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(400)
            self.end_headers()
            self.wfile.write(str(self.headers).encode())

        do_PUT = do_GET

        def log_message(self, *_arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


NODE_OF_BEFORE = """
key "current_version" { policy = "read" }
key_prefix "config_state/" { policy = "read" }
key_prefix "upgrade/hold/" { policy = "read" }
key "upgrade/hosts/compute1" { policy = "write" }
"""


def test_a_ledger_that_a_token_may_not_read_any_more_is_not_taken_for_a_restore(guarded: Agent, kv: RawKV) -> None:
    made = make_pass(store_with(guarded, MASTER), PassRequest(version="2", rules={"rolling_rules": {"global": 1}}))
    assert made.ledger is not None
    rules = (
        'key_prefix "" { policy = "write" } key "upgrade/ledger" { policy = "deny" } node_prefix "" { policy = "read" }'
    )
    with pytest.raises(UpgradeError) as caught:
        RepeatedRead(made.ledger.epoch, made.ledger.commit).read(store_with(guarded, new_token(kv, rules)))
    assert caught.value.code == "denied"


def test_only_tokens_that_may_read_the_layout_are_refused_for_a_newer_one(guarded: Agent, kv: RawKV) -> None:
    host = {"compute1": "compute"}
    old = store_with(guarded, new_token(kv, NODE_OF_BEFORE))
    new = store_with(guarded, new_token(kv, f'{NODE_OF_BEFORE} key "upgrade/schema" {{ policy = "read" }}'))
    for layout in ("1", "7"):
        kv.put("upgrade/schema", layout)
        before = old.client.requests
        assert not ask_store(old, host)["compute1"].value
        # Two to ask, as the folder of holds has no key of its own, and two that make sure that there are no holds and no pauses.
        assert old.client.requests - before == (4 if layout == "1" else 2)
        report_to(old, HostReport("compute1", "2", "started"))
        if layout == "1":
            assert not ask_store(new, host)["compute1"].value
            continue
        for act in (lambda: ask_store(new, host), lambda: report_to(new, HostReport("compute1", "2", "upgraded"))):
            with pytest.raises(UpgradeError) as caught:
                act()
            assert caught.value.code == "newer_schema"
    assert json.loads(kv.get("upgrade/hosts/compute1") or b"")["state"] == "started"


WRITES = [
    plan(version="2", instructions=UNLIMITED),
    report("compute1", "2", "upgraded"),
    gate(scope="global", value=True),
    gate(state="reset"),
]


@pytest.mark.thorough
def test_every_plugin_says_what_is_wrong_with_its_token_and_never_shows_it(
    tmp_path: Path, guarded: Agent, kv: RawKV, seen: Coverage
) -> None:
    kv.put(f"{GATES}/role/web", "True")
    before = kv.tree()
    run = Runner(tmp_path, guarded.environ, seen)
    reader = new_token(kv, 'key_prefix "" { policy = "read" }')
    unknown = run([*WRITES, info(), ask("compute1")], environ={"CONSUL_HTTP_TOKEN": UNKNOWN}, verbosity=4)
    for result in unknown:
        assert result["failed"]
        assert (
            "does not know the token that it was given (ACL not found). Set token (or CONSUL_HTTP_TOKEN_FILE, else CONSUL_HTTP_TOKEN) to"
            in result["msg"]
        )
    weak = run([*WRITES, info(), ask("compute1")], environ={"CONSUL_HTTP_TOKEN": reader}, verbosity=4)
    for result in weak[:4]:
        assert result["failure"]["code"] == "denied"
        assert "permission denied; the token that it was given may not do that" in result["msg"]
    assert weak[4]["status"]["upgraded"] == ["compute1", "compute2"]
    assert weak[5]["msg"] == [False]
    for played, token in ((unknown, UNKNOWN), (weak, reader)):
        assert token not in played.stdout
        assert token not in json.dumps(played)
    assert kv.tree() == before


def hold(**options: Any) -> Task:
    return {"convoy.upgrade.consul_upgrade_hold": options}


def control(action: str, **options: Any) -> Task:
    return {"convoy.upgrade.consul_upgrade_control": {"action": action, **options}}


def grants(**options: Any) -> Task:
    return {"convoy.upgrade.consul_upgrade_acl": {"kind": "viewer", "name": "leaks", **options}}


COMMANDS = [control(action) for action in ("pause", "resume", "approve", "retry", "abort", "rollback")]
OPERATORS = [hold(everything=True, reason="audit"), hold(everything=True, state="absent"), *COMMANDS, grants()]


@pytest.mark.thorough
@pytest.mark.parametrize("check", [False, True])
def test_operators_learn_what_is_wrong_with_their_token_and_never_see_it(
    tmp_path: Path, guarded: Agent, kv: RawKV, seen: Coverage, check: bool
) -> None:
    make_pass(store_with(guarded, MASTER), PassRequest(version="2", rules={"rolling_rules": {"global": 1}}))
    set_holds(store_with(guarded, MASTER), HoldTargets(roles=["web"], allow_unknown=True), "audit")
    before = kv.tree()
    run = Runner(tmp_path, guarded.environ, seen)
    reader = new_token(kv, 'key_prefix "" { policy = "read" }')
    with_web = [
        hold(roles=["web"], reason="disk", allow_unknown=True),
        hold(roles=["web"], state="absent", allow_unknown=True),
    ]
    for token, expected in ((UNKNOWN, "does not know the token that it was given"), (reader, "permission denied")):
        played = run([*OPERATORS, *with_web], check=check, diff=True, environ={"CONSUL_HTTP_TOKEN": token}, verbosity=5)
        messages = {result["msg"] for result in played if result["failed"]}
        denied = [result for result in played if result["failed"] and result["failure"]["code"] == "denied"]
        assert any(expected in message for message in messages)
        if token == UNKNOWN:
            assert len(denied) == len(played)
        elif not check:
            # Where nothing was to be ended, resumed or tried again, nothing was written.
            failed = [True, False, True, False, True, False, *[True] * 5]
            assert [result["failed"] for result in played] == failed
        assert token not in played.stdout
        assert token not in json.dumps(played)
    assert kv.tree() == before


@pytest.mark.thorough
def test_operators_whose_token_is_good_are_not_shown_it(
    tmp_path: Path, guarded: Agent, kv: RawKV, seen: Coverage
) -> None:
    make_pass(store_with(guarded, MASTER), PassRequest(version="2", rules={"rolling_rules": {"global": 1}}))
    run = Runner(tmp_path, guarded.environ, seen)
    tasks = [task for task in OPERATORS if task != control("approve")]
    for check in (True, False):
        played = run(tasks, check=check, diff=True, environ={"CONSUL_HTTP_TOKEN": MASTER}, verbosity=5)
        assert check or not any(result["failed"] for result in played), played.stdout
        made = json.loads(kv.call("GET", "acl/tokens")[2])
        secrets = [one["SecretID"] for one in made if one.get("SecretID")]
        for token in (MASTER, *secrets):
            assert token not in played.stdout
            assert token not in json.dumps(played)
    assert any(one["Description"] == "convoy.upgrade: viewer leaks" for one in made)


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", ["unreachable", "other authority", "plain HTTP", "echo", "option"])
def test_where_there_is_no_consul_no_token_is_shown(
    tmp_path: Path, guarded: Agent, kv: RawKV, seen: Coverage, wrong: str
) -> None:
    environ = {"CONSUL_HTTP_TOKEN": MASTER}
    options: dict[str, Any] = {"timeout": 0.2}
    with ExitStack() as stack:
        if wrong == "unreachable":
            environ["CONSUL_HTTP_ADDR"] = "127.0.0.1:1"
        elif wrong == "other authority":
            ours, theirs = (Authority(folder, name) for folder, name in folders(tmp_path))
            server = ours.sign("consul.example.com", "127.0.0.1")
            secure = stack.enter_context(Agent({"key_file": server.key, "cert_file": server.cert}))
            environ |= {"CONSUL_HTTP_ADDR": f"https://127.0.0.1:{secure.https_port}", "CONSUL_CACERT": theirs.cert}
        elif wrong == "plain HTTP":
            environ["CONSUL_HTTP_ADDR"] = f"https://127.0.0.1:{guarded.http_port}"
        elif wrong == "echo":
            environ["CONSUL_HTTP_ADDR"] = f"127.0.0.1:{stack.enter_context(echo())}"
        else:
            options["port"] = "eighty"
        tasks = [hold(everything=True, reason="audit"), control("pause"), control("rollback"), grants(), info(), plan()]
        tasks = [{name: {**given, **options} for name, given in task.items()} for task in tasks]
        tasks += [health("puppet", **options), ask("compute1", **({} if wrong == "option" else options))]
        played = Runner(tmp_path, guarded.environ, seen)(tasks, diff=True, environ=environ, verbosity=5)
    failed = [result["failed"] for result in played]
    assert all(failed[:-1])
    assert wrong == "option" or failed[-1], played.stdout
    if wrong == "echo":
        assert all("X-Consul-Token: ********" in result["msg"] for result in played)
    assert MASTER not in played.stdout
    assert MASTER not in json.dumps(played)
    assert kv.tree("upgrade/") == {}


PLAYBOOKS = {
    "hold": {"everything": True, "reason": "audit"},
    "unhold": {"everything": True},
    "pause": {"reason": "logins fail"},
    "resume": {},
    "retry": {},
    "forget": {"host": "compute2", "force": True},
    "approve": {},
    "abort": {},
    "rollback": {"version": "1"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLAYBOOKS)
def test_the_playbooks_of_operators_show_no_token(
    tmp_path: Path, guarded: Agent, kv: RawKV, name: str, seen: Coverage
) -> None:
    """Not even where it stands in a variable of the inventory."""
    hosts = names(controller=1, compute=2)
    seed(kv, hosts)
    rules = {**UNLIMITED, "stages": [{"name": "canary", "hosts": 1, "approve": True}]}
    planner = store_with(guarded, MASTER)
    make_pass(planner, PassRequest(version="2", rules=rules, fleet=hosts))
    if name == "resume":
        operator.pause(planner, operator.Command())
    if name == "approve":
        for host in ("controller1", "compute1"):
            report_to(planner, HostReport(host, "2", "upgraded"))
        make_pass(planner, PassRequest(fleet=hosts))
    play = Shipped(tmp_path, guarded, seen)
    (tmp_path / "group_vars").mkdir()
    # What is refused comes from one of two modules.
    for token, code in ([(UNKNOWN, 2)] if name in ("hold", "pause") else []) + [(MASTER, 0)]:
        (tmp_path / "group_vars" / "all.yml").write_text(json.dumps({"upgrade_consul_token": token}))
        roles = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}}
        given = {"inventory": inventory(hosts), "upgrade_roles": roles, **PLAYBOOKS[name]}
        done = play(name, "-vvvvv", "--diff", **given)
        assert done.returncode == code, done.stdout
        assert ("does not know the token that it was given" in " ".join(done.stdout.split())) == (token == UNKNOWN)
        assert token not in done.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("kv")
def test_a_token_given_as_an_option_is_not_shown_either(tmp_path: Path, guarded: Agent, seen: Coverage) -> None:
    run = Runner(tmp_path, guarded.environ, seen)
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"upgrade_consul_token": MASTER, "unknown": UNKNOWN}))
    tasks = [info(token="{{ upgrade_consul_token }}"), info(token="{{ unknown }}"), info(token=""), ask("compute1")]
    for token, choice in (("{{ upgrade_consul_token }}", "viewer"), ("{{ unknown }}", "viewer"), (MASTER, "nobody")):
        tasks.append(hold(everything=True, reason="audit", token=token))
        tasks.append(control("pause", token=token))
        tasks.append(grants(token=token, kind=choice))
    played = run(tasks, play={"vars_files": [str(secrets)]}, diff=True, verbosity=5)
    assert [result["failed"] for result in played[:4]] == [False, True, True, False]
    # There is no rollout to be paused.
    assert [result["failed"] for result in played[4:]] == [False, True, False, *[True] * 3, False, True, True]
    assert played[0]["status"]["upgraded"] == ["compute1", "compute2"]
    assert "permission denied; no token was given." in played[2]["msg"]
    assert played[3]["msg"] == [False]
    for token in (MASTER, UNKNOWN):
        assert token not in played.stdout
        assert token not in json.dumps(played)


def test_without_a_token_nothing_is_read_and_nothing_is_a_yes(guarded: Agent, kv: RawKV) -> None:
    kv.delete("", tree=True)
    store = store_with(guarded, None)
    for act in (
        lambda: ask_store(store, {"compute1": "compute"}),
        lambda: read_fleet(store),
        lambda: make_pass(store, PassRequest(version="2", rules=UNLIMITED)),
        lambda: report_to(store, HostReport("compute1", "2", "started")),
        lambda: set_gate(store, "global", None, value=True),
    ):
        with pytest.raises(UpgradeError) as caught:
            act()
        assert caught.value.code == "denied"
        assert "permission denied; no token was given." in caught.value.message
    assert kv.tree() == {}


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("hidden", [f"{GATES}/", "upgrade/hold/", "upgrade/", "config_state/"])
def test_what_a_token_may_not_read_is_not_taken_for_absent(
    guarded: Agent, kv: RawKV, hidden: str, has_begun: bool
) -> None:
    kv.put(f"{GATES}/host/compute1", "True")
    kv.put("upgrade/hold/host/compute1", "{}")
    if has_begun:
        # Each rollout and each hold writes it.
        kv.put("upgrade/hold/", "")
    before = kv.tree()
    store = store_with(guarded, new_token(kv, ALL_BUT.format(hidden)))
    for act in (
        lambda: ask_store(store, {"compute1": "compute"}),
        lambda: ask_store(store, names(compute=100)),
        lambda: read_fleet(store),
        lambda: make_pass(store, PassRequest(version="2", rules=UNLIMITED)),
        lambda: report_to(store, HostReport("compute1", "2", "started", role="compute")),
    ):
        with pytest.raises(UpgradeError) as caught:
            act()
        assert caught.value.code == "denied", caught.value.message
    assert kv.tree() == before


def test_an_old_gate_that_a_token_may_not_read_is_not_taken_for_absent(guarded: Agent, kv: RawKV) -> None:
    for key in kv.tree():
        kv.delete(key)
    kv.put("config_state/host/compute1/enable_puppet", "false")
    store = store_with(guarded, new_token(kv, ALL_BUT.format("config_state/")))
    for act in (lambda: ask_store(store, {"compute1": "compute"}), lambda: read_fleet(store)):
        with pytest.raises(UpgradeError) as caught:
            act()
        assert caught.value.code == "denied", caught.value.message


@pytest.mark.parametrize("left", ["", ALL_BUT.format("config_state/"), ALL_BUT.format("upgrade/hold/")])
def test_a_node_whose_policy_is_cut_while_its_agent_runs_lets_no_puppet_in(
    left: str, tmp_path: Path, guarded: Agent, kv: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_out: list[str] = []
    monkeypatch.setattr("convoy_node.machine.puppet.keep_out", kept_out.append)
    monkeypatch.setattr("convoy_node.machine.puppet.let_in", lambda: pytest.fail("Puppet is let in"))
    # The fixture's gate is closed. A hold closes an open one too.
    if "hold" in left:
        kv.put("config_state/enable_puppet/global", "True")
        kv.put("upgrade/hold/global", "{}")
    policy = grant(store_with(guarded, MASTER), TokenKind("node", "compute1"))
    connection = Connection(port=guarded.http_port, token=policy.secret)
    settings = NodeSettings("compute1", "compute", connection, {}, health=False, puppet_interval=None)
    reading = GateReading(settings, PuppetRuns(str(tmp_path / "agent.json")), say=lambda _text: None)
    assert reading.read().reason.startswith("closed: ")
    assert reading.is_answered
    code, _headers, body = kv.call("GET", f"acl/policy/name/{policy.policy}")
    assert code == 200, body
    facts = json.loads(body)
    assert kv.call("PUT", f"acl/policy/{facts['ID']}", {**facts, "Rules": left})[0] == 200
    for _time in range(2):
        decision = reading.read()
        assert "refused the node's token: Permission denied" in decision.reason
        assert decision.keeps_puppet_out
        assert not reading.is_answered
    assert len(kept_out) == 3
    # It goes on by itself when the policy is back.
    grant(store_with(guarded, MASTER), TokenKind("node", "compute1"))
    reading.read()
    assert reading.is_answered


def test_a_node_without_a_token_detects_holds_that_it_may_not_read(
    tmp_path: Path, guarded: Agent, kv: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy_node.machine.puppet.let_in", lambda: pytest.fail("Puppet is let in"))
    kv.put("config_state/enable_puppet/global", "True")
    kv.put("upgrade/hold/global", "{}")
    policy = {"Name": "test-anonymous", "Rules": ALL_BUT.format("upgrade/hold/")}
    code, _headers, body = kv.call("PUT", "acl/policy", policy)
    assert code == 200, body
    anonymous = "acl/token/00000000-0000-0000-0000-000000000002"
    try:
        assert kv.call("PUT", anonymous, {"Policies": [{"Name": policy["Name"]}]})[0] == 200
        settings = NodeSettings(
            "compute1",
            "compute",
            Connection(port=guarded.http_port),
            {},
            health=False,
            puppet_interval=None,
        )
        reading = GateReading(settings, PuppetRuns(str(tmp_path / "agent.json")), say=lambda _text: None)
        assert "refused the node's token: Permission denied" in reading.read().reason
        with pytest.raises(UpgradeError) as caught:
            ask_store(store_with(guarded, ""), {"compute1": "compute"})
        assert caught.value.code == "denied"
    finally:
        kv.call("PUT", anonymous, {"Policies": []})
        kv.call("DELETE", f"acl/policy/{json.loads(body)['ID']}")


def test_pauses_are_made_sure_of_once_unless_the_layout_says_that_they_are_holds(guarded: Agent, kv: RawKV) -> None:
    kv.put(f"{GATES}/global", "True")
    # Of a node whose name begins like this one's, so that the folder of holds is seen to be readable.
    kv.put("upgrade/hold/host/compute10", "{}")
    node = store_with(guarded, new_token(kv, NODE))
    # One more as long as the folder of holds has no key of its own, which each rollout and each hold writes.
    for requests in (3, 2):
        before = node.client.requests
        assert ask_store(node, {"compute1": "compute"})["compute1"].value
        assert node.client.requests - before == requests
    kv.put("upgrade/hold/", "")
    kv.put("upgrade/schema", "1")
    allowed = store_with(guarded, MASTER)
    assert ask_store(allowed, {"compute1": "compute"})["compute1"].value
    assert allowed.client.requests == 1
    blind = NODE.replace('"config_state/"', '"config_state/enable_puppet/"')
    assert blind != NODE
    with pytest.raises(UpgradeError) as caught:
        ask_store(store_with(guarded, new_token(kv, blind)), {"compute1": "compute"})
    assert caught.value.code == "denied"


@pytest.mark.parametrize("hidden", ["running/", "upgrade/hosts/", "upgrade/ledger", "current_version"])
def test_a_planner_that_cannot_read_all_it_needs_admits_no_host(guarded: Agent, kv: RawKV, hidden: str) -> None:
    kv.put("upgrade/hosts/compute1", '{"version": "2", "state": "failed"}')
    make_pass(store_with(guarded, MASTER), PassRequest(version="2", rules={"rolling_rules": {"global": 1}}))
    before = kv.tree()
    rules = f'key_prefix "" {{ policy = "write" }} key_prefix "{hidden}" {{ policy = "deny" }}'
    with pytest.raises(UpgradeError) as caught:
        make_pass(store_with(guarded, new_token(kv, rules)), PassRequest(version="2", rules=UNLIMITED))
    assert caught.value.code == "denied", caught.value.message
    assert kv.tree() == before


def test_a_node_needs_to_write_no_more_than_its_own_keys(guarded: Agent, kv: RawKV) -> None:
    rules = 'key_prefix "" { policy = "read" } key "upgrade/hosts/compute1" { policy = "write" } '
    rules += 'key_prefix "running/versions/" { policy = "write" }'
    store = store_with(guarded, new_token(kv, rules))
    assert not ask_store(store, {"compute1": "compute"})["compute1"].value
    report_to(store, HostReport("compute1", "2", "started"))
    report_to(store, HostReport("compute1", "2", "upgraded"))
    assert kv.get("running/versions/2/compute1") is not None
    assert kv.get("running/versions/1/compute1") is None
    for act in (
        lambda: report_to(store, HostReport("compute2", "2", "started")),
        lambda: set_gate(store, "host", "compute1", value=True),
        lambda: make_pass(store, PassRequest(version="2", rules=UNLIMITED)),
    ):
        with pytest.raises(UpgradeError) as caught:
            act()
        assert caught.value.code == "denied"
    assert gates(kv) == {"global": "False"}


def test_the_lookup_makes_sure_once_that_nothing_is_hidden(guarded: Agent, kv: RawKV) -> None:
    store = store_with(guarded, MASTER)
    for requests in (4, 2):
        before = store.client.requests
        ask_store(store, {"compute1": "compute"})
        assert store.client.requests - before == requests
    kv.put("upgrade/hold/", "")
    kv.put("upgrade/hold/role/web", "{}")
    kv.put("upgrade/hold/role/compute", "{}")
    kv.put("upgrade/schema", "1")
    fresh = store_with(guarded, MASTER)
    ask_store(fresh, {"compute1": "compute"})
    assert fresh.client.requests == 1


# What a node needs: its gates, the holds and pauses, and its own record.
NODE = """
key "current_version" { policy = "read" }
key_prefix "config_state/" { policy = "read" }
key_prefix "upgrade/hold/" { policy = "read" }
key "upgrade/hosts/compute1" { policy = "write" }
"""


def test_a_node_that_may_write_its_own_record_alone_is_upgraded_all_the_same(guarded: Agent, kv: RawKV) -> None:
    planner, node = store_with(guarded, MASTER), store_with(guarded, new_token(kv, NODE))
    make_pass(planner, PassRequest("2", {"rolling_rules": {"global": 1}}))
    assert ask_store(node, {"compute1": "compute"})["compute1"].value
    report_to(node, HostReport("compute1", "2", "started"))
    before = kv.tree()
    assert [one.key for one in report_to(node, HostReport("compute1", "2", "upgraded"), dry=True)[1]] == [
        "upgrade/hosts/compute1"
    ]
    assert kv.tree() == before
    report_to(node, HostReport("compute1", "2", "upgraded"))
    assert report_to(node, HostReport("compute1", "2", "upgraded"))[1] == []
    assert set(kv.tree("running/versions/")) == {"running/versions/1/compute1", "running/versions/1/compute2"}
    assert read_fleet(planner).plan.hosts["compute1"].state == "upgraded"
    outcome = make_pass(planner, PassRequest())
    assert [one.host for one in outcome.admissions] == ["compute2"]
    assert set(kv.tree("running/versions/")) == {"running/versions/2/compute1", "running/versions/1/compute2"}
    assert not make_pass(planner, PassRequest()).changes


@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("open its gate", lambda store: set_gate(store, "host", "compute1", value=True)),
        ("speak for another host", lambda store: report_to(store, HostReport("compute2", "2", "upgraded"))),
        ("begin a rollout", lambda store: make_pass(store, PassRequest("3", rules=UNLIMITED))),
        ("touch the ledger", lambda store: store.client.write([put("upgrade/ledger", "{}")])),
        ("publish a report", lambda store: store.client.write([put("running/versions/2/compute1", "1")])),
        ("end a hold", lambda store: store.client.write([remove("upgrade/hold/global")])),
        ("wipe all", lambda store: store.client.write([remove_tree("")])),
    ],
)
def test_a_node_can_do_nothing_else(guarded: Agent, kv: RawKV, what: str, act: Callable[[Store], object]) -> None:
    kv.put("upgrade/hold/global", "{}")
    before = kv.tree()
    with pytest.raises(UpgradeError) as caught:
        act(store_with(guarded, new_token(kv, NODE)))
    assert caught.value.code == "denied", what
    assert kv.tree() == before


def test_no_file_of_the_page_has_a_token(tmp_path: Path, guarded: Agent, kv: RawKV) -> None:
    """A viewer's token reads all that the page shows, and one that may not read outputs has a page without them."""
    hosts, master = names(compute=2), store_with(guarded, MASTER)
    make_pass(master, PassRequest("2", UNLIMITED, fleet=hosts))
    report_to(master, HostReport("compute1", "2", "failed", error="no disk"))
    operator.abort(master, operator.Command(by="ann", reason="no disk"))
    job = Job("work-1", "work", int(time.time()) + 600, hosts=("compute2",))
    make_pass(master, PassRequest(version=job.target, job=job, rules=UNLIMITED, fleet=hosts))
    of_job = master.of(master.snapshot())
    write_job_report(of_job, HostReport("compute2", job.target, "failed", error="no such file"), "work")
    viewer = grant(master, TokenKind("viewer", "page")).secret
    tokens = {"viewer": viewer, "blind": new_token(kv, ALL_BUT.format("upgrade/job_output/")), "master": MASTER}
    found = {name: page_of(tmp_path / name, guarded, str(token)) for name, token in tokens.items()}

    listed = json.loads(kv.call("GET", "acl/tokens")[2])
    secrets = {*tokens.values(), *(one["SecretID"] for one in listed if one.get("SecretID"))}
    assert len(secrets) >= 3
    for name, files in found.items():
        assert {"index.html", "state.json", "changes.json", "hosts/1.html", "hosts/1.json"} <= set(files), name
        assert [(file, secret) for file, text in files.items() for secret in secrets if str(secret) in text] == []
        warnings = json.loads(files["state.json"])["warnings"]
        (output,) = json.loads(files["hosts/1.json"])["compute2"]["jobs"] or [None]
        if name == "blind":
            assert output is None
            assert warnings[-1].startswith("The outputs of the job are not shown: Consul at ")
        else:
            assert output["error"] == "no such file"
            assert warnings == []


def page_of(folder: Path, guarded: Agent, token: str) -> dict[str, str]:
    """Write a page with a token, also after Consul is gone; return its files."""
    folder.mkdir()
    store = store_with(guarded, token)
    with LivePage(store, str(folder)) as page:
        page.update(progress_update(read_fleet(store)))
        assert page.warning == ""
        with pytest.raises(Unreachable) as gone:
            read_fleet(Store(Settings(port=1, token=token, timeout=0.1)))
        page.update(gone.value)
        assert page.warning == ""
        assert gone.value.message in json.loads((folder / "state.json").read_text())["error"]
    return {str(one.relative_to(folder)): one.read_text() for one in folder.rglob("*") if one.is_file()}
