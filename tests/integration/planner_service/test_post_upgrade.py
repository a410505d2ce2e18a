# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planner services admit pull hosts to their post-upgrade tasks, and open the gates once all hosts have finished them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import remove
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import hand_over, wait_for_planner
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, ledger, names, record, seed
from integration.support.processes.guarded import MASTER, guarded_agent
from integration.support.processes.planner_service import Service, carried, until
from integration.support.runs.commands import upgrade
from integration.support.runs.playbook import Runner, plan

pytestmark = pytest.mark.one_release

Start = Callable[..., Service]
ONE: dict[str, Any] = {"rolling_rules": {"global": 1}}
HOSTS = names(web=3)
# Longer than a service waits before it acts in place of another one.
_QUIET = 2.5


@pytest.fixture
def upgraded(store: Store, consul: RawKV) -> Store:
    """A fleet whose rollout was handed over, and whose hosts have nothing left but their post-upgrade tasks."""
    _upgrade_all(store, consul)
    return store


def _upgrade_all(store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS)
    made = make_pass(store, PassRequest("2", {"rolling_rules": {"global": 3}}, post_upgrade=["web"]))
    assert made.ledger is not None
    hand_over(store, made.ledger, None, dry=False)
    make_pass(store, PassRequest(rules=ONE, since=1, limit=[]))
    upgrade(store, *HOSTS)


def at(consul: RawKV, post: str) -> list[str]:
    """Return the hosts that are so far with their tasks."""
    return [host for host in HOSTS if record(consul, host).get("post") == post]


def report(consul: RawKV, host: str, post: str) -> None:
    """Report as the agent of a host does."""
    consul.put(f"upgrade/hosts/{host}", json.dumps({**record(consul, host), "post": post}))


def finish(consul: RawKV, host: str) -> None:
    """Run the tasks of a host that is admitted to them, and to which no other one is."""
    until(lambda: at(consul, "open") == [host])
    report(consul, host, "started")
    report(consul, host, "done")


def _threads(one: Service) -> int:
    return len([*Path(f"/proc/{one.process.pid}/task").iterdir()])


def is_over(consul: RawKV) -> bool:
    return gates(consul) == {"global": "True"} and not ledger(consul).get("post_upgrade")


@pytest.mark.usefixtures("upgraded")
def test_it_admits_one_host_after_the_other_and_opens_the_gates_at_the_end(service: Start, consul: RawKV) -> None:
    one = service()
    one.says("carrying", "Carries the post-upgrade tasks of the rollout to 2, which ")
    for host in HOSTS:
        until(lambda host=host: at(consul, "open") == [host])
        assert ledger(consul)["state"] == "complete"
        assert gates(consul)["global"] == "False"
        assert carried(consul)
        report(consul, host, "started")
        # The cap is 1.
        time.sleep(0.5)
        assert one.admitted() == [*HOSTS][: [*HOSTS].index(host) + 1]
        report(consul, host, "done")
    until(lambda: is_over(consul))
    one.says("complete", "All hosts have finished. Post-upgrade tasks: 2: web 3/3")
    one.says("standing_by", "the rollout to 2 is complete")
    assert carried(consul)
    epoch = ledger(consul)["epoch"]
    count = len(one.events())
    time.sleep(_QUIET)
    assert (ledger(consul)["epoch"], len(one.events())) == (epoch, count)


@pytest.mark.usefixtures("upgraded")
def test_another_one_goes_on_with_the_tasks_if_it_is_killed(service: Start, consul: RawKV) -> None:
    services = [service("one"), service("two")]
    until(lambda: any(one.admitted() == ["web1"] for one in services))
    next(one for one in services if one.admitted()).kill()
    finish(consul, "web1")
    until(lambda: at(consul, "open") == ["web2"])
    for one in services:
        one.kill()
    report(consul, "web2", "started")
    # It finds a complete rollout.
    three = service("three")
    three.says("carrying", "post-upgrade tasks")
    report(consul, "web2", "done")
    finish(consul, "web3")
    until(lambda: is_over(consul))
    assert three.admitted() == ["web3"]


