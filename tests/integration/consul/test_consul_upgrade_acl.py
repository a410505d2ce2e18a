# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies and tokens of each part, on a server that denies by default: what they allow, and that no one sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate as ask_store
from ansible_collections.convoy.upgrade.plugins.module_utils._host.health_checks import HealthCheck, publish
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import write_report as report_to
from ansible_collections.convoy.upgrade.plugins.module_utils._host.leases import acquire, check_session, open_session
from ansible_collections.convoy.upgrade.plugins.module_utils._host.once_for_all import begin_once, end_once
from ansible_collections.convoy.upgrade.plugins.module_utils._host.provider import read_provider
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import ProgressUpdate, follow
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import InventoryOptions, survey_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from devkit.wipe import wipe
from integration.support.fleets.fleet import names, seed
from integration.support.processes.guarded import MASTER, guarded_agent
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.coverage import Coverage
from integration.support.runs.hook import example, listening
from integration.support.runs.playbook import Runner, Task
from integration.support.runs.shipped import Shipped, inventory

pytestmark = pytest.mark.one_release

PREFIX = "cloud/"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Agent]:
    # The node's own name is that of the host, so that it may set checks.
    with guarded_agent(node_name="compute1") as running:
        yield running


@pytest.fixture
def kv(guarded: Agent) -> RawKV:
    wipe(guarded.kv)
    seed(guarded.kv, names(compute=2), gates={"global": "False"}, prefix=PREFIX)
    return guarded.kv


def store_with(guarded: Agent, token: str) -> Store:
    return Store(Settings(port=guarded.http_port, token=token, timeout=2, kv_prefix=PREFIX))


def acl(kind: str, **options: Any) -> Task:
    return {"convoy.upgrade.consul_upgrade_acl": {"kind": kind, "kv_prefix": PREFIX, **options}}


def part(guarded: Agent, *given: Any) -> Store:
    """Return a store with the token of a part."""
    return store_with(guarded, grant(store_with(guarded, MASTER), TokenKind(*given)).secret)


def test_each_part_can_do_what_it_is_for(guarded: Agent, kv: RawKV) -> None:
    controller = part(guarded, "controller")
    node = part(guarded, "node", "compute1", True)
    viewer = part(guarded, "viewer")
    make_pass(controller, PassRequest("2", {"rolling_rules": {"global": 1}, "health": {"consul_checks": ["puppet"]}}))
    assert ask_store(node, {"compute1": "compute"})["compute1"].value
    report_to(node, HostReport("compute1", "2", "upgraded"))
    publish(node, [HealthCheck("puppet", "passing")])
    outcome = make_pass(controller, PassRequest())
    assert outcome.plan.hosts["compute1"].state == "upgraded"
    assert kv.get(f"{PREFIX}running/versions/2/compute1")
    set_holds(controller, HoldTargets(hosts=["compute2"]), "RAM test")
    control.pause(controller, control.Command("night"))
    assert acquire(controller, open_session(controller), "compute2") is None
    assert read_fleet(viewer, history=5).snapshot.ledger is not None
    assert read_fleet(viewer).plan.hosts["compute1"].state == "upgraded"
    seen = (found.progress for found in follow(viewer.settings) if isinstance(found, ProgressUpdate))
    assert "paused" in next(seen).notes[0]
    control.resume(controller, control.Command())
    assert next(one for one in seen if not one.notes).state == "running"


