# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator puts hosts back among those that wait: those that failed, and those that are named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.post_upgrade_pass import make_post_upgrade_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, gates, history, long_ago, names, record, seed
from integration.support.processes.writes import Write, around_writes
from integration.support.runs.commands import UNLIMITED, control, cut_short, fail
from integration.support.runs.playbook import Runner

# On each release, test_playbooks_control.py and the examples of the documentation run the module.
pytestmark = pytest.mark.one_release


def test_failed_hosts_are_put_back_among_those_that_wait(run: Runner, begun: Store, consul: RawKV) -> None:
    fail(begun, "controller1")
    assert make_pass(begun, PassRequest()).plan.status()["failed"] == ["controller1"]
    unknown, retried, again = run(
        [control("retry", hosts=["controller9"]), control("retry", hosts=["controller1", "compute1"]), control("retry")]
    )
    assert unknown["failure"]["message"] == "hosts: 'controller9' is no host of this fleet; did you mean 'controller1'?"
    assert (retried["changed"], retried["hosts"], again["changed"]) == (True, ["controller1"], False)
    assert retried["remarks"] == ["Not changed, because it is neither failed nor lost: compute1."]
    assert gates(consul)["host/controller1"] == "False"
    kept = record(consul, "controller1")
    assert (kept["state"], kept["attempt"], "error" in kept) == ("retried", 1, False)
    assert [one.host for one in make_pass(begun, PassRequest()).admissions] == ["controller1"]
    write_report(begun, HostReport("controller1", "2", "started"))
    assert record(consul, "controller1")["attempt"] == 2


def test_a_retry_of_many_that_is_cut_short_reports_all_that_it_put_back(store: Store, consul: RawKV) -> None:
    many = names(compute=50)
    seed(consul, many)
    make_pass(store, PassRequest("2", UNLIMITED))
    for host in many:
        consul.put(f"upgrade/hosts/{host}", json.dumps({"version": "2", "state": "failed", "error": "no disk"}))
    cut_short(store, 2)
    done = operator.retry(store, operator.Command("fixed"), [*many])
    assert (done.hosts, done.remarks) == ([*many], [])
    assert {json.loads(value)["state"] for value in consul.tree("upgrade/hosts/").values()} == {"retried"}
    retries = [event["hosts"] for event in history(consul) if event["what"] == "retry"]
    assert sorted(host for hosts in retries for host in hosts) == sorted(many)
    assert {change.key for change in done.changes} >= {f"upgrade/hosts/{host}" for host in many}


def test_a_host_that_died_during_the_upgrade_to_another_version_is_put_back_when_it_is_named(
    run: Runner, store: Store, consul: RawKV
) -> None:
    seed(consul, names(compute=3), "1")
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    write_report(store, HostReport("compute1", "2", "started"))
    operator.roll_back(store, operator.Command())
    assert make_pass(store, PassRequest()).plan.hosts["compute1"].state == "upgrading"
    without_hosts, other = run([control("retry"), control("retry", hosts=["compute2"])])
    assert (without_hosts["hosts"], without_hosts["remarks"], other["hosts"]) == ([], [], [])
    named = [control("retry", hosts=["compute1"], by="ann", reason="it is off")]
    dry = run(named, check=True)[0]
    assert (dry["changed"], dry["hosts"], record(consul, "compute1")["state"]) == (True, ["compute1"], "started")
    put_back, again = run([*named, *named])
    assert (put_back["changed"], put_back["hosts"], again["changed"]) == (True, ["compute1"], False)
    assert put_back["remarks"] == [
        "compute1 had begun its upgrade to 2 and reported no end. It now counts as ended, and its slot is free: make sure that "
        "no upgrade runs there."
    ]
    event = history(consul)[-1]
    assert (event["by"], event["hosts"]["compute1"][:19]) == ("ann", "it is off; it was: ")
    # It left the version that it is taken back to, so it has to go there.
    outcome = make_pass(store, PassRequest())
    assert [one.host for one in outcome.admissions] == ["compute1"]


