# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator commands or changes in the middle of a rollout stays in force: pauses, other stages, health that has to be proven."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host import leases
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._host.once_for_all import begin_once, end_once, read_state
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.post_upgrade_pass import make_post_upgrade_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, seed
from integration.support.runs.playbook import Runner, plan

pytestmark = pytest.mark.one_release

FLEET = names(compute=4)
ONE: dict[str, Any] = {"rolling_rules": {"global": 1}}
MANY: dict[str, Any] = {"rolling_rules": {"global": 9}}
A = {"name": "a", "hosts": ["compute1"]}
B = {"name": "b", "hosts": ["compute2"], "approve": True}
COMMAND = control.Command("network", "ann", FLEET)


def begin(store: Store, consul: RawKV, rules: dict[str, Any]) -> PassResult:
    seed(consul, FLEET)
    return make_pass(store, PassRequest("2", rules, fleet=FLEET))


def go_on(store: Store, rules: dict[str, Any] | None = None) -> list[str]:
    """Make a pass, and return whom it admitted."""
    return [one.host for one in make_pass(store, PassRequest("2", rules, fleet=FLEET)).admissions]


def upgrade(store: Store, *hosts: str) -> None:
    for host in hosts:
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))


# Pauses


def test_a_pause_outlasts_the_last_host(store: Store, consul: RawKV, run: Runner) -> None:
    begin(store, consul, MANY)
    control.pause(store, COMMAND)
    upgrade(store, *FLEET)
    outcome = make_pass(store, PassRequest("2", fleet=FLEET, converge=True))
    assert (outcome.plan.complete, outcome.plan.scope_done, outcome.plan.can_move) == (False, False, True)
    assert (ledger(consul)["state"], gates(consul)["global"]) == ("paused", "False")
    after = make_post_upgrade_pass(store, PassRequest("2", fleet=FLEET), ["compute"])
    assert after.admissions == []
    seed(consul, ["compute5"], current="2")
    assert go_on(store) == []

    # The reason why a host waits is reported.
    waited = run([plan(fleet=FLEET, wait=True, wait_timeout=1)], check=False)[0]
    assert "The wait timeout has passed" in waited["msg"]
    assert "paused by ann" in waited["msg"]

    assert consul.delete("running/versions/1/compute5")
    control.resume(store, COMMAND)
    assert make_pass(store, PassRequest("2", fleet=FLEET, converge=True)).plan.complete
    assert (ledger(consul)["state"], gates(consul)) == ("complete", {"global": "True"})


def test_no_other_rollout_begins_in_place_of_a_paused_one(store: Store, consul: RawKV) -> None:
    begin(store, consul, ONE)
    control.pause(store, COMMAND)
    before = consul.tree("")
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest("3", ONE, fleet=FLEET))
    assert caught.value.code == "rollout_under_way"
    assert "The rollout under way goes to 2: " in caught.value.message
    assert "is paused by ann" in caught.value.message
    assert "-e replace=2" in caught.value.message
    assert consul.tree("") == before
    control.abort(store, COMMAND)
    assert make_pass(store, PassRequest("3", ONE, fleet=FLEET)).begun


def test_what_comes_after_a_complete_rollout_can_be_paused(store: Store, consul: RawKV) -> None:
    begin(store, consul, MANY)
    upgrade(store, *FLEET)
    assert make_pass(store, PassRequest("2", fleet=FLEET)).plan.complete
    control.pause(store, COMMAND)
    assert make_post_upgrade_pass(store, PassRequest("2", fleet=FLEET), ["compute"]).admissions == []
    control.resume(store, COMMAND)
    assert make_pass(store, PassRequest("2", fleet=FLEET)).plan.complete
    after = make_post_upgrade_pass(store, PassRequest("2", fleet=FLEET), ["compute"])
    assert [one.host for one in after.admissions] == list(FLEET)
    assert [event["what"] for event in history(consul)][-4:] == ["complete", "pause", "resume", "after"]


def test_an_abort_outlasts_the_last_host(store: Store, consul: RawKV) -> None:
    first = begin(store, consul, MANY)
    control.abort(store, COMMAND)
    upgrade(store, *FLEET)
    # One who waits goes on with what it began, and with the end that it was to make of it.
    waiting = make_pass(store, PassRequest("2", fleet=FLEET, since=first.index, converge=True))
    assert (waiting.plan.complete, waiting.plan.scope_done, waiting.plan.can_move) == (False, False, False)
    assert (ledger(consul)["state"], gates(consul)["global"]) == ("aborted", "False")


def test_the_previous_version_is_where_all_hosts_were_even_if_the_ledger_is_not_complete(
    store: Store, consul: RawKV
) -> None:
    begin(store, consul, MANY)
    upgrade(store, *FLEET)
    assert ledger(consul)["state"] == "running"
    make_pass(store, PassRequest("3", MANY, fleet=FLEET, replace="2"))
    assert ledger(consul)["previous_version"] == "2"


# Stages


def test_a_finished_stage_that_is_dropped_takes_no_other_one_with_it(store: Store, consul: RawKV) -> None:
    begin(store, consul, {**MANY, "stages": [A, B]})
    upgrade(store, "compute1")
    go_on(store)
    upgrade(store, "compute2")
    assert go_on(store) == []
    outcome = make_pass(store, PassRequest("2", {**MANY, "stages": [B]}, fleet=FLEET))
    assert (outcome.admissions, outcome.plan.stage, outcome.plan.needs_approval) == ([], "b", True)
    control.approve(store, COMMAND)
    assert go_on(store) == ["compute3", "compute4"]


