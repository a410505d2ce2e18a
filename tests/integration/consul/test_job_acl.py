# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs on a server that denies by default: each part has the token of its kind, and Consul refuses everything else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job, encode_job
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put, remove, remove_tree
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import progress_update
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage
from convoy_node.jobs.job_run import JobRun
from convoy_node.jobs.spool import Spool
from convoy_node.machine.errors import Denied
from convoy_node.node.connection import Connection
from convoy_node.node.consul import Consul
from convoy_node.node.settings import NodeSettings
from devkit.agent import Agent
from devkit.kv import RawKV
from devkit.wipe import wipe
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.processes.guarded import MASTER
from integration.support.processes.job_nodes import command_folder, install, running_nodes
from integration.support.processes.planner_service import Service, until
from integration.support.runs.coverage import Coverage
from integration.support.runs.shipped import Shipped, inventory

pytestmark = pytest.mark.one_release

FLEET = names(controller=1, compute=2)
RULES: dict[str, Any] = {"rolling_rules": {"global": 1}, "role_order": {"compute": "controller"}}
ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}}
JOBS = "upgrade/jobs/"
PREFIX = "cloud/"


@pytest.fixture
def kv(guarded: Agent) -> RawKV:
    wipe(guarded.kv)
    seed(guarded.kv, FLEET, gates={"global": "False"}, prefix=PREFIX)
    return guarded.kv


@pytest.fixture
def folder() -> Iterator[Path]:
    with command_folder() as found:
        install(found, 'echo "$CONVOY_HOST waits $CONVOY_ARG_GRACE s"')
        yield found


def store_with(guarded: Agent, token: str) -> Store:
    return Store(Settings(port=guarded.http_port, token=token, timeout=2, kv_prefix=PREFIX))


def secret(guarded: Agent, kind: str, name: str = "") -> str:
    """Return the token of a part."""
    return grant(store_with(guarded, MASTER), TokenKind(kind, name)).secret


def part(guarded: Agent, kind: str, name: str = "") -> Store:
    """Return a store with the token of a part."""
    return store_with(guarded, secret(guarded, kind, name))


def node_connection(guarded: Agent, host: str) -> Connection:
    return Connection(port=guarded.http_port, token=secret(guarded, "node", host))


def job(identifier: str = "work-1", **given: Any) -> Job:
    return Job(identifier, "work", int(time.time()) + 600, {"grace": 3}, **given)


def begin(store: Store, one: Job) -> list[str]:
    """Begin a job; return the hosts that are admitted."""
    made = make_pass(store, PassRequest(one.target, RULES, fleet=FLEET, job=one))
    return [admission.host for admission in made.admissions]


def record(kv: RawKV, host: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kv.get(f"{PREFIX}upgrade/job_records/{host}") or b"{}")
    return found


@pytest.fixture
def playbooks(guarded: Agent, tmp_path: Path, seen: Coverage) -> Callable[..., Any]:
    """Run playbooks with the token of a kind."""
    play = Shipped(tmp_path, guarded, seen)
    (tmp_path / "group_vars").mkdir()

    def run(kind: str, name: str, **variables: Any) -> Any:
        consul = {"upgrade_consul_token": secret(guarded, kind), "upgrade_consul_kv_prefix": PREFIX}
        (tmp_path / "group_vars/all.yml").write_text(json.dumps(consul))
        return play(name, inventory=inventory(FLEET), upgrade_roles=ROLES, **variables)

    return run


@pytest.fixture
def planner(guarded: Agent, kv: RawKV, tmp_path: Path) -> Iterator[Service]:  # noqa: ARG001  the fixture wipes Consul before the service starts
    """A planner service with the token of its kind."""
    token = tmp_path / "token"
    token.write_text(secret(guarded, "planner"))
    token.chmod(0o600)
    consul = {"port": guarded.http_port, "kv_prefix": PREFIX}
    found = Service(tmp_path, guarded.http_port, consul=consul, token_file=str(token))
    yield found
    found.kill()


def test_each_part_of_a_job_needs_only_the_token_of_its_kind(
    guarded: Agent, kv: RawKV, folder: Path, playbooks: Callable[..., Any], planner: Service
) -> None:
    until(lambda: kv.texts(f"{PREFIX}upgrade/planners/"))
    connections = {host: node_connection(guarded, host) for host in FLEET}
    with running_nodes(connections, FLEET, folder, prefix=PREFIX):
        begun = playbooks("commander", "command", run="work", args={"grace": 3}, instructions=RULES, wait=False)
        assert begun.returncode == 0, begun.stdout
        assert "Handed over: 1 planner service carries the job to its end (one)." in begun.stdout
        until(lambda: ledger(kv, PREFIX)["state"] == "complete", 30)
    assert planner.admitted() == ["compute1", "compute2"]
    assert [text for one in planner.events() if "denied" in (text := json.dumps(one))] == []
    (key,) = kv.tree(f"{PREFIX}{JOBS}")
    for host in FLEET:
        found = record(kv, host)
        assert (f"{PREFIX}{JOBS}{found['job']}", found["state"]) == (key, "done")
        (output,) = json.loads(kv.get(f"{PREFIX}upgrade/job_output/{host}") or b"")
        assert output["output"] == f"{host} waits 3 s\n"
    assert kv.texts(f"{PREFIX}config_state/") == {f"{PREFIX}config_state/enable_puppet/global": "False"}


