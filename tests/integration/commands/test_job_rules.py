# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs under windows, freezes, groups and stages: hosts wait as in an upgrade, and what is shown names the job."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from convoy_node.node.connection import Connection
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.processes.job_nodes import command_folder, install, lines, running_nodes
from integration.support.processes.planner_service import until
from integration.support.runs.commands import upgrade
from integration.support.runs.shipped import Shipped, inventory

pytestmark = [pytest.mark.one_release, pytest.mark.thorough]

FLEET = names(controller=1, compute=2, gpu=2)
WORKERS = ["compute1", "compute2", "gpu1", "gpu2"]
ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}, "gpu": {"plane": "dataplane"}}
RULES: dict[str, Any] = {"rolling_rules": {"global": 1}, "group_mappings": {"workers": ["compute", "gpu"]}}
STAGES = [{"name": "canary", "hosts": ["gpu1"], "approve": True}, {"name": "rest", "hosts": "100%"}]
MORE: dict[str, Any] = {"inventory": inventory(FLEET), "upgrade_roles": ROLES}

_DATE = "%Y-%m-%dT%H:%M:%S"

JobNodes = Callable[..., Any]


@pytest.fixture
def folder() -> Iterator[Path]:
    with command_folder() as found:
        install(found, "sleep 0.2")
        yield found


@pytest.fixture
def job_nodes(agent: Agent, folder: Path) -> JobNodes:
    """Let hosts run jobs meanwhile."""
    return partial(running_nodes, Connection(port=agent.http_port), FLEET, folder)


def one_line(text: str) -> str:
    return " ".join(text.split())


def at(moment: float, form: str) -> str:
    """Return a time (unix seconds) as text (UTC)."""
    return time.strftime(form, time.gmtime(moment))


def next_of(text: str) -> tuple[str, str]:
    """Return the next command of a run, and the one after it; empty for none."""
    found = re.search(r"^Next: (.*)(?:\nThen: (.*))?", text, re.MULTILINE)
    assert found, text
    return found[1], found[2] or ""


def test_a_job_of_a_group_waits_for_a_window_and_for_the_end_of_a_freeze(
    play: Shipped, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    later = [{"from": at(time.time() + 7200, "%H:%M"), "to": at(time.time() + 10800, "%H:%M")}]
    with job_nodes():
        rules = {**RULES, "windows": later}
        waited = play(
            "command", run="work", args={"grace": 1}, only="workers", instructions=rules, upgrade_wait_timeout=1, **MORE
        )
        text = one_line(waited.stdout)
        assert waited.returncode and "[timeout] The wait timeout has passed, and the job continues" in text
        assert "outside of all windows; the next one begins" in text
        following, then = next_of(waited.stdout)
        (identifier,) = re.findall(r"-e job=(work-\S+)", following)
        assert "/command.yml" in following and "run=" not in following and then == ""
        shown = play("status", host="gpu2", **MORE)
        assert "outside of all windows" in shown.stdout
        assert lines(folder) == []
        end = int(time.time()) + 12
        frozen = [{"from": at(end - 60, _DATE), "to": at(end, _DATE), "reason": "audit"}]
        rules = {**RULES, "windows": [], "freezes": frozen}
        done = play("command", job=identifier, instructions=rules, **MORE)
    assert done.returncode == 0, done.stdout
    assert f"Job {identifier}" in done.stdout and "complete: 4 of 4 hosts done" in done.stdout
    # One host of the group at a time, and none of another role.
    assert lines(folder)[::2] == [one.replace("end", "begin") for one in lines(folder)[1::2]]
    assert sorted(lines(folder)[::2]) == [f"begin {host}" for host in WORKERS]
    records = [json.loads(consul.get(f"upgrade/job_records/{host}") or b"") for host in WORKERS]
    assert min(one["times"]["started"] for one in records) >= end
    # The rules of a job do not outlast it.
    assert ledger(consul)["state"] == "complete"
    upgraded = play("upgrade", "--check", version="2", **MORE)
    assert "[no_cap]" in upgraded.stdout


def test_a_job_under_the_stages_of_the_last_rollout_waits_for_an_approval_of_its_own(
    play: Shipped, store: Store, consul: RawKV, folder: Path, job_nodes: JobNodes
) -> None:
    seed(consul, FLEET)
    make_pass(
        store, PassRequest("2", {**RULES, "rolling_rules": {"global": "unlimited"}, "stages": STAGES}, fleet=FLEET)
    )
    upgrade(store, "gpu1")
    make_pass(store, PassRequest(fleet=FLEET))
    control.approve(store, Command(fleet=FLEET), "canary")
    make_pass(store, PassRequest(fleet=FLEET))
    upgrade(store, *(host for host in FLEET if host != "gpu1"))
    make_pass(store, PassRequest(fleet=FLEET, converge=True))
    assert ledger(consul)["state"] == "complete"

    begun = play("command", run="work", args={"grace": 1}, only="workers", once=True, **MORE)
    assert begun.returncode == 0, begun.stdout
    assert "waits for stage canary (1 host to go: gpu1)" in one_line(begun.stdout)
    identifier = ledger(consul)["version"].removeprefix("job/")
    with job_nodes():
        until(lambda: "end gpu1" in lines(folder))
        waited = play("command", job=identifier, upgrade_wait_timeout=1, **MORE)
        assert waited.returncode and "waits for an approval after stage canary" in one_line(waited.stdout)
        following, then = next_of(waited.stdout)
        assert "/approve.yml" in following and "-e stage=canary" in following
        assert "/command.yml" in then and f"-e job={identifier}" in then and "run=" not in then
        shown = play("status", **MORE)
        assert f"Job {identifier}" in shown.stdout and "convoy.upgrade.approve -e stage=canary" in one_line(
            shown.stdout
        )
        assert lines(folder) == ["begin gpu1", "end gpu1"]
        wrong = play("approve", stage="rest", **MORE)
        assert wrong.returncode and "the job is in stage canary" in one_line(wrong.stdout)
        assert "/status.yml" in next_of(wrong.stdout)[0]
        approved = play("approve", stage="canary", reason="gpu1 works", by="ann", **MORE)
        assert approved.returncode == 0, approved.stdout
        assert f"-e job={identifier}" in next_of(approved.stdout)[0]
        done = play("command", job=identifier, **MORE)
    assert done.returncode == 0, done.stdout
    assert "complete: 4 of 4 hosts done" in done.stdout
    assert lines(folder)[:2] == ["begin gpu1", "end gpu1"]
    assert sorted(one for one in lines(folder) if one.startswith("begin")) == [f"begin {host}" for host in WORKERS]
    assert consul.get("current_version") == b"2"
