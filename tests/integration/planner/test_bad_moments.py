# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens between a planner's reading and its writing, and what clocks and other programs say that is not so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, gates, history, ledger, names, seed
from integration.support.runs.commands import UNLIMITED

pytestmark = pytest.mark.one_release

FLEET = names(compute=4)
RULES: dict[str, Any] = {"rolling_rules": {"global": 2}, "failure_rules": {"fleet": 1}}


class Sleeper(Store):
    """A planner's store that lets something happen right after the planner has read."""

    meanwhile: Callable[[], object] | None = None

    def snapshot(self, *arguments: Any, **options: Any) -> Snapshot:
        """Read, and sleep."""
        found = super().snapshot(*arguments, **options)
        if self.meanwhile is not None:
            self.meanwhile, meanwhile = None, self.meanwhile
            meanwhile()
        return found


def begin(store: Store, consul: RawKV, rules: dict[str, Any] | None = None) -> PassResult:
    seed(consul, FLEET)
    return make_pass(store, PassRequest("2", rules or RULES, fleet=FLEET))


def upgrade(store: Store, *hosts: str) -> None:
    for host in hosts:
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))


def fail(store: Store, host: str) -> None:
    write_report(store, HostReport(host, "2", "started"))
    write_report(store, HostReport(host, "2", "failed", error="no disk"))


def opened(consul: RawKV) -> set[str]:
    return {name.removeprefix("host/") for name, value in gates(consul).items() if value == "True" and "host/" in name}


def test_a_planner_that_slept_admits_no_host_once_another_has_recorded_that_a_budget_is_exhausted(
    store: Store, consul: RawKV
) -> None:
    begin(store, consul)
    upgrade(store, "compute2")
    sleeper = Sleeper(store.settings)

    def meanwhile() -> None:
        fail(store, "compute1")
        assert make_pass(store, PassRequest(fleet=FLEET)).admissions == []

    sleeper.meanwhile = meanwhile
    woken = make_pass(sleeper, PassRequest(fleet=FLEET))
    assert woken.admissions == []
    assert woken.plan.blocker is not None
    assert opened(consul) == {"compute1", "compute2"}
    entries = [event for event in history(consul) if event["what"] == "budget"]
    assert [event["keys"] for event in entries] == [["failure_rules.fleet"]]
    assert "compute1" in entries[0]["reason"]
    assert ledger(consul)["stopped"] == ["failure_rules.fleet"]

    control.retry(store, control.Command("fixed", fleet=FLEET))
    assert [one.host for one in make_pass(store, PassRequest(fleet=FLEET)).admissions] == ["compute1", "compute3"]
    assert "stopped" not in ledger(consul)


def test_a_planner_that_slept_alone_reads_again(store: Store, consul: RawKV) -> None:
    begin(store, consul)
    upgrade(store, "compute2")
    sleeper = Sleeper(replace(store.settings, pass_limit=0.5))

    def meanwhile() -> None:
        fail(store, "compute1")
        time.sleep(0.6)

    sleeper.meanwhile = meanwhile
    assert make_pass(sleeper, PassRequest(fleet=FLEET)).admissions == []
    assert opened(consul) == {"compute1", "compute2"}


