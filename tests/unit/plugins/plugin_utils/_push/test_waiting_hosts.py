# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The passes of a push run keep the fleet in memory, and plan what passes that read everything plan."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.reconcile import make_plan
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store_pool import StorePool
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import UPGRADE, PushRun, RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.waiting_hosts import RunAdmission
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.run_handover import RunHandover
from job_fleet import FLEET, begin, complete_fleet, reports
from memory_consul import MemoryConsul

HOSTS = tuple(FLEET)


@pytest.fixture
def consul() -> Iterator[MemoryConsul]:
    with complete_fleet().in_place() as found:
        yield found


def begun(store: Store, version: str, cap: int = 2) -> RunAdmission:
    """Begin a rollout or a job; return what admits the hosts of its push run."""
    rules = {"rolling_rules": {"global": cap}, "health": {"progress_deadline": 300}}
    if version.startswith("job/"):
        begin(store, rules=rules, limit=[])
    else:
        make_pass(store, PassRequest(version, rules, fleet=FLEET, limit=[]))
    groups = {role: (RunTaskGroup(f"upgrade/{role}", "upgrade", role, once=False),) for role in ("web", "db")}
    run = PushRun(store.settings, version, UPGRADE, FLEET, groups, HOSTS)
    pool = StorePool(store.settings, is_job=run.is_job)
    quiet: Any = SimpleNamespace(changed=threading.Condition(), start=lambda *_: None, count=lambda *_: 0)
    handover = mock.create_autospec(RunHandover, instance=True)
    return RunAdmission(run, pool, lambda _host: None, lambda _hosts: None, handover, quiet)


def planned(plan: Plan) -> dict[str, Any]:
    return {
        "hosts": dict(plan.hosts),
        "admissions": plan.admissions,
        "waves": [*plan.waves],
        "unfinished": plan.unfinished,
        "blocker": plan.blocker,
        "can_move": plan.can_move,
    }


@pytest.mark.parametrize("version", ["2.1", "job/j1"])
def test_a_pass_reads_and_plans_only_what_has_changed_since_the_last_one(version: str, consul: MemoryConsul) -> None:
    admission = begun(consul.store(), version)
    first, second = admission._make_pass([]).outcome, admission._make_pass(["web1"]).outcome
    consul.write("upgrade/hold/host/web3", {"reason": "disk", "by": "ann", "at": 1})
    third = admission._make_pass([]).outcome
    assert [one.host for one in second.admissions] == ["web1"]
    assert third.hosts()["web3"].state == "held"
    for one in (second, third):
        assert one.members is first.members
        of_versions = [found.snapshot.versions or found.snapshot for found in (first, one)]
        assert all(of_versions[0].records[host] is of_versions[1].records[host] for host in HOSTS)
    states = [one.plan.fleet.hosts for one in (second, third) if one.plan.fleet is not None]
    # The states of a job also depend on gates and reports of versions, so they are read again.
    assert (states[0]["web2"] is states[1]["web2"]) == (not version.startswith("job/"))


@pytest.mark.parametrize("version", ["2.1", "job/j1"])
@pytest.mark.parametrize("seed", range(6))
def test_passes_with_changing_limits_plan_what_passes_without_memory_plan(
    version: str, seed: int, consul: MemoryConsul, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [time.time()]
    monkeypatch.setattr(runtime, "now", lambda: clock[0])
    store, chance, is_job = consul.store(), random.Random(seed), version.startswith("job/")
    admission = begun(store, version)
    for _step in range(25):
        clock[0] += chance.choice((0, 1, 200))
        host, what = chance.choice(HOSTS), chance.randrange(6)
        if what < 3:
            state = ("started", "upgraded", "failed")[what]
            error = "disk" if state == "failed" else None
            if not is_job or chance.random() < 0.3:
                write_report(store, HostReport(host, "2.0" if is_job else version, state, error=error))
            else:
                reports(consul, host, "done" if state == "upgraded" else state, error=error)
        elif what == 3:
            set_holds(store, HoldTargets(hosts=[host], fleet=FLEET), "disk")
        elif what == 4:
            end_holds(store, HoldTargets(hosts=[host], fleet=FLEET))
        else:
            consul.index += 1
            consul.keys.pop(f"upgrade/drivers/{host}", None) or consul.write(f"upgrade/drivers/{host}", {})
        limit, other = ([one for one in HOSTS if chance.random() < 0.5] for _each in range(2))
        request = PassRequest(version, fleet=FLEET, limit=limit, since=1)
        expected = make_pass(store, request, dry=True)
        found = admission._make_pass(limit)
        outcome = found.outcome
        assert [one.host for one in outcome.admissions] == [one.host for one in expected.admissions]
        assert {host: view.state for host, view in found.hosts.items()} == {
            host: view.state for host, view in expected.hosts().items()
        }
        again = make_plan(outcome.snapshot, outcome.members, outcome.rules, other)
        assert planned(found.plan_for(other)) == planned(again)
        # Nothing is left to write, so both plan from the same keys.
        alike = make_pass(store, PassRequest(version, fleet=FLEET, limit=[], since=1), dry=True)
        assert planned(admission._make_pass([]).outcome.plan) == planned(alike.plan)
