# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Passes for the post-upgrade tasks: the same health and the same budgets as in the upgrade."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._host.start import Start, start
from ansible_collections.convoy.upgrade.plugins.module_utils._passes import post_upgrade_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.post_upgrade_pass import make_post_upgrade_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.command import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, record, seed
from integration.support.runs.commands import UNLIMITED

pytestmark = pytest.mark.one_release

FLEET = names(compute=4)
RULES: dict[str, Any] = {
    "rolling_rules": {"global": 2},
    "health": {"consul_checks": ["nova"]},
    "failure_rules": {"fleet": 1},
}


@pytest.fixture
def done(store: Store, consul: RawKV) -> Store:
    """A fleet that is upgraded and well."""
    seed(consul, FLEET)
    for host in FLEET:
        check(consul, host, "passing")
    make_pass(store, PassRequest("2", {**RULES, **UNLIMITED}, fleet=FLEET))
    for host in FLEET:
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))
    assert make_pass(store, PassRequest("2", RULES, fleet=FLEET)).plan.complete
    return store


def check(consul: RawKV, host: str, status: str) -> None:
    one = {"Node": host, "CheckID": "nova", "Name": "nova", "Status": status}
    node = {"Node": host, "Address": "127.0.0.1", "Check": one}
    assert consul.call("PUT", "catalog/register", json.dumps(node).encode())[0] == 200


def put_post(consul: RawKV, host: str, post: str) -> None:
    """Write where a host is with its post-upgrade tasks, as the push daemon does."""
    consul.put(f"upgrade/hosts/{host}", json.dumps({**record(consul, host), "post": post}))


def go(store: Store) -> PassResult:
    return make_post_upgrade_pass(store, PassRequest("2", fleet=FLEET), {"compute"})


def opened(outcome: PassResult) -> list[str]:
    return [one.host for one in outcome.admissions]


def test_if_memory_runs_out_the_cause_is_named(done: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_arguments: object) -> None:
        raise MemoryError

    before = consul.tree()
    monkeypatch.setattr(post_upgrade_pass, "make_plan", fill)
    with pytest.raises(UpgradeError, match="Memory ran out while the post-upgrade tasks were planned") as raised:
        go(done)
    assert raised.value.code == "out_of_memory"
    # Other limits, such as MemoryMax of a service, end the process without an error.
    assert "(ulimit -v, LimitAS of a service)" in raised.value.message
    assert consul.tree() == before


def test_a_run_that_does_not_know_a_host_that_has_joined_admits_none(done: Store, consul: RawKV) -> None:
    joined = make_pass(done, PassRequest("2", fleet={**FLEET, "compute9": "compute"}))
    assert [one.host for one in joined.admissions] == ["compute9"]
    before = consul.tree()
    with pytest.raises(
        UpgradeError, match=r"No host is admitted: role compute: 4 of its 5 hosts have reported"
    ) as caught:
        go(done)
    assert caught.value.code == "fleet_too_small"
    assert consul.tree() == before


def test_a_budget_exhausted_by_lost_health_admits_no_host(done: Store, consul: RawKV) -> None:
    check(consul, "compute3", "critical")
    before = consul.tree()
    outcome = go(done)
    assert opened(outcome) == []
    assert outcome.plan.blocker is not None
    assert outcome.plan.blocker.code == "failure_budget"
    assert outcome.plan.hosts["compute3"].reason == "was upgraded, and now its check nova is critical"
    assert consul.tree() == before
    check(consul, "compute3", "passing")
    for host in FLEET:
        assert consul.delete(f"upgrade/wake/{host}")
    assert opened(go(done)) == ["compute1", "compute2"]
    # Pull hosts wait for that.
    assert [consul.get(f"upgrade/wake/{host}") is not None for host in ("compute1", "compute2", "compute4")] == [
        True,
        True,
        False,
    ]


def test_a_host_that_is_at_its_tasks_spends_no_budget_and_keeps_its_slot_until_it_is_well(
    done: Store, consul: RawKV
) -> None:
    assert opened(go(done)) == ["compute1", "compute2"]
    # It reboots.
    check(consul, "compute1", "critical")
    put_post(consul, "compute1", "started")
    outcome = go(done)
    assert (opened(outcome), outcome.plan.blocker) == ([], None)
    put_post(consul, "compute2", "done")
    assert opened(go(done)) == ["compute3"]
    # It is back, and its service is not.
    put_post(consul, "compute1", "done")
    outcome = go(done)
    assert (opened(outcome), outcome.plan.blocker) == ([], None)
    view = outcome.plan.hosts["compute1"]
    assert (view.state, view.soaking, view.reason) == ("upgrading", True, "reported 2, and its check nova is critical")
    check(consul, "compute1", "passing")
    assert opened(go(done)) == ["compute4"]


