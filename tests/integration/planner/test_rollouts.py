# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of a rollout as the keys show it: begin, go on, change the rules, be overtaken, complete, converge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_files.rule_input import given_rules
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from convoy_node.gate_reading import GateReading
from convoy_node.node.connection import Connection
from convoy_node.node.settings import NodeSettings
from convoy_node.node.state import PuppetRuns
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, gates, history, ledger, names, opened, seed
from integration.support.processes.watcher import View, Watcher, read
from integration.support.runs.commands import UNLIMITED

pytestmark = pytest.mark.one_release

ONE_BY_ONE = {"rolling_rules": {"global": 1}}


def go(store: Store, version: str | None = None, rules: dict[str, Any] | None = None, **more: Any) -> PassResult:
    return make_pass(store, PassRequest(version=version, rules=rules, **more))


def upgrade(store: Store, *hosts: str, version: str = "2") -> None:
    for host in hosts:
        write_report(store, HostReport(host, version, "started"))
        write_report(store, HostReport(host, version, "upgraded"))


def whats(consul: RawKV) -> list[str]:
    return [event["what"] for event in history(consul)]


def test_a_rollout_begins_in_one_transaction(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3), gates={"global": "True", "role/compute": "True", "host/compute1": "True"})
    go(store, "2", {"rolling_rules": {"global": 0}})
    _index, keys = read(consul)
    written = ("current_version", f"{GATES}/global", "upgrade/ledger", "upgrade/history/1")
    assert len({keys[key].modified for key in written}) == 1
    assert gates(consul) == {"global": "False"}


def test_no_reader_ever_sees_an_open_gate_while_a_rollout_begins(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3), "0")
    consul.put(f"{GATES}/global", "True")
    wide_open = {"global": "True", "role/compute": "True", **{f"host/compute{number}": "True" for number in range(200)}}

    def check(view: View) -> None:
        # Between two rollouts the test itself opens everything, and says so beforehand.
        if view["current_version"] != view.get("opened-by-the-test"):
            assert {key: value for key, value in view.items() if key.startswith(GATES)} == {f"{GATES}/global": "False"}

    consul.put("opened-by-the-test", "0")
    with Watcher(consul, check) as watcher:
        for version in range(1, 8):
            consul.load((f"{GATES}/{name}", value) for name, value in wide_open.items())
            go(store, str(version), {"rolling_rules": {"global": 0}}, replace=str(version - 1))
            consul.put("opened-by-the-test", str(version))
    assert watcher.views > 7
    assert whats(consul) == ["begin"] * 7


def test_every_opening_has_its_entry_in_the_history(store: Store, consul: RawKV) -> None:
    fleet = names(compute=5)
    seed(consul, fleet)
    go(store, "2", ONE_BY_ONE)
    while not (outcome := go(store)).plan.complete:
        upgrade(store, *outcome.plan.status()["upgrading"])
    assert opened(history(consul)) == list(fleet)
    assert gates(consul) == {"global": "False", **{f"host/{host}": "True" for host in fleet}}
    assert whats(consul) == ["begin", *["open"] * 5, "complete"]
    before = consul.tree()
    assert not go(store).changes
    assert consul.tree() == before


def test_a_lost_ledger_costs_no_entry_of_the_history(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 1}}))
    before = consul.texts("upgrade/history/")
    assert consul.delete("upgrade/ledger")
    make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 2}}))
    assert before.items() <= consul.texts("upgrade/history/").items()
    assert [event["epoch"] for event in history(consul)] == [1, 2, 3, 4]


def test_the_same_version_again_wipes_nothing(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    go(store, "2", ONE_BY_ONE)
    consul.put(f"{GATES}/host/other", "True")
    consul.put(f"{GATES}/role/web", "true")
    before = consul.tree()
    assert not go(store, "2").changes
    assert not go(store, "2", ONE_BY_ONE).changes
    assert consul.tree() == before


def test_rules_can_change_while_a_rollout_runs_and_hold_for_all_planners(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=5))
    go(store, "2", ONE_BY_ONE)
    go(store, None, {"rolling_rules": {"global": 3}})
    assert opened(history(consul)) == ["compute1", "compute2", "compute3"]
    go(store, "2", {"rolling_rules": {"global": 2}})
    upgrade(store, "compute1")
    go(Store(store.settings))
    assert opened(history(consul)) == ["compute1", "compute2", "compute3"]
    upgrade(store, "compute2")
    go(Store(store.settings))
    assert opened(history(consul))[3:] == ["compute4"]
    assert whats(consul) == ["begin", "open", "rules", "open", "rules", "open"]
    assert ledger(consul)["instructions"] == {"rolling_rules": {"global": 2}}
    assert consul.get("current_version") == b"2"


