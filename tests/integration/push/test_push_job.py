# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task that begins a job whose tasks Ansible runs: what it takes and returns, and what is in Consul then."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED, UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import (
    HostReport,
    next_record,
    write_report,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._host.job_report import write_job_report
from ansible_collections.convoy.upgrade.plugins.module_utils._host.start import Start, start
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry import retry
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import hand_over
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.job_request import requested_job
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.runs.playbook import Played, Runner, plan
from integration.support.runs.push import WATCHED, in_groups, stopped

HOST = "localhost"
FLEET = {HOST: "web", "web2": "web"}
ROLES = {"web": {"plane": "dataplane"}}
RULES = {"rolling_rules": {"global": 1}}


@pytest.fixture
def folder(run: Runner) -> Runner:
    (run.folder / "restart.yml").write_text("- ansible.builtin.debug:\n")
    (run.folder / "rules.yml").write_text(json.dumps(RULES))
    role = run.folder / "own/restart/tasks"
    role.mkdir(parents=True)
    (role / "main.yml").write_text("- ansible.builtin.debug:\n")
    return run


def play(run: Runner, **options: Any) -> Played:
    """Begin a job, with the inventory that it is for."""
    return run(
        [in_groups(FLEET), {"convoy.upgrade.push_job": {"upgrade_roles": ROLES, **options}}, stopped()],
        environ={**WATCHED, "PWD": str(run.folder)},
    )


@pytest.mark.thorough
def test_a_job_begins_and_admits_no_host_and_is_continued(folder: Runner, consul: RawKV) -> None:
    job = {"args": {"grace": 30}, "only": ["web"], "expires": "2h", "by": "ann", "reason": "new key"}
    begun = play(folder, tasks="restart.yml", job=job, instructions_file=str(folder.folder / "rules.yml"), wait=True)[1]
    assert not begun["failed"], begun
    target = begun["version"]
    assert begun["job"] == {
        "id": target.removeprefix("job/"),
        "run": "restart",
        "args": {"grace": 30},
        "file": str(folder.folder / "restart.yml"),
        "role": "",
    }
    assert (begun["dataplane"], begun["resumed"], begun["plays"]) == ([HOST, "web2"], [], ["dataplane"])
    stored = json.loads(consul.get(f"upgrade/jobs/{begun['job']['id']}") or b"")
    assert (stored["command"], stored["by_ansible"], stored["by"], stored["roles"]) == ("restart", True, "ann", ["web"])
    assert json.loads(consul.get("upgrade/ledger") or b"")["by_ansible"] is True
    assert set(consul.tree("upgrade/job_gates/")) == {"upgrade/job_gates/global"}
    again = play(folder, tasks="restart", version=target, roles_path=[str(folder.folder / "own")])[1]
    assert again["job"] == {**begun["job"], "file": "", "role": str(folder.folder / "own/restart")}
    assert not again["changed"]
    # Hosts would count as done without the tasks of the job.
    (folder.folder / "other.yml").write_text("- ansible.builtin.debug:\n")
    other = play(folder, tasks="other.yml", version=target)[1]
    assert other["failure"]["code"] == "bad_tasks"
    assert "runs the tasks restart" in other["failure"]["message"]


def test_without_a_place_for_the_files_of_its_run_a_job_does_not_begin(folder: Runner, consul: RawKV) -> None:
    """Otherwise it would be under way, and the same command would be refused."""
    # Not tmp_path, which may be too long for the path of a socket.
    place = Path(tempfile.mkdtemp())
    job = {
        "convoy.upgrade.push_job": {"upgrade_roles": ROLES, "tasks": "restart.yml", "job": {}, "instructions": RULES}
    }
    # By now, the run has chosen it.
    removed = {"ansible.builtin.file": {"path": str(place), "state": "absent"}}
    environ = {**WATCHED, "PWD": str(folder.folder), "TMPDIR": str(place)}
    refused = folder([in_groups(FLEET), removed, job], environ=environ)[2]
    assert refused["failure"]["code"] == "no_daemon"
    assert consul.tree("upgrade/") == {}