@pytest.mark.thorough
def test_a_commander_runs_tasks_of_ansible_and_a_controller_begins_none(
    kv: RawKV, folder: Path, playbooks: Callable[..., Any]
) -> None:
    tasks = folder / "restart.yml"
    tasks.write_text("- ansible.builtin.debug:\n    msg: restarts\n")
    given = {"run_tasks": str(tasks), "instructions": RULES, "only": "compute", "ansible_connection": "local"}
    before = kv.tree()
    refused = playbooks("controller", "command", **given)
    assert refused.returncode
    assert "To begin a job, give a token of the kind commander" in " ".join(refused.stdout.split())
    assert kv.tree() == before
    done = playbooks("commander", "command", **given)
    assert done.returncode == 0, done.stdout
    assert ledger(kv, PREFIX)["state"] == "complete"
    assert [record(kv, host)["state"] for host in ("compute1", "compute2")] == ["done", "done"], done.stdout
    assert record(kv, "controller1") == {}


@pytest.mark.thorough
def test_a_controller_that_begins_a_job_learns_which_token_does(kv: RawKV, playbooks: Callable[..., Any]) -> None:
    before = kv.tree()
    refused = playbooks("controller", "command", run="work", args={"grace": 3}, instructions=RULES)
    assert refused.returncode
    text = " ".join(refused.stdout.split())
    assert "[denied] Consul at " in text
    assert "To begin a job, give a token of the kind commander" in text
    assert kv.tree() == before


@pytest.mark.thorough
def test_a_viewer_reads_the_job(
    guarded: Agent, kv: RawKV, folder: Path, playbooks: Callable[..., Any], tmp_path: Path
) -> None:
    commander = part(guarded, "commander")
    assert begin(commander, job(by="ann")) == ["controller1"]
    assert run_node(guarded, "controller1", folder) == 0
    before = kv.tree()
    shown = playbooks("viewer", "status", job="last")
    assert shown.returncode == 0, shown.stdout
    assert "Job work-1" in shown.stdout
    host = playbooks("viewer", "status", host="controller1")
    assert "| controller1 waits 3 s" in host.stdout, host.stdout
    viewer = part(guarded, "viewer")
    with LivePage(viewer, str(tmp_path)) as page:
        page.update(progress_update(read_fleet(viewer)))
        assert page.warning == ""
    assert "work-1" in (tmp_path / "index.html").read_text()
    hosts = json.loads((tmp_path / "hosts/1.json").read_text()) | json.loads((tmp_path / "hosts/2.json").read_text())
    assert [one["output"] for one in hosts["controller1"]["jobs"]] == ["controller1 waits 3 s\n"]
    assert json.loads((tmp_path / "state.json").read_text())["warnings"] == []
    assert kv.tree() == before


def run_node(guarded: Agent, host: str, folder: Path, token_of: str = "") -> int:
    """Let a node look once with the agent's code; return the exit code.

    :param token_of: the host whose token it has; its own by default.
    """
    given: dict[str, Any] = {"commands_dir": str(folder / "commands.d"), "prefix": PREFIX}
    settings = NodeSettings(host, FLEET[host], node_connection(guarded, token_of or host), {}, **given)
    return JobRun(settings, folder / f"{host}.lock", "test", Spool(str(folder / f"spool-{host}")), print).run()


def test_a_node_reports_only_its_own_job_and_reads_only_what_it_needs(guarded: Agent, kv: RawKV, folder: Path) -> None:
    rules = {"rolling_rules": {"global": "unlimited"}}
    make_pass(part(guarded, "commander"), PassRequest("job/work-1", rules, fleet=FLEET, job=job()))
    with pytest.raises(Denied):
        run_node(guarded, "compute2", folder, token_of="compute1")
    assert not (folder / "log").exists()
    assert kv.tree(f"{PREFIX}upgrade/job_records/") == {}
    assert run_node(guarded, "compute1", folder) == 0
    assert run_node(guarded, "compute2", folder) == 0
    visible = {key.removeprefix(PREFIX) for key in RawKV(kv.url, secret(guarded, "node", "compute1")).tree()}
    assert visible == {
        "current_version",
        "config_state/enable_puppet/global",
        "upgrade/current_job",
        "upgrade/job_gates/global",
        "upgrade/job_gates/host/compute1",
        "upgrade/job_gates/host/compute2",
        "upgrade/job_gates/host/controller1",
        "upgrade/jobs/work-1",
        "upgrade/job_records/compute1",
        "upgrade/job_output/compute1",
        "upgrade/wake/compute1",
        "upgrade/hold/",
    }
    consul = Consul(node_connection(guarded, "compute1"))
    for key in ("job_records/compute2", "job_output/compute2", "ledger", "history/1", "handover"):
        with pytest.raises(Denied):
            consul.get(f"{PREFIX}upgrade/{key}")


