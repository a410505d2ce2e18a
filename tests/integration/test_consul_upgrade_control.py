# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator's word on a rollout: pause, resume, abort, retry, approve, roll back."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._ops import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.hold import Whom, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.plan import Request, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.report import Word, report
from ansible_collections.convoy.upgrade.plugins.module_utils._store.store import Store
from devkit.kv import RawKV
from integration.support.fleet import gates, history, ledger, names, record, seed
from integration.support.playbook import Runner, Task, info, plan

FLEET = names(controller=1, compute=3)
RULES: dict[str, Any] = {"rolling_rules": {"global": 1}, "role_order": {"compute": "controller"}}


def control(action: str, **options: Any) -> Task:
    return {"convoy.upgrade.consul_upgrade_control": {"action": action, **options}}


def upgrade(store: Store, *hosts: str, version: str = "2") -> None:
    for host in hosts:
        report(store, Word(host, version, "started"))
        report(store, Word(host, version, "upgraded"))


def fail(store: Store, host: str, error: str = "no disk", version: str = "2") -> None:
    report(store, Word(host, version, "started"))
    report(store, Word(host, version, "failed", error=error))


@pytest.fixture
def begun(store: Store, consul: RawKV) -> Store:
    """A rollout in which the controller may go."""
    seed(consul, FLEET)
    make_pass(store, Request("2", RULES))
    return store


def test_a_paused_rollout_opens_nothing_until_it_is_resumed(run: Runner, begun: Store, consul: RawKV) -> None:
    word = {"reason": "logins fail", "by": "ann"}
    dry = run([control("pause", **word)], check=True, diff=True)[0]
    assert (dry["changed"], dry["state"], ledger(consul)["state"]) == (True, "paused", "running")
    assert '"state": "paused"' in dry["diff"]["after"]
    paused, again = run([control("pause", **word), control("pause", **word)])
    assert (paused["changed"], again["changed"], paused["state"]) == (True, False, "paused")
    upgrade(begun, "controller1")
    assert make_pass(begun, Request()).openings == []
    # Who gives the version again goes on with it, and does not end the pause.
    assert make_pass(begun, Request("2")).openings == []
    seen = run([info()])[0]
    assert seen["brake"]["code"] == "paused"
    assert seen["hosts"]["compute1"]["reason"].startswith("the rollout is paused by ann at ")
    resumed, again = run([control("resume"), control("resume")])
    assert (resumed["changed"], again["changed"], resumed["state"]) == (True, False, "running")
    assert [one.host for one in make_pass(begun, Request()).openings] == ["compute1"]
    assert [event["what"] for event in history(consul)] == ["begin", "open", "pause", "resume", "open"]


def test_a_wait_lasts_through_a_pause_and_ends_with_an_abort(run: Runner, begun: Store) -> None:
    live = run.start([plan(wait=True, wait_timeout=60)])
    live.wait_for("controller1 is upgrading")
    run([control("pause")])
    upgrade(begun, "controller1")
    live.wait_for("controller1 upgrading -> upgraded")
    run([control("resume", reason="all is well")])
    live.wait_for("compute1 pending -> upgrading")
    run([control("abort", reason="enough")])
    (result,) = live.end()
    assert (result["failed"], result["failure"]["code"]) == (True, "aborted")
    assert result["msg"].startswith("The rollout was aborted by ")
    assert ": enough; begin it anew with -e restart=true, or go back with rollback.yml." in result["msg"]


def test_an_abort_closes_what_has_not_begun_and_keeps_every_record(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=4, web=2))
    make_pass(store, Request("2", {"rolling_rules": {"roles": {"compute": 3}}}))
    assert gates(consul)["role/web"] == "True"
    upgrade(store, "compute1")
    report(store, Word("compute2", "2", "started"))
    report(store, Word("web1", "2", "started"))
    records = consul.texts("upgrade/hosts/")
    aborted, again = run([control("abort", reason="enough"), control("abort")])
    assert (aborted["changed"], again["changed"], aborted["state"]) == (True, False, "aborted")
    assert aborted["hosts"] == ["compute1", "compute3"]
    assert gates(consul) == {
        "global": "False",
        "role/web": "False",
        "host/web1": "True",
        "host/compute1": "False",
        "host/compute2": "True",
        "host/compute3": "False",
    }
    assert consul.texts("upgrade/hosts/") == records
    status = make_pass(store, Request()).plan.status()
    assert (status["upgrading"], status["pending"]) == (["compute2", "web1"], ["compute3", "compute4", "web2"])
    refused = run([control("resume")])[0]
    assert refused["msg"] == ("The rollout to 2 is aborted, so it can't be resumed. Begin one with upgrade.yml.")
    # It is not begun anew unawares, as by a command that runs every hour.
    before = consul.texts()
    plan = {"version": "2", "instructions": {"rolling_rules": {"global": 1}}}
    unaware = run([{"convoy.upgrade.consul_upgrade_plan": plan}])[0]
    assert unaware["failure"]["code"] == "aborted"
    assert re.fullmatch(
        r"The rollout to 2 was aborted by \S+ at .*: enough\. Nothing is opened\. Begin it anew with restart: true "
        r"\(-e restart=true\), or go back with rollback\.yml\.",
        unaware["msg"],
    )
    assert consul.texts() == before
    begun, again = run([{"convoy.upgrade.consul_upgrade_plan": {**plan, "restart": True}}] * 2)
    assert (begun["changed"], again["changed"]) == (True, False)
    assert ledger(consul)["state"] == "running"


