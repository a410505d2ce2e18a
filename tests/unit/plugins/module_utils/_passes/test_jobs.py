# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as rollouts: the same planner, ledger and commands, other keys; and how they and rollouts to versions keep out of each other's way."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import is_valid_version
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.explain import explain
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import LAST_JOB, read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.job_request import requested_job
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from fleets import UNLIMITED
from job_fleet import FLEET, RULES, admitted, begin, go_on, job, reports
from memory_consul import MemoryConsul


def of_puppet(consul: MemoryConsul) -> dict[str, bytes]:
    """What a job must not touch."""
    folders = ("current_version", "config_state/", "running/", "upgrade/hosts/")
    return {key: value for key, value in consul.keys.items() if key.startswith(folders)}


def states(store: Store, one: str | None = None) -> dict[str, str]:
    return {host: view.state for host, view in read_fleet(store, fleet=FLEET, job=one).plan.hosts.items()}


def refusal(act: Any, *given: Any, **options: Any) -> UpgradeError:
    with pytest.raises(UpgradeError) as error:
        act(*given, **options)
    return error.value


def test_a_job_runs_under_the_rules_in_force_and_touches_nothing_of_puppet(store: Store, consul: MemoryConsul) -> None:
    before = of_puppet(consul)
    assert begin(store).plan.version == "job/j1"
    assert admitted(consul) == ["db1", "web1"]
    assert consul.keys["upgrade/current_job"] == b"job/j1"
    assert consul.data("upgrade/jobs/j1")["args"] == {"grace": 30}
    assert consul.data("upgrade/ledger")["instructions"] == RULES
    assert {key for key in consul.keys if key.startswith("upgrade/wake/")} == {"upgrade/wake/db1", "upgrade/wake/web1"}
    for host in ("db1", "web1"):
        reports(consul, host, "started")
    assert not go_on(store).admissions
    assert states(store) == {"db1": "upgrading", "web1": "upgrading", "web2": "pending", "web3": "pending"}
    for host, follower in (("db1", []), ("web1", ["web2"]), ("web2", ["web3"]), ("web3", [])):
        reports(consul, host, "done", exit_status=0)
        assert [one.host for one in go_on(store).admissions] == follower
    assert consul.data("upgrade/ledger")["state"] == "complete"
    assert of_puppet(consul) == before
    # After it, the fleet is shown as rollouts to versions see it, and the job on request.
    assert set(states(store).values()) == set(states(store, LAST_JOB).values()) == {"upgraded"}
    assert read_fleet(store, fleet=FLEET).plan.version == "2.0"
    assert read_fleet(store, fleet=FLEET, job="j1").plan.version == "job/j1"


@pytest.mark.parametrize("value", ["", "[]", '{"job": "j1", "state": "finished"}', '{"job": "../x", "state": "done"}'])
def test_a_report_that_can_t_be_read_is_a_failure(value: str, store: Store, consul: MemoryConsul) -> None:
    begin(store)
    consul.write("upgrade/job_records/web1", value)
    assert go_on(store).hosts()["web1"].state == "failed"


def test_a_report_on_another_job_is_none(store: Store, consul: MemoryConsul) -> None:
    reports(consul, "web1", "done", "j0")
    begin(store)
    assert "web1" in admitted(consul)
    assert states(store)["web1"] == "upgrading"


@pytest.mark.parametrize(
    ("targets", "first", "finished"),
    [
        ({"roles": ("web",)}, ["web1"], {"db1": "upgraded"}),
        ({"hosts": ("web2", "web3")}, ["web2"], {"db1": "upgraded", "web1": "upgraded"}),
    ],
)
def test_a_job_for_some_hosts(
    targets: dict[str, Any], first: list[str], finished: dict[str, str], store: Store, consul: MemoryConsul
) -> None:
    begin(store, job(**targets))
    assert admitted(consul) == first
    found = states(store)
    assert finished.items() <= found.items()
    assert read_fleet(store, fleet=FLEET).plan.hosts["db1"].reason == "the job is not for it"
    for host in [host for host, state in found.items() if state != "upgraded"]:
        reports(consul, host, "done")
    assert go_on(store).plan.complete