def test_rules_that_leave_out_a_single_cap_are_refused_until_it_is_removed_on_purpose(
    store: Store, consul: RawKV
) -> None:
    seed(consul, names(compute=6))
    capped = {"rolling_rules": {"global": 1, "fleet": 2, "roles": {"compute": 1}}}
    go(store, "2", given_rules(capped, ""))
    # Without it, the rollout would be faster than anyone asked for.
    with pytest.raises(UpgradeError, match=r"rolling_rules\.fleet, rolling_rules\.roles are missing") as caught:
        go(store, "2", given_rules({"rolling_rules": {"global": 4}}, ""))
    assert "rolling_rules.fleet: null, rolling_rules.roles: {}" in caught.value.message
    go(store, "2", given_rules({"rolling_rules": {"global": 4, "fleet": None, "roles": {}}}, ""))
    assert ledger(consul)["instructions"] == {"rolling_rules": {"global": 4}}
    assert len(opened(history(consul))) == 4


def test_rules_that_leave_out_what_a_running_rollout_has_are_refused(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=6))
    before = {**ONE_BY_ONE, "failure_rules": {"fleet": 1}}
    go(store, "2", before)
    write_report(store, HostReport("compute1", "2", "started"))
    write_report(store, HostReport("compute1", "2", "failed", error="no disk"))
    blocker = go(store).plan.blocker
    assert blocker is not None
    assert blocker.reason.endswith("fix it, or give all rules again with failure_rules.fleet raised")
    keys = consul.tree()
    for given in ({"failure_rules": {"fleet": 3}}, {}):
        with pytest.raises(UpgradeError, match=r"rolling_rules: \{\}") as caught:
            go(store, "2", given)
        assert caught.value.code == "rules_left_out"
        assert caught.value.details["instructions"] == before
    assert consul.tree() == keys
    control.pause(store, control.Command("wait"))
    with pytest.raises(UpgradeError, match="rolling_rules is missing, but the rollout to 2 has it in upgrade/ledger"):
        go(store, None, {"failure_rules": {"fleet": 3}})
    control.resume(store, control.Command())
    assert opened(history(consul)) == ["compute1"]
    control.retry(store, control.Command("fixed"))
    go(store, "2", {**ONE_BY_ONE, "failure_rules": {"fleet": 3}})
    assert opened(history(consul)) == ["compute1", "compute1"]
    go(store, None, {"rolling_rules": {"global": 2}, "failure_rules": {}})
    assert ledger(consul)["instructions"] == {"rolling_rules": {"global": 2}}
    entries = [event for event in history(consul) if event["what"] == "rules"]
    assert entries[0]["changed"] == {"failure_rules": {"before": '{"fleet": 1}', "after": '{"fleet": 3}'}}
    assert entries[1]["changed"] == {
        "failure_rules": {"before": '{"fleet": 3}', "after": ""},
        "rolling_rules": {"before": '{"global": 1}', "after": '{"global": 2}'},
    }
    assert entries[1]["reason"] == "the instructions changed: failure_rules, rolling_rules"
    # A rollout that is begun has all of its rules from who begins it.
    go(store, "3", {**UNLIMITED, "stages": [{"hosts": 1}]}, replace="2")
    assert "failure_rules" not in ledger(consul)["instructions"]
    assert ledger(consul)["instructions"]["rolling_rules"] == {"global": "unlimited"}


def test_an_order_that_comes_beside_the_instructions_is_not_left_out(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=1, web=1))
    more = {"compute": ["web"]}
    go(store, "2", ONE_BY_ONE, role_order=more)
    go(store, "2", {"rolling_rules": {"global": 2}}, role_order=more)
    with pytest.raises(UpgradeError, match=r"role_order: \{\}"):
        go(store, "2", ONE_BY_ONE)
    assert ledger(consul)["instructions"] == {"rolling_rules": {"global": 2}, "role_order": {"compute": ["web"]}}


def test_a_loop_that_another_rollout_overtook_ends(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    index = go(store, "2", ONE_BY_ONE).index
    go(store, "3", replace="2")
    before = consul.tree()
    with pytest.raises(UpgradeError, match="Another rollout is under way, to '3', begun by ") as caught:
        go(store, "2", since=index)
    assert caught.value.code == "overtaken"
    assert consul.tree() == before


def test_of_two_that_begin_at_once_one_wins_and_the_other_is_informed(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=3))
    write = store.client.write

    def write_late(operations: list[dict[str, Any]]) -> Any:
        monkeypatch.setattr(store.client, "write", write)
        go(Store(store.settings), "3", ONE_BY_ONE)
        return write(operations)

    monkeypatch.setattr(store.client, "write", write_late)
    with pytest.raises(UpgradeError) as caught:
        go(store, "2", ONE_BY_ONE)
    assert caught.value.code == "overtaken"
    assert consul.get("current_version") == b"3"
    assert [event["version"] for event in history(consul)] == ["3", "3"]


