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
from ansible_collections.convoy.upgrade.plugins.module_utils._model.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._ops import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.hold import Whom, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.plan import Request, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.report import Word, report
from ansible_collections.convoy.upgrade.plugins.module_utils._store.store import Store
from devkit.kv import RawKV
from integration.support.fleet import gates, history, ledger, names, record, seed
from integration.support.playbook import Runner, Task, info, plan

# On each release, test_playbooks_control.py and the examples of the documentation run the module.
pytestmark = pytest.mark.one_release

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
    assert aborted["hosts"] == ["compute3"]
    assert gates(consul) == {
        "global": "False",
        "role/web": "False",
        "host/web1": "True",
        "host/compute1": "True",
        "host/compute2": "True",
        "host/compute3": "False",
    }
    assert consul.texts("upgrade/hosts/") == records
    status = make_pass(store, Request()).plan.status()
    assert (status["upgrading"], status["pending"]) == (["compute2", "web1"], ["compute3", "compute4", "web2"])
    refused = run([control("resume")])[0]
    assert refused["msg"] == (
        "The rollout to 2 is aborted, so it can't be resumed. It is over. upgrade.yml -e version=2 -e restart=true begins it "
        "anew, and upgrade.yml -e version=X begins another one."
    )
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
    assert [event["what"] for event in history(consul)][-6:] == ["abort", "close", "hold", *["close"] * 3]


def test_an_abort_goes_on_past_a_gate_that_can_not_be_read(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    make_pass(store, Request("2", {"rolling_rules": {"global": 2}}))
    consul.put("config_state/enable_puppet/host/compute1", "Flase")
    consul.put("config_state/enable_puppet/role/web", "")
    aborted = run([control("abort")])[0]
    assert (aborted["failed"], aborted["state"], aborted["hosts"]) == (False, "aborted", ["compute2"])
    assert gates(consul) == {"global": "False", "host/compute1": "Flase", "host/compute2": "False", "role/web": ""}


def late_word(monkeypatch: pytest.MonkeyPatch, store: Store, word: Any, times: int = 1) -> None:
    """Say something right before each of the first writes that close gates."""
    write, left = store.client.write, [word] * times

    def late(operations: Any) -> Any:
        if left and any("enable_puppet" in one["KV"]["Key"] for one in operations):
            left.pop()()
        return write(operations)

    monkeypatch.setattr(store.client, "write", late)


@pytest.mark.parametrize("state", ["started", "upgraded", "failed"])
def test_a_host_that_begins_while_an_abort_works_is_not_closed(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    seed(consul, names(compute=4))
    make_pass(store, Request("2", {"rolling_rules": {"global": 3}}))
    other = Store(store.settings)
    late_word(monkeypatch, store, lambda: report(other, Word("compute1", "2", state)))
    done = operator.abort(store, operator.Word("enough"))
    assert done.hosts == ["compute2", "compute3"]
    assert gates(consul) == {
        "global": "False",
        "host/compute1": "True",
        "host/compute2": "False",
        "host/compute3": "False",
    }
    assert [event["what"] for event in history(consul)][-2:] == ["abort", "close"]


def test_a_host_that_begins_while_its_role_is_closed_keeps_an_open_gate(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=3))
    make_pass(store, Request("2", {}))
    assert gates(consul)["role/compute"] == "True"
    other = Store(store.settings)
    late_word(monkeypatch, store, lambda: report(other, Word("compute2", "2", "started")))
    operator.abort(store, operator.Word("enough"))
    assert gates(consul) == {"global": "False", "role/compute": "False", "host/compute2": "True"}
    told = [event for event in history(consul) if event["what"] == "close"]
    assert [event["hosts"] for event in told] == [{"compute2": "it has begun, so it keeps an open gate"}, {}]


def test_a_host_that_writes_without_end_keeps_nobody_from_being_closed(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=3))
    make_pass(store, Request("2", {"rolling_rules": {"global": 2}}))
    said = iter(range(1000))
    record = {"version": "0", "state": "upgraded"}
    late_word(
        monkeypatch,
        store,
        lambda: consul.put("upgrade/hosts/compute1", json.dumps({**record, "times": {"upgraded": next(said)}})),
        times=1000,
    )
    assert operator.abort(store, operator.Word("enough")).hosts == ["compute1", "compute2"]


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