@pytest.mark.thorough
def test_what_can_t_be_combined_is_refused(folder: Runner, consul: RawKV) -> None:
    for options in ({"once": True}, {"wait": False}):
        refused = play(folder, tasks="restart.yml", job={}, instructions=RULES, **options)[1]
        assert refused["failure"]["code"] == "bad_options"
    assert play(folder, tasks="", job={})[1]["pushes"] is False
    of_nodes = play(folder, tasks="", job={"run": "restart"})[1]
    assert (of_nodes["pushes"], list(of_nodes["job"])) == (False, ["id"])
    assert of_nodes["job"]["id"].startswith("restart-")
    assert (
        play(folder, tasks="restart.yml", job={"sign_with": "key"}, instructions=RULES)[1]["failure"]["code"]
        == "bad_job"
    )
    refused = play(folder, tasks="restart.yml", job={"run": "other"}, instructions=RULES)[1]
    assert refused["failure"]["code"] == "bad_options"
    assert play(folder, tasks="x", job={}, instructions=RULES)[1]["failure"]["code"] == "bad_tasks"
    assert play(folder, tasks="restart.yml", instructions=RULES)[1]["failure"]["code"] == "missing_option"
    assert consul.tree("upgrade/") == {}


@pytest.mark.thorough
def test_a_command_of_the_nodes_is_not_for_hosts_that_ansible_upgrades(run: Runner, consul: RawKV) -> None:
    roles = {"web": {"services": ["nginx"]}, "compute": {}, "cache": {"services": ["redis"], "pull": True}}
    fleet = {HOST: "web", "compute1": "compute", "cache1": "cache"}
    # A group that is no role.
    region = {"ansible.builtin.group_by": {"key": "eu"}}

    def play(**job: Any) -> dict[str, Any]:
        return run(
            [
                in_groups(fleet),
                region,
                {"convoy.upgrade.push_job": {"upgrade_roles": roles, "job": {"run": "x", **job}}},
            ]
        )[2]

    for only in (
        {},
        {"only": ["web"]},
        {"only": ["eu"]},
        {"only": ["all", "!compute"]},
        {"only": ["web", "a_group_of_the_rules"]},
    ):
        refused = play(**only)
        assert refused["failure"]["code"] == "bad_job"
        assert refused["failure"]["details"]["hosts"] == [HOST]
        assert "Name other roles or hosts with only" in refused["msg"]
    for only in ({"only": ["compute", "cache1"]}, {"only": ["!web"]}, {"only": ["a_group_of_the_rules", "!compute"]}):
        assert play(**only)["job"]["id"].startswith("x-")
    assert consul.tree() == {}


@pytest.mark.thorough
def test_a_job_that_came_second_waits_for_some_time(folder: Runner, store: Store, consul: RawKV) -> None:
    make_pass(store, PassRequest("2", RULES, fleet=FLEET))
    before = consul.tree()
    options = {"tasks": "restart.yml", "job": {}, "instructions": RULES, "wait_for_other": True}
    played = play(folder, **options, wait_timeout=8)
    assert played[1]["failure"]["code"] == "rollout_under_way"
    assert "The rollout under way goes to 2" in played.stdout
    assert "This run waits for its end." in played.stdout
    # So does the task that begins a rollout, as another one may have begun since the plan.
    task = plan(version="3", fleet=FLEET, instructions=RULES, limit=[], wait_for_other=True, wait_timeout=8)
    begun = folder([task, {**task, "check_mode": True}])
    assert [one["failure"]["code"] for one in begun] == ["rollout_under_way"] * 2
    assert begun.stdout.count("This run waits for its end.") == 1
    assert consul.tree() == before


@pytest.fixture
def stores(consul: RawKV, agent: Agent) -> tuple[Store, Store]:
    """Return a planner's store, and one with the keys of the job. Both hosts are admitted to it."""
    assert consul.tree() == {}
    settings = Settings(port=agent.http_port)
    planner, of_job = Store(settings), Store(settings)
    of_job.keys = type(of_job.keys)(of_job.keys.prefix, is_job=True)
    rules = {"rolling_rules": {"global": 2}}
    job = requested_job(planner, {"run": "restart", "id": "restart-1", "by_ansible": True}, FLEET, None, rules)
    make_pass(planner, PassRequest("job/restart-1", rules, fleet=FLEET, job=job, limit=[*FLEET]))
    return planner, of_job


REQUEST = Start(HOST, "web", "job/restart-1")


def begin(before: HostRecord | None) -> HostRecord:
    return next_record(before, HostReport(HOST, "job/restart-1", STARTED), 1_800_000_000)


def test_a_start_of_a_job_needs_its_admission_at_that_moment(stores: tuple[Store, Store], consul: RawKV) -> None:
    planner, of_job = stores
    done = start(of_job, REQUEST, begin)
    assert (done.record.state, done.record.version) == (STARTED, "job/restart-1")
    write_job_report(of_job, HostReport(HOST, "job/restart-1", UPGRADED), "restart")
    assert json.loads(consul.get(f"upgrade/job_records/{HOST}") or b"")["state"] == "done"
    assert json.loads(consul.get(f"upgrade/job_output/{HOST}") or b"")[0]["command"] == "restart"
    set_holds(planner, HoldTargets(hosts=("web2",), fleet=FLEET), "broken disk", "ann")
    with pytest.raises(UpgradeError, match="as it is not admitted: closed: held"):
        start(of_job, Start("web2", "web", "job/restart-1"), begin)