def test_a_job_for_unknown_hosts_is_refused(store: Store) -> None:
    assert refusal(begin, store, job(roles=("wep",))).code == "unknown_limit"
    asked = {"run": "restart", "only": ["wep"], "args": {}}
    assert refusal(requested_job, store, asked, FLEET, None, None).code == "unknown_limit"


def test_what_an_operator_asks_for(store: Store) -> None:
    asked = {"run": "restart", "only": ["web", "db[0]"], "args": {"grace": 1}, "expires": 100, "by": "ann"}
    found = requested_job(store, asked, {**FLEET, "db2": "db"}, None, None)
    assert (found.roles, found.hosts, found.args, found.by) == (("web",), ("db1",), {"grace": 1}, "ann")
    # Hosts that join db later are not meant.
    alone = requested_job(store, {**asked, "only": ["db1"]}, FLEET, None, None)
    assert (alone.roles, alone.hosts) == ((), ("db1",))
    assert found.id.startswith("restart-2") and abs(found.expires - time.time() - 100) < 60
    in_hours = requested_job(store, {"run": "restart", "expires": "2h"}, FLEET, None, None)
    assert abs(in_hours.expires - time.time() - 7200) < 60
    assert len(requested_job(store, {"run": "r" * 64}, FLEET, None, None).id) <= 96
    for wrong in (
        {"run": "../sh"},
        {"expires": 1},
        {"expires": 10**8},
        {"expires": "soon"},
        {"expires": ""},
        {"id": "A"},
        {"args": {"x": "y" * 70000}},
    ):
        assert refusal(requested_job, store, {**asked, **wrong}, FLEET, None, None).code == "bad_job"
    refused = refusal(requested_job, store, {**asked, "sign_with": "/nowhere/key"}, FLEET, None, None)
    assert refused.code == "not_signed" and "/nowhere/key" in refused.message


