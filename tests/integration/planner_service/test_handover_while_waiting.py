# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that wait for their rollout while planner services stand by, and that end before it: what the services carry on, and what they do not."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import (
    hand_over,
    hand_over_while_waiting,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from convoy_node.node.connection import Connection
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, opened, seed
from integration.support.processes.guarded import MASTER, guarded_agent
from integration.support.processes.job_nodes import command_folder, install, lines, running_nodes
from integration.support.processes.planner_service import Nodes, Service, carried, running, until
from integration.support.processes.proxy import LossyProxy
from integration.support.runs.playbook import Runner, plan
from integration.support.runs.shipped import Shipped, inventory

pytestmark = pytest.mark.one_release

Start = Callable[..., Service]
ONE: dict[str, Any] = {"rolling_rules": {"global": 1}}
HOSTS = names(web=6)


def handover(consul: RawKV) -> dict[str, Any]:
    """Return the handover; empty if there is none."""
    found: dict[str, Any] = json.loads(consul.get("upgrade/handover") or b"{}")
    return found


@pytest.fixture
def one(service: Start, consul: RawKV) -> Service:
    """A planner service that runs beside a fleet which has reported version 1."""
    seed(consul, HOSTS)
    found = service()
    until(lambda: running(consul))
    return found


def kill_once_handed_over(process: subprocess.Popen[str], consul: RawKV) -> None:
    """End a run as kill -9 does, when it has handed its rollout over and admitted its first host."""
    until(lambda: handover(consul) and "True" in gates(consul).values())
    process.kill()
    process.wait()


@pytest.mark.thorough
def test_planner_services_carry_a_run_on_that_was_killed(
    play: Shipped, one: Service, store: Store, consul: RawKV
) -> None:
    kill_once_handed_over(play.start("upgrade", inventory=inventory(HOSTS), version="2", instructions=ONE), consul)
    assert handover(consul)["limit"] is None
    with Nodes(store, consul, HOSTS):
        until(lambda: ledger(consul)["state"] == "complete")
    assert one.admitted() == ["web2", "web3", "web4", "web5", "web6"]
    assert opened(history(consul)) == [*HOSTS]


@pytest.mark.thorough
def test_they_admit_no_host_outside_the_limit_of_the_run(
    play: Shipped, one: Service, store: Store, consul: RawKV
) -> None:
    limited = {"inventory": inventory(HOSTS), "instructions": ONE, "upgrade_limit": "web2,web3"}
    kill_once_handed_over(play.start("upgrade", version="2", **limited), consul)
    with Nodes(store, consul, HOSTS):
        until(lambda: one.admitted() == ["web3"])
        one.says("progress", "web3 upgraded")
    assert opened(history(consul)) == ["web2", "web3"]
    # The same run again, for the rest.
    again = play.start("upgrade", version="2", inventory=inventory(HOSTS), instructions=ONE)
    until(lambda: handover(consul)["limit"] is None)
    again.kill()
    again.wait()
    with Nodes(store, consul, {host: role for host, role in HOSTS.items() if host not in ("web2", "web3")}):
        until(lambda: ledger(consul)["state"] == "complete")


@pytest.mark.thorough
@pytest.mark.usefixtures("one")
def test_a_run_that_is_interrupted_says_that_they_carry_it_on(play: Shipped, consul: RawKV) -> None:
    process = play.start("upgrade", inventory=inventory(HOSTS), version="2", instructions=ONE)
    assert process.stdout is not None
    said = next(
        line for line in process.stdout if "If this run ends, planner services (one) carry the rollout on" in line
    )
    assert "To stop admissions, run ansible-playbook convoy.upgrade.pause." in said
    until(lambda: carried(consul))
    process.send_signal(signal.SIGINT)
    shown, _nothing = process.communicate(timeout=60)
    assert process.returncode == 99, shown
    assert "Planner services continue it. To stop admissions: ansible-playbook " in shown, shown
    last = shown.strip().splitlines()[-1]
    assert last.startswith("Next: ") and "/status.yml" in last and last.endswith("-e follow=true"), shown
    # An operator who wants to stop pauses it, and then nothing more is admitted.
    assert play("pause").returncode == 0
    assert ledger(consul)["state"] == "paused"


@pytest.mark.thorough
def test_a_run_that_is_interrupted_before_a_service_has_answered_says_so(play: Shipped, consul: RawKV) -> None:
    seed(consul, HOSTS)
    # As that of a service that runs and can't work.
    consul.put("upgrade/planners/one", "{}")
    process = play.start("upgrade", inventory=inventory(HOSTS), version="2", instructions=ONE)
    until(lambda: handover(consul) and "True" in gates(consul).values())
    assert process.stdout is not None
    next(line for line in process.stdout if " 1 upgrading," in line)
    process.send_signal(signal.SIGINT)
    shown, _nothing = process.communicate(timeout=60)
    assert process.returncode == 99, shown
    assert "Planner services continue it" not in shown
    assert "It was handed over to planner services, but it is not known that one carries it" in shown, shown
    last = shown.strip().splitlines()[-1]
    assert last.startswith("Next: ") and "/upgrade.yml" in last, shown