def test_the_slot_of_a_lost_host_that_may_still_upgrade_is_freed_only_by_its_name(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3), "1")
    set_holds(store, HoldTargets(hosts=["compute1"]), "later", "ann")
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}, "health": {"progress_deadline": 60}}))
    write_report(store, HostReport("compute2", "2", "started"))
    long_ago(consul, "compute2")
    end_holds(store, HoldTargets(hosts=["compute1"]))
    view = read_fleet(store)
    assert view.plan.hosts["compute2"].state == "lost"
    # The status names the command, and what to make sure of.
    (need,) = operator_needs(view.snapshot, view.plan)
    assert (need.playbook, need.variables) == ("status", {"host": "compute2"})
    details = read_fleet(store, name="compute2").details
    assert details is not None
    assert (
        "make sure that nothing runs there, then run ansible-playbook convoy.upgrade.retry -e host=compute2."
        in " ".join(details["explanation"])
    )
    before = consul.tree()
    done = operator.retry(store, operator.Command())
    assert (done.hosts, consul.tree()) == ([], before)
    assert done.remarks == [
        "compute2 is not changed, because it has started an upgrade and not reported its end, so its upgrade may still run. Once you have made "
        "sure that it does not, run ansible-playbook convoy.upgrade.retry -e host=compute2."
    ]
    # Another host in its slot would be one too many.
    assert make_pass(store, PassRequest()).admissions == []
    done = operator.retry(store, operator.Command(), ["compute2"])
    assert done.hosts == ["compute2"]
    assert "make sure that no upgrade runs there" in done.remarks[0]
    assert [one.host for one in make_pass(store, PassRequest()).admissions] == ["compute1"]


def test_a_host_that_a_run_is_at_work_on_is_not_put_back(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2), "1")
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    write_report(store, HostReport("compute1", "2", "started"))
    operator.roll_back(store, operator.Command())
    consul.put("upgrade/drivers/compute1", "{}")
    done = operator.retry(store, operator.Command(), ["compute1"])
    assert (done.hosts, done.remarks) == ([], ["Not changed, because it is neither failed nor lost: compute1."])


def test_an_empty_list_of_hosts_retries_no_host(run: Runner, begun: Store, consul: RawKV) -> None:
    fail(begun, "controller1")
    before = consul.tree()
    without_hosts = run([control("retry", hosts=[])])[0]
    assert (without_hosts["changed"], without_hosts["hosts"]) == (False, [])
    assert without_hosts["remarks"] == [
        "hosts is an empty list, so no host is retried. Leave hosts out to retry all failed and lost hosts."
    ]
    assert consul.tree() == before
    assert operator.retry(begun, operator.Command()).hosts == ["controller1"]


def test_a_host_that_is_held_stays_so_when_it_is_put_back(run: Runner, begun: Store, consul: RawKV) -> None:
    fail(begun, "controller1")
    set_holds(begun, HoldTargets(hosts=["controller1"]), "RAM test", "ann")
    retried = run([control("retry")])[0]
    assert retried["hosts"] == ["controller1"]
    assert retried["remarks"][0].startswith("controller1 is held by ann since ")
    assert consul.get("upgrade/hold/host/controller1")
    assert make_pass(begun, PassRequest()).plan.hosts["controller1"].state == "held"


def test_a_retry_says_that_a_host_is_held_by_its_former_role(begun: Store) -> None:
    fail(begun, "controller1")
    write_report(begun, HostReport("controller1", "2", "delivered", role="spare"))
    write_report(begun, HostReport("controller1", "2", "delivered", role="controller"))
    set_holds(begun, HoldTargets(roles=["spare"], allow_unknown=True), "pool", "ann")
    (remark,) = operator.retry(begun, operator.Command()).remarks
    assert "a hold of its former role spare" in remark


