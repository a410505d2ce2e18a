# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rollouts of pull hosts with services, from the playbook on: planner services carry them, with post-upgrade tasks. The lab has real agents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    BeginTaskGroup,
    EndHost,
    FinishTaskGroup,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import (
    POST_UPGRADE_PHASE,
    PushRun,
    task_groups_of_role,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import HostService
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, ledger, names, record, seed
from integration.support.processes.planner_service import Nodes, Service, carried, running, until
from integration.support.runs.playbook import Runner
from integration.support.runs.push import in_groups
from integration.support.runs.shipped import Shipped, inventory
from written_services import META, POST, TASKS, Roles

pytestmark = pytest.mark.one_release

HOSTS = names(web=3)
ROLES: dict[str, Any] = {"web": {"plane": "dataplane", "pull": True, "services": ["shop"]}}
ONE: dict[str, Any] = {"rolling_rules": {"global": 1}}


class Fleet:
    """Pull hosts at version 1 that have the composed tasks of their service, and a planner service beside them."""

    def __init__(
        self, run: Runner, play: Shipped, service: Callable[..., Service], store: Store, consul: RawKV
    ) -> None:
        self._play, self._store, self._consul = play, store, consul
        roles = Roles(run.folder / "roles")
        note = '- name: Say it\n  ansible.builtin.debug: {msg: "it"}\n'
        roles.add("shop", {TASKS: note + "  tags: upgrade\n", POST: note, META: "allow_downgrade: true\n"})
        self._given = {
            "inventory": inventory(HOSTS),
            "upgrade_roles": ROLES,
            "upgrade_roles_path": [str(roles.folder)],
            "instructions": ONE,
            "version": "2",
        }
        compose = {"upgrade_roles": ROLES, "folder": str(run.folder / "composed"), "roles_path": [str(roles.folder)]}
        composed = run([in_groups(HOSTS), {"convoy.upgrade.compose_upgrade_tasks": compose}])[-1]
        self._composed = composed["pull_roles"]["web"]
        seed(consul, HOSTS)
        delivered = {"version": "1", "state": "upgraded", "role": "web", "services": self._composed["tasks_id"]}
        consul.load((f"upgrade/hosts/{host}", json.dumps(delivered)) for host in HOSTS)
        self.service = service()
        until(lambda: running(consul))

    def upgrade(self, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run the playbook to its end."""
        return self._play("upgrade", **self._given, **more)

    def start(self, **more: Any) -> subprocess.Popen[str]:
        """Start the playbook."""
        return self._play.start("upgrade", **self._given, **more)

    def finish(self) -> None:
        """Let the hosts upgrade and then run their post-upgrade tasks, as their agents do; only planner services admit them."""
        with Nodes(self._store, self._consul, HOSTS):
            until(lambda: ledger(self._consul)["state"] == "complete")
        assert self.service.admitted()[: len(HOSTS)][-1] == "web3"
        for host in HOSTS:
            until(lambda host=host: record(self._consul, host).get("post") == "open")
            assert gates(self._consul)["global"] == "False"
            self._run_post_upgrade_tasks(host)
        until(lambda: gates(self._consul) == {"global": "True"} and not ledger(self._consul).get("post_upgrade"))
        assert self.service.admitted()[-len(HOSTS) :] == [*HOSTS]
        assert {record(self._consul, host)["post"] for host in HOSTS} == {"done"}

    def _run_post_upgrade_tasks(self, host: str) -> None:
        groups = {"web": task_groups_of_role(self._composed)}
        run = PushRun(self._store.settings, "2", POST_UPGRADE_PHASE, {host: "web"}, groups, (host,), on_host=True)
        tasks = HostService(run)
        try:
            tasks.begin_on_host()
            for group in run.task_groups_of(host):
                assert tasks.begin_task_group(BeginTaskGroup(host, group.name, None, whole=True)).run
                tasks.finish_task_group(FinishTaskGroup(host, group.name))
            assert tasks.end_host(EndHost(host)) == "upgraded"
        finally:
            tasks.close()


@pytest.fixture
def fleet(run: Runner, play: Shipped, service: Callable[..., Service], store: Store, consul: RawKV) -> Fleet:
    return Fleet(run, play, service, store, consul)


def test_a_rollout_that_is_not_waited_for_is_carried_to_the_end_of_its_post_upgrade_tasks(
    fleet: Fleet, consul: RawKV
) -> None:
    begun = fleet.upgrade(wait=False)
    assert begun.returncode == 0, begun.stdout
    assert "Handed over: 1 planner service carries the rollout to its end (one)." in begun.stdout
    last = begun.stdout.strip().splitlines()[-1]
    assert last.startswith("Next: ") and last.endswith("-e follow=true")
    assert ledger(consul)["post_upgrade"] == ["web"] and [*ledger(consul)["services"]] == ["web"]
    fleet.finish()


@pytest.mark.thorough
def test_a_run_that_waits_for_them_hands_over_too_and_ends_no_handover(fleet: Fleet, consul: RawKV) -> None:
    waiting = fleet.start()
    assert waiting.stdout is not None
    said = next(
        line for line in waiting.stdout if "If this run ends, planner services (one) carry the rollout on" in line
    )
    assert "To stop admissions, run ansible-playbook convoy.upgrade.pause." in said
    given = json.loads(consul.get("upgrade/handover") or b"{}")
    assert given["limit"] is None
    # A colleague runs the same command, for one host, and is killed too.
    other = fleet.start(upgrade_limit="web1")
    assert other.stdout is not None
    next(line for line in other.stdout if "If this run ends, planner services (one) carry the rollout on" in line)
    for run in (other, waiting):
        run.kill()
        run.wait()
    assert json.loads(consul.get("upgrade/handover") or b"{}") == given
    assert carried(consul)
    fleet.finish()


@pytest.mark.thorough
def test_a_limit_of_the_run_holds_for_planner_services_too(fleet: Fleet, store: Store, consul: RawKV) -> None:
    waiting = fleet.start(upgrade_limit="web2")
    until(lambda: carried(consul))
    waiting.kill()
    waiting.wait()
    with Nodes(store, consul, HOSTS):
        fleet.service.says("progress", "web2 upgraded")
    assert json.loads(consul.get("upgrade/handover") or b"{}")["limit"] == ["web2"]
    assert {host for host, gate in gates(consul).items() if gate == "True"} == {"host/web2"}