@pytest.mark.thorough
@pytest.mark.usefixtures("one")
def test_a_run_whose_wait_is_over_says_so_too(play: Shipped) -> None:
    given = {"inventory": inventory(HOSTS), "instructions": ONE, "upgrade_wait_timeout": 3}
    ended = play("upgrade", version="2", **given)
    assert ended.returncode == 2 and "[timeout] The wait timeout has passed" in ended.stdout
    last = ended.stdout.strip().splitlines()[-1]
    assert "/status.yml" in last and last.endswith("-e follow=true")


@pytest.mark.thorough
@pytest.mark.usefixtures("one")
def test_after_what_an_operator_has_to_do_no_second_run_is_needed(play: Shipped, store: Store, consul: RawKV) -> None:
    write_report(store, HostReport("web1", "2", "failed", step="upgrade", error="no space left"))
    stuck = play("upgrade", inventory=inventory(HOSTS), version="2", instructions=ONE)
    assert stuck.returncode == 2 and "[stuck] " in stuck.stdout, stuck.stdout
    retry, follow = stuck.stdout.strip().splitlines()[-2:]
    assert retry.startswith("Next: ") and "/retry.yml" in retry
    assert follow.startswith("Then: ") and "/status.yml" in follow and follow.endswith("-e follow=true")
    with Nodes(store, consul, HOSTS):
        assert play("retry", host="web1").returncode == 0
        until(lambda: ledger(consul)["state"] == "complete")


@pytest.mark.thorough
@pytest.mark.usefixtures("one")
def test_a_run_that_ends_well_leaves_nothing_to_follow(play: Shipped, store: Store, consul: RawKV) -> None:
    with Nodes(store, consul, HOSTS):
        ended = play("upgrade", inventory=inventory(HOSTS), version="2", instructions=ONE)
    assert ended.returncode == 0, ended.stdout
    assert "Handed over" not in ended.stdout and "continue it" not in ended.stdout
    assert "follow=true" not in ended.stdout
    assert ledger(consul)["state"] == "complete"


@pytest.mark.thorough
def test_a_job_is_carried_on_too(play: Shipped, service: Start, agent: Agent, consul: RawKV) -> None:
    fleet = names(compute=3)
    seed(consul, fleet)
    one = service()
    until(lambda: running(consul))
    given: dict[str, Any] = {
        "inventory": inventory(fleet),
        "upgrade_roles": {"compute": {"plane": "dataplane"}},
        "instructions": ONE,
    }
    with command_folder() as folder:
        install(folder, f'while ! test -e "{folder}/go-$CONVOY_HOST"; do sleep 0.05; done')
        nodes = partial(running_nodes, Connection(port=agent.http_port), fleet, folder)
        process = play.start("command", run="work", args={"grace": 3}, **given)
        until(lambda: handover(consul) and ledger(consul)["state"] == "running")
        process.kill()
        process.wait()
        with nodes():
            for host in fleet:
                (folder / f"go-{host}").touch()
            until(lambda: ledger(consul)["state"] == "complete")
        assert lines(folder) == [f"{what} {host}" for host in fleet for what in ("begin", "end")]
    assert one.admitted() == ["compute2", "compute3"]


def test_what_is_not_handed_over(run: Runner, consul: RawKV) -> None:
    seed(consul, HOSTS)
    waiting: dict[str, Any] = {"version": "2", "wait": True, "wait_timeout": 0}
    nothing = {"id": "", "planners": [], "warning": ""}
    (alone,) = run([plan(instructions=ONE, **waiting)])
    assert (alone["handover"], handover(consul)) == (nothing, {})
    # As that of a service that runs.
    consul.put("upgrade/planners/one", "{}")
    (checked,) = run([plan(**waiting)], check=True)
    assert (checked["handover"], handover(consul)) == (nothing, {})
    no_hosts, without = run([plan(**waiting, limit=[]), plan(version="2")])
    assert no_hosts["handover"] == without["handover"] == nothing
    assert handover(consul) == {}
    (waited,) = run([plan(**waiting, limit=["web1"])])
    assert (waited["handover"], handover(consul)["limit"]) == ({**nothing, "id": handover(consul)["id"]}, ["web1"])
    # A run whose hosts are done has nothing to hand over, and takes nothing from others.
    consul.delete("running/versions/1/web2")
    consul.put("running/versions/2/web2", "")
    (done,) = run([plan(**waiting, limit=["web2"])])
    assert (done["done"], handover(consul)["limit"]) == (True, ["web1"])


@pytest.mark.thorough
def test_a_run_for_one_pass_and_check_mode_hand_nothing_over(play: Shipped, consul: RawKV) -> None:
    seed(consul, HOSTS)
    consul.put("upgrade/planners/one", "{}")
    given: dict[str, Any] = {"inventory": inventory(HOSTS), "version": "2", "instructions": ONE}
    assert play("upgrade", "--check", **given).returncode == 0
    once = play("upgrade", once=True, **given)
    assert once.returncode == 0, once.stdout
    assert handover(consul) == {}


