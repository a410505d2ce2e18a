# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Consul that was put back to an earlier state: planners detect that."""

from __future__ import annotations

import json

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._passes import planner_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import Instructions
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import history, ledger, names, seed
from integration.support.runs.commands import upgrade
from integration.support.runs.playbook import Runner, plan

# On each release, test_playbooks_control.py and the examples of the documentation run the module.
pytestmark = pytest.mark.one_release


@pytest.mark.usefixtures("begun")
def test_a_consul_that_was_put_back_stops_the_planner(run: Runner) -> None:
    refused = run([plan(epoch=99)])[0]
    assert (refused["failed"], refused["failure"]["code"]) == (True, "went_back")
    assert refused["failure"]["message"].startswith(
        "upgrade/ledger is at epoch 2, but this run has read epoch 99: Consul was restored to an earlier time"
    )


@pytest.mark.thorough
def test_a_consul_that_was_put_back_stops_the_planner_also_where_others_have_gone_on_since(
    run: Runner, store: Store, consul: RawKV
) -> None:
    seed(consul, names(compute=4))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    earlier = consul.texts()
    upgrade(store, "compute1")
    (seen,) = run([plan()])
    assert seen["commit"] == history(consul)[-1]["commit"] == ledger(consul)["commit"]
    assert consul.delete("", tree=True)
    consul.load(earlier.items())
    operator.pause(store, operator.Command("restored"))
    operator.resume(store, operator.Command())
    assert ledger(consul)["epoch"] == seen["epoch"] + 1
    before, asked = consul.tree(), store.client.requests
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest(since=1, epoch=seen["epoch"], commit=seen["commit"]))
    assert (caught.value.code, store.client.requests - asked) == ("went_back", 1)
    assert caught.value.message.startswith(
        "upgrade/ledger is at epoch 4, but epoch 3 in upgrade/history/3 is not the one that this run has read: Consul was "
        "restored, and another planner has continued from an earlier time, such as from a snapshot."
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
        make_pass(store, PassRequest(epoch=4, commit=fresh["commit"]))


@pytest.mark.parametrize("goes_on", [False, True], ids=["to less", "and others have gone on"])
def test_a_pass_that_is_tried_again_detects_that_consul_was_put_back_meanwhile(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    seed(consul, names(compute=4))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    upgrade(store, "compute1")
    earlier = consul.texts()
    operator.pause(store, operator.Command("before"))
    operator.resume(store, operator.Command())
    after: list[str] = []

    def put_back(_store: Store, snapshot: Snapshot, _rules: Instructions) -> Snapshot:
        if not after:
            assert consul.delete("", tree=True)
            consul.load(earlier.items())
            for _time in range(2 if goes_on else 0):
                operator.pause(store, operator.Command("after"))
                operator.resume(store, operator.Command())
            after.append(json.dumps(consul.texts()))
        return snapshot

    monkeypatch.setattr(planner_pass, "with_checks", put_back)
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest())
    assert caught.value.code == "went_back"
    assert [json.dumps(consul.texts())] == after


@pytest.mark.thorough
def test_a_wait_detects_that_others_have_gone_on_since_a_restore(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=4))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    live = run.start([plan(wait=True, wait_timeout=60)])
    live.wait_for("compute1 admitted")
    # What stands there after a restore, once another process has written as many epochs as there were.
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
