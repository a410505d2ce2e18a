# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts take slots of a job: those that run it, fail in it, work on something else, or failed in an upgrade."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.state_names import NOT_AGAIN
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.explain import explain
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from fleets import UNLIMITED
from job_fleet import FLEET, RULES, admitted, begin, go_on, job, reports
from memory_consul import MemoryConsul


def states(store: Store, one: str | None = None) -> dict[str, str]:
    return {host: view.state for host, view in read_fleet(store, fleet=FLEET, job=one).plan.hosts.items()}


def test_a_failure_takes_its_slot_spends_the_budget_and_is_retried(store: Store, consul: MemoryConsul) -> None:
    begin(store, rules={**RULES, "failure_rules": {"fleet": 1}})
    reports(consul, "web1", "failed", exit_status=3, error="restart: exit status 3: disk full")
    found = go_on(store)
    assert not found.admissions and found.plan.blocker is not None and found.plan.blocker.code == "failure_budget"
    assert found.hosts()["web1"].reason == "failed: restart: exit status 3: disk full"
    assert control.retry(store, Command(fleet=FLEET)).hosts == ["web1"]
    record = consul.data("upgrade/job_records/web1")
    assert (record["state"], record["run"]) == ("retried", "r") and "error" not in record
    assert consul.keys["upgrade/job_gates/host/web1"] == b"False"
    assert [one.host for one in go_on(store).admissions] == ["web1"]
    # The rules of the job do not outlast it.
    assert consul.data("upgrade/ledger")["before"]["instructions"] == RULES


