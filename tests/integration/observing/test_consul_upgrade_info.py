# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_upgrade_info: what it returns, that it writes nothing, and what it refuses."""

from __future__ import annotations

import json
import re

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import MOST_EARLIER, read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store, current_user
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.status_text import status_lines
from devkit.kv import RawKV
from integration.support.fleets.fleet import history, ledger, names, seed
from integration.support.runs.playbook import Runner, info

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release

RULES = {"rolling_rules": {"global": 2}, "group_mappings": {"data": "comp"}, "role_order": {"data": "controller"}}


def begin(store: Store, consul: RawKV) -> None:
    """Leave a fleet in which hosts are in five states; none can be lost yet."""
    seed(consul, names(compute=5, controller=1))
    make_pass(store, PassRequest(version="2", rules=RULES))
    write_report(store, HostReport("controller1", "2", "started"))
    write_report(store, HostReport("controller1", "2", "upgraded"))
    consul.put("upgrade/hold/host/compute2", json.dumps({"reason": "disk", "by": "ann"}))
    make_pass(store, PassRequest())
    write_report(store, HostReport("compute1", "2", "failed", step="upgrade", error="no space left"))


def test_it_counts_the_releases_of_the_agents(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=4))
    reports = [
        {"convoy.upgrade.consul_upgrade_host_report": {"name": name, "version": "1", "state": "upgraded", **more}}
        for name, more in (
            ("compute1", {"release": "r2"}),
            ("compute2", {"release": "r1"}),
            ("compute3", {"release": "r2"}),
            ("compute4", {}),
        )
    ]
    run(reports)
    (view,) = run([info()])
    assert view["releases"] == {"r2": 2, "r1": 1}
    # A report of something else than an agent leaves the release as it is.
    write_report(store, HostReport("compute1", "2", "started"))
    assert read_fleet(store).snapshot.records["compute1"].release == "r2"
    shown = "\n".join(status_lines(view))
    assert "agents: r2 on 2 hosts, r1 on 1 host" in shown


def test_it_reports_the_state_of_each_host_and_why(run: Runner, store: Store, consul: RawKV) -> None:
    begin(store, consul)
    before = consul.tree()
    view, checked, one, unknown, wrong = run(
        [
            info(fleet={"compute6": "compute"}),
            {**info(history=1), "check_mode": True},
            info(name="compute5", history=0),
            info(name="comptue5"),
            info(role_pattern="compute"),
        ]
    )
    assert consul.tree() == before
    assert not any(each["changed"] for each in (view, checked, one))
    assert view["status"] == {
        "upgraded": ["controller1"], "failed": ["compute1"], "lost": [], "upgrading": ["compute3"],
        "held": ["compute2"], "pending": ["compute4", "compute5", "compute6"],
    }  # fmt: skip
    slots = "rolling_rules.global admits 2 of group data at once; slots are taken by compute1, compute3"
    assert {host: each["reason"] for host, each in view["hosts"].items()} == {
        "compute1": "failed, step upgrade: no space left",
        "compute2": "held by ann: disk (ends with ansible-playbook convoy.upgrade.unhold -e host=compute2)",
        "compute3": "admitted by gate config_state/enable_puppet/host/compute3 (True), not started yet",
        "compute4": f"waits for a slot: {slots}",
        "compute5": f"waits for a slot: {slots}",
        "compute6": f"never reported; waits for a slot: {slots}",
        "controller1": "runs 2",
    }
    assert (view["version"], view["previous_version"], view["complete"]) == ("2", "1", False)
    assert (view["hosts"]["compute1"]["group"], view["hosts"]["controller1"]["group"]) == ("data", None)
    assert {host: each["begun"] for host, each in view["hosts"].items() if each["begun"]} == {"compute1": "2"}
    assert view["waves"] == [[], ["compute4"], ["compute5"], ["compute6"]]
    assert view["can_move"]
    assert view["epoch"] == view["ledger"]["epoch"] == ledger(consul)["epoch"]
    assert view["ledger"]["instructions"] == ledger(consul)["instructions"]
    assert view["history"] == history(consul)[::-1]
    assert checked["history"] == history(consul)[:-2:-1]
    assert one["history"] == []
    assert one["host"]["record"] is None
    # All that `hosts` has, such as the tasks of services.
    assert one["host"].items() >= one["hosts"]["compute5"].items()
    assert one["host"]["services"] is None
    assert [event["what"] for event in one["host"]["events"]] == ["begin"]
    assert (one["host"]["cause"], one["host"]["rule"]) == ("cap", "rolling_rules.global")
    explanation = [
        re.sub(r"\d{4}-\S+ \S+ \(\d+ \w+ ago\)", "TIME", sentence) for sentence in one["host"]["explanation"]
    ]
    assert explanation == [
        "compute5 runs 1, as it reported at TIME. The target version is 2.",
        "It has been pending since TIME, when the rollout to 2 began.",
        f"Why: waits for a slot: {slots}.",
        f"The rule is rolling_rules.global: 2, given by {current_user()} at TIME.",
        "To change this: run ansible-playbook convoy.upgrade.upgrade again, with all rules and a higher rolling_rules.global.",
        "If all upgrades succeed, it is admitted in wave 3 of 3, after 1 host of role compute and the hosts being upgraded.",
    ]
    assert unknown["failure"]["message"].startswith(
        "name: 'comptue5' is unknown: it is neither in fleet nor in a report; did"
    )
    assert unknown["failure"]["code"] == "unknown_host"
    assert wrong["failure"]["code"] == "bad_role_pattern"


