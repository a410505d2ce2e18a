# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds that operators set: what is written, who is kept, and planners that did not see them come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, names, seed
from integration.support.fleets.old_keys import legacy_gates, put_old
from integration.support.processes.writes import Write, around_writes
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner, Task, ask, info, plan

# On each release, test_playbooks_control.py and the examples of the documentation run the module.
pytestmark = pytest.mark.one_release

FLEET = names(compute=3, web=1)
RULES = {"rolling_rules": {"global": 2}}


def hold(**options: Any) -> Task:
    return {"convoy.upgrade.consul_upgrade_hold": options}


def test_a_host_and_a_role_are_held_and_released(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 0}}))
    given = {"hosts": ["compute1"], "roles": ["web"], "reason": "RAM test", "by": "ann"}
    checked = run([hold(**given)], check=True, diff=True)[0]
    assert checked["changed"]
    assert checked["messages"][1] == "host compute1: would be held, by ann: RAM test"
    woken = consul.texts("upgrade/wake/")
    assert "upgrade/hold/host/compute1 = " in checked["diff"]["after"]
    assert consul.texts("upgrade/hold/").keys() == {"upgrade/hold/"}

    set_one, again, other, seen = run(
        [hold(**given), hold(**given), hold(**{**given, "reason": "disk"}), info(history=0)]
    )
    assert [one["changed"] for one in (set_one, again, other)] == [True, False, True]
    assert set_one["holds"] == [
        {"key": key, "reason": "RAM test", "by": "ann", "at": set_one["holds"][0]["at"], "allow_unknown": False}
        for key in ("upgrade/hold/role/web", "upgrade/hold/host/compute1")
    ]
    assert set_one["messages"][0] == "role web: held from now on, by ann: RAM test"
    assert again["messages"][0] == "role web: already held, by ann: RAM test"
    assert [(one["scope"], one["name"], one["reason"]) for one in seen["holds"]] == [
        ("role", "web", "disk"),
        ("host", "compute1", "disk"),
    ]
    # The agents of a held role read their gates at their interval.
    assert consul.texts("upgrade/wake/").keys() - woken.keys() == {"upgrade/wake/compute1"}
    at_hold = consul.get("upgrade/wake/compute1")
    assert json.loads(consul.get("upgrade/hold/host/compute1") or b"")["reason"] == "disk"
    assert seen["status"]["held"] == ["compute1", "web1"]
    assert seen["hosts"]["compute1"]["reason"].startswith("held by ann since ")
    make_pass(store, PassRequest("2", UNLIMITED))
    assert not gates(consul).keys() & {"host/compute1", "role/compute", "role/web", "host/web1"}

    ended, twice = run([hold(**{**given, "reason": ""}, state="absent"), hold(hosts=["compute1"], state="absent")])
    assert (ended["changed"], twice["changed"], ended["holds"]) == (True, False, [])
    assert sorted(ended["messages"]) == ["host compute1: no longer held", "role web: no longer held"]
    assert (twice["messages"], twice["remarks"]) == ([], ["There was no hold on host compute1."])
    assert consul.get("upgrade/wake/compute1") != at_hold
    assert consul.texts("upgrade/hold/").keys() == {"upgrade/hold/"}
    assert [event["what"] for event in history(consul) if "hold" in event["what"]] == ["hold", "hold", "unhold"]