@pytest.mark.parametrize(
    ("approve", "hint"),
    [
        (True, "Approve it after that."),
        (False, "By its rules it needs no approval, and the next one begins then."),
    ],
)
def test_a_stage_that_soaks_is_not_approved_before_that_is_over(
    run: Runner, store: Store, consul: RawKV, approve: bool, hint: str
) -> None:
    seed(consul, names(compute=3))
    make_pass(store, Request("2", {"stages": [{"name": "canary", "hosts": 1, "soak": "1h", "approve": approve}]}))
    upgrade(store, "compute1")
    make_pass(store, Request())
    ready = ledger(consul)["stage"]["done_at"] + 3600
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ready))
    unnamed, named, other = run(
        [control("approve"), control("approve", stage="canary"), control("approve", stage="rest")]
    )
    end = (
        f"can't be approved: the rollout is in stage canary; its hosts are upgraded, and it soaks until {until}. {hint}"
    )
    assert unnamed["msg"] == f"the current stage {end}"
    assert named["msg"] == f"stage canary {end}"
    assert other["msg"].startswith(
        "stage rest can't be approved: the rollout is in stage canary; nothing waits for approval now. Look at it with "
    )


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


def test_a_consul_that_was_put_back_stops_the_planner_also_where_others_have_gone_on_since(
    run: Runner, store: Store, consul: RawKV
) -> None:
    seed(consul, names(compute=4))
    make_pass(store, Request("2", {"rolling_rules": {"global": 1}}))
    earlier = consul.texts()
    upgrade(store, "compute1")
    (seen,) = run([plan()])
    assert seen["commit"] == history(consul)[-1]["commit"] == ledger(consul)["commit"]
    assert consul.delete("", tree=True)
    consul.load(earlier.items())
    operator.pause(store, operator.Word("restored"))
    operator.resume(store, operator.Word())
    assert ledger(consul)["epoch"] == seen["epoch"] + 1
    before, asked = consul.tree(), store.client.requests
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, Request(since=1, epoch=seen["epoch"], commit=seen["commit"]))
    assert (caught.value.code, store.client.requests - asked) == ("went_back", 1)
    assert caught.value.message.startswith(
        "upgrade/ledger is at epoch 4, and epoch 3 in upgrade/history/3 is not the one that this call has seen: Consul was "
        "put back and somebody has gone on from an earlier time, as by restoring a snapshot."
    )
    refused, gone, fresh = run(
        [
            plan(epoch=seen["epoch"], commit=seen["commit"]),
            plan(epoch=1, commit="gone"),
            plan(epoch=4, commit=ledger(consul)["commit"]),
        ]
    )
    assert [one.get("failure", {}).get("code") for one in (refused, gone, fresh)] == ["went_back", "went_back", None]
    assert consul.tree() == before
    assert consul.delete("upgrade/history/4")
    with pytest.raises(UpgradeError, match="epoch 4 in upgrade/history/4 is not the one"):
        make_pass(store, Request(epoch=4, commit=fresh["commit"]))


def test_a_wait_notices_that_others_have_gone_on_since_a_restore(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=4))
    make_pass(store, Request("2", {"rolling_rules": {"global": 1}}))
    live = run.start([plan(wait=True, wait_timeout=60)])
    live.wait_for("compute1 is upgrading")
    # What stands there after a restore, once somebody else has written as many epochs as there were.
    last = history(consul)[-1]
    consul.load(
        [
            (f"upgrade/history/{last['epoch']}", json.dumps({**last, "commit": "another"})),
            ("upgrade/ledger", json.dumps({**ledger(consul), "commit": "another"})),
        ]
    )
    upgrade(store, "compute1")
    (result,) = live.end()
    assert (result["failed"], result["failure"]["code"], result["transitions"]) == (True, "went_back", [])


