# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_upgrade_plan with wait: what is seen meanwhile, how it ends, and a Consul that goes away and comes back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.watch import Watch
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, opened, seed
from integration.support.processes.nodes import living_nodes
from integration.support.processes.proxy import LossyProxy
from integration.support.runs.coverage import Coverage
from integration.support.runs.playbook import Runner, plan, wait_until
from integration.support.runs.shipped import Shipped, inventory

pytestmark = pytest.mark.one_release

ONE_BY_ONE = {"rolling_rules": {"global": 1}}
FLEET = names(controller=1, compute=3)
RULES = {"rolling_rules": {"global": 2}, "role_order": {"compute": "controller"}}


def test_it_goes_on_until_all_are_upgraded_and_shows_every_change(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    with living_nodes(store.settings, FLEET, "2"):
        played = run([plan(version="2", instructions=RULES, wait=True, wait_timeout=60, converge=True)], diff=True)
    (result,) = played
    assert (result["done"], result["complete"], result["changed"]) == (True, True, True)
    assert [one["host"] for one in result["transitions"]] == ["controller1", "compute1", "compute2", "compute3"]
    assert result["waves"] == [["controller1"], ["compute1", "compute2"], ["compute3"]]
    assert gates(consul) == {"global": "True"}
    assert ledger(consul)["state"] == "complete"
    assert sorted(opened(history(consul))) == sorted(FLEET)
    assert "controller1 admitted (slot 1 of 2)" in played.stdout
    assert "compute1 admitted (slot 1 of 2)" in played.stdout
    for host in FLEET:
        assert f"{host} upgraded\n" in played.stdout
    assert "-- 2: compute 0/3, controller 0/1; 1 upgrading, 3 waiting\n" in played.stdout
    assert "-- 2: compute 3/3, controller 1/1; 0 upgrading, 0 waiting\n" in played.stdout
    assert "config_state/enable_puppet/host/compute3 = True" in played.stdout


@pytest.mark.thorough
def test_it_ends_when_no_host_can_continue_and_says_why(run: Runner, store: Store, consul: RawKV) -> None:
    """Four fleets in one Consul, each stuck for a reason of its own, and one that an operator pauses half way."""
    for fleet in ("hold", "zero", "failed", "limit"):
        seed(consul, names(compute=2, web=1), prefix=f"{fleet}/")
    consul.put("hold/upgrade/hold/host/compute2", '{"reason": "disk", "by": "ann"}')
    consul.put("hold/running/versions/2/compute1", "2000000000")
    consul.put("hold/running/versions/2/web1", "2000000000")
    failing = Store(Settings(port=store.settings.port, kv_prefix="failed/"))
    write_report(failing, HostReport("compute1", "2", "failed", step="upgrade", error="no space left"))
    waiting: dict[str, Any] = {"version": "2", "wait": True, "wait_timeout": 60}
    held, zero, failed, limited = run(
        [
            plan(kv_prefix="hold", instructions=ONE_BY_ONE, **waiting),
            plan(kv_prefix="zero", instructions={"rolling_rules": {"global": 0}}, **waiting),
            plan(kv_prefix="failed", instructions={"rolling_rules": {"global": 1, "roles": {"web": 0}}}, **waiting),
            plan(
                kv_prefix="limit",
                instructions={"rolling_rules": {"global": "unlimited", "roles": {"web": 0}}},
                limit=["web"],
                **waiting,
            ),
        ]
    )
    for result in (held, zero, failed, limited):
        assert result["failed"]
        assert result["failure"]["code"] == "stuck"
        assert result["failure"]["message"].startswith("No host can continue without an operator. 2: ")
        assert result["failure"]["details"]["blockers"] == result["blockers"]
    assert (
        "compute2 (held): held by ann: disk (ends with ansible-playbook convoy.upgrade.unhold -e host=compute2)"
        in held["msg"]
    )
    assert "compute 1/2, web 1/1; 0 upgrading, 1 waiting" in held["msg"]
    assert "the cap of role compute is 0: raise rolling_rules.global" in zero["msg"]
    assert "compute1 (failed): failed, step upgrade: no space left" in failed["msg"]
    assert "compute2 (pending): waits for a slot: rolling_rules.global admits 1 of role compute" in failed["msg"]
    assert "the cap of role web is 0: raise rolling_rules.roles.web" in limited["msg"]
    assert "compute1" not in limited["msg"]
    assert gates(consul, "limit/") == gates(consul, "zero/") == {"global": "False"}


@pytest.mark.thorough
def test_it_ends_when_the_time_is_up_and_the_rollout_stays(run: Runner, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    up, at_once, check = run(
        [
            plan(version="2", instructions=ONE_BY_ONE, wait=True, wait_timeout=2),
            plan(wait=True, wait_timeout=0),
            {**plan(wait=True), "check_mode": True},
        ]
    )
    for result in (up, at_once):
        assert result["failed"]
        assert result["failure"]["code"] == "timeout"
        assert result["failure"]["message"].startswith(
            "The wait timeout has passed, and the rollout continues without this call. 2: compute 0/2"
        )
        assert "compute1 (upgrading): " in result["msg"]
    assert [one["host"] for one in up["transitions"]] == ["compute1"]
    assert not check["failed"]
    assert gates(consul) == {"global": "False", "host/compute1": "True"}


@pytest.mark.thorough
def test_with_limit_it_waits_for_those_only(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    with living_nodes(store.settings, {"compute1": "compute", "compute2": "compute"}, "2"):
        (result,) = run([plan(version="2", instructions=ONE_BY_ONE, limit=["compute1", "compute2"], wait=True)])
    assert (result["failed"], result["done"], result["complete"]) == (False, True, False)
    assert sorted(opened(history(consul))) == ["compute1", "compute2"]


@pytest.mark.thorough
def test_what_an_operator_changes_meanwhile_counts(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    live = run.start([plan(version="2", instructions=ONE_BY_ONE, wait=True, wait_timeout=60)])
    live.wait_for("compute1 admitted")
    # A hold takes back the admission of a host that has not started.
    write_report(store, HostReport("compute1", "2", "started"))
    consul.put("upgrade/hold/role/compute", '{"reason": "lunch", "by": "ann"}')
    write_report(store, HostReport("compute1", "2", "upgraded"))
    played = live.end()
    assert "compute1 upgraded" in played.stdout
    assert "compute2, compute3 (held): held by ann: lunch" in played[0]["msg"]
    assert opened(history(consul)) == ["compute1"]


@pytest.mark.thorough
def test_it_ends_when_another_rollout_takes_over(run: Runner, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    live = run.start([plan(version="2", instructions=ONE_BY_ONE, wait=True, wait_timeout=60)])
    live.wait_for("compute1 admitted")
    run([plan(version="3", instructions=ONE_BY_ONE, replace="2")])
    (result,) = live.end()
    assert result["failure"]["code"] == "overtaken"
    assert [one["host"] for one in result["transitions"]] == ["compute1"]
    assert consul.get("current_version") == b"3"


@pytest.mark.thorough
def test_consul_may_go_away_and_come_back_meanwhile(tmp_path: Path, seen: Coverage) -> None:
    fleet = names(compute=6)
    with Agent() as agent:
        seed(agent.kv, fleet)
        run = Runner(tmp_path, agent.environ, seen)
        settings = Settings(port=agent.http_port, timeout=1)
        live = run.start([plan(version="2", instructions=ONE_BY_ONE, wait=True, wait_timeout=60, timeout=1)])
        with living_nodes(settings, {"compute1": "compute", "compute2": "compute"}, "2"):
            live.wait_for("compute2 upgraded")
            live.wait_for("compute3 admitted")
        epoch = ledger(agent.kv)["epoch"]
        agent.stop()
        live.wait_for("can't be reached: ")
        live.wait_for("No host is admitted meanwhile; the next try is in 1 s.")
        agent.start()
        assert ledger(agent.kv)["epoch"] == epoch
        assert sorted(opened(history(agent.kv))) == ["compute1", "compute2", "compute3"]
        with living_nodes(settings, {host: role for host, role in fleet.items() if host > "compute2"}, "2"):
            played = live.end()
        (result,) = played
        assert (result["failed"], result["complete"]) == (False, True)
        assert [one["host"] for one in result["transitions"]] == list(fleet)
        assert opened(history(agent.kv)) == list(fleet)
        assert "-- 2: compute 6/6; 0 upgrading, 0 waiting" in played.stdout


@pytest.mark.thorough
def test_a_consul_that_stays_away_ends_it_when_the_time_is_up(tmp_path: Path, seen: Coverage) -> None:
    with Agent() as agent:
        seed(agent.kv, names(compute=2))
        run = Runner(tmp_path, agent.environ, seen)
        live = run.start([plan(version="2", instructions=ONE_BY_ONE, wait=True, wait_timeout=8, timeout=0.5)])
        live.wait_for("compute1 admitted")
        agent.stop()
        (result,) = live.end()
        assert result["failed"]
        assert result["failure"]["code"] == "unreachable"
        assert [one["host"] for one in result["transitions"]] == ["compute1"]


@pytest.mark.thorough
def test_it_rests_while_nothing_changes(run: Runner, agent: Agent, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    with LossyProxy(agent.http_port) as proxy:
        (result,) = run([plan(version="2", instructions=ONE_BY_ONE, wait=True, wait_timeout=3, port=proxy.port)])
    assert result["failure"]["code"] == "timeout"
    # The first pass reads again once the rollout has begun; one for what it wrote itself; one when the time is up, with a short one
    # before it.
    assert proxy.reads <= 5


def open_connections(port: int) -> int:
    """Return how many connections there are to a port, as the machine counts them."""
    states = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for local, _peer, state in states if state == "01" and int(local[-4:], 16) == port)


@pytest.mark.thorough
def test_who_waits_often_keeps_one_connection_for_each_folder_and_misses_nothing(store: Store, consul: RawKV) -> None:
    agent_port = store.settings.port
    before = open_connections(agent_port)
    folders = (store.keys.ledger, store.keys.holds, store.keys.reports)
    # An empty folder keeps the index of what was last removed from it, and is not woken by changes elsewhere.
    consul.put(f"{store.keys.holds}global", "{}")
    consul.delete(f"{store.keys.holds}global")
    watch = Watch(store.settings, folders)
    # Each folder's first answer comes at once.
    until = time.monotonic() + 10
    while watch.wait(mark := watch.mark(), 0.5) and time.monotonic() < until:
        pass
    for number in range(250):
        mark = watch.mark()
        consul.put(f"running/versions/2/compute{number}", "1700000000")
        assert watch.wait(mark, 10)
    assert not watch.wait(watch.mark(), 0.3)
    # Of the 200 that Consul takes of one address.
    assert open_connections(agent_port) - before < 10
    watch.close()

    def ends_with_an_answer() -> bool:
        # Whatever a folder's thread had asked when the watch was closed, even a moment after: this answers it.
        for folder in folders:
            consul.put(f"{folder}closed", str(time.monotonic()))
        return open_connections(agent_port) <= before

    wait_until(ends_with_an_answer, what="the end of the connections")


def test_a_run_that_was_killed_admits_no_further_host(play: Shipped, store: Store, consul: RawKV) -> None:
    hosts = names(web=3)
    seed(consul, hosts)
    process = play.start("upgrade", inventory=inventory(hosts), version="2", instructions=ONE_BY_ONE)
    wait_until(lambda: gates(consul).get("host/web1") == "True")
    process.kill()
    process.wait()
    epoch = ledger(consul)["epoch"]
    for state in ("started", "upgraded"):
        write_report(store, HostReport("web1", "2", state))
    time.sleep(3)
    # Its worker outlived it, and noticed.
    assert ledger(consul)["epoch"] == epoch
    assert "host/web2" not in gates(consul)
