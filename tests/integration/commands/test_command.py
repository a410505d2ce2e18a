# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs from end to end: the playbook, a real Consul, and nodes with the code of the agent and real commands."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from convoy_node.jobs.job_run import JobRun
from convoy_node.jobs.spool import Spool
from convoy_node.node.connection import Connection
from convoy_node.node.settings import NodeSettings
from devkit.agent import ROOT, Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import names, seed
from integration.support.processes.job_nodes import command_folder, install, running_nodes
from integration.support.processes.proxy import LOSE_REPLY, LossyProxy
from integration.support.runs.playbook import Runner, info, plan
from integration.support.runs.shipped import Shipped, inventory

FLEET = names(controller=1, compute=3)
ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}}
RULES = {"rolling_rules": {"global": 1}}
MORE = {"inventory": inventory(FLEET), "upgrade_roles": ROLES, "instructions": RULES}

JobNodes = Callable[..., Any]


@pytest.fixture
def folder() -> Iterator[Path]:
    with command_folder() as found:
        install(found, 'echo "$CONVOY_HOST waits $CONVOY_ARG_GRACE s"')
        yield found


@pytest.fixture
def job_nodes(agent: Agent, folder: Path) -> JobNodes:
    """Let hosts run jobs meanwhile."""
    return partial(running_nodes, Connection(port=agent.http_port), FLEET, folder)