@pytest.mark.thorough
def test_a_controllers_token_is_enough_for_playbooks_with_a_hook(
    tmp_path: Path, guarded: Agent, kv: RawKV, seen: Coverage
) -> None:
    fleet = names(compute=2)
    controller = part(guarded, "controller")
    rules = {
        **UNLIMITED,
        "stages": [{"name": "canary", "hosts": ["compute1"], "approve": True}, {"name": "rest", "hosts": "100%"}],
    }
    make_pass(controller, PassRequest("2", rules, fleet=fleet))
    report_to(controller, HostReport("compute1", "2", "upgraded"))
    make_pass(controller, PassRequest(fleet=fleet))
    token = controller.settings.token
    assert token
    (tmp_path / "group_vars").mkdir()
    consul = {"upgrade_consul_token": token, "upgrade_consul_kv_prefix": PREFIX}
    (tmp_path / "group_vars/all.yml").write_text(json.dumps(consul))
    play = Shipped(tmp_path, guarded, seen)
    with listening() as chat:
        given = {"inventory": inventory(fleet), "upgrade_roles": {"compute": {"plane": "dataplane"}}, "by": "ann"}
        given |= {"upgrade_notify": str(example(tmp_path)), "chat_webhook": chat.url}
        for name, more in (("approve", {}), ("abort", {"reason": "enough"})):
            done = play(name, "-vvvvv", **more, **given)
            assert done.returncode == 0, done.stdout
            assert "[WARNING]" not in done.stdout
            assert token not in done.stdout
    assert chat.names == ["approved", "end"]
    assert token not in json.dumps(chat.posted)
    assert f"{PREFIX}upgrade/notified" in kv.tree(PREFIX)


def test_a_node_that_runs_tasks_of_services_records_them_and_only_takes_its_own_lease(
    guarded: Agent, kv: RawKV
) -> None:
    # Its sessions belong to its node in the catalog, which has the name of the host.
    host = json.loads(kv.call("GET", "agent/self")[2])["Config"]["NodeName"]
    node = part(guarded, "node", host, False, True)
    session = open_session(node)
    assert acquire(node, session, host) is None
    assert begin_once(node, session, "2", "prepare/schema", host, 0)
    end_once(node, session, "2", "prepare/schema", host)
    assert json.loads(kv.get(f"{PREFIX}upgrade/once/2/prepare/schema") or b"")["state"] == "done"
    assert read_provider(node, "2", "cloud").provider.version == ""
    with pytest.raises(UpgradeError) as caught:
        acquire(node, session, "compute2")
    assert caught.value.code == "denied"
    before = kv.call("GET", "session/list")[2]
    check_session(node, host)
    assert kv.call("GET", "session/list")[2] == before
    with pytest.raises(UpgradeError) as caught:
        # The agent belongs to another node.
        check_session(part(guarded, "node", "compute3", False, True), "compute3")
    assert caught.value.code == "denied"
    assert caught.value.message.startswith(
        "compute3 may open no session in Consul, which the tasks of its services need."
    )


FORBIDDEN: list[tuple[str, Callable[[Store], object]]] = [
    ("open a gate", lambda store: set_gate(store, "host", "compute1", value=True)),
    ("open all gates", lambda store: set_gate(store, "global", None, value=True)),
    ("speak for another host", lambda store: report_to(store, HostReport("compute2", "2", "started"))),
    ("begin a rollout", lambda store: make_pass(store, PassRequest("3", rules=UNLIMITED, replace="2"))),
    ("pause a rollout", lambda store: control.pause(store, control.Command())),
    ("hold", lambda store: set_holds(store, HoldTargets(everything=True), "x")),
    ("drive a host", lambda store: acquire(store, open_session(store), "compute1")),
]


@pytest.mark.parametrize("who", [("node", "compute1"), ("viewer",)])
@pytest.mark.parametrize(("what", "act"), FORBIDDEN)
def test_nodes_and_viewers_can_do_nothing_else(
    guarded: Agent, kv: RawKV, who: tuple[str, ...], what: str, act: Callable[[Store], object]
) -> None:
    make_pass(store_with(guarded, MASTER), PassRequest("2", {"rolling_rules": {"global": 0}}))
    before = kv.tree()
    with pytest.raises(UpgradeError) as caught:
        act(part(guarded, *who))
    assert caught.value.code == "denied", what
    assert kv.tree() == before