@pytest.mark.parametrize("theirs", ["2", "3"])
def test_of_two_that_replace_the_same_rollout_at_once_one_wins_and_the_other_is_informed(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    seed(consul, names(compute=3))
    go(store, "1.5", ONE_BY_ONE)
    write = store.client.write

    def write_late(operations: list[dict[str, Any]]) -> Any:
        monkeypatch.setattr(store.client, "write", write)
        go(Store(store.settings), theirs, replace="1.5")
        return write(operations)

    monkeypatch.setattr(store.client, "write", write_late)
    if theirs == "2":
        outcome = go(store, "2", replace="1.5")
        assert not outcome.begun
        assert outcome.replaces is None
        assert any("began the rollout to 2 at the same time, so this run continues" in one for one in outcome.warnings)
    else:
        with pytest.raises(UpgradeError, match="Another rollout is under way, to '3'") as caught:
            go(store, "2", replace="1.5")
        assert caught.value.code == "overtaken"
    begun = [event for event in history(consul) if event["what"] == "begin"]
    assert [event["version"] for event in begun] == ["1.5", theirs]
    assert begun[-1]["replaces"] == "1.5"
    assert begun[-1]["reason"].endswith(f" asked for {theirs} in place of 1.5, which was running")


def test_a_current_version_that_was_set_elsewhere_has_to_be_confirmed(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    go(store, "2", ONE_BY_ONE)
    consul.put("current_version", "7")
    before = consul.tree()
    with pytest.raises(UpgradeError, match=r"current_version is '7', but the rollout in upgrade/ledger goes to '2'"):
        go(store)
    with pytest.raises(UpgradeError, match="The rollout under way goes to 2: "):
        go(store, "7", ONE_BY_ONE)
    assert consul.tree() == before
    go(store, "7", ONE_BY_ONE, replace="2")
    assert whats(consul) == ["begin", "open", "adopt"]
    assert gates(consul) == {"global": "False", "host/compute1": "True"}
    assert (ledger(consul)["version"], ledger(consul)["previous_version"]) == ("7", "2")


def test_a_fleet_without_a_ledger_is_adopted_as_it_is(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=4), current="2", gates={"global": "False", "host/compute3": "true"})
    outcome = go(store, "2", {"rolling_rules": {"global": 2}})
    assert outcome.plan.status()["upgrading"] == ["compute3"]
    assert gates(consul) == {"global": "False", "host/compute1": "True", "host/compute3": "true"}
    assert whats(consul) == ["adopt", "open"]
    assert (ledger(consul)["previous_version"], ledger(consul)["epoch"]) == ("1", 2)


def test_a_fleet_of_open_gates_is_all_down_already(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3), current="2")
    outcome = go(store, "2", ONE_BY_ONE)
    assert outcome.plan.status()["upgrading"] == ["compute1", "compute2", "compute3"]
    assert gates(consul) == {}


def test_converge_leaves_one_open_gate_in_one_transaction(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    go(store, "2", {"rolling_rules": {"global": 2}}, converge=True)
    upgrade(store, "compute1")
    go(store, converge=True)
    assert gates(consul) == {"global": "False", "host/compute1": "True", "host/compute2": "True"}
    upgrade(store, "compute2")

    def check(view: View) -> None:
        found = {key[len(GATES) + 1 :] for key in view if key.startswith(GATES)}
        assert found in ({"global"}, {"global", "host/compute1", "host/compute2"})

    with Watcher(consul, check):
        outcome = go(store, converge=True)
    _index, keys = read(consul)
    assert outcome.plan.complete
    assert gates(consul) == {"global": "True"}
    assert len({keys[key].modified for key in (f"{GATES}/global", "upgrade/ledger", "upgrade/history/3")}) == 1
    assert whats(consul) == ["begin", "open", "converge"]
    assert ledger(consul)["state"] == "complete"
    assert not go(store, converge=True).changes


def test_a_complete_rollout_can_converge_later(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=1))
    go(store, "2", UNLIMITED)
    upgrade(store, "compute1")
    assert ledger(consul)["state"] == "running"
    go(store)
    assert gates(consul) == {"global": "False", "role/compute": "True"}
    go(store, converge=True)
    assert gates(consul) == {"global": "True"}
    assert whats(consul) == ["begin", "open", "complete", "converge"]