def at_once(folder: Path) -> int:
    """Return how many hosts of one role ran the command at once."""
    running: set[str] = set()
    most = 0
    for line in (folder / "log").read_text().splitlines():
        what, host = line.split()
        (running.add if what == "begin" else running.discard)(host)
        most = max(most, len([one for one in running if FLEET[one] == "compute"]))
    return most


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_command_runs_on_the_fleet_one_host_of_a_role_at_a_time(
    play: Shipped, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    consul.put("config_state/enable_puppet/global", "True")
    gates = dict(consul.tree("config_state/"))
    with job_nodes():
        before = consul.tree()
        checked = play("command", "--check", run="work", args={"grace": 1}, **MORE)
        assert checked.returncode == 0, checked.stdout
        assert re.search(r"Plan: Job work-\S+: 0 of 4 hosts done", checked.stdout), checked.stdout
        assert consul.tree() == before
        done = play("command", run="work", args={"grace": 1}, reason="certificate", by="ann", expires=600, **MORE)
    assert done.returncode == 0, done.stdout
    found = re.search(r"Job (work-\S+), begun .* by ann, complete: 4 of 4 hosts done", done.stdout)
    assert found, done.stdout
    assert sorted((folder / "log").read_text().split("\n")) == sorted(
        ["", *(f"{what} {host}" for what in ("begin", "end") for host in FLEET)]
    )
    assert at_once(folder) == 1
    assert dict(consul.tree("config_state/")) == gates
    # The order of the planes holds for jobs too.
    assert (folder / "log").read_text().startswith("begin controller1\nend controller1\n")
    shown = play("status", host="compute2", **MORE).stdout
    assert f"job {found[1]}: done, exit status 0" in shown and "| compute2 waits 1 s" in shown
    assert "4 of 4 hosts done" in play("status", job=found[1], **MORE).stdout
    report = play("report", job=found[1], report_folder=str(folder), **MORE)
    assert len([*folder.glob("*.html")]) == 1, report.stdout


@pytest.mark.thorough
def test_a_job_template_of_awx_makes_arguments_from_the_answer_of_its_survey(
    play: Shipped, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    templates = DataLoader().load_from_file(str(ROOT / "docs/awx.yml"))["controller_templates"]
    (extra_vars,) = (one["extra_vars"] for one in templates if one["playbook"] == "playbooks/command.yml")
    # AWX gives answers as texts, and adds its own variables.
    answers = {"run": "work", "arguments": '{"grace": 1}', "only": "compute1", "awx_user_name": "ann"}
    with job_nodes():
        done = play("command", **extra_vars, **answers, **MORE)
        assert done.returncode == 0, done.stdout
        assert re.search(r"Job work-\S+, begun .* by ann, complete: 1 of 1 host done", done.stdout), done.stdout
        assert "| compute1 waits 1 s" in play("status", host="compute1", **MORE).stdout
        wrong = play("command", **extra_vars, **{**answers, "arguments": "grace=1"}, **MORE)
    assert wrong.returncode
    assert (folder / "log").read_text().splitlines() == ["begin compute1", "end compute1"]


@pytest.mark.thorough
def test_a_failure_names_host_status_and_last_lines_and_the_job_goes_on_after_a_retry(
    play: Shipped, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    rules = {**RULES, "failure_rules": {"fleet": 1}}
    install(folder, f"test -e '{folder}/fixed' || {{ echo no disk; (exit 3); }}")
    with job_nodes():
        failed = play("command", run="work", args={"grace": 3}, only="compute", **{**MORE, "instructions": rules})
        assert failed.returncode, failed.stdout
        text = one_line(failed.stdout)
        assert "compute1: failed: work: exit status 3: no disk" in text, failed.stdout
        assert "[failure_budget]" in text
        (folder / "fixed").touch()
        again = re.search(r"^Next: .*retry.*\nThen: .*command\S* .*-e job=(work-\S+)", failed.stdout, re.M)
        assert again and "run=" not in again[0].splitlines()[1], failed.stdout
        assert play("retry", host="compute1", **MORE).returncode == 0
        done = play("command", job=again[1], **{**MORE, "instructions": rules})
    assert done.returncode == 0, done.stdout
    assert "begin controller1" not in (folder / "log").read_text()


def test_a_job_and_a_rollout_exclude_each_other(play: Shipped, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", RULES, fleet=FLEET))
    while_running = play("command", run="work", args={"grace": 3}, **MORE)
    assert while_running.returncode and "[rollout_under_way]" in while_running.stdout
    assert "The rollout under way goes to 2" in one_line(while_running.stdout)
    neither = play("command", **MORE)
    assert neither.returncode and "Neither run nor job is given" in one_line(neither.stdout)


@pytest.mark.thorough
def test_a_job_waits_for_the_end_of_a_rollout_on_request(
    play: Shipped, store: Store, consul: RawKV, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", RULES, fleet=FLEET))
    with job_nodes():
        run = play.start("command", run="work", args={"grace": 1}, wait_for_other=True, **MORE)
        assert run.stdout is not None
        before = next(line for line in run.stdout if "This run waits for its end." in line)
        assert "The rollout under way goes to 2" in before
        control.abort(store, Command(fleet=FLEET))
        shown, _none = run.communicate(timeout=90)
    assert run.returncode == 0, shown
    assert "4 of 4 hosts done" in shown


@pytest.mark.thorough
def test_only_signed_jobs_run_where_nodes_demand_that(
    play: Shipped, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    (folder / "signers").write_text(f"ann {(folder / 'key.pub').read_text()}")
    with job_nodes(require_signed_jobs=True, allowed_signers=str(folder / "signers")):
        unsigned = play("command", run="work", args={"grace": 1}, only="compute1", once=True, **MORE)
        assert unsigned.returncode == 0, unsigned.stdout
        refused = play("command", "-e", f"job={only_job(consul)}", **MORE)
        assert refused.returncode and "refused: The job is not signed" in one_line(refused.stdout), refused.stdout
        assert play("abort", reason="not signed", **MORE).returncode == 0
        signed = play("command", run="work", args={"grace": 1}, only="compute1", sign_with=str(folder / "key"), **MORE)
    assert signed.returncode == 0, signed.stdout
    assert (folder / "log").read_text() == "begin compute1\nend compute1\n"


def only_job(consul: RawKV) -> str:
    (key,) = consul.tree("upgrade/jobs/")
    return key.rpartition("/")[2]


def test_the_modules_begin_and_show_jobs(run: Runner, consul: RawKV, job_nodes: JobNodes) -> None:
    seed(consul, FLEET)
    job = {
        "run": "work",
        "args": {"grace": 1},
        "only": ["compute"],
        "expires": 600,
        "id": "work-1",
        "by": "ann",
        "reason": "x",
    }
    with job_nodes():
        begun, shown, host, other, wrong = run(
            [
                plan(job=job, instructions=RULES, fleet=FLEET, wait=True, wait_for_other=True),
                info(fleet=FLEET, job="work-1"),
                info(fleet=FLEET, job="last", name="compute1"),
                info(fleet=FLEET, job="work-2"),
                plan(job=job, version="2", fleet=FLEET),
            ]
        )
    assert (begun["failed"], begun["version"], begun["done"]) == (False, "job/work-1", True)
    assert shown["counts"]["upgraded"] == 3
    assert [one["output"] for one in host["host"]["jobs"]] == ["compute1 waits 1 s\n"]
    assert other["failure"]["code"] == "unknown_job"
    assert "'work-2' is not the last job, which is work-1" in other["msg"]
    assert wrong["failure"]["code"] == "bad_options"


def test_a_start_whose_reply_was_lost_takes_no_slot_after_the_job(
    store: Store, consul: RawKV, agent: Agent, folder: Path
) -> None:
    seed(consul, FLEET)
    spool, record = Spool(str(folder / "spool")), "upgrade/job_records/controller1"

    def run_node(port: int) -> int:
        mine = NodeSettings(
            "controller1", "controller", Connection(port=port), {}, commands_dir=str(folder / "commands.d")
        )
        return JobRun(mine, folder / "lock", "test", spool, lambda _line: None).run()

    def begin(identifier: str, host: str) -> list[str]:
        job = Job(identifier, "work", int(time.time()) + 600, {"grace": 1}, hosts=(host,))
        return [one.host for one in make_pass(store, PassRequest(job.target, RULES, fleet=FLEET, job=job)).admissions]

    assert begin("work-1", "controller1") == ["controller1"]
    with LossyProxy(agent.http_port, [LOSE_REPLY]) as proxy:
        assert run_node(proxy.port) == 75
    assert json.loads(consul.get(record) or b"")["state"] == "started"
    control.abort(store, Command(fleet=FLEET))
    # The next job closes the gate of the one before.
    assert begin("work-2", "compute1") == ["compute1"]
    assert run_node(agent.http_port) == 0
    assert consul.get(record) is None
    assert not (folder / "log").exists()
    control.abort(store, Command(fleet=FLEET))
    assert begin("work-3", "controller1") == ["controller1"]
    assert run_node(agent.http_port) == 0
    assert json.loads(consul.get(record) or b"")["job"] == "work-3"
    assert (folder / "log").read_text() == "begin controller1\nend controller1\n"