def test_the_names_of_very_many_hosts_at_work_are_left_out_and_the_cap_holds_all_the_same(
    done: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_upgrade_pass, "_MOST_AT_WORK", 0)

    def newest(outcome: PassResult) -> list[str] | None:
        assert outcome.ledger is not None
        return next(iter(done.history(outcome.ledger))).get("at_work")

    outcome = go(done)
    assert (opened(outcome), newest(outcome)) == (["compute1", "compute2"], [])
    for host in ("compute1", "compute2"):
        put_post(consul, host, "started")
    assert opened(go(done)) == []
    put_post(consul, "compute2", "done")
    outcome = go(done)
    assert (opened(outcome), newest(outcome)) == (["compute3"], None)
    put_post(consul, "compute3", "started")
    assert opened(go(done)) == []
    put_post(consul, "compute1", "done")
    put_post(consul, "compute3", "done")
    outcome = go(done)
    assert (opened(outcome), newest(outcome)) == (["compute4"], [])


def test_a_rollout_is_over_when_the_tasks_after_it_are_done(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    rules = {"rolling_rules": {"global": 9}}
    make_pass(store, PassRequest("2", rules, fleet=FLEET, post_upgrade=["compute"]))
    for host in FLEET:
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))
    outcome = make_pass(store, PassRequest("2", fleet=FLEET, converge=True))
    assert outcome.plan.complete
    assert outcome.plan.post_upgrade == tuple(FLEET)
    # The gates stay closed, and no other rollout begins, until the tasks are done.
    assert consul.get("config_state/enable_puppet/global") == b"False"
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest("3", rules, fleet=FLEET))
    assert caught.value.code == "post_upgrade_pending"
    assert "Run ansible-playbook convoy.upgrade.post_upgrade -e version=2." in caught.value.message
    assert make_pass(store, PassRequest("3", rules, fleet=FLEET, restart=True), dry=True).begun
    for host in FLEET:
        put_post(consul, host, "done")
    assert make_pass(store, PassRequest("2", fleet=FLEET, converge=True)).plan.post_upgrade == ()
    assert consul.get("config_state/enable_puppet/global") == b"True"
    assert "post_upgrade" not in ledger(consul)
    assert make_pass(store, PassRequest("3", rules, fleet=FLEET)).begun


@pytest.mark.parametrize("how", ["again", "back"])
def test_a_host_that_was_upgraded_before_the_rollout_began_again_may_start_its_tasks(
    how: str, store: Store, consul: RawKV
) -> None:
    """Its gate was removed, and no planner admits it to an upgrade, as it has the version."""
    fleet = names(compute=2)
    seed(consul, fleet, "1")
    rules = {"rolling_rules": {"global": 1}}
    make_pass(store, PassRequest("2", rules, fleet=fleet, post_upgrade=["compute"]))
    _upgrade(store, "compute1", "2")
    if how == "again":
        version, left = "2", "compute2"
        control.abort(store, Command(fleet=fleet))
        make_pass(store, PassRequest("2", rules, fleet=fleet, post_upgrade=["compute"], restart=True))
    else:
        version, left = "1", "compute1"
        control.roll_back(store, Command(fleet=fleet))
        make_pass(store, PassRequest("1", rules, fleet=fleet, post_upgrade=["compute"]))
    _upgrade(store, left, version)
    for _host in fleet:
        outcome = make_post_upgrade_pass(store, PassRequest(version, fleet=fleet), {"compute"})
        (host,) = opened(outcome)
        request = Start(host, "compute", version, is_post_upgrade=True)
        assert start(store, request, lambda before: replace(before, post="started")).record.post == "started"
        put_post(consul, host, "done")
    assert make_pass(store, PassRequest(version, fleet=fleet, converge=True)).plan.post_upgrade == ()
    assert consul.get("config_state/enable_puppet/global") == b"True"
    assert consul.tree("config_state/enable_puppet/host/") == {}


def test_a_host_that_was_put_back_while_its_upgrade_ended_may_start_its_tasks(done: Store, consul: RawKV) -> None:
    gate = "config_state/enable_puppet/host/compute1"
    consul.put(gate, "False")
    assert opened(go(done)) == ["compute1", "compute2"]
    assert consul.get(gate) == b"True"


@pytest.mark.parametrize("scope", ["role/compute", "host/compute4", "global"])
def test_a_gate_that_cannot_be_read_admits_no_host(scope: str, done: Store, consul: RawKV) -> None:
    consul.put(f"config_state/enable_puppet/{scope}", "Flase")
    before = consul.tree()
    with pytest.raises(
        UpgradeError, match=f"No host is admitted: The gate config_state/enable_puppet/{scope} holds"
    ) as caught:
        go(done)
    assert caught.value.code == "unreadable_gate"
    assert consul.tree() == before