def test_a_fleet_that_is_open_at_large_is_closed_by_an_abort(run: Runner, store: Store, consul: RawKV) -> None:
    """As one that another tool has begun: its global gate is open, or there is none at all."""
    for wide in ({"global": "True"}, {}):
        assert consul.delete("", tree=True)
        seed(consul, names(compute=4), current="2", gates=wide)
        make_pass(store, Request("2", {"rolling_rules": {"global": 1}}))
        assert history(consul)[0]["what"] == "adopt"
        upgrade(store, "compute1")
        report(store, Word("compute2", "2", "started"))
        fail(store, "compute3")
        dry = run([control("abort")], check=True, diff=True)[0]
        assert "config_state/enable_puppet/global = False" in dry["diff"]["after"]
        assert gates(consul) == wide
        aborted, again = run([control("abort", reason="enough"), control("abort")])
        assert (aborted["changed"], aborted["hosts"], again["changed"]) == (True, [], False)
        assert gates(consul) == {"global": "False", **{f"host/compute{number}": "True" for number in (1, 2, 3)}}
        (told,) = [event for event in history(consul) if event["what"] == "close" and "hosts" not in event]
        assert told["reason"] == "the rollout was aborted, and the global gate let everybody through"


def taken_back(store: Store, consul: RawKV) -> None:
    """Have a rollout to 2 that was taken back to 1."""
    seed(consul, FLEET, "1")
    make_pass(store, Request("2", RULES))
    upgrade(store, "controller1")
    operator.roll_back(store, operator.Word("logins fail", "ann"))