def test_a_viewer_reports_for_no_host_and_a_node_sees_nothing_of_others(guarded: Agent, kv: RawKV) -> None:
    with pytest.raises(UpgradeError) as caught:
        report_to(part(guarded, "viewer"), HostReport("compute1", "2", "started"))
    assert caught.value.code == "denied"
    kv.put(f"{PREFIX}upgrade/hosts/compute2", "{}")
    with pytest.raises(UpgradeError) as caught:
        part(guarded, "node", "compute1").client.get(f"{PREFIX}upgrade/hosts/compute2")
    assert caught.value.code == "denied"


@pytest.mark.thorough
@pytest.mark.usefixtures("kv")
def test_policies_and_tokens_are_made_once_and_their_secrets_are_seen_nowhere(
    tmp_path: Path, guarded: Agent, seen: Coverage
) -> None:
    run = Runner(tmp_path, guarded.environ, seen)
    file = tmp_path / "token"
    given = {"name": "compute9", "token_file": str(file)}
    environ = {"CONSUL_HTTP_TOKEN": MASTER}
    dry = run([acl("node", **given)], check=True, diff=True, environ=environ)[0]
    assert (dry["changed"], file.exists()) == (True, False)
    played = run([acl("node", **given)] * 2, diff=True, verbosity=5, environ=environ)
    made, again = played
    assert (made["changed"], again["changed"], made["policy"]) == (True, False, "convoy-upgrade-cloud--node-compute9")
    assert (made["accessor_id"], made["token_file"]) == (again["accessor_id"], str(file))
    assert 'key "cloud/upgrade/hosts/compute9"' in made["diff"]["after"]
    secret = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    for hidden in (secret, MASTER):
        assert hidden not in played.stdout
        assert hidden not in json.dumps(played)
    assert ask_store(store_with(guarded, secret), {"compute9": "compute"})["compute9"].scope == "global"

    # Where its rules are others now, the token stays.
    more = run([acl("node", **{**given, "publishes_health": True})], environ=environ)[0]
    assert (more["changed"], more["accessor_id"], file.read_text().strip()) == (True, made["accessor_id"], secret)
    absent = {**given, "state": "absent"}
    gone, still = run([acl("node", **absent)] * 2, environ=environ)
    assert (gone["changed"], still["changed"], file.exists()) == (True, False, False)
    with pytest.raises(UpgradeError):
        ask_store(store_with(guarded, secret), {"compute9": "compute"})


@pytest.mark.thorough
@pytest.mark.usefixtures("kv")
def test_a_secret_that_could_not_be_written_is_not_lost_and_the_failure_says_what_to_do(
    tmp_path: Path, guarded: Agent, seen: Coverage
) -> None:
    run = Runner(tmp_path, guarded.environ, seen)
    file = tmp_path / "folder/token"
    given = acl("node", name="compute8", token_file=str(file))
    # No file can be larger than that: to the module it is what a full disk is, and it reports that without a message.
    (tmp_path / "full").mkdir()
    (tmp_path / "full/sitecustomize.py").write_text(FULL_DISK)
    environ = {"CONSUL_HTTP_TOKEN": MASTER, "FULL_DISK": str(file)}

    gone = run([given], verbosity=5, environ=environ)
    file.parent.mkdir()
    full = run([given], verbosity=5, environ={**environ, "PYTHONPATH": str(tmp_path / "full")})
    made = run([given], environ=environ)[0]

    for failed, why in ((gone[0], "does not exist"), (full[0], "No space left on device")):
        assert (failed["failed"], failed["failure"]["code"]) == (True, "unwritten_token")
        assert failed["failure"]["message"].startswith(
            f"Consul has the token of convoy-upgrade-cloud--node-compute8 (accessor {made['accessor_id']}), but it could not be written to {file}: "
        )
        assert why in failed["msg"]
        assert failed["msg"].endswith("run this task again: it writes the secret of the same token.")
    secret = file.read_text().strip()
    assert secret == secret_of(guarded, made["accessor_id"])
    assert secret not in gone.stdout + full.stdout