def test_post_upgrade_tasks_that_failed_are_retried_also_once_the_rollout_is_complete(
    run: Runner, store: Store, consul: RawKV
) -> None:
    many = names(compute=2)
    seed(consul, many, "1")
    request = PassRequest("2", {**UNLIMITED, "failure_rules": {"fleet": 1}}, fleet=many, post_upgrade=["compute"])
    make_pass(store, request)
    for host in many:
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))
    assert make_pass(store, PassRequest("2", fleet=many)).plan.complete
    make_post_upgrade_pass(store, PassRequest("2", fleet=many), {"compute"})
    kept = {**record(consul, "compute1"), "post": "failed", "step": "post_upgrade", "error": "no kernel"}
    consul.put("upgrade/hosts/compute1", json.dumps(kept))
    consul.put("upgrade/hosts/compute2", json.dumps({**record(consul, "compute2"), "post": "done"}))
    make_pass(store, PassRequest("2", fleet=many, converge=True))
    view = read_fleet(store)
    assert view.plan.complete
    (need,) = operator_needs(view.snapshot, view.plan)
    assert (need.playbook, need.variables) == ("post_upgrade", {"version": "2", "retry_failed": "true"})
    with pytest.raises(
        UpgradeError, match=r"convoy\.upgrade\.post_upgrade -e version=2 -e retry_failed=true\. To begin"
    ) as pending:
        make_pass(store, PassRequest("3", UNLIMITED, fleet=many))
    assert pending.value.code == "post_upgrade_pending"
    before = gates(consul)
    other, retried, again = run(
        [
            control("retry", hosts=["compute2"]),
            control("retry", hosts=["compute1", "compute2"], by="ann"),
            control("retry"),
        ]
    )
    assert (other["failure"]["code"], again["failure"]["code"]) == ("not_running", "not_running")
    assert (retried["hosts"], retried["remarks"]) == (
        ["compute1"],
        [
            "compute1 waits for its post-upgrade tasks again, and its slot is free. Once all hosts are upgraded, run ansible-playbook "
            "convoy.upgrade.post_upgrade -e version=2.",
            "Not changed, because it is neither failed nor lost: compute2.",
        ],
    )
    # It stays upgraded: only these tasks begin again.
    after = record(consul, "compute1")
    assert (after["state"], after.get("post"), "error" in after, gates(consul)) == ("upgraded", None, False, before)
    assert history(consul)[-1]["hosts"] == {
        "compute1": "it was: its post-upgrade tasks failed, step post_upgrade: no kernel"
    }
    outcome = make_post_upgrade_pass(store, PassRequest("2", fleet=many), {"compute"})
    assert [one.host for one in outcome.admissions] == ["compute1"]
    assert make_pass(store, PassRequest("2", fleet=many)).plan.complete


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_host_that_is_midway_behind_the_order_is_put_back_by_its_name(
    store: Store, consul: RawKV, version: str
) -> None:
    many = names(compute=1, controller=1)
    seed(consul, many, "1")
    set_holds(store, HoldTargets(hosts=["controller1"]), "later", "ann")
    one = {"rolling_rules": {"global": 1, "fleet": 1}}
    make_pass(store, PassRequest("2", one, fleet=many))
    write_report(store, HostReport("compute1", "2", "started"))
    # As a run leaves it that is killed.
    consul.put("upgrade/hosts/compute1", json.dumps({**record(consul, "compute1"), "origin": "1"}))
    operator.abort(store, operator.Command())
    end_holds(store, HoldTargets(hosts=["controller1"]))
    rules = {**one, "role_order": {"compute": "controller"}}
    outcome = make_pass(store, PassRequest(version, rules, fleet=many, restart=True))
    assert (outcome.admissions, outcome.plan.can_move) == ([], False)
    view = read_fleet(store)
    (need,) = operator_needs(view.snapshot, view.plan)
    assert (need.code, need.playbook, need.variables) == ("stuck", "retry", {"host": "compute1"})
    done = operator.retry(store, operator.Command(), ["compute1"])
    assert (done.hosts, "make sure that no upgrade runs there" in done.remarks[0]) == (["compute1"], True)
    assert [one.host for one in make_pass(store, PassRequest(version, fleet=many)).admissions] == ["controller1"]


