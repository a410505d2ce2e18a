# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planner killed with -9 between its transactions, and fleets larger than one transaction."""

from __future__ import annotations

import signal

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.opened_gates import MOST_ADMISSIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, opened, seed
from integration.support.processes.nodes import open_and_die, spawn
from integration.support.processes.watcher import Timeline, read
from integration.support.runs.playbook import Runner, plan

pytestmark = pytest.mark.one_release

FLEET = names(compute=200)
CAP = 150
REQUEST = PassRequest(version="2", rules={"rolling_rules": {"global": CAP}})


def test_200_hosts_are_admitted_in_one_pass(run: Runner, consul: RawKV) -> None:
    seed(consul, FLEET)
    (result,) = run([plan(version="2", instructions={"rolling_rules": {"global": 200}})])
    assert (result["admitted"], [one["host"] for one in result["transitions"]]) == (200, list(FLEET))
    # All changes are in diff mode.
    assert len(result["diff"]["after"].splitlines()) == 100
    assert gates(consul) == {"global": "False", **{f"host/{host}": "True" for host in FLEET}}
    events = history(consul)
    assert [event["what"] for event in events] == ["begin", *["open"] * 7]
    assert [len(event["hosts"]) for event in events[1:]] == [*[MOST_ADMISSIONS] * 6, 200 - 6 * MOST_ADMISSIONS]
    assert result["epoch"] == ledger(consul)["epoch"] == 8


@pytest.mark.parametrize("count", [50, 500])
def test_a_pass_costs_one_request_to_read_and_one_for_30_openings(store: Store, consul: RawKV, count: int) -> None:
    seed(consul, names(compute=count), gates={"global": "False"})
    consul.put("upgrade/hosts/compute1", '{"version": "1", "state": "upgraded"}')
    cap = {"rolling_rules": {"global": count}}
    make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 0}}))
    before = store.client.requests
    outcome = make_pass(store, PassRequest(rules=cap))
    assert len(outcome.admissions) == count
    # One to read, one for the new rules, then the admissions.
    assert store.client.requests - before == 1 + 1 + -(-count // MOST_ADMISSIONS)
    before = store.client.requests
    assert not make_pass(store, PassRequest()).admissions
    assert store.client.requests - before == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("at", "after"), [(1, False), (1, True), (2, True), (3, False), (3, True), (4, True)])
def test_a_killed_planner_leaves_a_state_that_the_next_one_goes_on_with(
    store: Store, consul: RawKV, at: int, after: bool
) -> None:
    seed(consul, FLEET)
    victim = spawn(open_and_die, store.settings, REQUEST, at, after=after)
    victim.join(20)
    assert victim.exitcode == -signal.SIGKILL
    written = at if after else at - 1
    assert len(history(consul)) == written
    hosts = list(FLEET)[: min(CAP, max(0, written - 1) * MOST_ADMISSIONS)]
    assert sorted(opened(history(consul))) == sorted(hosts)
    expected = {"global": "False"} if written else {}
    assert gates(consul) == expected | {f"host/{host}": "True" for host in hosts}

    outcome = make_pass(store, REQUEST)
    assert [one.host for one in outcome.admissions] == list(FLEET)[len(hosts) : CAP]
    assert sorted(opened(history(consul))) == sorted(list(FLEET)[:CAP])
    for host in list(FLEET)[:10]:
        write_report(store, HostReport(host, "2", "upgraded"))
    assert len(make_pass(store, REQUEST).admissions) == 10
    _index, keys = read(consul)
    assert Timeline(keys, "2", FLEET).most_at_once(["compute"]) == CAP
    assert len(history(consul)) == ledger(consul)["epoch"]
