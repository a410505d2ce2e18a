# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every example that ansible-doc shows runs as it stands."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import names, seed
from integration.support.processes.guarded import MASTER
from integration.support.processes.nodes import living_nodes
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.coverage import LOOKUP, MODULES, documentation
from integration.support.runs.hook import example
from integration.support.runs.playbook import Runner, Task, plan
from integration.support.runs.push import WATCHED, host_task, in_groups, started, step, without_services
from written_services import Roles

FILTERS = (
    "composition_text",
    "failure_text",
    "fleet",
    "mistakes_text",
    "newest_kernel",
    "plane_order",
)
PLUGINS = [
    *((name, "module") for name in (*MODULES, "show")),
    (LOOKUP, "lookup"),
    *((name, "filter") for name in FILTERS),
]


def _for_a_run(roles: Roles) -> list[Task]:
    """Return what comes before a push daemon whose hosts upgrade themselves."""
    begun = plan(version="2.10", instructions=UNLIMITED, fleet={"web1": "web"}, limit=[])
    return [begun, *without_services(roles, {"web1": "web"}, "2.10")]


def _before_a_host(roles: Roles) -> list[Task]:
    """Return the tasks before those of a host."""
    fleet = {"localhost": "web"}
    begun = plan(version="2.10", instructions=UNLIMITED, fleet=fleet, limit=[])
    return [begun, *started(roles, fleet, version="2.10")]


def _for_a_step(roles: Roles) -> list[Task]:
    """Return what comes before a task group of a host."""
    return [*_before_a_host(roles), host_task("begun"), step("stop/nginx")]


def _for_control(_roles: Roles) -> list[Task]:
    """Return what comes before an operator's action on a rollout."""
    return [plan(version="2.10", instructions={"rolling_rules": {"global": 0}})]


def _for_a_report(_roles: Roles) -> list[Task]:
    """Return what comes before a host's reports: it is admitted, and starts by its example alone."""
    return [plan(version="2.10", instructions=UNLIMITED, fleet={"compute7": "compute"}, limit=["compute7"])]


def _for_a_hook(roles: Roles) -> list[Task]:
    """Write the file that the examples name, where they are run."""
    example(roles.folder.parent)
    return []


def _for_a_job(roles: Roles) -> list[Task]:
    """Write the tasks that the example names, where it is run, and return what adds its hosts to the inventory."""
    (roles.folder.parent / "restart.yml").write_text("- ansible.builtin.debug:\n")
    return [in_groups({"localhost": "web"})]


# What has to be there before the examples of a plugin.
BEFORE = {
    "consul_upgrade_control": _for_control,
    "consul_upgrade_notify": _for_a_hook,
    "consul_upgrade_host_report": _for_a_report,
    "push_job": _for_a_job,
    "push_run": _for_a_run,
    "push_host": _before_a_host,
    "push_step": _for_a_step,
}


@pytest.fixture
def guarded_environ(guarded: Agent) -> dict[str, str]:
    """Return what names a Consul that wants tokens, and the one that may do everything there."""
    return {**guarded.environ, "CONSUL_HTTP_TOKEN": MASTER}


@pytest.mark.thorough
@pytest.mark.parametrize(("plugin", "kind"), PLUGINS)
def test_every_example_runs_unchanged(
    plugin: str, kind: str, run: Runner, agent: Agent, consul: RawKV, request: pytest.FixtureRequest
) -> None:
    hosts = {**names(controller=1, storage=1), "compute7": "compute", "compute8": "compute"}
    seed(consul, hosts, "2.8")
    roles = Roles(run.folder / "roles")
    roles.simple("nginx", "stop", "upgrade", "start")
    tasks = yaml.safe_load(documentation(plugin, kind)["examples"])
    assert tasks
    environ = {**WATCHED, "PWD": str(run.folder)}
    if plugin == "consul_upgrade_acl":
        # There are no tokens where every client may do everything.
        environ |= request.getfixturevalue("guarded_environ")
    before = BEFORE.get(plugin, lambda _roles: [])(roles)
    with living_nodes(Settings(port=agent.http_port), {**hosts, "web1": "web"}, "2.10"):
        played = run([{**task, "ignore_errors": False} for task in (*before, *tasks)], environ=environ)
    assert [task["failed"] for task in played] == [False] * len(played), played.stdout