def test_failed_hosts_are_put_back_among_those_that_wait(run: Runner, begun: Store, consul: RawKV) -> None:
    fail(begun, "controller1")
    assert make_pass(begun, Request()).plan.status()["failed"] == ["controller1"]
    unknown, retried, again = run(
        [control("retry", hosts=["controller9"]), control("retry", hosts=["controller1", "compute1"]), control("retry")]
    )
    assert unknown["msg"] == "hosts: 'controller9' is no host of this fleet; did you mean 'controller1'?"
    assert (retried["changed"], retried["hosts"], again["changed"]) == (True, ["controller1"], False)
    assert retried["remarks"] == ["Neither failed nor lost, and left as they are: compute1."]
    assert gates(consul)["host/controller1"] == "False"
    kept = record(consul, "controller1")
    assert (kept["state"], kept["attempt"], "error" in kept) == ("retried", 1, False)
    assert [one.host for one in make_pass(begun, Request()).openings] == ["controller1"]
    report(begun, Word("controller1", "2", "started"))
    assert record(consul, "controller1")["attempt"] == 2


def cut_short(store: Store, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let another operator be faster than a write of this store, the one with this number from now on."""
    write = store.client.write
    writes: list[Any] = []

    def late(operations: Any) -> Any:
        writes.append(operations)
        if len(writes) == at:
            set_holds(Store(store.settings), Whom(roles=["web"]), "audit")
        return write(operations)

    monkeypatch.setattr(store.client, "write", late)


def test_a_retry_of_many_that_is_cut_short_tells_of_all_that_it_put_back(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = names(compute=50)
    seed(consul, many)
    make_pass(store, Request("2", {}))
    for host in many:
        consul.put(f"upgrade/hosts/{host}", json.dumps({"version": "2", "state": "failed", "error": "no disk"}))
    cut_short(store, monkeypatch, 2)
    done = operator.retry(store, operator.Word("mended"), [*many])
    assert (done.hosts, done.remarks) == ([*many], [])
    assert {json.loads(value)["state"] for value in consul.tree("upgrade/hosts/").values()} == {"retried"}
    retries = [event["hosts"] for event in history(consul) if event["what"] == "retry"]
    assert sorted(host for hosts in retries for host in hosts) == sorted(many)
    assert {change.key for change in done.changes} >= {f"upgrade/hosts/{host}" for host in many}


def test_an_abort_of_many_that_is_cut_short_tells_of_all_that_it_closed(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = names(compute=100)
    seed(consul, many)
    make_pass(store, Request("2", {"rolling_rules": {"global": 99}}))
    cut_short(store, monkeypatch, 3)
    done = operator.abort(store, operator.Word("enough"))
    assert done.hosts == [*many][:99]
    assert set(gates(consul).values()) == {"False"}
    assert [event["what"] for event in history(consul)][-4:] == ["abort", "close", "hold", "close"]


def test_an_abort_goes_on_past_a_gate_that_can_not_be_read(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    make_pass(store, Request("2", {"rolling_rules": {"global": 2}}))
    consul.put("config_state/enable_puppet/host/compute1", "Flase")
    consul.put("config_state/enable_puppet/role/web", "")
    aborted = run([control("abort")])[0]
    assert (aborted["failed"], aborted["state"], aborted["hosts"]) == (False, "aborted", ["compute2"])
    assert gates(consul) == {"global": "False", "host/compute1": "Flase", "host/compute2": "False", "role/web": ""}


def test_a_stage_goes_on_when_it_is_approved(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    make_pass(store, Request("2", {"stages": [{"name": "canary", "hosts": 1, "approve": True}]}))
    early = run([control("approve", stage="canary")])[0]
    assert early["msg"] == (
        "stage canary can't be approved: the rollout is in stage canary; nothing waits for approval now. Look at it with "
        "status.yml, and approve once its hosts are upgraded."
    )
    upgrade(store, "compute1")
    assert make_pass(store, Request()).openings == []
    seen = run([info()])[0]
    assert (seen["stage"], seen["wants_approval"], seen["can_move"]) == ("canary", True, True)
    other, approved, again = run(
        [
            control("approve", stage="rest"),
            control("approve", by="ann", reason="fine"),
            control("approve", stage="canary"),
        ]
    )
    assert other["failure"]["code"] == "nothing_to_approve"
    assert (approved["changed"], again["changed"]) == (True, False)
    assert again["remarks"] == ["Stage canary was approved by ann already."]
    assert json.loads(consul.get("upgrade/approval/canary") or b"")["reason"] == "fine"
    assert [one.host for one in make_pass(store, Request()).openings] == ["compute2", "compute3"]
    assert [event["what"] for event in history(consul)] == [
        "begin",
        "stage",
        "open",
        "stage",
        "approve",
        "stage",
        "open",
    ]


def test_a_rollback_takes_back_what_changed_last_under_the_same_rules(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, Request("2", RULES))
    upgrade(store, "controller1")
    make_pass(store, Request())
    upgrade(store, "compute1")
    make_pass(store, Request())
    fail(store, "compute2")
    run([control("abort")])
    dry = run([control("rollback", reason="logins fail")], check=True)[0]
    assert (dry["changed"], consul.get("current_version")) == (True, b"2")
    back, again = run([control("rollback", reason="logins fail"), control("rollback")])
    assert (back["changed"], back["version"], again["changed"]) == (True, "1", False)
    assert again["remarks"] == ["The fleet is being taken back to 1 already."]
    assert (ledger(consul)["instructions"], ledger(consul)["rollback"]) == (
        {"rolling_rules": {"global": 1}, "role_order": {"compute": ["controller"]}},
        True,
    )
    done = []
    for _pass in range(3):
        outcome = make_pass(store, Request("1"))
        done.append([one.host for one in outcome.openings])
        upgrade(store, *done[-1], version="1")
    assert done == [["controller1"], ["compute1"], ["compute2"]]
    assert make_pass(store, Request("1")).plan.complete


@pytest.mark.usefixtures("begun")
def test_without_a_rollout_there_is_nothing_to_say(run: Runner, consul: RawKV) -> None:
    assert consul.delete("upgrade/ledger")
    for action in ("pause", "resume", "abort", "retry", "approve", "rollback"):
        result = run([control(action, fleet=FLEET)])[0]
        assert result["msg"] == "There is no rollout: upgrade/ledger is not there. Begin one with upgrade.yml."
    wrong, nowhere = run([control("pause", stage="x"), control("pause", version="3")])
    assert wrong["msg"] == "stage goes with action: approve, not with pause. Leave stage out."
    assert nowhere["msg"] == "version goes with action: rollback, not with pause. Leave version out."


def test_health_and_deadlines_from_real_checks(run: Runner, store: Store, consul: RawKV) -> None:
    node = "compute1"
    register = {
        "Node": node,
        "Address": "127.0.0.2",
        "Check": {"Name": "nova", "CheckID": "nova", "Status": "critical"},
    }
    assert consul.call("PUT", "catalog/register", json.dumps(register).encode())[0] == 200
    seed(consul, names(compute=2))
    rules = {"health": {"soak": 1, "consul_checks": ["nova"], "progress_deadline": 1}, "rolling_rules": {"global": 1}}
    make_pass(store, Request("2", rules))
    upgrade(store, node)
    assert make_pass(store, Request()).plan.hosts[node].reason == "reported 2, and its check nova is critical"
    register["Check"] = {"Name": "nova", "CheckID": "nova", "Status": "passing"}
    consul.call("PUT", "catalog/register", json.dumps(register).encode())
    assert make_pass(store, Request()).plan.hosts[node].reason == "reported 2 and soaks for 1 s more"
    waited = run([plan(wait=True, wait_timeout=20)], seconds=60)[0]
    # compute2 was let through when compute1 had soaked, was silent, and was lost after a second.
    assert [one["host"] for one in waited["transitions"]] == ["compute2"]
    assert (waited["failed"], waited["failure"]["code"]) == (True, "stuck")
    assert "compute2 (lost): silent for " in waited["msg"]
    consul.call("PUT", "catalog/deregister", json.dumps({"Node": node}).encode())
    until = time.monotonic() + 10
    while (view := make_pass(store, Request()).plan.hosts[node]).state != "failed" and time.monotonic() < until:
        time.sleep(0.1)
    assert view.reason == "was upgraded, and now has no check nova in Consul"


@pytest.mark.usefixtures("begun")
def test_a_consul_that_was_put_back_stops_the_planner(run: Runner) -> None:
    refused = run([plan(epoch=99)])[0]
    assert (refused["failed"], refused["failure"]["code"]) == (True, "went_back")
    assert refused["msg"].startswith(
        "upgrade/ledger is at epoch 2, and this call has seen epoch 99: Consul was put back to an earlier time"
    )