def test_a_hosts_history_has_its_record_and_all_events_about_it(store: Store, consul: RawKV) -> None:
    begin(store, consul)
    view = read_fleet(store, name="compute1")
    assert view.details is not None
    assert (view.details["record"]["state"], view.details["record"]["step"]) == ("failed", "upgrade")
    assert [event["what"] for event in view.details["events"]] == ["open", "begin"]
    assert "compute1" in view.details["events"][0]["hosts"]


def write_history(consul: RawKV, version: str, epochs: range) -> None:
    """Write a rollout of so many planner writes on compute1 on top of what there is."""
    events = [
        {"epoch": epoch, "at": 1, "who": "ann", "version": version}
        | ({"what": "open", "hosts": {"compute1": "r"}} if epoch > epochs[0] else {"what": "begin"})
        for epoch in epochs
    ]
    consul.load([(f"upgrade/history/{event['epoch']}", json.dumps(event)) for event in events])
    consul.put("upgrade/ledger", json.dumps({"epoch": epochs[-1], "version": version}))
    consul.put("current_version", version)


def test_a_hosts_history_costs_what_the_current_rollout_costs_however_long_the_whole_one_is(
    store: Store, consul: RawKV
) -> None:
    for former in (200, 2000):
        consul.delete("", tree=True)
        seed(consul, names(compute=2))
        write_history(consul, "1", range(1, former + 1))
        write_history(consul, "2", range(former + 1, former + 101))
        consul.put("upgrade/hold/", "")
        before = store.client.requests
        details = read_fleet(store, name="compute1").details or {}
        # The snapshot, and blocks of 64 entries.
        assert store.client.requests - before == 1 + 3
        epochs = [event["epoch"] for event in details["events"]]
        assert epochs == list(range(former + 100, former - MOST_EARLIER, -1))
        assert details["older_events"] is True


