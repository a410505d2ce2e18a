# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What operators do to a rollout: pause, resume, abort, retry, approve, roll back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import history, ledger, names, seed
from integration.support.runs.commands import FLEET, RULES, UNLIMITED, control, fail, upgrade
from integration.support.runs.playbook import Runner, info, plan

# On each release, test_playbooks_control.py and the examples of the documentation run the module.
pytestmark = pytest.mark.one_release


def test_a_paused_rollout_admits_no_host_until_it_is_resumed(run: Runner, begun: Store, consul: RawKV) -> None:
    given = {"reason": "logins fail", "by": "ann"}
    dry = run([control("pause", **given)], check=True, diff=True)[0]
    assert (dry["changed"], dry["state"], ledger(consul)["state"]) == (True, "paused", "running")
    assert '"state": "paused"' in dry["diff"]["after"]
    paused, again = run([control("pause", **given), control("pause", **given)])
    assert (paused["changed"], again["changed"], paused["state"]) == (True, False, "paused")
    upgrade(begun, "controller1")
    assert make_pass(begun, PassRequest()).admissions == []
    # Who gives the version again goes on with it, and does not end the pause.
    assert make_pass(begun, PassRequest("2")).admissions == []
    seen = run([info()])[0]
    assert seen["blocker"]["code"] == "paused"
    assert seen["hosts"]["compute1"]["reason"].startswith("the rollout is paused by ann at ")
    resumed, again = run([control("resume"), control("resume")])
    assert (resumed["changed"], again["changed"], resumed["state"]) == (True, False, "running")
    assert [one.host for one in make_pass(begun, PassRequest()).admissions] == ["compute1"]
    assert [event["what"] for event in history(consul)] == ["begin", "open", "pause", "resume", "open"]


def test_a_rollout_that_was_complete_before_a_pause_is_complete_after_it(run: Runner, begun: Store) -> None:
    for host in FLEET:
        upgrade(begun, host)
    assert make_pass(begun, PassRequest()).plan.complete
    # Also if it is paused again for another reason.
    paused, again, resumed = run([control("pause", reason="a"), control("pause", reason="b"), control("resume")])
    assert [one["state"] for one in (paused, again, resumed)] == ["paused", "paused", "complete"]
    assert paused["remarks"] == again["remarks"] == []
    set_gate(begun, "global", None, value=True)
    (open_gate,) = run([control("pause")])
    assert open_gate["remarks"][0].startswith(
        "The rollout is complete, so the global gate is open, and hosts that join"
    )


@pytest.mark.thorough
def test_a_wait_lasts_through_a_pause_and_ends_with_an_abort(run: Runner, begun: Store) -> None:
    live = run.start([plan(wait=True, wait_timeout=60)])
    live.wait_for("controller1 admitted")
    run([control("pause")])
    upgrade(begun, "controller1")
    live.wait_for("controller1 upgraded")
    run([control("resume", reason="all is well")])
    live.wait_for("compute1 admitted")
    run([control("abort", reason="enough")])
    (result,) = live.end()
    assert (result["failed"], result["failure"]["code"]) == (True, "aborted")
    assert result["failure"]["message"].startswith("The rollout was aborted by ")
    assert (
        ": enough; restart it with ansible-playbook convoy.upgrade.upgrade -e version=2 -e restart=true, "
        "or go back with ansible-playbook convoy.upgrade.rollback." in result["msg"]
    )