def test_a_hold_that_is_set_while_a_rollout_is_adopted_holds(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    consul.put("current_version", "2")
    consul.put("config_state/enable_puppet/global", "False")
    sleeper = Sleeper(store.settings)
    sleeper.meanwhile = lambda: set_holds(store, HoldTargets(hosts=["compute1"]), "RAM test")
    outcome = make_pass(sleeper, PassRequest("2", RULES, fleet=FLEET))
    assert [one.host for one in outcome.admissions] == ["compute2", "compute3"]
    assert opened(consul) == {"compute2", "compute3"}


@pytest.mark.parametrize(("rules", "place"), [(RULES, "host/compute1"), (UNLIMITED, "role/compute")])
@pytest.mark.parametrize("before", [None, "False"])
def test_a_gate_that_an_operator_changes_during_a_pass_is_read_again(
    store: Store, consul: RawKV, rules: dict[str, Any], place: str, before: str | None
) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", {**rules, "rolling_rules": {"global": 0}}, fleet=FLEET))
    if before is not None:
        consul.put(f"{GATES}/{place}", before)
    sleeper = Sleeper(store.settings)
    sleeper.meanwhile = lambda: consul.put(f"{GATES}/{place}", "Flase")
    with pytest.raises(UpgradeError) as caught:
        make_pass(sleeper, PassRequest("2", rules, fleet=FLEET))
    assert (caught.value.code, caught.value.details["keys"]) == ("unreadable_gate", [f"{GATES}/{place}"])
    assert gates(consul) == {"global": "False", place: "Flase"}


def test_a_hold_that_is_not_the_first_is_seen_by_who_begins(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    set_holds(store, HoldTargets(hosts=["compute1"]), "RAM test")
    sleeper = Sleeper(store.settings)
    sleeper.meanwhile = lambda: set_holds(store, HoldTargets(hosts=["compute2"]), "RAM test")
    outcome = make_pass(sleeper, PassRequest("2", RULES, fleet=FLEET))
    assert [one.host for one in outcome.admissions] == ["compute3", "compute4"]


@pytest.mark.parametrize(
    "before", [[], [("2", "started"), ("2", "failed")], [("2", "started"), ("2", "upgraded"), ("1", "upgraded")]]
)
def test_a_host_that_starts_while_the_next_rollout_begins_gets_its_gate_back(
    store: Store, consul: RawKV, before: list[tuple[str, str]]
) -> None:
    seed(consul, FLEET)
    rules = {"rolling_rules": {"global": 1}}
    make_pass(store, PassRequest("2", rules, fleet=FLEET))
    for version, state in before:
        write_report(store, HostReport("compute1", version, state))
    sleeper = Sleeper(store.settings)
    sleeper.meanwhile = lambda: write_report(store, HostReport("compute1", "2", "started", role="compute"))
    # Another host would come first, and there is one slot.
    stages = {"stages": [{"name": "canary", "hosts": ["compute3"]}, {"name": "rest"}]}
    outcome = make_pass(sleeper, PassRequest("3", {**rules, **stages}, fleet=FLEET, replace="2"))
    assert outcome.begun
    assert opened(consul) == {"compute1"}
    write_report(store, HostReport("compute1", "3", "started", role="compute"))


def test_a_host_that_had_ended_and_starts_with_a_closed_gate_does_not_get_it_back(store: Store, consul: RawKV) -> None:
    begin(store, consul)
    upgrade(store, "compute1")
    make_pass(store, PassRequest("3", RULES, fleet=FLEET, replace="2"))
    assert "admitted" not in ledger(consul)


def test_a_host_that_had_not_started_when_the_next_rollout_began_does_not_get_its_gate_back_for_a_later_start(
    store: Store, consul: RawKV
) -> None:
    begin(store, consul, {"rolling_rules": {"global": 1}})
    assert opened(consul) == {"compute1"}
    stages = {"stages": [{"name": "canary", "hosts": ["compute3"]}, {"name": "rest"}]}
    make_pass(store, PassRequest("3", {"rolling_rules": {"global": 1}, **stages}, fleet=FLEET, replace="2"))
    assert opened(consul) == {"compute3"}
    assert "admitted" not in ledger(consul)
    # Its own record proves nothing.
    write_report(store, HostReport("compute1", "3", "started"))
    outcome = make_pass(store, PassRequest(fleet=FLEET))
    assert opened(consul) == {"compute3"}
    assert outcome.plan.hosts["compute1"].unadmitted


@pytest.mark.thorough
def test_a_host_that_fell_back_and_reports_again_soaks_again(store: Store, consul: RawKV) -> None:
    begin(store, consul, {"rolling_rules": {"global": 1}, "health": {"soak": 2}})
    upgrade(store, "compute1")
    make_pass(store, PassRequest(fleet=FLEET))
    time.sleep(2.1)
    write_report(store, HostReport("compute1", "1", "upgraded"))
    upgrade(store, "compute1")
    # No one looked while it was away.
    again = make_pass(store, PassRequest(fleet=FLEET))
    assert again.admissions == []
    assert "soaks for 2 s more" in again.plan.hosts["compute1"].reason
    time.sleep(2.1)
    assert [one.host for one in make_pass(store, PassRequest(fleet=FLEET)).admissions] == ["compute2"]


def test_a_check_with_an_unknown_status_does_not_pass(store: Store, consul: RawKV) -> None:
    begin(store, consul, {"rolling_rules": {"global": 1}, "health": {"consul_checks": ["app"]}})
    check = {"Node": "compute1", "CheckID": "app", "Name": "app", "Status": "splendid"}
    node = {"Node": "compute1", "Address": "127.0.0.1", "Check": check}
    assert consul.call("PUT", "catalog/register", json.dumps(node).encode())[0] == 200
    upgrade(store, "compute1")
    outcome = make_pass(store, PassRequest(fleet=FLEET))
    assert outcome.plan.hosts["compute1"].reason == "reported 2, and its check app is splendid"
    assert outcome.admissions == []


def test_a_host_that_lost_its_health_waits_again_after_a_retry(store: Store, consul: RawKV) -> None:
    begin(store, consul, {"rolling_rules": {"global": 1}, "health": {"consul_checks": ["app"]}})
    check = {"Node": "compute1", "CheckID": "app", "Name": "app", "Status": "passing"}
    node = {"Node": "compute1", "Address": "127.0.0.1", "Check": check}
    consul.call("PUT", "catalog/register", json.dumps(node).encode())
    upgrade(store, "compute1")
    assert [one.host for one in make_pass(store, PassRequest(fleet=FLEET)).admissions] == ["compute2"]
    check["Status"] = "critical"
    consul.call("PUT", "catalog/register", json.dumps(node).encode())
    assert make_pass(store, PassRequest(fleet=FLEET)).plan.hosts["compute1"].state == "failed"
    control.retry(store, control.Command("reinstalled", fleet=FLEET), ["compute1"])
    check["Status"] = "passing"
    consul.call("PUT", "catalog/register", json.dumps(node).encode())
    # It reported before that, so it has to do so again; until then it waits for its slot like any other.
    waiting = make_pass(store, PassRequest(fleet=FLEET)).plan.hosts["compute1"]
    assert (waiting.state, "taken by compute2" in waiting.reason) == ("pending", True)
    upgrade(store, "compute1")
    assert make_pass(store, PassRequest(fleet=FLEET)).plan.hosts["compute1"].state == "upgraded"


def test_a_host_whose_clock_went_back_is_believed(store: Store, consul: RawKV) -> None:
    begin(store, consul)
    # As a node writes it that may write its own record alone.
    record = {"version": "2", "state": "upgraded", "attempt": 1, "times": {"upgraded": 4000}}
    consul.put("upgrade/hosts/compute1", json.dumps(record))
    outcome = make_pass(store, PassRequest(fleet=FLEET))
    assert outcome.plan.hosts["compute1"].state == "upgraded"
    assert consul.get("running/versions/2/compute1") == b"4000"
    assert consul.get("running/versions/1/compute1") is None


def test_a_report_that_is_out_of_date_is_not_published(store: Store, consul: RawKV) -> None:
    begin(store, consul)
    record = {"version": "2", "state": "upgraded", "attempt": 1, "times": {"upgraded": 4000}}
    consul.put("upgrade/hosts/compute1", json.dumps(record))
    sleeper = Sleeper(store.settings)
    sleeper.meanwhile = lambda: consul.put("upgrade/hosts/compute1", json.dumps({**record, "state": "failed"}))
    make_pass(sleeper, PassRequest(fleet=FLEET))
    assert consul.get("running/versions/2/compute1") is None
    assert make_pass(store, PassRequest(fleet=FLEET)).plan.hosts["compute1"].state == "failed"
    assert consul.get("running/versions/2/compute1") is None


def test_a_host_that_falls_back_after_an_abort_gets_its_gate_back_in_the_next_rollout(
    store: Store, consul: RawKV
) -> None:
    # Nothing limits the role, so its gate is opened instead of its hosts'. The abort gives the hosts that have begun gates of their own.
    seed(consul, FLEET)
    rules = {"rolling_rules": {"global": "unlimited"}}
    make_pass(store, PassRequest("2", rules, fleet=FLEET))
    upgrade(store, "compute1")
    control.abort(store, control.Command("logins fail", fleet=FLEET))
    assert gates(consul) == {"global": "False", "role/compute": "False", "host/compute1": "True"}
    write_report(store, HostReport("compute1", "1", "upgraded"))
    write_report(store, HostReport("compute1", "2", "started", role="compute"))
    outcome = make_pass(store, PassRequest("2", rules, fleet=FLEET, restart=True))
    assert not outcome.plan.hosts["compute1"].unadmitted
    assert "compute1" in opened(consul)