def test_a_hosts_history_has_the_whole_rollout_and_says_when_that_is_all(run: Runner, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    write_history(consul, "2", range(1, 301))
    found = run([info(name="compute1", history=0)])[0]["host"]
    assert ([event["epoch"] for event in found["events"]], found["older_events"]) == (list(range(300, 0, -1)), False)


def test_the_details_of_a_host_are_returned_where_entries_are_gone(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    write_history(consul, "1", range(1, 101))
    write_history(consul, "2", range(101, 201))
    for epoch in (*range(1, 90), 150):
        consul.delete(f"upgrade/history/{epoch}")
    before = store.client.requests
    details = read_fleet(store, name="compute1").details or {}
    assert store.client.requests - before <= 6
    assert [event["epoch"] for event in details["events"]] == [epoch for epoch in range(200, 89, -1) if epoch != 150]
    assert details["older_events"] is False
    assert [event["epoch"] for event in read_fleet(store, history=60).history[-10:]] == list(range(149, 139, -1))
    # Nor does it need a ledger.
    consul.delete("upgrade/ledger")
    assert read_fleet(store, history=2).history == read_fleet(store, name="compute1", history=2).history
    assert (read_fleet(store, name="compute1").details or {})["events"] == details["events"]


def test_rules_that_do_not_fit_the_fleet_are_a_warning_and_admit_no_host(run: Runner, consul: RawKV) -> None:
    seed(consul, names(compute=2), gates={"global": "False"}, current="2")
    rules = {"stages": [{"name": "canary", "hosts": ["compute3"]}]}
    consul.put("upgrade/ledger", json.dumps({"epoch": 0, "version": "2", "instructions": rules}))
    (view,) = run([info()])
    assert "stage 'canary' has no host in this fleet" in "\n".join(view["warnings"])
    assert (view["failed"], view["waves"]) == (False, [])
    assert view["hosts"]["compute1"]["reason"] == "the rules can't be applied, so no host is admitted"


def test_an_empty_consul_is_reported_as_one(run: Runner, consul: RawKV) -> None:
    (view,) = run([info()])
    assert not view["failed"]
    assert (view["version"], view["previous_version"], view["epoch"]) == ("", "", 0)
    assert (view["hosts"], view["ledger"], view["history"], view["waves"]) == ({}, {}, [], [])
    assert set(view["status"]) == {"upgraded", "failed", "lost", "upgrading", "held", "pending"}
    assert consul.tree() == {}


def test_what_stops_a_planner_is_a_warning_for_readers(run: Runner, consul: RawKV) -> None:
    seed(consul, names(compute=2), gates={"host/compute1": "Flase", "global": "False"})
    bad = {"epoch": 0, "version": "1", "instructions": {"rolling_rules": {"global": "-1"}}}
    consul.put("upgrade/ledger", json.dumps(bad))
    (view,) = run([info()])
    warnings = "\n".join(view["warnings"])
    assert (
        "The rules in upgrade/ledger can't be applied, so no host is admitted: rolling_rules.global: '-1'" in warnings
    )
    assert "The gate config_state/enable_puppet/host/compute1 holds 'Flase'" in warnings


def test_it_costs_one_request_however_large_the_fleet_is(store: Store, consul: RawKV) -> None:
    for count in (10, 1000):
        consul.delete("", tree=True)
        seed(consul, names(compute=count), gates={"global": "False"})
        consul.put("upgrade/hosts/compute1", "{}")
        consul.put("upgrade/hold/", "")
        before = store.client.requests
        assert len(read_fleet(store).plan.hosts) == count
        assert store.client.requests - before == 1


def test_history_brings_the_newest_entries_with_one_request(store: Store, consul: RawKV) -> None:
    begin(store, consul)
    before = store.client.requests
    found = read_fleet(store, history=2).history
    assert [event["epoch"] for event in found] == [3, 2]
    assert store.client.requests - before == 2


def test_entries_of_the_history_that_are_gone_or_broken_are_left_out(store: Store, consul: RawKV) -> None:
    begin(store, consul)
    consul.put("upgrade/history/2", "{")
    consul.put("upgrade/history/notes", "a stray key")
    assert [event["epoch"] for event in read_fleet(store, history=10).history] == [3, 1]