def test_a_stage_goes_on_when_it_is_approved(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    make_pass(store, PassRequest("2", {**UNLIMITED, "stages": [{"name": "canary", "hosts": 1, "approve": True}]}))
    early = run([control("approve", stage="canary")])[0]
    assert early["failure"]["message"] == (
        "stage canary can't be approved: the rollout is in stage canary; nothing waits for approval now. Look at it with "
        "ansible-playbook convoy.upgrade.status, and approve once its hosts are upgraded."
    )
    upgrade(store, "compute1")
    assert make_pass(store, PassRequest()).admissions == []
    seen = run([info()])[0]
    assert (seen["stage"], seen["needs_approval"], seen["can_move"]) == ("canary", True, True)
    other, unknown, approved, again = run(
        [
            control("approve", stage="rest"),
            control("approve", stage="canry"),
            control("approve", by="ann", reason="fine"),
            control("approve", stage="canary"),
        ]
    )
    assert other["failure"]["code"] == "nothing_to_approve"
    assert unknown["msg"] == (
        "[nothing_to_approve] The rules have no stage 'canry'; did you mean 'canary'? Their stages are canary, rest. Nothing is approved."
    )
    assert (approved["changed"], again["changed"]) == (True, False)
    assert again["remarks"] == ["Stage canary was approved by ann already."]
    assert json.loads(consul.get("upgrade/approval/canary") or b"")["reason"] == "fine"
    assert [one.host for one in make_pass(store, PassRequest()).admissions] == ["compute2", "compute3"]
    assert [event["what"] for event in history(consul)] == [
        "begin",
        "stage",
        "open",
        "stage",
        "approve",
        "stage",
        "open",
    ]


@pytest.mark.parametrize(("ahead", "code"), [(900, None), (-900, "nothing_to_approve")])
def test_a_stage_is_approved_by_an_operator_whose_clock_is_slower_than_that_of_the_planners(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, ahead: int, code: str | None
) -> None:
    seed(consul, names(compute=3))
    stages = [{"name": "canary", "hosts": 1, "soak": "1h", "approve": True}]
    make_pass(store, PassRequest("2", {**UNLIMITED, "stages": stages}))
    upgrade(store, "compute1")
    with monkeypatch.context() as patched:
        now = runtime.now
        patched.setattr(runtime, "now", lambda: now() + ahead)
        make_pass(store, PassRequest())
    if code is None:
        operator.approve(store, operator.Command("fine"))
        assert consul.get("upgrade/approval/canary") is not None
        # Planners still wait until the soak is over.
        assert make_pass(store, PassRequest()).admissions == []
    else:
        with pytest.raises(UpgradeError) as refused:
            operator.approve(store, operator.Command("fine"))
        assert refused.value.code == code


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("approve", "hint"),
    [
        (True, "Approve it after that."),
        (False, "It needs no approval: the next stage begins then."),
    ],
)
def test_a_stage_that_soaks_is_not_approved_before_that_is_over(
    run: Runner, store: Store, consul: RawKV, approve: bool, hint: str
) -> None:
    seed(consul, names(compute=3))
    make_pass(
        store,
        PassRequest("2", {**UNLIMITED, "stages": [{"name": "canary", "hosts": 1, "soak": "1h", "approve": approve}]}),
    )
    upgrade(store, "compute1")
    make_pass(store, PassRequest())
    ready = ledger(consul)["stage"]["done_at"] + 3600
    until = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(ready))
    unnamed, named, other = run(
        [control("approve"), control("approve", stage="canary"), control("approve", stage="rest")]
    )
    end = (
        f"can't be approved: the rollout is in stage canary; its hosts are upgraded, and it soaks until {until}. {hint}"
    )
    assert unnamed["failure"]["message"] == f"the current stage {end}"
    assert named["failure"]["message"] == f"stage canary {end}"
    assert other["failure"]["message"].startswith(
        "stage rest can't be approved: the rollout is in stage canary; nothing waits for approval now. Look at it with "
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("begun")
def test_without_a_rollout_there_is_nothing_to_say(run: Runner, consul: RawKV) -> None:
    assert consul.delete("upgrade/ledger")
    for action in ("pause", "resume", "abort", "retry", "approve", "rollback"):
        result = run([control(action, fleet=FLEET)])[0]
        assert (
            result["failure"]["message"]
            == "There is no rollout: upgrade/ledger does not exist. Begin one with ansible-playbook convoy.upgrade.upgrade."
        )
    wrong, nowhere = run([control("pause", stage="x"), control("pause", version="3")])
    assert wrong["failure"]["message"] == "stage goes with action: approve, not with pause. Leave stage out."
    assert nowhere["failure"]["message"] == "version goes with action: rollback, not with pause. Leave version out."


@pytest.mark.thorough
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
    make_pass(store, PassRequest("2", rules))
    upgrade(store, node)
    assert make_pass(store, PassRequest()).plan.hosts[node].reason == "reported 2, and its check nova is critical"
    register["Check"] = {"Name": "nova", "CheckID": "nova", "Status": "passing"}
    consul.call("PUT", "catalog/register", json.dumps(register).encode())
    assert make_pass(store, PassRequest()).plan.hosts[node].reason == "reported 2 and soaks for 1 s more"
    waited = run([plan(wait=True, wait_timeout=20)], seconds=60)[0]
    # compute2 was admitted when compute1 had soaked, was silent, and was lost after a second.
    assert [one["host"] for one in waited["transitions"]] == ["compute2"]
    assert (waited["failed"], waited["failure"]["code"]) == (True, "stuck")
    assert "compute2 (lost): silent for " in waited["msg"]
    consul.call("PUT", "catalog/deregister", json.dumps({"Node": node}).encode())
    until = time.monotonic() + 10
    while (view := make_pass(store, PassRequest()).plan.hosts[node]).state != "failed" and time.monotonic() < until:
        time.sleep(0.1)
    assert view.reason == "was upgraded, and now has no check nova in Consul"


COMMANDS: dict[str, Any] = {
    "pause": lambda store: operator.pause(store, operator.Command()),
    "abort": lambda store: operator.abort(store, operator.Command()),
    "retry": lambda store: operator.retry(store, operator.Command()),
    "rollback": lambda store: operator.roll_back(store, operator.Command(), "1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_for_a_rollout_does_not_apply_to_another_one_that_was_begun_meanwhile(
    begun: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    fail(begun, "controller1")
    write = begun.client.write

    def late(operations: Any) -> Any:
        monkeypatch.undo()
        make_pass(Store(begun.settings), PassRequest("3", RULES, replace="2"))
        return write(operations)

    monkeypatch.setattr(begun.client, "write", late)
    with pytest.raises(UpgradeError) as caught:
        COMMANDS[command](begun)
    assert caught.value.code == "overtaken"
    assert "to 3" in caught.value.message or "to '3'" in caught.value.message
    assert (ledger(consul)["version"], ledger(consul)["state"]) == ("3", "running")
    assert [event["what"] for event in history(consul) if event["version"] == "3"] == ["begin", "open"]


@pytest.mark.thorough
def test_an_inventory_with_only_a_part_of_the_fleet_approves_and_retries_nothing(
    run: Runner, store: Store, consul: RawKV
) -> None:
    # compute3 never reported, so that it is known by the fleet alone.
    seed(consul, names(compute=2))
    fleet = names(compute=3)
    rules = {**UNLIMITED, "stages": [{"name": "canary", "hosts": ["compute1", "compute3"], "approve": True}]}
    make_pass(store, PassRequest("2", rules, fleet=fleet))
    upgrade(store, "compute1")
    before = consul.tree()
    for command in (control("approve"), control("approve", stage="canary"), control("retry")):
        refused = run([command])[0]
        assert refused["failure"]["code"] == "fleet_too_small"
        assert refused["failure"]["message"].startswith(
            "Nothing is written: role compute: 2 of its 3 hosts have reported or are named in fleet"
        )
    assert consul.tree() == before
    whole = run([control("approve", stage="canary", fleet=fleet)])[0]
    assert whole["failure"]["code"] == "nothing_to_approve"


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("yes\n", "an unknown operator"),
        ("ann: looks well", "an unknown operator"),
        ('"yes"', "an unknown operator"),
        ('{"by": "ann"}', "ann"),
        ("no", None),
        ("", None),
        ('{"by": "ann"', None),
    ],
)
def test_an_approval_may_be_written_by_hand(store: Store, consul: RawKV, text: str, by: str | None) -> None:
    seed(consul, names(compute=2))
    make_pass(store, PassRequest("2", {**UNLIMITED, "stages": [{"name": "canary", "hosts": 1, "approve": True}]}))
    upgrade(store, "compute1")
    assert make_pass(store, PassRequest()).plan.needs_approval
    consul.put("upgrade/approval/canary", text)
    assert [one.host for one in make_pass(store, PassRequest()).admissions] == (["compute2"] if by else [])
    if by:
        assert operator.approve(store, operator.Command(), "canary").remarks == [
            f"Stage canary was approved by {by} already."
        ]