def test_a_host_that_comes_late_makes_the_rollout_go_on(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=1))
    go(store, "2", ONE_BY_ONE)
    upgrade(store, "compute1")
    go(store)
    assert ledger(consul)["state"] == "complete"
    consul.put("running/versions/1/compute2", "1")
    go(store)
    assert (ledger(consul)["state"], opened(history(consul))) == ("running", ["compute1", "compute2"])


def reaction(store: Store, folder: Path, host: str, version: str) -> str | None:
    """Return what the agent of a host starts, which reads its gate for the first time after it was off."""
    (folder / host).write_text(version)
    connection = Connection(port=store.settings.port)
    settings = NodeSettings(host, "compute", connection, {}, version_file=str(folder / host), health=False)
    reading = GateReading(settings, PuppetRuns(str(folder / "agent.json")), say=lambda _text: None)
    return reading.read().run


def test_a_host_that_joins_in_mid_rollout_waits_for_its_slot_and_is_upgraded_with_the_others(
    store: Store, consul: RawKV, tmp_path: Path
) -> None:
    seed(consul, names(compute=2))
    go(store, "2", ONE_BY_ONE)
    # As enrolling reports it. Before that, no planner knows it, and its gate is closed too.
    assert reaction(store, tmp_path, "compute0", "1") is None
    write_report(store, HostReport("compute0", "1", "upgraded"))
    assert not go(store).admissions
    assert reaction(store, tmp_path, "compute0", "1") is None
    upgrade(store, "compute1")
    assert [one.host for one in go(store).admissions] == ["compute0"]
    assert reaction(store, tmp_path, "compute0", "1") == "upgrade to 2"
    upgrade(store, "compute0")
    assert [one.host for one in go(store).admissions] == ["compute2"]
    upgrade(store, "compute2")
    go(store)
    assert ledger(consul)["state"] == "complete"


def test_a_host_that_was_off_for_two_versions_goes_straight_to_the_present_one(
    store: Store, consul: RawKV, tmp_path: Path
) -> None:
    seed(consul, names(compute=3))
    # compute3 was admitted to 2, and never came.
    assert len(go(store, "2", {"rolling_rules": {"global": 3}}).admissions) == 3
    upgrade(store, "compute1", "compute2")
    admitted = go(store, "3", ONE_BY_ONE, replace="2").admissions
    for host in ("compute1", "compute2"):
        assert [one.host for one in admitted] == [host]
        # Its admission to 2 counts for nothing now.
        assert reaction(store, tmp_path, "compute3", "1") is None
        upgrade(store, host, version="3")
        admitted = go(store).admissions
    assert [one.host for one in admitted] == ["compute3"]
    assert reaction(store, tmp_path, "compute3", "1") == "upgrade to 3"
    upgrade(store, "compute3", version="3")
    go(store)
    assert ledger(consul)["state"] == "complete"


def test_a_host_that_has_started_keeps_its_slot_through_a_new_rollout(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    go(store, "2", ONE_BY_ONE)
    write_report(store, HostReport("compute1", "2", "started"))
    outcome = go(store, "3", ONE_BY_ONE, replace="2")
    assert gates(consul) == {"global": "False", "host/compute1": "True"}
    assert [one.host for one in outcome.admissions] == ["compute1"]
    assert "its gate opens again: it was admitted, has started, and keeps its slot" in json.dumps(history(consul)[-1])


def test_a_failed_host_keeps_its_slot_until_it_gets_there(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    go(store, "2", ONE_BY_ONE)
    write_report(store, HostReport("compute1", "2", "failed", error="disk"))
    outcome = go(store)
    assert outcome.plan.status()["failed"] == ["compute1"]
    assert not outcome.plan.can_move
    upgrade(store, "compute1")
    assert [one.host for one in go(store).admissions] == ["compute2"]


def test_a_hold_on_a_host_that_has_started_frees_no_slot(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    go(store, "2", ONE_BY_ONE)
    write_report(store, HostReport("compute1", "2", "started"))
    consul.put("upgrade/hold/host/compute1", "{}")
    assert not go(store).admissions


def test_the_index_of_a_pass_is_never_ahead_of_what_it_has_seen(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    outcome = go(store, "2", ONE_BY_ONE)
    assert store.wait_for_change(outcome.index, 5) > outcome.index
    upgrade(store, "compute1")
    index = go(store).index
    consul.put(f"{GATES}/host/compute3", "False")
    assert store.wait_for_change(index, 5) > index