FULL_DISK = """
import errno
import os

real = os.rename


def rename(old, new, *more, **options):
    if os.fsdecode(new) == os.environ.get("FULL_DISK"):
        raise OSError(errno.ENOSPC, "No space left on device", new)
    return real(old, new, *more, **options)


os.rename = rename
"""


def secret_of(guarded: Agent, accessor: str) -> str:
    """Return the secret of a token as Consul has it."""
    _code, _headers, body = guarded.kv.call("GET", f"acl/token/{accessor}")
    return str(json.loads(body)["SecretID"])


@pytest.mark.thorough
@pytest.mark.usefixtures("kv")
@pytest.mark.parametrize(("check", "diff"), [(False, True), (True, False)])
def test_a_secret_that_can_not_be_brought_to_its_file_is_not_shown_instead(
    tmp_path: Path, guarded: Agent, seen: Coverage, check: bool, diff: bool
) -> None:
    run = Runner(tmp_path, guarded.environ, seen)
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").write_text("another's\n")
    made = grant(store_with(guarded, MASTER), TokenKind("viewer", "late"))
    files = {
        "no such folder": {"token_file": str(tmp_path / "none" / "token")},
        "no such owner": {"token_file": str(tmp_path / "owned"), "token_file_owner": "no one-of-that-name"},
        "a file below a file": {"token_file": str(tmp_path / "full" / "token")},
        "another's file": {"token_file": str(tmp_path / "full")},
    }
    played = run(
        [acl("viewer", name="late", **file) for file in files.values()],
        check=check,
        diff=diff,
        verbosity=5,
        environ={"CONSUL_HTTP_TOKEN": MASTER},
    )
    results = dict(zip(files, played, strict=True))
    if not check:
        assert [result["failed"] for result in played] == [True, True, True, False]
        assert f"{tmp_path}/none does not exist. Fix that" in results["no such folder"]["msg"]
        assert (tmp_path / "full").read_text() == f"{made.secret}\n"
    else:
        assert (tmp_path / "full").read_text() == "another's\n"
    assert (results["another's file"]["changed"], results["another's file"]["accessor_id"]) == (True, made.accessor)
    assert secret_of(guarded, made.accessor) == made.secret
    for hidden in (made.secret, MASTER):
        assert hidden not in played.stdout
        assert hidden not in json.dumps(played)


@pytest.mark.thorough
@pytest.mark.usefixtures("kv")
def test_a_secret_that_consul_hides_does_not_take_the_place_of_the_one_in_the_file(
    tmp_path: Path, guarded: Agent, seen: Coverage
) -> None:
    run = Runner(tmp_path, guarded.environ, seen)
    file = tmp_path / "token"
    given = acl("viewer", name="seen", token_file=str(file))
    run([given], environ={"CONSUL_HTTP_TOKEN": MASTER})
    secret = file.read_text()
    guarded.kv.call("PUT", "acl/policy", {"Name": "looks-at-tokens", "Rules": 'acl = "read"'})
    _code, _headers, body = guarded.kv.call("PUT", "acl/token", {"Policies": [{"Name": "looks-at-tokens"}]})
    reader = json.loads(body)["SecretID"]
    played = run([given], verbosity=5, environ={"CONSUL_HTTP_TOKEN": reader})
    assert (played[0]["failed"], played[0]["failure"]["code"]) == (True, "denied")
    assert "hides its secret from the token in use" in played[0]["msg"]
    assert file.read_text() == secret
    assert reader not in played.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("kv")
