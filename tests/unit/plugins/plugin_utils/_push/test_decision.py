# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a push run admits, by what a pass found."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.decision import PassView, decide, decide_finally
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import UPGRADE, PushRun
from job_fleet import FLEET, begin, complete_fleet, job, reports
from memory_consul import MemoryConsul


@pytest.mark.parametrize("has_started", [False, True])
def test_no_host_begins_a_job_that_has_expired(has_started: bool) -> None:
    with complete_fleet().in_place() as consul:
        store = consul.store()
        hosts = tuple(FLEET)
        begin(store, job(by_ansible=True), limit=hosts)
        if has_started:
            reports(consul, "web1", "started")
        # The run was killed after its gate was opened, and continues the next day.
        consul.write("upgrade/ledger", {**consul.data("upgrade/ledger"), "expires": int(time.time()) - 1})
        found = make_pass(store, PassRequest(fleet=FLEET, limit=hosts))
        run = PushRun(store.settings, "job/j1", UPGRADE, FLEET, {}, hosts, command="restart.yml")
        decision = decide_finally(run, PassView(found, found.hosts(), 0), "web1")
    assert decision.admitted is has_started
    assert has_started or "expired" in decision.reason


@pytest.mark.parametrize("has_started", [False, True])
@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_host_that_was_admitted_begins_in_no_pause(state: str, has_started: bool) -> None:
    fleet = {"web1": "web", "web2": "web"}
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}, fleet=fleet))
        if has_started:
            consul.write("upgrade/hosts/web1", {"version": "2", "state": "started"})
        # The run was killed after the admission, and an operator paused the rollout.
        consul.write("upgrade/ledger", {**consul.data("upgrade/ledger"), "state": state})
        found = make_pass(store, PassRequest(fleet=fleet, limit=["web1"]))
        run = PushRun(store.settings, "2", UPGRADE, fleet, {}, tuple(fleet))
        decision = decide(run, PassView(found, found.hosts(), 0), "web1")
    assert (decision is not None and decision.admitted) is (has_started or state == "running")
    assert decision is None or decision.admitted


def test_a_host_that_joins_after_a_rollout_is_admitted_only_once_it_begins_again() -> None:
    fleet = {"web1": "web", "web2": "web", "web3": "web"}
    rules = {"rolling_rules": {"global": 1}}
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        consul.write("running/versions/2/web1", "1")
        make_pass(store, PassRequest("2", rules, fleet={"web1": "web"}, converge=True))
        assert consul.keys["config_state/enable_puppet/global"] == b"True"
        run = PushRun(store.settings, "2", UPGRADE, fleet, {}, tuple(fleet))

        def decided(**more: Any) -> list[str]:
            found = make_pass(store, PassRequest("2", fleet=fleet, **more))
            view = PassView(found, found.hosts(), 0)
            return [host for host in ("web2", "web3") if decide_finally(run, view, host).admitted]

        assert decided(limit=["web2"]) == []
        assert decided(restart=True) == ["web2"]


@pytest.mark.parametrize("has_started", [False, True])
def test_a_host_that_was_admitted_does_not_begin_once_the_budget_of_its_role_is_exhausted(has_started: bool) -> None:
    fleet = {"web1": "web", "web2": "web"}
    rules = {"rolling_rules": {"global": 2}, "failure_rules": {"roles": {"web": 1}}}
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        make_pass(store, PassRequest("2", rules, fleet=fleet))
        # The run died after web1 had failed. web2 was admitted too.
        consul.write("upgrade/hosts/web1", {"version": "2", "state": "failed", "error": "disk"})
        if has_started:
            consul.write("upgrade/hosts/web2", {"version": "2", "state": "started"})
        found = make_pass(store, PassRequest(fleet=fleet, limit=["web2"]))
        run = PushRun(store.settings, "2", UPGRADE, fleet, {}, tuple(fleet))
        decision = decide_finally(run, PassView(found, found.hosts(), 0), "web2")
    assert decision.admitted is has_started
    assert has_started or "failure_rules.roles.web" in decision.reason


def test_a_rollout_that_another_tool_began_without_a_gate_admits_no_host_beyond_the_rules() -> None:
    fleet = {"web1": "web", "web2": "web"}
    rules = {"rolling_rules": {"global": 1}}
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        consul.write("current_version", "2")
        run = PushRun(store.settings, "2", UPGRADE, fleet, {}, tuple(fleet))

        def decided(**more: Any) -> list[str]:
            found = make_pass(store, PassRequest("2", rules, fleet=fleet, limit=list(fleet), **more))
            view = PassView(found, found.hosts(), 0)
            return [host for host in fleet if decide_finally(run, view, host).admitted]

        assert decided() == []
        assert decided(restart=True) == ["web1"]
