# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet in a few numbers and sentences."""

from __future__ import annotations

import json

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import Hold
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import (
    blocked_summary,
    fleet_summary,
    forecast_summary,
    holds_summary,
    hosts_as_result,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView, Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.info_result import info_result
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_plan import as_result
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.status_text import status_lines
from fleets import NEW, OLD, UNLIMITED, fleet
from memory_consul import MemoryConsul


def test_roles_and_states_are_counted() -> None:
    site = fleet(web=3, db=1).upgraded("web1").silent("db1")
    found = fleet_summary(site.plan({"rolling_rules": {"global": 1}}).hosts)
    assert found["counts"] == {"upgraded": 1, "failed": 0, "lost": 0, "upgrading": 0, "held": 0, "pending": 3}
    assert [*found["roles"]] == ["db", "web"]
    assert found["roles"]["db"]["versions"] == {"": 1}
    web = found["roles"]["web"]
    assert (web["hosts"], web["states"]["upgraded"], web["versions"]) == (3, 1, {NEW: 1, OLD: 2})


def test_each_reason_is_there_once_and_those_for_an_operator_come_first() -> None:
    hosts = {f"web{number}": HostView("web", None, "pending", OLD, "waits for a slot") for number in range(1, 11)}
    hosts |= {"db1": HostView("db", None, "failed", OLD, "no disk"), "db2": HostView("db", None, "upgraded", NEW, "")}
    assert fleet_summary(hosts)["reasons"] == [
        {"state": "failed", "reason": "no disk", "cause": "", "hosts": ["db1"], "count": 1},
        {
            "state": "pending",
            "reason": "waits for a slot",
            "cause": "",
            "hosts": [f"web{number}" for number in range(1, 9)],
            "count": 10,
        },
    ]


def test_hosts_that_a_job_is_not_for_are_not_counted() -> None:
    hosts = {
        "web1": HostView("web", None, "upgraded", "job/a-1", ""),
        "db1": HostView("db", None, "upgraded", None, "the job is not for it", outside=True),
    }
    found = fleet_summary(hosts)
    assert ([*found["roles"]], found["counts"]["upgraded"]) == (["web"], 1)


def test_a_forecast_names_some_hosts_of_the_first_waves() -> None:
    site = fleet(web=45)
    found = forecast_summary(site.plan({"rolling_rules": {"global": 3}}))
    assert len(found["waves"]) == 12
    assert found["waves"][0] == {"hosts": ["web1", "web2", "web3"], "count": 3, "seconds": 0.0}
    assert (found["more_waves"], found["more_hosts"], found["seconds"]) == (3, 9, 0.0)
    wide = forecast_summary(site.plan({"rolling_rules": {"global": "unlimited"}}))
    assert (len(wide["waves"][0]["hosts"]), wide["waves"][0]["count"], wide["more_waves"]) == (8, 45, 0)


def test_blocked_hosts_are_those_of_no_wave_and_outside_of_the_limit() -> None:
    site = fleet(web=4, db=1).held("host/web2")
    plan = site.plan({"rolling_rules": {"global": 1, "roles": {"db": 0}}}, limit=["web1", "web2", "db1"])
    found = blocked_summary(plan, plan.hosts)
    assert found["outside"] == {"hosts": ["web3", "web4"], "count": 2}
    assert [(one["state"], one["hosts"]) for one in found["reasons"]] == [("held", ["web2"]), ("pending", ["db1"])]


def test_holds_count_the_hosts_that_they_cover() -> None:
    hosts = {"web1": HostView("web", None, "upgraded", NEW, ""), "web2": HostView("web", None, "held", OLD, "")}
    hold = Hold("upgrade/hold/x", "its disk", "ann", "today")
    found = holds_summary([("global", "", hold), ("role", "wbe", hold), ("host", "web1", hold)], hosts)
    assert [(one["scope"], one["hosts"], one["upgraded"]) for one in found] == [
        ("global", 2, 1),
        ("role", 0, 0),
        ("host", 1, 1),
    ]
    former = {"web1": "", "web2": "wbe"}.get
    assert [one["hosts"] for one in holds_summary([("role", "wbe", hold), ("role", "web", hold)], hosts, former)] == [
        1,
        2,
    ]


@pytest.mark.parametrize(("requested", "hosts"), [([], []), (["web2", "web9"], ["web2"]), (["all"], ["web1", "web2"])])
def test_hosts_are_in_a_result_if_they_are_asked_for(requested: list[str], hosts: list[str]) -> None:
    plan = fleet(web=2).plan({"rolling_rules": {"global": 1}})
    found = hosts_as_result(plan, plan.hosts, requested)
    assert [*found["hosts"]] == hosts
    assert ("waves" in found, "status" in found) == ("all" in requested,) * 2
    json.dumps(found)


def test_a_summary_is_small_whatever_the_size_of_the_fleet() -> None:
    def size(count: int) -> int:
        plan = fleet(web=count).plan({"rolling_rules": {"global": 5}})
        return len(json.dumps([fleet_summary(plan.hosts), forecast_summary(plan), blocked_summary(plan, plan.hosts)]))

    assert size(3000) < size(100) + 100
    empty = Plan()
    assert forecast_summary(empty) == {"waves": [], "more_waves": 0, "more_hosts": 0, "seconds": 0.0}


@pytest.mark.parametrize("named", ["transitions", "post_upgrade"])
def test_the_whole_result_of_a_pass_is_small_whatever_the_size_of_the_fleet(named: str) -> None:
    def size(count: int) -> int:
        hosts = {f"web{number:05}": "web" for number in range(count)}
        request = PassRequest("2", UNLIMITED, fleet=hosts, post_upgrade=["web"])
        with MemoryConsul().in_place() as consul:
            for host in hosts:
                consul.write(f"running/versions/1/{host}", "1")
            store = Store(Settings(pass_limit=120))
            outcome = make_pass(store, request)
            if named == "post_upgrade":
                for host in hosts:
                    consul.write(f"running/versions/2/{host}", "2")
                outcome = make_pass(store, request)
            whole, found = as_result(outcome, ["all"]), as_result(outcome)
            assert (len(whole[named]), found[named]) == (count, whole[named][:100])
            assert found["admitted"] == len(whole["transitions"])
            return len(json.dumps(found))

    assert size(20_000) < size(200) + 500


def test_results_are_small_if_each_host_has_an_error_or_a_hold_of_its_own() -> None:
    def size(count: int) -> int:
        hosts = {f"web{number:05}": "web" for number in range(count)}
        with MemoryConsul().in_place() as consul:
            store = Store(Settings(pass_limit=120))
            make_pass(store, PassRequest("2", UNLIMITED, fleet=hosts, limit=[]))
            for number, host in enumerate(hosts):
                if number % 2:
                    consul.write(f"upgrade/hold/host/{host}", {"reason": f"bay {number:05}", "by": "ann", "at": 1})
                else:
                    record = {"version": "2", "state": "failed", "error": f"disk {number:05}", "times": {"failed": 1}}
                    consul.write(f"upgrade/hosts/{host}", record)
            outcome = make_pass(store, PassRequest("2", fleet=hosts))
            planned, known = as_result(outcome), info_result(read_fleet(store, fleet=hosts))
        left = count // 2 - 100
        for reasons in (planned["reasons"], known["reasons"], planned["blocked"]["reasons"]):
            assert [len([one for one in reasons if one["state"] == state]) for state in ("failed", "held")] == [101] * 2
            assert sum(one["count"] for one in reasons) == count
        for blockers in (planned["blockers"], known["blockers"]):
            assert len(blockers) == 202
            assert all(
                f"and {left - 5} more ({state}): {left} other reasons; " in "|".join(blockers)
                for state in ("failed", "held")
            )
        assert (len(known["holds"]), known["more_holds"]) == (100, left)
        text = "\n".join(status_lines(known))
        assert f"and {left - 8} more: {left} other reasons; ansible-playbook convoy.upgrade.status -e host=HOST" in text
        assert text.endswith(f"bay 00199\n  and {left} holds more")
        return len(json.dumps([planned, known]))

    assert size(4_000) < size(400) + 1000