def test_a_host_that_died_in_its_soak_is_put_back_by_its_name_and_lost_in_time(store: Store, consul: RawKV) -> None:
    many = names(compute=3)
    seed(consul, many, "1")

    def check(host: str, status: str) -> None:
        one = {"Node": host, "CheckID": "nova", "Name": "nova", "Status": status}
        node = {"Node": host, "Address": "127.0.0.1", "Check": one}
        assert consul.call("PUT", "catalog/register", json.dumps(node).encode())[0] == 200

    for host in many:
        check(host, "passing")
    health = {"consul_checks": ["nova"], "soak": 600, "progress_deadline": 60}
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}, "health": health}, fleet=many))
    for host in ("compute1", "compute2"):
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))
    make_pass(store, PassRequest("2", fleet=many))
    check("compute1", "critical")
    assert make_pass(store, PassRequest("2", fleet=many)).plan.hosts["compute1"].state == "upgrading"
    # The operator knows that it is dead. The other one soaks.
    set_holds(store, HoldTargets(hosts=["compute1"]), "dead", "ann")
    assert operator.retry(store, operator.Command(fleet=many)).hosts == []
    done = operator.retry(store, operator.Command(fleet=many), ["compute1", "compute2"])
    assert (done.hosts, done.remarks[-1]) == (
        ["compute1"],
        "Not changed, because it is neither failed nor lost: compute2.",
    )
    outcome = make_pass(store, PassRequest("2", fleet=many))
    assert ([one.host for one in outcome.admissions], outcome.plan.hosts["compute1"].state) == (["compute3"], "held")
    # One that dies is lost after a while, and any retry takes it.
    check("compute2", "critical")
    kept = {**record(consul, "compute2"), "times": {"started": 1_600_000_000, "upgraded": 1_600_000_000}}
    consul.put("upgrade/hosts/compute2", json.dumps(kept))
    consul.call("PUT", f"kv/{GATES}/host/compute2?flags=1600000000", b"True")
    assert make_pass(store, PassRequest("2", fleet=many)).plan.hosts["compute2"].state == "upgrading"
    # As if planners had seen it fail long ago: the flags have the time, and how often the mark was written.
    mark = consul.get("upgrade/health/compute2")
    assert mark is not None
    consul.call("PUT", f"kv/upgrade/health/compute2?flags={1_600_000_000 << 8 | 1}", mark)
    view = read_fleet(store, fleet=many)
    assert view.plan.hosts["compute2"].state == "lost"
    (need,) = operator_needs(view.snapshot, view.plan)
    assert (need.code, need.playbook, need.variables) == ("broken_hosts", "retry", {"host": "compute2"})
    assert operator.retry(store, operator.Command(fleet=many)).hosts == ["compute2"]


@pytest.mark.parametrize("post", [None, "started"])
def test_a_run_that_goes_on_with_a_host_in_that_moment_keeps_it(post: str | None, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}, "health": {"progress_deadline": 60}}))
    write_report(store, HostReport("compute1", "2", "started"))
    long_ago(consul, "compute1")
    if post is not None:
        write_report(store, HostReport("compute1", "2", "upgraded"))
        make_pass(store, PassRequest())
        consul.put("upgrade/hosts/compute1", json.dumps({**record(consul, "compute1"), "post": post}))
    before = record(consul, "compute1")
    _code, _headers, body = consul.call("PUT", "session/create", {"Name": "a run", "TTL": "60s"})
    session = json.loads(body)["ID"]

    def late(write: Write, operations: Sequence[Any]) -> Any:
        assert consul.call("PUT", f"kv/upgrade/drivers/compute1?acquire={session}", b"{}")[2] == b"true"
        return write(operations)

    around_writes(store, late)
    done = operator.retry(store, operator.Command("nothing runs there"), ["compute1"])
    assert done.hosts == []
    assert record(consul, "compute1") == before