def test_the_host_of_the_task_is_the_node_and_strangers_policies_are_left_alone(
    tmp_path: Path, guarded: Agent, seen: Coverage
) -> None:
    run = Runner(tmp_path, guarded.environ, seen)
    environ = {"CONSUL_HTTP_TOKEN": MASTER}
    guarded.kv.call("PUT", "acl/policy", {"Name": "convoy-upgrade-cloud--viewer-old", "Rules": ""})
    own, foreign, dotted, clash, bad = run(
        [
            acl("node"),
            acl("viewer", name="old"),
            acl("node", name="a.b"),
            acl("node", name="a_b"),
            acl("node", name="a/b"),
        ],
        environ=environ,
    )
    assert own["policy"] == "convoy-upgrade-cloud--node-localhost"
    assert foreign["failure"]["code"] == "foreign_policy"
    assert "Consul has a policy convoy-upgrade-cloud--viewer-old already, with the description " in foreign["msg"]
    assert not dotted["failed"]
    assert clash["failure"]["code"] == "foreign_policy"
    assert bad["failure"]["code"] == "bad_name"
    weak = run([acl("viewer")], environ={"CONSUL_HTTP_TOKEN": part(guarded, "viewer").settings.token or ""})[0]
    assert weak["failure"]["code"] == "denied"


@pytest.mark.parametrize("prefix", ["", "cloud/"])
def test_viewers_and_controllers_see_no_keys_but_those_of_rollouts(guarded: Agent, kv: RawKV, prefix: str) -> None:
    seed(kv, names(compute=2), gates={"global": "False"}, prefix=prefix)
    for key in ("secrets/database", "current_version_of_billing", "config_state/other", "running/jobs"):
        kv.put(prefix + key, "x")
    management = Store(Settings(port=guarded.http_port, token=MASTER, kv_prefix=prefix))
    make_pass(management, PassRequest("2", {**UNLIMITED, "health": {"consul_checks": ["puppet"]}}))
    for kind in ("viewer", "controller"):
        secret = grant(management, TokenKind(kind, "narrow")).secret
        store = Store(Settings(port=guarded.http_port, token=secret, timeout=2, kv_prefix=prefix))
        seen = {key[len(prefix) :] for key in RawKV(guarded.kv.url, secret).tree()}
        # All that the product uses, and nothing else of what is there.
        assert {"current_version", "running/versions/1/compute1", "upgrade/ledger", "upgrade/history/1"} <= seen
        assert not seen & {"secrets/database", "current_version_of_billing", "config_state/other", "running/jobs"}
        assert read_fleet(store, history=5, name="compute1").details
        assert set(survey_fleet(store, InventoryOptions()).hosts) == {"compute1", "compute2"}


def test_a_node_has_nothing_in_the_catalog_unless_it_publishes_its_health(guarded: Agent, kv: RawKV) -> None:
    assert kv.tree()
    bare = TokenKind("node", "compute1").rules(Keys(PREFIX))
    assert bare == (
        'key "cloud/current_version" {\n  policy = "read"\n}\n'
        'key "cloud/upgrade/schema" {\n  policy = "read"\n}\n'
        'key "cloud/upgrade/current_job" {\n  policy = "read"\n}\n'
        'key_prefix "cloud/config_state/enable_puppet/" {\n  policy = "read"\n}\n'
        'key_prefix "cloud/config_state/global/" {\n  policy = "read"\n}\n'
        'key_prefix "cloud/config_state/role/" {\n  policy = "read"\n}\n'
        'key_prefix "cloud/config_state/host/" {\n  policy = "read"\n}\n'
        'key_prefix "cloud/upgrade/job_gates/" {\n  policy = "read"\n}\n'
        'key_prefix "cloud/upgrade/jobs/" {\n  policy = "read"\n}\n'
        'key_prefix "cloud/upgrade/hold/" {\n  policy = "read"\n}\n'
        'key_prefix "cloud/upgrade/sources/" {\n  policy = "read"\n}\n'
        'key "cloud/upgrade/hosts/compute1" {\n  policy = "write"\n}\n'
        'key "cloud/upgrade/job_records/compute1" {\n  policy = "write"\n}\n'
        'key "cloud/upgrade/job_output/compute1" {\n  policy = "write"\n}\n'
        'key "cloud/upgrade/wake/compute1" {\n  policy = "write"\n}\n'
    )
    assert (
        TokenKind("node", "compute1", True).rules(Keys(PREFIX)) == f'{bare}node "compute1" {{\n  policy = "write"\n}}\n'
    )
    with pytest.raises(UpgradeError) as caught:
        publish(part(guarded, "node", "compute1"), [HealthCheck("puppet", "passing")])
    assert caught.value.code == "denied"