def test_a_hold_of_a_former_role_holds_the_tasks_too(done: Store, consul: RawKV) -> None:
    for role in ("spare", "compute"):
        write_report(done, HostReport("compute1", "", "delivered", role=role))
    consul.put("upgrade/hold/role/spare", json.dumps({"reason": "disk", "by": "ann", "at": 1}))
    outcome = go(done)
    assert opened(outcome) == ["compute2", "compute3"]
    view = outcome.plan.hosts["compute1"]
    assert (view.state, view.held) == ("held", True)
    assert "a hold of its former role spare" in view.reason
    assert record(consul, "compute1").get("post") is None


def _upgrade(store: Store, host: str, version: str) -> None:
    write_report(store, HostReport(host, version, "started", role="compute"))
    write_report(store, HostReport(host, version, "upgraded"))


def test_tasks_that_fail_spend_the_budget(done: Store, consul: RawKV) -> None:
    assert opened(go(done)) == ["compute1", "compute2"]
    put_post(consul, "compute1", "failed")
    put_post(consul, "compute2", "done")
    outcome = go(done)
    assert opened(outcome) == []
    assert outcome.plan.blocker is not None


def test_a_host_that_never_was_well_is_not_upgraded(done: Store, consul: RawKV) -> None:
    check(consul, "compute4", "critical")
    assert consul.delete("upgrade/health/compute4")
    with pytest.raises(UpgradeError, match="1 of 4 hosts are not upgraded to 2, such as compute4, so") as caught:
        go(done)
    assert caught.value.code == "not_complete"


def test_a_host_that_planners_admitted_goes_on_and_one_that_only_says_so_does_not(done: Store, consul: RawKV) -> None:
    assert opened(go(done)) == ["compute1", "compute2"]
    put_post(consul, "compute1", "started")
    put_post(consul, "compute3", "started")
    outcome = go(done)
    assert opened(outcome) == []
    hosts = outcome.plan.hosts
    assert [hosts[f"compute{number}"].unadmitted for number in (1, 2, 3)] == [False, False, True]
    assert "was not admitted; it keeps a slot" in hosts["compute3"].reason
    assert outcome.plan.can_move
    for number in (1, 2):
        put_post(consul, f"compute{number}", "done")
    outcome = go(done)
    assert opened(outcome) == ["compute4"]
    put_post(consul, "compute4", "done")
    assert not go(done).plan.can_move


def test_a_host_that_was_done_or_retried_since_is_not_admitted_again_by_its_own_record(
    done: Store, consul: RawKV
) -> None:
    assert opened(go(done)) == ["compute1", "compute2"]
    put_post(consul, "compute1", "done")
    assert opened(go(done)) == ["compute3"]
    # With its own token it says that it is at work, beside the host that got its slot.
    put_post(consul, "compute1", "started")
    put_post(consul, "compute2", "started")
    hosts = go(done).plan.hosts
    assert [hosts[f"compute{number}"].unadmitted for number in (1, 2, 3)] == [True, False, False]
    put_post(consul, "compute1", "done")
    # The same after an operator has retried it.
    put_post(consul, "compute2", "failed")
    control.retry(done, control.Command(fleet=FLEET), ["compute2"])
    put_post(consul, "compute2", "started")
    hosts = go(done).plan.hosts
    assert [hosts[f"compute{number}"].unadmitted for number in (2, 3)] == [True, False]


def test_a_host_that_repeats_failed_tasks_by_itself_is_still_admitted(done: Store, consul: RawKV) -> None:
    make_pass(done, PassRequest("2", {**RULES, "failure_rules": {"fleet": 3}}, fleet=FLEET))
    assert opened(go(done)) == ["compute1", "compute2"]
    put_post(consul, "compute1", "failed")
    put_post(consul, "compute2", "done")
    assert opened(go(done)) == ["compute3"]
    # As the agent of a pull host does.
    put_post(consul, "compute1", "started")
    hosts = go(done).plan.hosts
    assert [hosts[f"compute{number}"].unadmitted for number in (1, 3)] == [False, False]


def test_an_admission_that_the_history_has_no_more_does_not_count(done: Store, consul: RawKV) -> None:
    assert opened(go(done)) == ["compute1", "compute2"]
    newest = max(consul.tree("upgrade/history/"), key=lambda key: int(key.rpartition("/")[2]))
    consul.delete(newest)
    assert [go(done).plan.hosts[host].unadmitted for host in ("compute1", "compute2")] == [True, True]