@pytest.mark.thorough
def test_holds_and_an_abort_keep_a_host_from_its_tasks(service: Start, upgraded: Store, consul: RawKV) -> None:
    web2 = HoldTargets(hosts=["web2"])
    set_holds(upgraded, web2, "no disk")
    one = service()
    finish(consul, "web1")
    finish(consul, "web3")
    time.sleep(_QUIET)
    assert at(consul, "open") == []
    assert gates(consul)["global"] == "False"
    operator.pause(upgraded, operator.Command("lunch"))
    end_holds(upgraded, web2)
    one.says("blocker", "lunch")
    time.sleep(_QUIET)
    assert at(consul, "open") == []
    operator.abort(upgraded, operator.Command())
    one.says("standing_by", "the rollout to 2 is aborted")
    time.sleep(_QUIET)
    assert at(consul, "open") == []
    assert gates(consul)["global"] == "False"


@pytest.mark.thorough
def test_after_a_pause_it_goes_on(service: Start, upgraded: Store, consul: RawKV) -> None:
    one = service()
    finish(consul, "web1")
    until(lambda: at(consul, "open") == ["web2"])
    operator.pause(upgraded, operator.Command("lunch"))
    finish(consul, "web2")
    one.says("blocker", "lunch")
    # Also one that begins while it is paused.
    one.kill()
    two = service("two")
    two.says("blocker", "lunch")
    operator.resume(upgraded, operator.Command())
    finish(consul, "web3")
    until(lambda: is_over(consul))


@pytest.mark.thorough
def test_a_host_that_came_later_is_admitted_by_a_run_only(service: Start, upgraded: Store, consul: RawKV) -> None:
    one = service()
    until(lambda: at(consul, "open") == ["web1"])
    consul.put("running/versions/1/web4", "1700000000")
    report(consul, "web1", "done")
    one.says("not_complete", "1 of 4 hosts are not upgraded to 2, such as web4")
    time.sleep(_QUIET)
    refusal = one.says(
        "not_complete", "by a run without -e wait=false: ansible-playbook convoy.upgrade.upgrade -e version=2."
    )
    view = read_fleet(upgraded)
    (need,) = operator_needs(view.snapshot, view.plan)
    assert (need.code, need.playbook, refusal.removeprefix("Admits no host: ") in need.text) == (
        "no_planner",
        "upgrade",
        True,
    )
    assert one.admitted() == ["web1"]
    assert "host/web4" not in gates(consul)
    make_pass(upgraded, PassRequest("2", since=1))
    upgrade(upgraded, "web4")
    finish(consul, "web2")
    finish(consul, "web3")
    until(lambda: record(consul, "web4").get("post") == "open")


@pytest.mark.thorough
def test_only_hosts_of_the_handover_are_admitted_to_them(service: Start, upgraded: Store, consul: RawKV) -> None:
    one = service()
    until(lambda: at(consul, "open") == ["web1"])
    entry = upgraded.snapshot().ledger
    assert entry is not None
    handed = hand_over(upgraded, entry, ["web3"], dry=False)
    assert wait_for_planner(upgraded, handed.id) == ("one",)
    finish(consul, "web1")
    finish(consul, "web3")
    time.sleep(_QUIET)
    assert one.admitted() == ["web1", "web3"]
    upgraded.client.write([remove("upgrade/handover")])
    one.says("standing_by", "the rollout to 2 is complete")


@pytest.mark.thorough
def test_a_host_whose_tasks_failed_keeps_its_slot_and_spends_the_budget(
    service: Start, upgraded: Store, consul: RawKV
) -> None:
    make_pass(upgraded, PassRequest(rules={**ONE, "failure_rules": {"fleet": 1}}, since=1, limit=[]))
    one = service()
    until(lambda: at(consul, "open") == ["web1"])
    report(consul, "web1", "started")
    report(consul, "web1", "failed")
    one.says("blocker", "failure_rules.fleet")
    time.sleep(_QUIET)
    assert one.admitted() == ["web1"]
    # It tries again by itself.
    report(consul, "web1", "started")
    report(consul, "web1", "done")
    finish(consul, "web2")