@pytest.mark.thorough
def test_a_run_for_some_hosts_leaves_a_handover_of_all_as_it_is(store: Store, service: Start, consul: RawKV) -> None:
    seed(consul, HOSTS)
    service(fleet=dict(HOSTS))
    until(lambda: running(consul))
    begun = make_pass(store, PassRequest("2", ONE, fleet=HOSTS)).ledger
    assert begun is not None
    first = hand_over_while_waiting(store, begun, ["web1"])
    assert (first.id, first.planners, first.warning) == (handover(consul)["id"], (), "")
    other = hand_over_while_waiting(store, begun, ["web2"])
    assert handover(consul)["limit"] == ["web2"]
    assert other.warning.startswith(
        "Planner services carry the rollout to 2 only for web2 from now on, and before for web1, because this run replaced the handover by "
    )
    assert other.warning.endswith("run ansible-playbook convoy.upgrade.upgrade -e version=2 without upgrade_limit.")
    assert hand_over(store, begun, None, dry=False).warning == ""
    until(lambda: carried(consul))
    whole = handover(consul)
    # Of what check mode would do, nothing is said that has happened.
    assert hand_over(store, begun, ["web1"], dry=True).warning == ""
    for limit in (["web1"], None):
        left = hand_over_while_waiting(store, begun, limit)
        assert (left.id, left.planners, [*left.changes], handover(consul)) == (whole["id"], ("one",), [], whole)
    # Hosts that a run can't upgrade are taken from it, also by a run for others, and stay so until a run can.
    without = hand_over_while_waiting(store, begun, ["web2"], ["!~web1$"])
    assert (without.id, handover(consul)["limit"]) == (handover(consul)["id"], ["!~web1$"])
    assert without.warning.endswith(
        f"only for all hosts but web1 from now on, and before for all hosts, because this run replaced the handover by {whole['by']}."
    )
    kept = handover(consul)
    assert hand_over_while_waiting(store, begun, ["web3"]).id == kept["id"] == handover(consul)["id"]
    hand_over_while_waiting(store, begun, ["web3"], ["!~web2$"])
    assert handover(consul)["limit"] == ["!~web1$", "!~web2$"]
    whole = {**whole, "id": hand_over_while_waiting(store, begun, None).id}
    until(lambda: carried(consul))
    assert handover(consul) == {**whole, "at": handover(consul)["at"]}
    whole = handover(consul)
    # As after a restore of Consul: a service that refuses it waits for a new one.
    consul.put("upgrade/planners/one", json.dumps({"handover": whole["id"], "refusal": "no"}))
    assert hand_over_while_waiting(store, begun, ["web1"]).planners == ()
    assert handover(consul) == whole
    again = hand_over_while_waiting(store, begun, None)
    assert again.id == handover(consul)["id"] != whole["id"]
    assert (
        "only for web1 from now on, and before for all hosts," in hand_over(store, begun, ["web1"], dry=False).warning
    )


def test_a_rollout_that_another_one_has_replaced_is_not_handed_over(store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS)
    consul.put("upgrade/planners/one", "{}")
    begun = make_pass(store, PassRequest("2", ONE, fleet=HOSTS)).ledger
    assert begun is not None
    make_pass(store, PassRequest("3", ONE, fleet=HOSTS, replace="2"))
    late = hand_over_while_waiting(store, begun, None)
    assert late.planners == ()
    assert "was not handed over, because the rollout to 3, begun by" in late.warning
    assert handover(consul) == {}


def test_it_costs_one_read_and_with_a_planner_service_one_write(agent: Agent, store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS)
    begun = make_pass(store, PassRequest("2", ONE, fleet=HOSTS)).ledger
    assert begun is not None
    with LossyProxy(agent.http_port) as proxy:
        mine = Store(Settings(port=proxy.port))
        hand_over_while_waiting(mine, begun, None)
        assert (proxy.reads, proxy.writes) == (1, 0)
        consul.put("upgrade/planners/one", "{}")
        hand_over_while_waiting(mine, begun, None)
        assert (proxy.reads, proxy.writes) == (2, 1)


@pytest.mark.thorough
def test_a_token_that_may_not_hand_over_is_warned_of_and_its_run_goes_on() -> None:
    with guarded_agent() as agent:
        store = Store(Settings(port=agent.http_port, token=MASTER))
        seed(agent.kv, HOSTS)
        agent.kv.put("upgrade/planners/one", "{}")
        begun = make_pass(store, PassRequest("2", ONE, fleet=HOSTS)).ledger
        assert begun is not None
        viewer = Store(Settings(port=agent.http_port, token=grant(store, TokenKind("viewer")).secret))
        shared = hand_over_while_waiting(viewer, begun, None)
        assert shared.planners == ()
        assert shared.warning.startswith("The rollout could not be handed over to planner services: ")
        assert shared.warning.endswith(" If this run ends before the rollout does, run the same command again.")
        assert handover(agent.kv) == {}