def test_a_hold_of_a_role_that_the_host_had_before_keeps_it_from_starting(
    stores: tuple[Store, Store], consul: RawKV
) -> None:
    planner, of_job = stores
    write_report(planner, HostReport(HOST, "1", UPGRADED, role="spare"))
    write_report(planner, HostReport(HOST, "1", UPGRADED, role="web"))
    consul.put("upgrade/hold/role/spare", json.dumps({"reason": "disk", "by": "ann", "at": 1}))
    with pytest.raises(UpgradeError, match=r"closed: held by ann .*a hold of its former role spare"):
        start(of_job, REQUEST, begin)
    assert consul.delete("upgrade/hold/role/spare")
    start(of_job, REQUEST, begin)


def test_a_host_that_works_on_an_earlier_job_takes_a_slot_of_one_that_is_not_for_it(
    stores: tuple[Store, Store],
) -> None:
    planner, of_job = stores
    start(of_job, REQUEST, begin)
    control.abort(planner, Command("ann", "wrong command", fleet=FLEET))
    given = {"run": "restart", "id": "restart-2", "by_ansible": True, "only": ["web2"]}
    job = requested_job(planner, given, FLEET, None, RULES)
    begun = make_pass(planner, PassRequest("job/restart-2", RULES, fleet=FLEET, job=job, limit=["web2"]))
    assert begun.begun
    assert begun.admissions == []
    assert begun.hosts()[HOST].busy
    assert "restart-1" in begun.hosts()[HOST].reason
    assert f"run ansible-playbook convoy.upgrade.retry -e host={HOST}" in begun.hosts()[HOST].reason
    write_job_report(of_job, HostReport(HOST, "job/restart-1", UPGRADED), "restart")
    after = make_pass(planner, PassRequest("job/restart-2", fleet=FLEET, limit=["web2"]))
    assert [one.host for one in after.admissions] == ["web2"]


@pytest.mark.parametrize("what", ["aborted", "no gate", "another job"])
def test_without_its_admission_a_job_does_not_start(what: str, stores: tuple[Store, Store], consul: RawKV) -> None:
    planner, of_job = stores
    if what == "aborted":
        control.abort(planner, Command("ann", "wrong command"))
    elif what == "no gate":
        for key in consul.tree("upgrade/job_gates/"):
            consul.delete(key)
    else:
        consul.put("upgrade/current_job", "job/restart-2")
    with pytest.raises(UpgradeError) as refused:
        start(of_job, REQUEST, begin)
    assert refused.value.code == "not_admitted"
    assert consul.get(f"upgrade/job_records/{HOST}") is None


def test_an_operator_ends_the_work_of_a_run_that_is_gone(stores: tuple[Store, Store]) -> None:
    planner, of_job = stores
    start(of_job, REQUEST, begin)
    control.abort(planner, Command("ann", "wrong command", fleet=FLEET))
    given = {"run": "restart", "id": "restart-2", "by_ansible": True, "only": ["web2"]}
    job = requested_job(planner, given, FLEET, None, RULES)
    make_pass(planner, PassRequest("job/restart-2", RULES, fleet=FLEET, job=job, limit=["web2"]))
    assert retry(planner, Command("ann", "the run is gone", fleet=FLEET), [HOST]).hosts == [HOST]
    after = make_pass(planner, PassRequest("job/restart-2", fleet=FLEET, limit=["web2"]))
    assert [one.host for one in after.admissions] == ["web2"]
    assert after.hosts()[HOST].state == "upgraded"


def test_a_job_of_ansible_is_not_handed_over(stores: tuple[Store, Store]) -> None:
    ledger = stores[0].snapshot().ledger
    assert ledger is not None
    with pytest.raises(UpgradeError) as refused:
        hand_over(stores[0], ledger, None, dry=False)
    assert refused.value.code == "needs_tasks"


def test_a_pass_without_the_tasks_admits_no_host(stores: tuple[Store, Store]) -> None:
    with pytest.raises(UpgradeError) as refused:
        make_pass(stores[0], PassRequest("job/restart-1", fleet=FLEET))
    assert refused.value.code == "needs_tasks"
    assert make_pass(stores[0], PassRequest("job/restart-1", fleet=FLEET), dry=True).admissions == []