@pytest.mark.thorough
@pytest.mark.usefixtures("upgraded")
def test_gates_that_were_open_already_do_not_keep_it_busy(service: Start, store: Store, consul: RawKV) -> None:
    one = service()
    for host in HOSTS:
        until(lambda host=host: at(consul, "open") == [host])
        if host == "web3":
            for name in gates(consul):
                consul.delete(f"config_state/enable_puppet/{name}")
            consul.put("config_state/enable_puppet/global", "True")
        report(consul, host, "done")
    one.says("standing_by", "the rollout to 2 is complete")
    assert "post_upgrade" not in ledger(consul)
    count = len(one.events())
    time.sleep(_QUIET)
    assert len(one.events()) == count
    # The tasks are no part of a host that joins now.
    consul.put("running/versions/2/web4", "1700000000")
    view = read_fleet(store)
    assert (view.plan.post_upgrade, operator_needs(view.snapshot, view.plan)) == ((), ())


@pytest.mark.thorough
@pytest.mark.parametrize("is_complete", [True, False])
def test_it_stands_by_while_something_else_has_set_the_version(
    service: Start, store: Store, consul: RawKV, is_complete: bool
) -> None:
    _upgrade_all(store, consul)
    if not is_complete:
        # web4 has joined.
        consul.put("running/versions/1/web4", "1700000000")
        make_pass(store, PassRequest("2", since=1))
    one = service()
    one.says("carrying")
    consul.put("current_version", "3")
    one.says("standing_by", "current_version is '3', but upgrade/ledger has the rollout to 2")
    # The queries of a work that was dropped wait for up to a minute.
    time.sleep(1)
    threads, count = _threads(one), len(one.events())
    time.sleep(4)
    assert (_threads(one), len(one.events())) == (threads, count)
    assert not carried(consul)
    consul.put("current_version", "2")
    until(lambda: carried(consul))


@pytest.mark.thorough
def test_a_rollout_that_begins_again_ends_it(service: Start, upgraded: Store, consul: RawKV) -> None:
    one = service()
    until(lambda: at(consul, "open") == ["web1"])
    report(consul, "web1", "done")
    until(lambda: at(consul, "open") == ["web2"])
    operator.pause(upgraded, operator.Command())
    operator.abort(upgraded, operator.Command())
    one.says("standing_by", "is aborted")
    time.sleep(1.1)
    make_pass(upgraded, PassRequest("2", restart=True, limit=[]))
    one.says("standing_by", "was not handed over, only one before it")
    time.sleep(_QUIET)
    assert one.admitted() == ["web1", "web2"]


@pytest.mark.thorough
def test_tasks_that_are_left_are_handed_over_with_wait_false(
    run: Runner, service: Start, upgraded: Store, consul: RawKV
) -> None:
    upgraded.client.write([remove("upgrade/handover")])
    one = service(fleet=dict(HOSTS))
    one.says("standing_by", "was not handed over")
    # It completes the rollout.
    (made,) = run([plan(version="2", hand_over=True)])
    assert (ledger(consul)["state"], made["planners"]) == ("complete", ["one"])
    for host in HOSTS:
        finish(consul, host)
    until(lambda: is_over(consul))
    (made,) = run([plan(version="2", hand_over=True)])
    assert "planners" not in made


@pytest.mark.thorough
def test_a_token_of_its_kind_is_enough(service: Start, tmp_path: Path) -> None:
    with guarded_agent() as agent:
        store = Store(Settings(port=agent.http_port, token=MASTER))
        _upgrade_all(store, agent.kv)
        (tmp_path / "token").write_text(grant(store, TokenKind("planner")).secret)
        (tmp_path / "token").chmod(0o600)
        one = service(port=agent.http_port, token_file=str(tmp_path / "token"))
        for host in HOSTS:
            finish(agent.kv, host)
        until(lambda: is_over(agent.kv))
        assert one.messages("denied") == []