def test_a_rollback_passes_over_what_was_not_completed_and_says_so(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    rules = {"rolling_rules": {"global": 1}}
    make_pass(store, Request("2", rules))
    fail(store, "compute1")
    operator.abort(store, operator.Word("2 is bad"))
    make_pass(store, Request("3", rules))
    # Nor is one on the way that another took the place of.
    make_pass(store, Request("4", rules))
    assert ledger(consul)["previous_version"] == "1"
    shown, back = run([{**control("rollback"), "check_mode": True}, control("rollback", reason="4 is bad too")])
    for one in (shown, back):
        assert one["version"] == "1"
        assert one["remarks"] == [
            "The fleet goes back to 1, which is where the rollout to 4 came from. Versions whose rollouts were begun in between "
            "and not completed are passed over; to go to one of these, give version."
        ]
    # A rollback that was cut short was on its way to a version that is well.
    operator.abort(store, operator.Word("wait"))
    make_pass(store, Request("5", rules))
    assert (ledger(consul)["version"], ledger(consul)["previous_version"]) == ("5", "1")
    upgrade(store, "compute1", version="5")
    make_pass(store, Request())
    upgrade(store, "compute2", version="5")
    assert make_pass(store, Request()).plan.complete
    make_pass(store, Request("6", rules))
    assert ledger(consul)["previous_version"] == "5"
    # Who goes forward to where the fleet was comes from what was cut short.
    make_pass(store, Request("5", rules))
    assert ledger(consul)["previous_version"] == "6"


def test_a_rollback_after_an_unknown_beginning_is_not_to_what_was_aborted(store: Store, consul: RawKV) -> None:
    seed(consul, ["compute1"], "0")
    seed(consul, ["compute2"], "1", current="2")
    make_pass(store, Request("2", {"rolling_rules": {"global": 1}}))
    operator.abort(store, operator.Word("2 is bad"))
    make_pass(store, Request("3", {"rolling_rules": {"global": 1}}))
    assert "previous_version" not in ledger(consul)
    with pytest.raises(UpgradeError) as caught:
        operator.roll_back(store, operator.Word("3 is bad too"))
    assert caught.value.code == "no_previous_version"


def test_a_rollback_that_is_complete_is_not_turned_round_by_saying_it_again(
    run: Runner, store: Store, consul: RawKV
) -> None:
    taken_back(store, consul)
    make_pass(store, Request("1"))
    upgrade(store, "controller1", version="1")
    assert make_pass(store, Request("1")).plan.complete
    before = consul.tree()
    again, named = run([control("rollback"), control("rollback", version="1")])
    assert [(one["changed"], one["version"], one["state"]) for one in (again, named)] == [(False, "1", "complete")] * 2
    assert again["remarks"] == ["The fleet was taken back to 1 already. To go elsewhere, give version."]
    assert consul.tree() == before
    # Whoever wants to go forward says so.
    assert run([control("rollback", version="2")])[0]["version"] == "2"


def test_a_rollback_that_was_aborted_begins_again_to_the_same_version(run: Runner, store: Store, consul: RawKV) -> None:
    taken_back(store, consul)
    paused = run([control("pause"), control("rollback")])[1]
    assert paused["remarks"] == [
        "The fleet is being taken back to 1 already, and that is paused: resume.yml lets it go on."
    ]
    operator.abort(store, operator.Word("wait"))
    back, again = run([control("rollback", reason="on again"), control("rollback")])
    assert (back["changed"], back["version"], back["state"]) == (True, "1", "running")
    assert back["remarks"] == ["Taking the fleet back to 1 was aborted, and begins again."]
    assert (ledger(consul)["rollback"], ledger(consul)["previous_version"]) == (True, "2")
    assert (again["changed"], again["version"]) == (False, "1")


def test_who_takes_a_rollout_back_and_why_is_in_the_ledger_and_the_history(
    run: Runner, store: Store, consul: RawKV
) -> None:
    taken_back(store, consul)
    assert ledger(consul)["who"] == "ann"
    assert {**ledger(consul)["word"], "at": 0} == {"by": "ann", "at": 0, "reason": "logins fail"}
    seen = run([info(name="compute1")])[0]
    assert seen["ledger"]["word"]["reason"] == "logins fail"
    (told,) = [one for one in seen["host"]["events"] if one["what"] == "begin" and one["version"] == "1"]
    assert (told["by"], told["reason"]) == ("ann", "the fleet is taken back: logins fail")


def test_what_was_begun_anew_after_an_abort_can_be_taken_back(store: Store, consul: RawKV) -> None:
    # What the hosts run does not tell it: two that were left behind are older.
    seed(consul, ["compute2", "compute3"], "0")
    seed(consul, ["controller1", "compute1"], "1")
    make_pass(store, Request("2", RULES))
    upgrade(store, "controller1")
    operator.abort(store, operator.Word())
    assert make_pass(store, Request("2", RULES, restart=True)).begun
    assert ledger(consul)["previous_version"] == "1"
    assert operator.roll_back(store, operator.Word()).ledger.version == "1"


def test_where_something_else_set_the_version_a_rollback_needs_one(run: Runner, begun: Store, consul: RawKV) -> None:
    assert begun is not None
    consul.put("current_version", "3")
    refused, back = run([control("rollback"), control("rollback", version="1")])
    assert refused["failure"]["code"] == "foreign_version"
    assert "something else has set it, so nobody knows where the fleet was before. Give version." in refused["msg"]
    assert back["version"] == "1"


WORDS: dict[str, Any] = {
    "pause": lambda store: operator.pause(store, operator.Word()),
    "abort": lambda store: operator.abort(store, operator.Word()),
    "retry": lambda store: operator.retry(store, operator.Word()),
    "rollback": lambda store: operator.roll_back(store, operator.Word(), "1"),
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_on_a_rollout_is_not_said_of_another_one_that_was_begun_meanwhile(
    begun: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    fail(begun, "controller1")
    write = begun.client.write

    def late(operations: Any) -> Any:
        monkeypatch.undo()
        make_pass(Store(begun.settings), Request("3", RULES))
        return write(operations)

    monkeypatch.setattr(begun.client, "write", late)
    with pytest.raises(UpgradeError) as caught:
        WORDS[word](begun)
    assert caught.value.code == "overtaken"
    assert "to 3" in caught.value.message or "to '3'" in caught.value.message
    assert (ledger(consul)["version"], ledger(consul)["state"]) == ("3", "running")
    assert [event["what"] for event in history(consul) if event["version"] == "3"] == ["begin", "open"]


def test_who_knows_a_part_of_the_fleet_alone_approves_and_retries_nothing(
    run: Runner, store: Store, consul: RawKV
) -> None:
    # compute3 never reported, so that it is known by the fleet alone.
    seed(consul, names(compute=2))
    fleet = names(compute=3)
    rules = {"stages": [{"name": "canary", "hosts": ["compute1", "compute3"], "approve": True}]}
    make_pass(store, Request("2", rules, fleet=fleet))
    upgrade(store, "compute1")
    before = consul.tree()
    for word in (control("approve"), control("approve", stage="canary"), control("retry")):
        refused = run([word])[0]
        assert refused["failure"]["code"] == "fleet_too_small"
        assert refused["msg"].startswith("Nothing is written: role compute: 2 of its 3 hosts are known here")
    assert consul.tree() == before
    whole = run([control("approve", stage="canary", fleet=fleet)])[0]
    assert whole["failure"]["code"] == "nothing_to_approve"


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("yes\n", "somebody"),
        ("ann: looks well", "somebody"),
        ('"yes"', "somebody"),
        ('{"by": "ann"}', "ann"),
        ("no", None),
        ("", None),
        ('{"by": "ann"', None),
    ],
)
def test_an_approval_may_be_written_by_hand(store: Store, consul: RawKV, text: str, by: str | None) -> None:
    seed(consul, names(compute=2))
    make_pass(store, Request("2", {"stages": [{"name": "canary", "hosts": 1, "approve": True}]}))
    upgrade(store, "compute1")
    assert make_pass(store, Request()).plan.wants_approval
    consul.put("upgrade/approval/canary", text)
    assert [one.host for one in make_pass(store, Request()).openings] == (["compute2"] if by else [])
    if by:
        assert operator.approve(store, operator.Word(), "canary").remarks == [
            f"Stage canary was approved by {by} already."
        ]


def test_a_host_that_died_on_the_way_to_another_version_is_put_back_when_it_is_named(
    run: Runner, store: Store, consul: RawKV
) -> None:
    seed(consul, names(compute=3), "1")
    make_pass(store, Request("2", {"rolling_rules": {"global": 1}}))
    report(store, Word("compute1", "2", "started"))
    operator.roll_back(store, operator.Word())
    assert make_pass(store, Request()).plan.hosts["compute1"].state == "upgrading"
    nobody, other = run([control("retry"), control("retry", hosts=["compute2"])])
    assert (nobody["hosts"], nobody["remarks"], other["hosts"]) == ([], [], [])
    named = [control("retry", hosts=["compute1"], by="ann", reason="it is off")]
    dry = run(named, check=True)[0]
    assert (dry["changed"], dry["hosts"], record(consul, "compute1")["state"]) == (True, ["compute1"], "started")
    put_back, again = run([*named, *named])
    assert (put_back["changed"], put_back["hosts"], again["changed"]) == (True, ["compute1"], False)
    assert put_back["remarks"] == [
        "compute1 had begun to go to 2 and did not say that it ended. On your word it is taken for ended, and its slot is "
        "free: make sure that nothing is at work there any more."
    ]
    event = history(consul)[-1]
    assert (event["by"], event["hosts"]["compute1"][:19]) == ("ann", "it is off; it was: ")
    # It left the version that it is taken back to, so it has to go there.
    outcome = make_pass(store, Request())
    assert [one.host for one in outcome.openings] == ["compute1"]


def test_a_host_that_a_run_is_at_work_on_is_not_put_back(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2), "1")
    make_pass(store, Request("2", {"rolling_rules": {"global": 1}}))
    report(store, Word("compute1", "2", "started"))
    operator.roll_back(store, operator.Word())
    consul.put("upgrade/drivers/compute1", "{}")
    done = operator.retry(store, operator.Word(), ["compute1"])
    assert (done.hosts, done.remarks) == ([], ["Neither failed nor lost, and left as they are: compute1."])


def test_an_empty_list_of_hosts_is_nobody(run: Runner, begun: Store, consul: RawKV) -> None:
    fail(begun, "controller1")
    before = consul.tree()
    nobody = run([control("retry", hosts=[])])[0]
    assert (nobody["changed"], nobody["hosts"]) == (False, [])
    assert nobody["remarks"] == [
        "The list of hosts is empty, so nobody is put back. Leave it out to put back all that failed or are lost."
    ]
    assert consul.tree() == before
    assert operator.retry(begun, operator.Word()).hosts == ["controller1"]


def test_a_host_that_is_held_stays_so_when_it_is_put_back(run: Runner, begun: Store, consul: RawKV) -> None:
    fail(begun, "controller1")
    set_holds(begun, Whom(hosts=["controller1"]), "RAM test", "ann")
    retried = run([control("retry")])[0]
    assert retried["hosts"] == ["controller1"]
    assert retried["remarks"][0].startswith("controller1 is held by ann since ")
    assert consul.get("upgrade/hold/host/controller1")
    assert make_pass(begun, Request()).plan.hosts["controller1"].state == "held"
