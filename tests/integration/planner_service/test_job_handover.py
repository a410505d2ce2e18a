# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that an operator hands over to planner services, with nodes that run them with the code of the agent."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import hand_over, wait_for_planner
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from convoy_node.node.connection import Connection
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.processes.job_nodes import command_folder, install, lines, running_nodes
from integration.support.processes.planner_service import Service, running, until
from integration.support.runs.shipped import Shipped, inventory

pytestmark = pytest.mark.one_release

FLEET = names(controller=1, compute=3)
ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}}
RULES: dict[str, Any] = {"rolling_rules": {"global": 1}}
MORE: dict[str, Any] = {"inventory": inventory(FLEET), "upgrade_roles": ROLES, "instructions": RULES}

Start = Callable[..., Service]
JobNodes = Callable[..., Any]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Each host runs the command until the test lets it go on."""
    with command_folder() as found:
        install(found, f'while ! test -e "{found}/go-$CONVOY_HOST"; do sleep 0.05; done')
        yield found


@pytest.fixture
def job_nodes(agent: Agent, folder: Path) -> JobNodes:
    """Let hosts run jobs meanwhile."""
    return partial(running_nodes, Connection(port=agent.http_port), FLEET, folder)


@pytest.mark.thorough
def test_a_job_that_was_handed_over_goes_on_after_the_acting_service_is_killed(
    play: Shipped, service: Start, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    services = [service("one"), service("two")]
    until(lambda: len(running(consul)) == 2)
    with job_nodes():
        begun = play("command", run="work", args={"grace": 3}, wait=False, reason="certificate", by="ann", **MORE)
        assert begun.returncode == 0, begun.stdout
        assert "(1 host is not done: controller1 running), as role_order says" in begun.stdout
        # Those that have answered by then.
        assert re.search(
            r"Handed over: (1 planner service carries|2 planner services carry) the job to its end \((one|two|one, two)\)\.",
            begun.stdout,
        )
        (key,) = consul.tree("upgrade/jobs/")
        identifier = key.removeprefix("upgrade/jobs/")
        last = begun.stdout.strip().splitlines()[-1]
        assert last.startswith("Next: ") and "status" in last and "follow=true" in last
        until(lambda: lines(folder) == ["begin controller1"])
        (folder / "go-controller1").touch()
        until(lambda: "begin compute1" in lines(folder))
        until(lambda: any(one.admitted() for one in services))
        (acting,) = (one for one in services if one.admitted())
        acting.kill()
        (other,) = (one for one in services if one is not acting)
        assert other.admitted() == []
        for host in ("compute1", "compute2", "compute3"):
            (folder / f"go-{host}").touch()
        until(lambda: ledger(consul)["state"] == "complete")
    assert (acting.admitted(), other.admitted()) == (["compute1"], ["compute2", "compute3"])
    # Each host once, one after the other.
    assert lines(folder) == [f"{what} {host}" for host in FLEET for what in ("begin", "end")]
    other.says("carrying", f"Carries the job {identifier}, which ")
    other.says("complete", f"The job is complete. job {identifier}: compute 3/3, controller 1/1")
    other.says("standing_by", f"the job {identifier} is complete")
    shown = play("status", job="last", **MORE)
    assert f"Job {identifier}" in shown.stdout and "by ann, complete: 4 of 4 hosts done" in shown.stdout


@pytest.mark.thorough
def test_a_job_that_ends_before_its_operator_reads_an_answer_was_handed_over_all_the_same(
    store: Store, service: Start, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    one = service("one")
    until(lambda: running(consul))
    (folder / "go-compute1").touch()
    job = Job("work-1", "work", int(time.time()) + 600, {"grace": 3}, hosts=("compute1",))
    with job_nodes():
        begun = make_pass(store, PassRequest(job.target, RULES, fleet=FLEET, job=job))
        assert begun.ledger is not None
        handed = hand_over(store, begun.ledger, None, dry=False)
        one.says("standing_by", "the job work-1 is complete")
    assert wait_for_planner(store, handed.id, 5) == ("one",)
    assert lines(folder) == ["begin compute1", "end compute1"]
    # A job that was aborted was not carried to its end.
    again = Job("work-2", "work", int(time.time()) + 600, {"grace": 3}, hosts=("compute1",))
    begun = make_pass(store, PassRequest(again.target, RULES, fleet=FLEET, job=again))
    assert begun.ledger is not None
    control.abort(store, Command(fleet=FLEET))
    handed = hand_over(store, begun.ledger, None, dry=False)
    with pytest.raises(UpgradeError) as refused:
        wait_for_planner(store, handed.id, 3)
    assert "one: It stands by: the job work-2 is aborted." in refused.value.message


@pytest.mark.thorough
def test_a_job_that_its_run_left_is_handed_over_afterwards_with_its_id(
    play: Shipped, service: Start, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    for host in FLEET:
        (folder / f"go-{host}").touch()
    refused = play("command", run="work", args={"grace": 3}, wait=False, **MORE)
    assert refused.returncode and "[no_planner] No planner service runs" in refused.stdout
    assert ledger(consul) == {} and consul.tree("upgrade/jobs/") == {}
    assert play("command", run="work", args={"grace": 3}, once=True, **MORE).returncode == 0
    one = service("one")
    text = one.says("standing_by", "was not handed over")
    assert "To hand it over, run ansible-playbook convoy.upgrade.command -e job=work-" in text and text.endswith(
        " -e wait=false."
    )
    handed = play("command", job=text.split("-e job=")[1].split()[0], wait=False, **MORE)
    assert handed.returncode == 0, handed.stdout
    with job_nodes():
        until(lambda: ledger(consul)["state"] == "complete")
    assert one.admitted() == ["compute1", "compute2", "compute3"]
    # A job whose tasks Ansible runs is not for planner services.
    tasks = folder / "tasks.yml"
    tasks.write_text("- ansible.builtin.debug:\n    msg: x\n")
    before = consul.tree()
    refused = play("command", run_tasks=str(tasks), wait=False, **MORE)
    assert refused.returncode and "planner services run no Ansible tasks" in refused.stdout
    assert consul.tree() == before


@pytest.mark.thorough
def test_a_service_goes_on_with_the_next_job_and_the_next_rollout_that_is_handed_over(
    store: Store, service: Start, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    one = service("one")
    until(lambda: running(consul))
    expires = int(time.time()) + 600
    with job_nodes():
        for number, host in ((1, "compute1"), (2, "controller1")):
            job = Job(f"work-{number}", "work", expires, {"grace": 3}, hosts=(host, "compute3"))
            begun = make_pass(store, PassRequest(job.target, RULES, fleet=FLEET, job=job))
            assert begun.admissions[-1].host == host
            assert begun.ledger is not None
            handed = hand_over(store, begun.ledger, None, dry=False)
            assert wait_for_planner(store, handed.id) == ("one",)
            until(lambda host=host: f"begin {host}" in lines(folder))
            # The command goes on, and takes its slot in what comes next.
            control.abort(store, Command(fleet=FLEET))
        begun = make_pass(store, PassRequest("2", RULES, fleet=FLEET))
        assert begun.ledger is not None
        assert wait_for_planner(store, hand_over(store, begun.ledger, None, dry=False).id) == ("one",)
        assert begun.admissions == []
        for host in ("compute1", "controller1"):
            (folder / f"go-{host}").touch()
            until(lambda host=host: f"end {host}" in lines(folder))
        until(lambda: len(one.admitted()) == 2)
    assert one.admitted() == ["compute1", "controller1"]
    assert sorted(lines(folder)) == ["begin compute1", "begin controller1", "end compute1", "end controller1"]
    # A service that still carries the job before learns that another rollout has begun, not that its job never was.
    assert one.messages("unknown_job") == []