def test_only_one_of_the_two_changes_the_fleet_at_a_time(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    kept = dict(consul.keys)
    for act in (
        lambda: make_pass(store, PassRequest(version="2.1", fleet=FLEET)),
        lambda: make_pass(store, PassRequest(version="2.0", fleet=FLEET)),
        lambda: make_pass(store, PassRequest(version="2.1", fleet=FLEET, replace="2.0")),
        lambda: begin(store, job("j2")),
        lambda: control.roll_back(store, Command(fleet=FLEET)),
    ):
        refused = refusal(act)
        assert refused.code == "job_under_way"
        assert refused.message.startswith("The job j1 is under way: it was begun by ")
    assert consul.keys == kept
    control.abort(store, Command(fleet=FLEET))
    make_pass(store, PassRequest(version="2.1", fleet=FLEET))
    kept = dict(consul.keys)
    refused = refusal(begin, store, job("j2"))
    assert refused.code == "rollout_under_way" and "The rollout under way goes to 2.1" in refused.message
    assert consul.keys == kept


@pytest.mark.parametrize("first", ["job", "version"])
@pytest.mark.parametrize("second", ["job", "version"])
def test_of_two_that_begin_together_one_wins_and_the_other_says_so(
    first: str, second: str, store: Store, consul: MemoryConsul
) -> None:
    def request(kind: str, number: int) -> PassRequest:
        if kind == "job":
            one = job(f"j{number}")
            return PassRequest(version=one.target, job=one, fleet=FLEET)
        return PassRequest(version=f"3.{number}", fleet=FLEET)

    def meanwhile(_method: str, path: str, answer: Any) -> Any:
        # Between the first read and the write of the second one.
        if path == "/v1/txn":
            consul.spoil = lambda _method, _path, other: other
            make_pass(Store(Settings()), request(first, 1))
        return answer

    consul.spoil = meanwhile
    refused = refusal(make_pass, store, request(second, 2))
    # A run that may wait for the other one knows it by these.
    expected = (
        ("job_under_way",)
        if first == "job"
        else ("rollout_under_way",)
        if second == "job"
        else ("overtaken", "rollout_under_way")
    )
    assert refused.code in expected
    assert ("j1" if first == "job" else "3.1") in refused.message
    assert consul.data("upgrade/ledger")["version"] == ("job/j1" if first == "job" else "3.1")


def test_a_job_that_is_over_does_not_go_on_after_the_ledger_was_written(store: Store, consul: MemoryConsul) -> None:
    begin(store, job(hosts=("web1",)))
    reports(consul, "web1", "done")
    assert go_on(store).plan.complete
    set_holds(store, HoldTargets(hosts=["web2"]), "disk", "ann")
    kept = dict(consul.keys)
    refused = refusal(make_pass, store, PassRequest(version="job/j1", fleet=FLEET))
    assert refused.code == "unknown_job" and "it is over or never began" in refused.message
    assert consul.keys == kept


def test_a_host_is_forgotten_in_a_fleet_that_only_had_a_job(store: Store, consul: MemoryConsul) -> None:
    del consul.keys["upgrade/ledger"]
    begin(store, rules=RULES)
    for host in FLEET:
        reports(consul, host, "done")
    assert go_on(store).plan.complete
    control.forget(store, Command(), ["web3"])
    assert not [key for key in consul.keys if key.endswith("/web3")]


def test_a_rollout_after_a_job_goes_on_as_if_the_job_had_not_been_there(store: Store, consul: MemoryConsul) -> None:
    begin(store, rules={"rolling_rules": {"global": "unlimited"}})
    for host in FLEET:
        reports(consul, host, "done")
    go_on(store)
    epoch = consul.data("upgrade/ledger")["epoch"]
    make_pass(store, PassRequest(version="2.1", fleet=FLEET))
    ledger = consul.data("upgrade/ledger")
    assert (ledger["version"], ledger["previous_version"], ledger["instructions"]) == ("2.1", "2.0", RULES)
    assert ledger["epoch"] > epoch and "before" not in ledger and "targets" not in ledger
    assert not [key for key in consul.keys if key.startswith(("upgrade/job_gates/", "upgrade/current_job"))]


def test_the_first_rollout_holds_what_was_closed_by_hand_also_after_a_job(store: Store, consul: MemoryConsul) -> None:
    del consul.keys["upgrade/ledger"]
    consul.write("config_state/enable_puppet/host/web2", "False")
    begin(store, rules=UNLIMITED)
    for host in FLEET:
        reports(consul, host, "done")
    go_on(store)
    found = make_pass(store, PassRequest(version="2.1", rules=UNLIMITED, fleet=FLEET))
    assert found.hosts()["web2"].state == "held"
    assert any("web2: closed by hand before the first rollout" in one for one in found.warnings)
    # A second rollout makes no holds of what the first one left behind.
    del consul.keys["upgrade/hold/host/web2"]
    consul.write("config_state/enable_puppet/host/web2", "False")
    make_pass(store, PassRequest(version="2.2", rules=UNLIMITED, fleet=FLEET, replace="2.1"))
    assert "upgrade/hold/host/web2" not in consul.keys


def test_the_first_rollout_does_not_begin_if_a_gate_closed_by_hand_would_hold_none_of_its_hosts(
    store: Store, consul: MemoryConsul
) -> None:
    del consul.keys["upgrade/ledger"]
    consul.write("config_state/enable_puppet/role/cp", "False")
    request = PassRequest(version="2.1", rules=UNLIMITED, fleet={**FLEET, "cp1": "compute"})
    before = dict(consul.keys)
    error = refusal(make_pass, store, request)
    assert (error.code, error.details["hosts"]) == ("closed_by_hand", ["cp1"])
    assert error.message.startswith(
        "config_state/enable_puppet/role/cp was closed by hand, which closed cp1 by name. Here it has the role compute"
    )
    assert "convoy.upgrade.hold -e role=compute" in error.message
    assert consul.keys == before
    set_holds(store, HoldTargets(roles=["compute"], fleet={"cp1": "compute"}), "as before")
    assert make_pass(store, request).hosts()["cp1"].state == "held"


def test_a_role_without_a_cap_is_admitted_by_its_own_gate(store: Store, consul: MemoryConsul) -> None:
    # The gates of hosts are safe whichever role another host has in its settings.
    begin(store, rules={"rolling_rules": {"global": "unlimited"}})
    assert not [key for key in consul.keys if key.startswith("upgrade/job_gates/role/")]
    assert set(states(store).values()) == {"upgrading"}
    for host, role in FLEET.items():
        reports(consul, host, "done")
        consul.write(f"upgrade/hosts/{host}", {"version": "2.0", "state": "upgraded", "role": role})
    go_on(store)
    begin(store, job("j2"), rules={"rolling_rules": {"global": "unlimited"}})
    assert consul.keys["upgrade/job_gates/role/web"] == b"True"
    assert set(states(store).values()) == {"upgrading"}


def test_a_role_without_a_cap_that_has_other_hosts_too_is_admitted_by_the_gates_of_the_targets(
    store: Store, consul: MemoryConsul
) -> None:
    begin(store, job(hosts=("web1",)), rules=UNLIMITED)
    assert "upgrade/job_gates/role/web" not in consul.keys
    assert admitted(consul) == ["web1"]


def test_a_job_keeps_the_health_of_the_rollout_before_it(store: Store, consul: MemoryConsul) -> None:
    mark = {"version": "2.0", "since": 6, "upgraded": True, "reported": 5}
    consul.write("upgrade/health/web1", mark)
    begin(store, rules={**UNLIMITED, "health": {"soak": 1}})
    for host in FLEET:
        reports(consul, host, "done")
    go_on(store)
    assert consul.data("upgrade/health/web1") == mark
    assert "upgrade/job_health/web1" in consul.keys
    assert read_fleet(store, fleet=FLEET).snapshot.marks.keys() >= {"web1"}


def test_a_rollout_that_goes_on_after_a_job_reads_again_before_it_admits(
    store: Store, consul: MemoryConsul, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {"rolling_rules": {"global": 1}}
    begin(store, rules=rules)
    control.abort(store, Command(fleet=FLEET))
    # A node that had not seen the end of its admission, while web0 has joined the fleet.
    consul.write("upgrade/job_gates/host/web1", "True")
    fleet = {**FLEET, "web0": "web"}
    write, is_first = store.client.write, True

    def late(operations: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            reports(consul, "web1", "started")
        return write(operations)

    monkeypatch.setattr(store.client, "write", late)
    found = make_pass(store, PassRequest(version="2.0", fleet=fleet, rules=rules))
    assert not is_first
    assert [one.host for one in found.admissions] == []
    assert found.hosts()["web1"].busy


def test_a_host_that_joins_after_the_end_of_a_job_finds_its_gates_closed(store: Store, consul: MemoryConsul) -> None:
    begin(store, rules=UNLIMITED)
    for host in FLEET:
        reports(consul, host, "done")
    assert go_on(store).plan.complete
    gates = {key: value for key, value in consul.keys.items() if key.startswith("upgrade/job_gates/")}
    assert gates == {"upgrade/job_gates/global": b"False"}
    assert consul.data("upgrade/ledger")["state"] == "complete"


def test_a_job_waits_for_the_tasks_after_an_upgrade_and_keeps_what_ran_once(store: Store, consul: MemoryConsul) -> None:
    consul.write("upgrade/once/2.0/migrate", {"state": "done"})
    consul.write("upgrade/ledger", {**consul.data("upgrade/ledger"), "post_upgrade": ["db"]})
    refused = refusal(begin, store)
    assert refused.code == "post_upgrade_pending"
    assert "so no job begins. Run ansible-playbook convoy.upgrade.post_upgrade -e version=2.0." in refused.message
    consul.write("upgrade/hosts/db1", {"version": "2.0", "state": "upgraded", "post": "done"})
    begin(store)
    assert "upgrade/once/2.0/migrate" in consul.keys


def test_a_pause_or_an_abort_of_a_complete_rollout_does_not_skip_the_tasks_after_it(
    store: Store, consul: MemoryConsul
) -> None:
    consul.write("upgrade/ledger", {**consul.data("upgrade/ledger"), "post_upgrade": ["db"]})
    run = "ansible-playbook convoy.upgrade.post_upgrade -e version=2.0"
    commands = {
        control.pause: ("resume", {}, "convoy.upgrade.resume"),
        control.abort: ("upgrade", {"version": "2.0", "restart": "true"}, "upgrade -e version=2.0 -e restart=true"),
    }
    for act, (playbook, variables, first) in commands.items():
        act(store, Command(fleet=FLEET))
        refused = refusal(make_pass, store, PassRequest(version="2.1", fleet=FLEET, replace="2.0"))
        assert refused.code == "post_upgrade_pending"
        assert f"{first}, then {run}" in refused.message
        assert (refused.details["playbook"], refused.details["variables"]) == (playbook, variables)
    assert refusal(begin, store).code == "post_upgrade_pending"
    assert make_pass(store, PassRequest(version="2.1", fleet=FLEET, restart=True), dry=True).begun
    # A rollout that was not complete has no such tasks yet.
    consul.write("upgrade/ledger", {**consul.data("upgrade/ledger"), "command": {}})
    assert make_pass(store, PassRequest(version="2.1", fleet=FLEET)).begun


def test_a_job_of_ansible_that_was_interrupted_needs_an_operator(store: Store, consul: MemoryConsul) -> None:
    begin(store, job(by_ansible=True), limit=["web", "db"])
    reports(consul, "web1", "started")
    view = read_fleet(store, fleet=FLEET)
    (need,) = operator_needs(view.snapshot, view.plan)
    assert (need.code, need.playbook, need.variables) == ("interrupted", "command", {"job": "j1", "run_tasks": "FILE"})
    assert need.text == (
        "1 host is in the middle of the job j1, and no Ansible run works there: web1. Continue it with the same tasks: put their file in the "
        "place of FILE."
    )
    assert (
        "no Ansible run works on it now: run ansible-playbook convoy.upgrade.command -e job=j1 -e run_tasks=FILE, with its file."
        in " ".join(explain("web1", view.plan, view.snapshot, []))
    )
    consul.write("upgrade/drivers/web1", "{}")
    view = read_fleet(store, fleet=FLEET)
    assert operator_needs(view.snapshot, view.plan) == ()


def test_an_empty_list_of_targets_is_not_the_whole_fleet(store: Store) -> None:
    asked = {"run": "restart", "args": {}}
    refused = refusal(requested_job, store, {**asked, "only": []}, FLEET, None, None)
    assert refused.code == "bad_job" and "only is an empty list" in refused.message
    whole = requested_job(store, {**asked, "only": None}, FLEET, None, None)
    assert (whole.roles, whole.hosts) == ((), ())


def test_the_present_version_goes_on_after_an_aborted_job(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    control.abort(store, Command(reason="wrong", fleet=FLEET))
    assert admitted(consul) == []
    assert read_fleet(store, fleet=FLEET).plan.version == "job/j1"
    refused = refusal(make_pass, store, PassRequest(version="job/j1", fleet=FLEET))
    assert refused.code == "aborted"
    assert refused.message.endswith(
        "a job does not begin again. Begin another one with ansible-playbook convoy.upgrade.command -e run=NAME."
    )
    make_pass(store, PassRequest(version="2.0", fleet=FLEET))
    assert consul.data("upgrade/ledger")["version"] == "2.0"
    assert read_fleet(store, fleet=FLEET).plan.version == "2.0"
    assert refusal(make_pass, store, PassRequest(version="job/j1", fleet=FLEET)).code == "unknown_job"


def test_commands_work_on_jobs(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    set_holds(store, HoldTargets(hosts=["web2"]), "disk", "ann")
    reports(consul, "web1", "done")
    assert [one.host for one in go_on(store).admissions] == ["web3"]
    control.pause(store, Command(fleet=FLEET))
    reports(consul, "web3", "done")
    end_holds(store, HoldTargets(hosts=["web2"]))
    found = go_on(store)
    assert not found.admissions and found.plan.blocker is not None and found.plan.blocker.code == "paused"
    control.resume(store, Command(fleet=FLEET))
    assert [one.host for one in go_on(store).admissions] == ["web2"]
    control.forget(store, Command(), ["web3"])
    assert not [key for key in consul.keys if key.endswith("/web3")]


def test_ending_a_hold_that_was_made_of_a_gate_opens_that_gate_also_during_a_job(
    store: Store, consul: MemoryConsul
) -> None:
    consul.write("config_state/enable_puppet/host/web2", "False")
    hold = {"reason": "its gate was closed", "by": "the first rollout", "at": "2026-11-24T09:12:00Z"}
    consul.write("upgrade/hold/host/web2", hold)
    begin(store)
    consul.write("upgrade/job_gates/host/web2", "False")
    end_holds(store, HoldTargets(hosts=["web2"]))
    assert "config_state/enable_puppet/host/web2" not in consul.keys
    # An operator's retry has closed that one.
    assert consul.keys["upgrade/job_gates/host/web2"] == b"False"


def test_stages_with_an_approval(store: Store, consul: MemoryConsul) -> None:
    begin(store, rules={**RULES, "stages": [{"name": "canary", "hosts": ["web3"], "approve": True}]})
    assert admitted(consul) == ["web3"]
    reports(consul, "web3", "done")
    assert not go_on(store).admissions
    control.approve(store, Command(fleet=FLEET), "canary")
    assert [one.host for one in go_on(store).admissions] == ["db1", "web1"]


def test_a_rollback_after_a_job_is_one_of_the_version(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    for host in FLEET:
        reports(consul, host, "done")
    go_on(store)
    control.roll_back(store, Command(fleet=FLEET))
    ledger = consul.data("upgrade/ledger")
    assert (ledger["version"], ledger["rollback"]) == ("1.0", True)


def test_no_host_is_admitted_to_a_job_that_has_expired(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    reports(consul, "web1", "done")
    consul.write("upgrade/ledger", {**consul.data("upgrade/ledger"), "expires": int(time.time()) - 1})
    found = go_on(store)
    assert not found.admissions and found.plan.blocker is not None and found.plan.blocker.code == "expired"


def test_older_planners_can_t_take_a_job_for_a_version(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    # They refuse a ledger whose version is not valid.
    assert not is_valid_version(consul.data("upgrade/ledger")["version"])
    assert consul.keys["current_version"] == b"2.0"


def test_only_a_commander_may_write_jobs(store: Store) -> None:
    def rules(kind: str) -> str:
        return TokenKind(kind, "web1" if kind == "node" else "").rules(store.keys)

    for kind in ("controller", "planner", "viewer", "node"):
        assert 'key_prefix "upgrade/jobs/" {\n  policy = "write"' not in rules(kind)
    assert 'key_prefix "upgrade/jobs/" {\n  policy = "read"' in rules("controller")
    commander = rules("commander")
    assert '"upgrade/jobs/"' not in commander and 'key_prefix "upgrade/" {\n  policy = "write"' in commander
    node = rules("node")
    for key in ("upgrade/job_records/web1", "upgrade/job_output/web1"):
        assert f'key "{key}" {{\n  policy = "write"' in node
    assert 'key "upgrade/current_job" {\n  policy = "read"' in node
    assert 'key_prefix "upgrade/job_gates/" {\n  policy = "read"' in node


def test_check_mode_writes_nothing(store: Store, consul: MemoryConsul) -> None:
    kept = dict(consul.keys)
    one = replace(job(), reason="to see")
    found = make_pass(store, PassRequest(version=one.target, job=one, fleet=FLEET), dry=True)
    assert [one.host for one in found.admissions] == ["db1", "web1"]
    assert consul.keys == kept


def test_another_reason_replaces_that_of_a_pause_and_none_leaves_it(store: Store, consul: MemoryConsul) -> None:
    control.pause(store, Command(reason="look first", by="ann"))
    assert refusal(begin, store).code == "rollout_under_way"
    control.pause(store, Command(reason="look longer", by="bob"))
    assert control.pause(store, Command(by="cid")).changes == []
    assert [consul.data("upgrade/ledger")["command"][name] for name in ("by", "reason")] == ["bob", "look longer"]