@pytest.mark.thorough
def test_everything_is_held_and_a_rollout_does_not_end_it(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    held, ended, answers = run(
        [hold(everything=True, reason="audit"), hold(hosts=["web1"], state="absent"), ask("web1")]
    )
    assert held["changed"]
    assert ended["remarks"][0].startswith("A hold on everything remains: held by ")
    assert answers["msg"] == [False]
    outcome = make_pass(store, PassRequest("2", RULES))
    assert outcome.admissions == []
    assert set(outcome.plan.status()["held"]) == set(FLEET)


def test_of_a_host_that_has_begun_the_run_goes_on_and_no_other_begins(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", RULES))
    write_report(store, HostReport("compute1", "2", "started"))
    held = run([hold(hosts=["compute1"], reason="RAM test")])[0]
    assert held["remarks"] == [
        "compute1 has begun its upgrade to 2. The current run continues; no further run begins until the hold ends. The slot "
        "stays taken until then."
    ]
    # As a node that upgrades itself asks after a run that was cut off.
    assert run([ask("compute1")])[0]["msg"] == [False]
    assert make_pass(store, PassRequest()).plan.hosts["compute1"].state == "upgrading"


def test_hosts_that_have_begun_are_reported_for_a_role_and_for_everything_too(
    run: Runner, store: Store, consul: RawKV
) -> None:
    seed(consul, {**FLEET, "odd9": "web"})
    make_pass(store, PassRequest("2", UNLIMITED, fleet={**FLEET, "odd9": "web"}))
    for host in ("compute1", "compute2", "web1", "odd9"):
        write_report(store, HostReport(host, "2", "started"))
    of_role = hold(hosts=["compute1"], roles=["web"], reason="audit", fleet={"odd9": "web"})
    dry = run([of_role], check=True)[0]
    unknown = hold(roles=["storage"], reason="audit", allow_unknown=True)
    role, everything, unknown_role = run([of_role, hold(everything=True, reason="audit"), unknown])
    end = "The current run continues; no further run begins until the hold ends. The slot stays taken until then."
    assert role["remarks"] == [
        f"compute1 has begun its upgrade to 2. {end}",
        f"odd9, web1 had begun to upgrade. {end}",
    ]
    assert dry["remarks"] == role["remarks"]
    assert everything["remarks"] == [f"compute1, compute2, odd9, web1 had begun to upgrade. {end}"]
    assert unknown_role["remarks"] == ["Unknown role storage: it is neither in fleet nor in a report."]


def test_no_rollout_begins_while_a_hold_has_an_unknown_name_that_is_not_meant(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    consul.put("upgrade/hold/host/compute22", '{"reason": "disk", "by": "ann"}')
    before = consul.tree()
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest("3", UNLIMITED))
    assert caught.value.code == "unknown_names"
    assert "upgrade/hold/host/compute22 is a hold for an unknown host; did you mean" in caught.value.message
    assert consul.tree() == before
    for wrong in ("disk", "disk"):
        set_holds(store, HoldTargets(hosts=["compute22"], allow_unknown=True), wrong, "ann")
    assert json.loads(consul.get("upgrade/hold/host/compute22") or b"")["allow_unknown"] is True
    assert make_pass(store, PassRequest("3", UNLIMITED)).begun
    # A rollout that has begun continues.
    consul.put("upgrade/hold/role/wbe", "{}")
    assert make_pass(store, PassRequest("3")).plan.warnings
    with pytest.raises(UpgradeError):
        make_pass(store, PassRequest("4", replace="3"))
    assert make_pass(store, PassRequest("4", {**UNLIMITED, "optional_names": ["wbe"]}, replace="3")).begun


def test_a_name_that_is_not_known_is_refused_unless_it_is_meant(run: Runner, consul: RawKV) -> None:
    seed(consul, FLEET)
    before = consul.tree()
    given = {"hosts": ["compte2", "odd9"], "roles": ["computes"], "reason": "RAM test", "fleet": {"odd9": "odd"}}
    end = "it is neither in fleet nor in a report; did you mean"
    texts = [f"Unknown role computes: {end} 'compute'?", f"Unknown host compte2: {end} 'compute2'?"]
    for refused in (*run([hold(**given)]), *run([hold(**given)], check=True)):
        assert refused["failure"]["code"] == "unknown_names"
        assert refused["failure"]["message"].startswith(
            f"{' '.join(texts)} Nothing is changed. Correct the name, or give allow_unknown"
        )
    assert consul.tree() == before
    given["allow_unknown"] = True
    dry = run([hold(**given)], check=True)[0]
    held, again = run([hold(**given), hold(**given)])
    assert held["remarks"] == texts
    assert dry["remarks"] == again["remarks"] == held["remarks"]
    assert (held["changed"], again["changed"]) == (True, False)
    planned, seen = run([plan(version="2", instructions=RULES), info()])
    for result in (planned, seen):
        assert [one for one in result["warnings"] if "hold" in one] == [
            "upgrade/hold/role/computes is a hold for an unknown role; did you mean 'compute'?",
            "upgrade/hold/host/compte2 is a hold for an unknown host; did you mean 'compute2'?",
            "upgrade/hold/host/odd9 is a hold for an unknown host.",
        ]


def test_what_was_not_held_is_reported_when_it_is_to_end(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    set_holds(store, HoldTargets(hosts=["compute2"]), "RAM test")
    before = consul.tree()
    (unknown,) = run([hold(hosts=["compute2", "compue2"], state="absent")])
    assert unknown["failure"]["code"] == "unknown_names"
    assert "Unknown host compue2: it is neither in fleet nor in a report; did you mean" in unknown["msg"]
    assert consul.tree() == before
    wrong, role, right = run(
        [
            hold(hosts=["compue2"], state="absent", allow_unknown=True),
            hold(everything=True, roles=["compute"], state="absent"),
            hold(hosts=["compute2"], state="absent"),
        ]
    )
    assert wrong["remarks"] == ["There was no hold on host compue2; did you mean 'compute2'?"]
    assert role["remarks"][0].startswith("compute2 is still held by ")
    assert role["remarks"][1:] == ["There was no hold on everything.", "There was no hold on role compute."]
    assert [one["changed"] for one in (wrong, role, right)] == [False, False, True]
    assert right["remarks"] == []


def test_a_hold_ends_in_a_fleet_with_hosts_whose_roles_only_an_inventory_has(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    consul.put("running/versions/1/cache", "1700000000")
    set_holds(store, HoldTargets(hosts=["compute1", "cache"]), "RAM test", "ann")
    set_holds(store, HoldTargets(everything=True), "lunch", "bob")
    (remark,) = end_holds(store, HoldTargets(hosts=["compute1"])).remarks
    assert remark.startswith("A hold on everything remains: held by bob")
    (remark,) = end_holds(store, HoldTargets(everything=True)).remarks
    assert remark.startswith("cache is still held by ann")
    assert consul.texts("upgrade/hold/").keys() == {"upgrade/hold/", "upgrade/hold/host/cache"}


@pytest.mark.parametrize("ledger", ["", "{broken"])
def test_without_a_ledger_the_closed_gate_behind_a_hold_and_its_copy_go_with_it(
    store: Store, consul: RawKV, ledger: str
) -> None:
    seed(consul, FLEET)
    consul.put("upgrade/schema", "1")
    consul.put("upgrade/migration", json.dumps({"state": "kept", "from": 0, "to": 1}))
    put_old(consul, {"global": "true", "host/compute1": "true"})
    set_gate(store, "host", "compute1", value=False)
    assert (legacy_gates(consul)["host/compute1"], gates(consul)["host/compute1"]) == ("false", "false")
    set_holds(store, HoldTargets(hosts=["compute1"]), "closed by hand", by="migrate_state.yml")
    if ledger:
        consul.put("upgrade/ledger", ledger)
    end_holds(store, HoldTargets(hosts=["compute1"]))
    assert (legacy_gates(consul), "host/compute1" in gates(consul)) == ({"global": "true"}, False)
    assert consul.texts("upgrade/hold/").keys() == {"upgrade/hold/"}


def moved_from_the_pool(store: Store, consul: RawKV) -> None:
    """Hold the role spare, and let compute1 have moved from it to compute."""
    seed(consul, FLEET)
    for host in FLEET:
        write_report(store, HostReport(host, "1", "upgraded", role=FLEET[host]))
    write_report(store, HostReport("compute1", "1", "upgraded", role="spare"))
    set_holds(store, HoldTargets(roles=["spare"], allow_unknown=True), "pool", "ann")
    write_report(store, HostReport("compute1", "1", "upgraded", role="compute"))


def test_a_host_that_its_former_role_holds_is_released_by_its_name_and_starts_by_its_own_gate(
    run: Runner, store: Store, consul: RawKV
) -> None:
    moved_from_the_pool(store, consul)
    # No host has the former role any more, and its hold is no typo.
    rules = {"rolling_rules": {"global": 3}}
    assert make_pass(store, PassRequest("2", rules)).plan.hosts["compute1"].state == "held"
    assert [one["hosts"] for one in run([info()])[0]["holds"]] == [1]
    before = consul.tree("upgrade/hosts/")
    end = hold(hosts=["compute1"], state="absent", by="bea")
    dry = run([end], check=True, diff=True)[0]
    assert dry["changed"]
    assert '"former_role": ""' in dry["diff"]["after"]
    assert (
        dry["remarks"][0]
        == "compute1 would no longer be held through its former role spare. Other hosts still are. Planners admit it by its present role."
    )
    assert consul.tree("upgrade/hosts/") == before

    ended, again = run([end, end])
    assert (ended["changed"], again["changed"]) == (True, False)
    assert ended["remarks"] == [dry["remarks"][0].replace("would no longer be", "is no longer")]
    assert again["remarks"] == ["There was no hold on host compute1."]
    entry = history(consul)[-1]
    assert (entry["what"], entry["by"], [*entry["hosts"]]) == ("unhold", "bea", ["compute1"])
    assert consul.get("upgrade/wake/compute1")
    # The hold stays for the role.
    assert consul.get("upgrade/hold/role/spare")
    # Planners may have opened this gate when they knew it as spare.
    consul.call("PUT", "kv/config_state/enable_puppet/role/compute?flags=1", b"True")
    start = HostReport("compute1", "2", "started", role="compute", default=False)
    with pytest.raises(UpgradeError) as caught:
        write_report(store, start)
    assert "its own gate has to open" in caught.value.message
    consul.delete("config_state/enable_puppet/role/compute")
    make_pass(store, PassRequest())
    assert gates(consul)["host/compute1"] == "True"
    started, _changes = write_report(store, start)
    assert (started.role, started.former_role) == ("compute", None)


def test_a_hold_of_a_former_role_that_ends_while_its_host_reports_loses_no_report(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_from_the_pool(store, consul)
    make_pass(store, PassRequest("2", RULES))
    write = store.client.write
    other = Store(store.settings)

    def late(operations: Any) -> Any:
        monkeypatch.undo()
        write_report(other, HostReport("compute1", "2", "failed", error="no disk"))
        return write(operations)

    monkeypatch.setattr(store.client, "write", late)
    assert end_holds(store, HoldTargets(hosts=["compute1"])).changes
    record = json.loads(consul.get("upgrade/hosts/compute1") or b"")
    assert (record["error"], record["former_role"]) == ("no disk", "")


def test_an_approval_of_no_stage_is_reported(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    rules = {**UNLIMITED, "stages": [{"name": "canary", "hosts": 1, "approve": True}]}
    make_pass(store, PassRequest("2", rules))
    consul.put("upgrade/approval/canry", "ann: looks well")
    for result in run([plan(), info()]):
        assert result["warnings"] == ["The approval of stage canry is for an unknown stage; did you mean 'canary'?"]


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["{", "[]", '{"epoch": 3}'])
def test_a_hold_is_set_and_ended_while_the_ledger_can_not_be_read(
    run: Runner, store: Store, consul: RawKV, text: str
) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 0}}))
    good = consul.get("upgrade/ledger") or b""
    consul.put("upgrade/ledger", text)
    given = {"hosts": ["compute1"], "reason": "RAM test"}
    dry = run([hold(**given)], check=True, diff=True)[0]
    assert (dry["changed"], consul.tree("upgrade/hold/host/")) == (True, {})
    held, again, ended = run([hold(**given), hold(**given), hold(hosts=["compute1"], state="absent")])
    assert [one["changed"] for one in (held, again, ended)] == [True, False, True]
    assert held["remarks"] == [
        "The ledger upgrade/ledger can't be read. The holds are changed, but the history has no entry for that."
    ]
    assert consul.get("upgrade/ledger") == text.encode()
    run([hold(**given)])
    consul.put("upgrade/ledger", good)
    assert make_pass(store, PassRequest("2", UNLIMITED)).plan.hosts["compute1"].state == "held"


def test_a_ledger_that_comes_while_a_hold_is_set_is_not_passed_by(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, FLEET, current="2", gates={"global": "False"})
    write = store.client.write

    def late(operations: Any) -> Any:
        monkeypatch.undo()
        make_pass(Store(store.settings), PassRequest("2", {"rolling_rules": {"global": 0}}))
        return write(operations)

    monkeypatch.setattr(store.client, "write", late)
    held = set_holds(store, HoldTargets(hosts=["compute1"]), "RAM test", "ann")
    assert [change.key for change in held.changes] == ["upgrade/hold/host/compute1"]
    entry = history(consul)[-1]
    assert (entry["what"], entry["by"], entry["hosts"]) == ("hold", "ann", {"compute1": "RAM test"})


def test_a_missing_target_or_reason_is_refused(run: Runner, consul: RawKV) -> None:
    untargeted, no_reason, name = run([hold(reason="x"), hold(everything=True), hold(hosts=["a/b"], reason="x")])
    assert untargeted["failure"]["message"].startswith("No target is given: give hosts, roles, or everything: true. ")
    assert no_reason["failure"]["message"] == "reason is empty. Give a reason for operators who see the hold later."
    assert name["failure"]["code"] == "bad_name"
    assert consul.tree() == {}


@pytest.mark.parametrize("begun", [False, True])
def test_a_planner_that_did_not_read_a_new_hold_admits_no_held_host(
    store: Store, consul: RawKV, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, FLEET)
    if begun:
        make_pass(store, PassRequest("2", {"rolling_rules": {"global": 0}}))
    write = store.client.write
    other = Store(store.settings)

    def late(operations: Any) -> Any:
        monkeypatch.undo()
        set_holds(other, HoldTargets(hosts=["compute1"]), "RAM test")
        return write(operations)

    monkeypatch.setattr(store.client, "write", late)
    outcome = make_pass(store, PassRequest("2", UNLIMITED))
    assert outcome.plan.hosts["compute1"].state == "held"
    assert "host/compute1" not in gates(consul)
    assert "role/compute" not in gates(consul)


def test_a_gate_that_an_operator_opens_while_the_hold_made_from_it_ends_stays_open(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 0}}))
    set_gate(store, "host", "compute1", value=False)
    set_holds(store, HoldTargets(hosts=["compute1"]), "closed by hand", by="migrate_state.yml")
    other, is_first = Store(store.settings), True

    def late(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            set_gate(other, "host", "compute1", value=True)
        return write(operations)

    around_writes(store, late)
    end_holds(store, HoldTargets(hosts=["compute1"]))
    assert gates(consul)["host/compute1"] == "True"
    assert consul.texts("upgrade/hold/").keys() == {"upgrade/hold/"}


def test_holds_of_many_hosts_are_set_and_ended_in_pieces(store: Store, consul: RawKV) -> None:
    hosts = [f"compute{number}" for number in range(150)]
    held = set_holds(store, HoldTargets(hosts=hosts, allow_unknown=True), "move")
    assert held.remarks[-1] == "Also unknown: compute5, compute6, compute7, compute8, compute9 and 140 more."
    assert (len(held.changes), len(held.holds)) == (150, 150)
    assert len(consul.tree("upgrade/hold/host/")) == 150
    seed(consul, hosts)
    make_pass(store, PassRequest("2", RULES))
    assert end_holds(store, HoldTargets(hosts=hosts)).remarks == []
    not_held = end_holds(store, HoldTargets(hosts=hosts)).remarks
    assert not_held[0] == "There was no hold on host compute0."
    assert not_held[-1] == "Nor on compute5, compute6, compute7, compute8, compute9 and 140 more."
    assert consul.tree("upgrade/hold/host/") == {}


def test_records_of_many_hosts_are_written_in_pieces_that_consul_takes(store: Store, consul: RawKV) -> None:
    hosts = [f"compute{number}" for number in range(40)]
    seed(consul, hosts)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 0}}))
    record = {"version": "1", "state": "upgraded", "role": "compute", "former_role": "spare"}
    for host in hosts:
        done = [f"upgrade/service{number}" for number in range(1000)]
        consul.put(f"upgrade/hosts/{host}", json.dumps({**record, "done": done}))
    consul.put("upgrade/hold/role/spare", "{}")
    found = end_holds(store, HoldTargets(hosts=hosts))
    assert (len(found.changes), len(found.remarks)) == (40, 6)
    assert found.remarks[-1].startswith("The same goes for compute5, compute6, ")
    assert sum(len(one.after or "") for one in found.changes) > 512 * 1024
    assert max(len(event["hosts"]) for event in history(consul) if event["what"] == "unhold") < 10


def test_what_is_no_role_is_no_error_but_a_bad_name_is(store: Store) -> None:
    with pytest.raises(UpgradeError) as caught:
        set_holds(store, HoldTargets(roles=[" "]), "x")
    assert caught.value.code == "bad_name"