Attempt = tuple[str, Callable[[Store], object]]

# What only a commander can do.
WRITES: list[Attempt] = [
    ("write another job", lambda store: store.client.write([put(f"{PREFIX}{JOBS}work-2", encode_job(job("work-2")))])),
    ("change the job", lambda store: store.client.write([put(f"{PREFIX}{JOBS}work-1", encode_job(job()))])),
    ("remove the job", lambda store: store.client.write([remove(f"{PREFIX}{JOBS}work-1")])),
    ("remove all jobs", lambda store: store.client.write([remove_tree(f"{PREFIX}{JOBS}")])),
    ("remove all keys", lambda store: store.client.write([remove_tree(f"{PREFIX}upgrade/")])),
]
BEGIN: Attempt = ("begin a job", lambda store: begin(store, job("work-2")))
# What nodes and viewers can't do either.
COMMANDS: list[Attempt] = [
    ("pause it", lambda store: control.pause(store, Command(fleet=FLEET))),
    ("retry its hosts", lambda store: control.retry(store, Command(fleet=FLEET))),
    ("abort it", lambda store: control.abort(store, Command(fleet=FLEET))),
    ("hold its hosts", lambda store: set_holds(store, HoldTargets(everything=True), "x")),
    ("name another job", lambda store: store.client.write([put(f"{PREFIX}upgrade/current_job", "job/work-2")])),
    ("admit a host", lambda store: store.client.write([put(f"{PREFIX}upgrade/job_gates/host/compute1", "True", 1)])),
    ("report for another", lambda store: store.client.write([put(f"{PREFIX}upgrade/job_records/compute2", "{}")])),
    ("show another output", lambda store: store.client.write([put(f"{PREFIX}upgrade/job_output/compute2", "[]")])),
]


def refused(store: Store, kv: RawKV, attempts: list[Attempt]) -> list[str]:
    """Return those of some attempts that Consul refused, each with the code ``denied``, and that changed nothing."""
    found = []
    for what, act in attempts:
        before = kv.tree()
        try:
            act(store)
        except UpgradeError as error:
            if error.code == "denied" and kv.tree() == before:
                found.append(what)
    return found


@pytest.mark.parametrize(
    ("kind", "host", "attempts"),
    [
        ("controller", "", WRITES),
        ("planner", "", WRITES),
        ("node", "compute1", [*WRITES, *COMMANDS]),
        ("viewer", "", [*WRITES, *COMMANDS]),
    ],
)
def test_only_a_commander_begins_jobs_and_nodes_and_viewers_give_no_commands(
    guarded: Agent, kv: RawKV, kind: str, host: str, attempts: list[Attempt]
) -> None:
    commander, store = part(guarded, "commander"), part(guarded, kind, host)
    assert refused(store, kv, [BEGIN]) == [BEGIN[0]]
    assert begin(commander, job()) == ["controller1"]
    # There is a host to retry.
    kv.put(f"{PREFIX}upgrade/job_records/controller1", json.dumps({"job": "work-1", "state": "failed", "run": "a"}))
    assert refused(store, kv, attempts) == [what for what, _act in attempts]
    control.abort(commander, Command(fleet=FLEET))
    assert refused(store, kv, [BEGIN, *WRITES]) == [BEGIN[0], *(what for what, _act in WRITES)]


def test_a_controller_runs_the_job_that_a_commander_has_begun(guarded: Agent, kv: RawKV) -> None:
    commander, controller = part(guarded, "commander"), part(guarded, "controller")
    assert begin(commander, job()) == ["controller1"]
    written = kv.tree(f"{PREFIX}{JOBS}")
    kv.put(f"{PREFIX}upgrade/job_records/controller1", json.dumps({"job": "work-1", "state": "failed", "run": "a"}))
    control.pause(controller, Command(fleet=FLEET))
    control.resume(controller, Command(fleet=FLEET))
    control.retry(controller, Command(fleet=FLEET))
    assert record(kv, "controller1")["state"] == "retried"
    assert [one.host for one in make_pass(controller, PassRequest("job/work-1")).admissions] == ["controller1"]
    control.abort(controller, Command(fleet=FLEET))
    assert ledger(kv, PREFIX)["state"] == "aborted"
    # It can begin a rollout to a version after that, and a commander the next job.
    assert make_pass(controller, PassRequest("2", RULES, fleet=FLEET)).begun
    assert kv.tree(f"{PREFIX}{JOBS}") == written
    control.abort(controller, Command(fleet=FLEET))
    assert begin(commander, job("work-2")) == ["controller1"]
    assert list(kv.tree(f"{PREFIX}{JOBS}")) == [f"{PREFIX}{JOBS}work-2"]