def test_a_stage_that_is_put_before_the_current_one_is_obeyed(store: Store, consul: RawKV) -> None:
    begin(store, consul, {**ONE, "stages": [A, B]})
    upgrade(store, "compute1")
    assert go_on(store) == ["compute2"]
    upgrade(store, "compute2")
    other = {"name": "x", "hosts": ["compute3"], "approve": True}
    outcome = make_pass(store, PassRequest("2", {**ONE, "stages": [A, other, B]}, fleet=FLEET))
    assert (outcome.plan.stage, [one.host for one in outcome.admissions]) == ("x", ["compute3"])
    upgrade(store, "compute3")
    assert go_on(store) == []


def test_an_approval_is_of_the_stages_as_they_were(store: Store, consul: RawKV) -> None:
    canary = {"name": "canary", "hosts": 1, "approve": True}
    begin(store, consul, {**MANY, "stages": [canary]})
    upgrade(store, "compute1")
    go_on(store)
    control.approve(store, COMMAND)
    rules = {**MANY, "stages": [{**canary, "hosts": 3}]}
    dry = make_pass(store, PassRequest("2", rules, fleet=FLEET), dry=True)
    assert "upgrade/approval/canary" in [change.key for change in dry.changes]
    assert go_on(store, rules) == ["compute2", "compute3"]
    assert not consul.tree("upgrade/approval/")
    upgrade(store, "compute2", "compute3")
    assert go_on(store) == []
    control.approve(store, COMMAND)
    # What comes later changes nothing of a stage that is done and approved.
    more = {"name": "more", "hosts": ["compute4"], "approve": True}
    assert go_on(store, {**MANY, "stages": [*rules["stages"], more]}) == ["compute4"]
    assert list(consul.tree("upgrade/approval/")) == ["upgrade/approval/canary"]


# Health


def test_a_rollback_does_not_wait_for_hosts_that_never_left(store: Store, consul: RawKV) -> None:
    begin(store, consul, {**ONE, "health": {"soak": 3600}})
    write_report(store, HostReport("compute1", "2", "started"))
    write_report(store, HostReport("compute1", "2", "failed", error="no disk"))
    control.roll_back(store, COMMAND)
    outcome = make_pass(store, PassRequest(fleet=FLEET))
    assert [one.host for one in outcome.admissions] == ["compute1"]
    assert {outcome.plan.hosts[host].state for host in ("compute2", "compute3", "compute4")} == {"upgraded"}


def test_no_host_waits_for_hosts_whose_checks_failed_before_a_rollback(
    store: Store, consul: RawKV, agent: Agent
) -> None:
    def check(host: str, status: str) -> None:
        node = {"Node": host, "Address": "127.0.0.9", "Check": {"Name": "nova", "CheckID": "nova", "Status": status}}
        assert agent.kv.call("PUT", "catalog/register", node)[0] == 200

    for host in FLEET:
        check(host, "passing")
    begin(store, consul, {**ONE, "health": {"consul_checks": ["nova"]}})
    upgrade(store, "compute1")
    check("compute1", "critical")
    check("compute4", "critical")
    control.roll_back(store, COMMAND)
    assert ledger(consul)["broken"] == ["compute4"]
    outcome = make_pass(store, PassRequest(fleet=FLEET))
    assert [one.host for one in outcome.admissions] == ["compute1"]
    assert outcome.plan.hosts["compute4"].reason == "was upgraded, and now its check nova is critical"


def test_a_rollout_that_is_restarted_goes_on_with_the_soaks_of_its_hosts(
    store: Store, consul: RawKV, request: pytest.FixtureRequest
) -> None:
    begin(store, consul, {**ONE, "health": {"soak": 600}})
    upgrade(store, "compute1")
    make_pass(store, PassRequest("2", fleet=FLEET))

    class Ahead(runtime.Runtime):
        def now(self) -> float:
            return time.time() + 601

    before = runtime.use(Ahead())
    request.addfinalizer(lambda: runtime.use(before))
    assert [one.host for one in make_pass(store, PassRequest("2", fleet=FLEET)).admissions] == ["compute2"]
    upgrade(store, "compute2")
    make_pass(store, PassRequest("2", fleet=FLEET))
    control.abort(store, COMMAND)
    # What has soaked does not soak again, and what soaks goes on.
    outcome = make_pass(store, PassRequest("2", fleet=FLEET, restart=True))
    assert (outcome.admissions, outcome.plan.hosts["compute2"].soaking) == ([], True)
    assert outcome.plan.hosts["compute1"].state == "upgraded"


# What one host does for all


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_task_group_that_still_runs_is_not_begun_on_another_host(store: Store, consul: RawKV, version: str) -> None:
    begin(store, consul, MANY)
    session = leases.open_session(store)
    assert leases.acquire(store, session, "compute1") is None
    assert begin_once(store, session, "2", "upgrade/schema", "compute1", 0)
    assert begin_once(store, session, "2", "prepare/schema", "compute1", 0)
    end_once(store, session, "2", "prepare/schema", "compute1")

    control.abort(store, COMMAND)
    make_pass(store, PassRequest(version, MANY, fleet=FLEET, restart=True))

    running = read_state(store, "2", "upgrade/schema")
    assert running is not None
    assert (running.state, running.host) == ("running", "compute1")
    other = leases.open_session(store)
    assert not begin_once(store, other, "2", "upgrade/schema", "compute2", running.index)
    end_once(store, session, "2", "upgrade/schema", "compute1")
    if version == "2":
        # It begins again, and so does what had ended.
        assert read_state(store, "2", "prepare/schema") is None
        leases.release(store, session, "compute1")
        control.abort(store, COMMAND)
        make_pass(store, PassRequest("2", MANY, fleet=FLEET, restart=True))
        assert read_state(store, "2", "upgrade/schema") is None