@pytest.mark.thorough
@pytest.mark.usefixtures("kv")
def test_two_fleets_on_one_consul_have_policies_and_tokens_of_their_own(
    tmp_path: Path, guarded: Agent, seen: Coverage
) -> None:
    run = Runner(tmp_path, guarded.environ, seen)
    environ = {"CONSUL_HTTP_TOKEN": MASTER}
    prefixes = ["", "east/", "west/", "dc 1/west/"]
    tasks = [acl("viewer", name="shared", kv_prefix=prefix) for prefix in prefixes]
    first, second = run(tasks, environ=environ), run(tasks, environ=environ)
    assert [one["policy"] for one in first] == [
        "convoy-upgrade-viewer-shared",
        "convoy-upgrade-east--viewer-shared",
        "convoy-upgrade-west--viewer-shared",
        "convoy-upgrade-dc_1_west--viewer-shared",
    ]
    assert [one["changed"] for one in first + second] == [True] * 4 + [False] * 4
    assert len({one["accessor_id"] for one in first}) == 4
    assert [one["accessor_id"] for one in first] == [one["accessor_id"] for one in second]


def test_a_name_that_is_too_long_for_a_policy_is_cut_and_stays_its_own(guarded: Agent, kv: RawKV) -> None:
    assert kv.tree()
    store = store_with(guarded, MASTER)
    hosts = [f"{'compute' * 20}{number}.example.com" for number in (1, 2)]
    granted = [grant(store, TokenKind("node", host)) for host in hosts]
    assert len({one.policy for one in granted}) == 2
    assert all(len(one.policy) == 128 for one in granted)
    assert grant(store, TokenKind("node", hosts[0])).changes == ()


@pytest.mark.parametrize("name", ['c"1', "d\\1", 'e" { policy = "write" } key_prefix "', "höst", "f{1}", "g$1"])
def test_a_hosts_name_is_no_part_of_the_language_of_policies(guarded: Agent, kv: RawKV, name: str) -> None:
    assert kv.tree()
    node = part(guarded, "node", name)
    key = f"{PREFIX}upgrade/hosts/{name}"
    assert [entry["Key"] for entry in node.client.write([put(key, "{}")])] == [key]
    for other in (f"{PREFIX}upgrade/hosts/a", f"{PREFIX}upgrade/ledger", "x"):
        with pytest.raises(UpgradeError) as caught:
            node.client.write([put(other, "{}")])
        assert caught.value.code == "denied"


@pytest.mark.thorough
@pytest.mark.usefixtures("kv")
def test_a_name_that_begins_a_formula_is_refused(tmp_path: Path, guarded: Agent, seen: Coverage) -> None:
    played = Runner(tmp_path, guarded.environ, seen)(
        [acl("node", name="a$" + "{b"), acl("viewer", kv_prefix="a$" + "{b")], environ={"CONSUL_HTTP_TOKEN": MASTER}
    )
    assert [one["failure"]["code"] for one in played] == ["bad_name"] * 2
    assert "which starts an expression in Consul's ACL language" in played[0]["msg"]


def test_a_grant_costs_the_same_however_many_policies_there_are(guarded: Agent, kv: RawKV) -> None:
    assert kv.tree()
    store = store_with(guarded, MASTER)
    for host, requests in (("compute31", 4), ("compute31", 3), ("compute32", 4)):
        before = store.client.requests
        grant(store, TokenKind("node", host))
        assert store.client.requests - before == requests
        for number in range(20):
            kv.call("PUT", "acl/policy", {"Name": f"many-{host}-{number}", "Rules": ""})


def test_a_server_without_acls_says_so(run: Runner) -> None:
    assert "ACL support disabled" in run([acl("viewer")])[0]["msg"]