def test_a_lost_host_is_lost_and_never_done(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    reports(consul, "web1", "lost", error="lost: the node restarted, so its result is unknown")
    found = go_on(store)
    assert found.hosts()["web1"].state == "lost"
    assert found.hosts()["web1"].reason == "the node restarted, so its result is unknown"
    assert not found.admissions


def test_hosts_of_the_one_take_slots_of_the_other(store: Store, consul: MemoryConsul) -> None:
    at = int(time.time())
    consul.write("upgrade/hosts/web2", {"version": "2.0", "state": "started", "times": {"started": at}})
    begin(store)
    assert admitted(consul) == ["db1"]
    assert "has not finished an upgrade to 2.0" in read_fleet(store, fleet=FLEET).plan.hosts["web2"].reason
    consul.write("upgrade/hosts/web2", {"version": "2.0", "state": "upgraded", "times": {"upgraded": at}})
    assert [one.host for one in go_on(store).admissions] == ["web1"]
    reports(consul, "web1", "started")
    control.abort(store, Command(fleet=FLEET))
    found = make_pass(store, PassRequest(version="2.1", fleet=FLEET))
    # db1 had not started its job, and can't any more.
    assert [one.host for one in found.admissions] == ["db1"]
    view = found.hosts()["web1"]
    assert view.state == "upgrading" and "has not finished the job j1" in view.reason and not view.unadmitted
    assert "If nothing works on it any more, run ansible-playbook convoy.upgrade.retry -e host=web1" in view.reason
    reports(consul, "web1", "lost")
    assert [one.host for one in go_on(store).admissions] == ["web1"]


def test_an_operator_ends_an_earlier_job_of_which_nobody_reports_the_end(
    store: Store, consul: MemoryConsul, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store)
    reports(consul, "web1", "started")
    control.abort(store, Command(fleet=FLEET))
    rules = {**RULES, "health": {"progress_deadline": 60}}
    make_pass(store, PassRequest(version="2.1", rules=rules, fleet=FLEET))
    consul.write("upgrade/hosts/db1", {"version": "2.1", "state": "upgraded", "times": {"upgraded": int(time.time())}})
    later = time.time() + 400
    monkeypatch.setattr("ansible_collections.convoy.upgrade.plugins.module_utils._common.runtime.now", lambda: later)
    found = read_fleet(store, fleet=FLEET)
    assert found.plan.hosts["web1"].state == "lost"
    need = next(one for one in operator_needs(found.snapshot, found.plan) if one.code == "broken_hosts")
    assert (
        "make sure that nothing of the job j1 runs there any more, then run ansible-playbook convoy.upgrade.retry -e host=web1."
        in " ".join(explain("web1", found.plan, found.snapshot))
    )
    # Without its name, a retry does not change it: what it began may still run.
    assert (need.playbook, need.variables) == ("status", {"host": "web1"})
    silent = control.retry(store, Command(fleet=FLEET))
    assert not silent.hosts
    assert silent.remarks[0] == (
        "web1 is not changed, because it has started the job j1 and not reported its end, so its command may still run. Once you have made "
        "sure that it does not, run ansible-playbook convoy.upgrade.retry -e host=web1."
    )
    before = consul.data("upgrade/job_records/web1")
    planned = control.retry(store, Command(fleet=FLEET), ["web1"], dry=True)
    assert (planned.hosts, consul.data("upgrade/job_records/web1")) == (["web1"], before)
    named = control.retry(store, Command(fleet=FLEET), ["web1"])
    assert named.hosts == ["web1"]
    assert named.remarks[0].startswith("web1 had begun the job j1 and reported no end. It now counts as ended")
    record = consul.data("upgrade/job_records/web1")
    assert (record["job"], record["state"], record["run"]) == ("j1", "retried", "r")
    assert "upgrade/hosts/web1" not in consul.keys or consul.data("upgrade/hosts/web1")["version"] != "2.1"
    view = read_fleet(store, fleet=FLEET).plan.hosts["web1"]
    assert not view.busy and view.state == "pending"
    assert "web1" in [one.host for one in go_on(store).admissions]


def test_a_host_on_which_a_run_works_is_not_retried(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    reports(consul, "web1", "started")
    control.abort(store, Command(fleet=FLEET))
    make_pass(store, PassRequest(version="2.1", fleet=FLEET))
    consul.write("upgrade/drivers/web1", {"by": "ann"})
    found = control.retry(store, Command(fleet=FLEET), ["web1"])
    assert not found.hosts
    assert found.remarks == [
        "web1 is not changed, because an Ansible run works on it. Wait for that run, or end it first."
    ]


@pytest.mark.parametrize("is_all", [False, True])
def test_a_command_that_is_not_repeatable_is_not_retried(is_all: bool, store: Store, consul: MemoryConsul) -> None:
    begin(store, rules=UNLIMITED)
    reports(consul, "web1", "failed", error="restart: exit status 3", repeatable=False)
    others = [host for host in FLEET if host != "web1"]
    for host in others if is_all else others[:1]:
        reports(consul, host, "done")
    found = go_on(store)
    (need,) = operator_needs(found.snapshot, found.plan)
    assert f"1 host failed: web1. {NOT_AGAIN}." in need.text
    assert (need.code, need.playbook) == ("broken_hosts", "abort" if is_all else "status")
    for hosts in (None, ["web1"]):
        retried = control.retry(store, Command(fleet=FLEET), hosts)
        assert not retried.hosts
        assert retried.remarks == [
            f"Not changed: web1. {NOT_AGAIN}. After the other hosts, run ansible-playbook convoy.upgrade.abort, and begin a new job with -e only=HOSTS."
        ]
    assert "begin a new job with -e only=web1" in " ".join(explain("web1", found.plan, found.snapshot))
    # What a host refused in one job says nothing of the next.
    record = found.snapshot.records["web1"]
    assert record.is_final("job/j1")
    assert not record.is_final("job/j2")
    # A host whose command may run again is retried.
    if not is_all:
        reports(consul, others[1], "failed")
        found = go_on(store)
        (need,) = operator_needs(found.snapshot, found.plan)
        assert (need.playbook, need.variables) == ("retry", {"host": others[1]})
        assert control.retry(store, Command(fleet=FLEET)).hosts == [others[1]]


def test_a_budget_that_commands_which_are_not_repeatable_have_exhausted_is_not_retried(
    store: Store, consul: MemoryConsul
) -> None:
    begin(store, rules={"rolling_rules": {"global": 2}, "failure_rules": {"fleet": 1}})
    reports(consul, "web1", "failed", error="restart: exit status 3", repeatable=False)
    found = go_on(store)
    waiting = next(host for host, view in found.plan.hosts.items() if view.state == "pending")
    (need,) = operator_needs(found.snapshot, found.plan)
    # Another host is still at work, but no other one begins.
    assert (need.code, need.playbook) == ("failure_budget", "abort")
    assert (
        f"The failure budget is exhausted, so no more hosts are admitted. {NOT_AGAIN}. Fix what failed, abort this job"
        in need.text
    )
    sentences = " ".join(explain(waiting, found.plan, found.snapshot))
    assert (
        "To change this: fix those hosts, run ansible-playbook convoy.upgrade.abort, and begin a new job" in sentences
    )
    # With a command that may run again, a retry helps.
    reports(consul, "web1", "failed", error="restart: exit status 3")
    found = go_on(store)
    (need,) = operator_needs(found.snapshot, found.plan)
    assert (need.code, need.playbook) == ("failure_budget", "retry")
    sentences = " ".join(explain(waiting, found.plan, found.snapshot))
    assert "To change this: fix those hosts, then run ansible-playbook convoy.upgrade.retry." in sentences


def test_a_host_that_works_on_an_earlier_job_is_admitted_to_the_next_one_like_any_other(
    store: Store, consul: MemoryConsul
) -> None:
    begin(store, job("j0"), rules=UNLIMITED)
    reports(consul, "web1", "started", "j0")
    control.abort(store, Command(fleet=FLEET))
    stages = [{"name": "canary", "hosts": ["web3"], "approve": True}]
    begin(store, rules={**RULES, "stages": stages})
    # It takes a slot, and its gate is closed.
    assert admitted(consul) == []
    found = read_fleet(store, fleet=FLEET)
    view = found.plan.hosts["web1"]
    assert view.busy and "has not finished the job j0" in view.reason
    assert "If nothing works on it any more, run ansible-playbook convoy.upgrade.retry -e host=web1" in view.reason
    assert operator_needs(found.snapshot, found.plan) == ()
    (need,) = operator_needs(replace(found.snapshot, now=found.snapshot.now + 400), found.plan)
    assert (need.code, need.playbook, need.variables) == ("earlier_job", "status", {"host": "web1"})
    assert (
        need.text
        == "1 host has not ended an earlier job, and takes a slot: web1. Wait for its end. If nothing works there any more, retry by name."
    )
    # A start that it reports by itself does not open its gate either.
    reports(consul, "web1", "started")
    assert not go_on(store).admissions
    assert read_fleet(store, fleet=FLEET).plan.hosts["web1"].unadmitted
    reports(consul, "web1", "done", "j0")
    assert [one.host for one in go_on(store).admissions] == ["web3"]
    reports(consul, "web3", "done")
    assert not go_on(store).admissions
    control.approve(store, Command(fleet=FLEET), "canary")
    assert [one.host for one in go_on(store).admissions] == ["db1", "web1"]


@pytest.mark.parametrize("state", ["upgraded", "failed"])
def test_a_host_that_may_start_an_upgrade_at_any_time_takes_a_slot(
    state: str, store: Store, consul: MemoryConsul
) -> None:
    # It does not run the version, and its gate is open: it joined the fleet later, or it failed and tries again.
    del consul.keys["running/versions/2.0/web1"]
    consul.write("upgrade/hosts/web1", {"version": "1.0" if state == "upgraded" else "2.0", "state": state})
    begin(store)
    assert admitted(consul) == ["db1"]
    view = read_fleet(store, fleet=FLEET)
    assert "so it may start at any time, and takes a slot without being admitted" in view.plan.hosts["web1"].reason
    assert operator_needs(view.snapshot, view.plan) == ()
    # A host that is there starts soon.
    (need,) = operator_needs(replace(view.snapshot, now=view.snapshot.now + 400), view.plan)
    # A hold does not free the slot of one that failed.
    expected = ("hold", "web1") if state == "upgraded" else ("abort", None)
    assert (need.code, need.playbook, need.variables.get("host")) == ("may_start", *expected)
    assert need.text.startswith(
        "1 host takes a slot of the job without working: web1. The gate for the upgrade to 2.0 is open"
    )
    set_holds(store, HoldTargets(hosts=["web1"]), "disk", "ann")
    after = go_on(store)
    if state == "upgraded":
        assert [one.host for one in after.admissions] == ["web2"]
        return
    # One that failed may be down, and no hold changes that.
    assert after.admissions == []
    assert "web1" in after.plan.hosts["web2"].reason
    reports(consul, "db1", "done")
    go_on(store)
    stuck = read_fleet(store, fleet=FLEET)
    (need,) = operator_needs(stuck.snapshot, stuck.plan)
    assert need.text.startswith(
        "No host can be admitted. web1 has not finished an upgrade and keeps its slot. Abort the job, and finish that first"
    )


@pytest.mark.parametrize("hold", [None, "upgrade/hold/role/db"])
def test_a_host_whose_role_has_changed_takes_a_slot_of_a_job_only_if_it_may_start_an_upgrade(
    hold: str | None, store: Store, consul: MemoryConsul
) -> None:
    # It does not run the version, so it would start by an open gate.
    del consul.keys["running/versions/2.0/web1"]
    record = {"version": "1.0", "state": "upgraded", "role": "web", "former_role": "db"}
    consul.write("upgrade/hosts/web1", record)
    if hold is None:
        # Planners may have opened this gate when they knew it as db.
        consul.write("config_state/enable_puppet/role/web", "True")
        consul.flags["config_state/enable_puppet/role/web"] = int(time.time())
    else:
        consul.write(hold, {"reason": "disk"})
    begin(store, job(hosts=("web1", "web2")), rules={"rolling_rules": {"global": 1}})
    assert "may start at any time" not in read_fleet(store, fleet=FLEET).plan.hosts["web1"].reason
    assert admitted(consul) == (["web2"] if hold else ["web1"])


@pytest.mark.parametrize("only", [(), ("web2",)])
def test_a_host_that_failed_in_an_upgrade_keeps_its_slot_during_a_job_whatever_its_gate(
    only: tuple[str, ...], store: Store, consul: MemoryConsul
) -> None:
    consul.write("config_state/enable_puppet/global", "False")
    consul.write("upgrade/hosts/web3", {"version": "2.0", "state": "failed"})
    begin(store, job(hosts=only))
    # Where the job is for it too, it goes first, as it may be what repairs it.
    assert admitted(consul) == ([] if only else ["db1", "web3"])
    reports(consul, "web3", "done")
    assert [one.host for one in go_on(store).admissions if one.host != "db1"] == []


@pytest.mark.parametrize("post", ["open", "started", "failed"])
def test_a_host_in_its_post_upgrade_tasks_takes_a_slot_of_a_job(post: str, store: Store, consul: MemoryConsul) -> None:
    consul.write("config_state/enable_puppet/global", "False")
    begin(store, job(hosts=("web2", "web3")), rules={"rolling_rules": {"global": 1}})
    assert admitted(consul) == ["web2"]
    reports(consul, "web2", "done")
    # Its agent may go on with the tasks at any time.
    record = {"version": "2.0", "state": "upgraded", "post": post, "services": "abc"}
    consul.write("upgrade/hosts/web1", record)
    assert go_on(store).admissions == []
    assert "taken by web1" in read_fleet(store, fleet=FLEET).plan.hosts["web3"].reason
    # It can't begin those of another version any more.
    consul.write("upgrade/hosts/web1", {**record, "version": "1.0", "post": "open"})
    assert [one.host for one in go_on(store).admissions] == ["web3"]


@pytest.mark.parametrize("complete_sets", [False, True])
def test_a_job_goes_through_all_hosts_that_failed_in_an_upgrade(
    complete_sets: bool, store: Store, consul: MemoryConsul
) -> None:
    consul.write("config_state/enable_puppet/global", "False")
    broken = ("web1", "web2", "web3")
    for host in broken:
        consul.write(f"upgrade/hosts/{host}", {"version": "2.0", "state": "failed"})
    begin(store, job(hosts=broken[:2]), rules={"rolling_rules": {"global": 1, "complete_sets": complete_sets}})
    for host in broken[:2]:
        assert states(store)[host] == "upgrading"
        reports(consul, host, "started")
        assert go_on(store).admissions == []
        reports(consul, host, "done")
        last = go_on(store)
    assert last.plan.complete


def test_a_job_does_not_promise_that_a_failed_host_tries_again(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    reports(consul, "web1", "started")
    reports(consul, "web1", "failed", error="disk full")
    view = read_fleet(store, fleet=FLEET)
    assert "To change this: fix the host, then run ansible-playbook convoy.upgrade.retry -e host=web1." in explain(
        "web1", view.plan, view.snapshot
    )


def test_a_busy_host_is_not_admitted_by_the_gate_of_its_role(store: Store, consul: MemoryConsul) -> None:
    at = int(time.time())
    for host, role in FLEET.items():
        # So that the gates of roles are safe.
        consul.write(f"upgrade/hosts/{host}", {"version": "2.0", "state": "upgraded", "role": role})
        reports(consul, host, "done", "j0", role=role)
    consul.write("upgrade/hosts/web2", {"version": "2.0", "state": "started", "times": {"started": at}, "role": "web"})
    begin(store, rules=UNLIMITED)
    assert "upgrade/job_gates/role/db" in consul.keys
    assert "upgrade/job_gates/role/web" not in consul.keys
    assert admitted(consul) == ["web1", "web3"]
    # The other way round.
    consul.write(
        "upgrade/hosts/web2", {"version": "2.0", "state": "upgraded", "times": {"upgraded": at}, "role": "web"}
    )
    reports(consul, "web1", "started", role="web")
    control.abort(store, Command(fleet=FLEET))
    found = make_pass(store, PassRequest(version="2.1", fleet=FLEET, rules=UNLIMITED))
    assert "config_state/enable_puppet/role/db" in consul.keys
    assert "config_state/enable_puppet/role/web" not in consul.keys
    assert "config_state/enable_puppet/host/web1" not in consul.keys
    assert sorted(one.host for one in found.admissions) == ["db1", "web2", "web3"]
    assert found.hosts()["web1"].busy


def test_a_job_does_not_admit_a_host_with_another_role_in_its_settings(store: Store, consul: MemoryConsul) -> None:
    # It would look for a hold of that role only, and its record of the job does not say so before it begins.
    consul.write("upgrade/hosts/web2", {"version": "2.0", "state": "upgraded", "role": "db"})
    begin(store, rules={"rolling_rules": {"global": 9}})
    assert admitted(consul) == ["db1", "web1", "web3"]
    assert "its settings have the role db" in read_fleet(store, fleet=FLEET).plan.hosts["web2"].reason


def test_only_an_operator_who_names_it_frees_the_slot_of_a_silent_host(store: Store, consul: MemoryConsul) -> None:
    begin(store, rules={**RULES, "health": {"progress_deadline": 60}})
    consul.flags = {key: flags - 3600 for key, flags in consul.flags.items() if flags}
    reports(consul, "web1", "started", times={"started": int(time.time()) - 600})
    assert states(store)["web1"] == "lost"
    view = read_fleet(store, fleet=FLEET)
    (need,) = operator_needs(view.snapshot, view.plan)
    # The command that is shown does not say that for the operator.
    assert (need.playbook, need.variables) == ("retry", {})
    retry = control.retry(store, Command(fleet=FLEET))
    # The other one had not started.
    assert retry.hosts == ["db1"]
    assert "web1 is not changed, because it has started the job and not reported its end" in retry.remarks[0]
    assert consul.data("upgrade/job_records/web1")["state"] == "started"
    assert control.retry(store, Command(fleet=FLEET), ["web1"]).hosts == ["web1"]
