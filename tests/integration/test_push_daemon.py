# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's tasks by themselves: what each takes and returns, and what is in Consul then."""

from __future__ import annotations

import json
from typing import Any

import pytest
from devkit.kv import RawKV
from integration.support.fleet import gates, seed
from integration.support.playbook import Played, Runner, Task, plan
from integration.support.push import WATCHED, composed, driver, prepared, started, step, stopped, turn
from written_services import META, POST, TASKS, Roles

HOST = "localhost"
FLEET = {HOST: "web", "web2": "web"}
STEPS = ("stop", "upgrade", "start")


@pytest.fixture
def roles(run: Runner, consul: RawKV) -> Roles:
    """Two hosts of one role, which has one service with three steps."""
    seed(consul, FLEET, "v1")
    found = Roles(run.folder / "roles")
    found.simple("nginx", *STEPS, once="upgrade")
    return found


def play(run: Runner, roles: Roles, *tasks: Task, begin: Task | None = None) -> Played:
    """Begin a rollout and run tasks with a driver for both hosts; return the results of these tasks."""
    given = {"rolling_rules": {"global": 2}}
    before = [begin or plan(version="v2", fleet=FLEET, instructions=given, limit=[]), *composed(roles, "nginx")]
    played = run([*before, prepared(), *tasks, stopped()], environ=WATCHED)
    return Played(played[len(before) + 1 : -1], played.stdout, played.code)


def record(consul: RawKV, host: str = HOST) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(consul.get(f"upgrade/hosts/{host}") or b"{}")
    return found


def test_a_host_goes_through_its_units_and_is_upgraded(run: Runner, roles: Roles, consul: RawKV) -> None:
    played = play(
        run,
        roles,
        started(FLEET, [HOST, "web2"]),
        turn("begun"),
        step("stop/nginx", task_tags=[["step2", "stop", "nginx"]]),
        step("upgrade/nginx", task_tags=[["step3", "upgrade", "nginx"]]),
        step("upgrade/nginx", state="done"),
        step("start/nginx"),
        turn("ended"),
        driver(state="settled", scope=[HOST]),
    )
    assert [result["failed"] for result in played] == [False] * 8, played.stdout
    begun, *steps, ended, settled = played[1:]
    assert (begun["go"], begun["state"], begun["done"]) == (True, "upgrading", [])
    assert [(result["run"], result["why"]) for result in (steps[0], steps[1], steps[3])] == [(True, "")] * 3
    assert ended["state"] == "upgraded"
    assert (settled["done"], settled["partial"], settled["obstacles"]) == (True, [], [])
    assert consul.get(f"running/versions/v2/{HOST}")
    assert consul.get("running/versions/v2/web2") is None


@pytest.mark.thorough
def test_a_host_that_failed_is_stuck_and_is_tried_again_only_when_that_is_asked_for(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    failing = [started(FLEET, [HOST]), turn("begun"), step("stop/nginx"), turn("failed", error="no disk")]
    played = play(run, roles, *failing, driver(state="settled", scope=[HOST]))
    assert played[3]["error"] == "no disk"
    assert (record(consul)["state"], record(consul)["error"], record(consul)["step"]) == ("failed", "no disk", "stop")
    settled = played[4]
    assert (settled["failed"], settled["failure"]["code"], settled["done"]) == (True, "stuck", False)
    assert any("no disk" in reason for reason in settled["obstacles"])
    assert settled["msg"] == f"[stuck] {settled['failure']['message']}"

    again = plan(version="v2", fleet=FLEET, limit=[])
    played = play(run, roles, started(FLEET, [HOST], wait_timeout=2), turn("begun"), begin=again)
    assert (played[1]["go"], played[1]["state"]) == (False, "failed")
    assert "no disk" in played[1]["reason"]
    retried = started(FLEET, [HOST], retry_failed=True)
    played = play(run, roles, retried, turn("begun"), step("stop/nginx"), begin=again)
    assert (played[1]["go"], played[1]["done"]) == (True, [])
    # It was at this unit when it failed, so this is where it goes on.
    assert played[2]["run"]


def test_the_hosts_of_a_wave_begin_together(run: Runner, roles: Roles, consul: RawKV) -> None:
    played = play(run, roles, started(FLEET, list(FLEET)), turn("begun", hosts=list(FLEET)))
    assert {host: answer["go"] for host, answer in played[1]["hosts"].items()} == {HOST: True, "web2": True}
    assert {host: gates(consul).get(f"host/{host}") for host in FLEET} == dict.fromkeys(FLEET, "True")


@pytest.mark.thorough
def test_what_goes_on_without_its_driver_or_order_is_refused(run: Runner, roles: Roles) -> None:
    nowhere = {"driver": "/nowhere"}
    played = play(
        run,
        roles,
        started(FLEET, [HOST]),
        step("stop/nginx"),
        turn("begun"),
        step("sleep/nginx"),
        turn("begun", **nowhere),
        step("stop/nginx", **nowhere),
        driver(state="settled", **nowhere),
    )
    codes = [result.get("failure", {}).get("code") for result in played]
    assert codes == [None, "not_let_through", None, "unknown_unit", "no_driver", "no_driver", "no_driver"]
    for result in played:
        if result["failed"]:
            assert result["msg"] == f"[{result['failure']['code']}] {result['failure']['message']}"
    assert "run the same command again, and it goes on from there" in played[-1]["msg"]


@pytest.mark.thorough
def test_the_tasks_after_the_upgrade_have_a_phase_of_their_own(run: Runner, roles: Roles, consul: RawKV) -> None:
    consul.load([(f"running/versions/v2/{host}", "1700000000") for host in FLEET])
    consul.delete("running/versions/v1/", tree=True)
    roles.add("nginx", {POST: "- name: Say after\n  ansible.builtin.debug: {msg: after}\n"})
    played = play(
        run, roles, started(FLEET, [HOST], phase="after"), turn("begun"), step("post_upgrade/nginx"), turn("ended")
    )
    assert [result["failed"] for result in played] == [False] * 4, played.stdout
    assert played[1]["go"]
    assert "rolling_rules.global admits 2 of role web at once" in played[1]["reason"]
    assert record(consul)["post"] == "done"


@pytest.mark.thorough
def test_a_host_goes_through_the_points_on_its_way_and_upgrades_a_provider(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    consul.delete("running/versions/v1/", tree=True)
    seed(consul, FLEET, "2.4")
    task = "- command: x\n  tags: upgrade\n"
    points = {f"tasks/upgrade_to/{point}.yml": task for point in ("2.4", "2.6")}
    for name, more in (("db", ""), ("cloud", "provider: true\n")):
        roles.add(name, {TASKS: task, META: f'upgrade_path: ["2.4", "2.6"]\n{more}', **points})
    ways = {HOST: ["db@2.6", "cloud@2.4", "cloud@2.6"]}
    begin = plan(version="2.6", fleet=FLEET, instructions={"rolling_rules": {"global": 2}}, limit=[])
    given = {"version": "2.6", "ways": ways, "origins": {HOST: "2.4"}, "providers": {"cloud": "2.2"}}
    units = ("db@2.4", "cloud@2.4", "db@2.6", "cloud@2.6", "db", "cloud")
    steps = [
        one
        for unit in units
        for one in (
            step(f"upgrade/{unit}"),
            *([step(f"upgrade/{unit}", state="done")] * (unit not in ("db@2.4", "db"))),
        )
    ]
    played = run(
        [begin, *composed(roles, "db", "cloud"), prepared(), started(FLEET, [HOST], **given), turn("begun"), *steps],
        environ=WATCHED,
    )
    assert [one["failed"] for one in played] == [False] * len(played), played.stdout
    answers = [one for one in played[5:] if "run" in one]
    assert [(one["run"], one["why"]) for one in answers] == [(False, "it is not on the host's way"), *[(True, "")] * 5]
    # The run is gone, and what it did stays: the last unit of the provider made it what it should be.
    assert json.loads(consul.get("upgrade/providers/cloud") or b"")["version"] == "2.6"
    found = record(consul)
    assert (found["origin"], found["step"], found["service"]) == ("2.4", "upgrade", "cloud")
    assert found["done"] == ["upgrade/cloud@2.4", "upgrade/db@2.6", "upgrade/cloud@2.6", "upgrade/db"]


@pytest.mark.thorough
@pytest.mark.parametrize(("way", "kept"), [(["db@2.4", "db@2.6"], ["upgrade/db@2.4"]), ([], [])])
def test_what_is_behind_a_host_on_its_way_stays_so_and_off_it_is_before_it_again(
    run: Runner, roles: Roles, consul: RawKV, way: list[str], kept: list[str]
) -> None:
    task = "- command: x\n  tags: upgrade\n"
    points = {f"tasks/upgrade_to/{point}.yml": task for point in ("2.4", "2.6")}
    roles.add("db", {TASKS: task, META: 'upgrade_path: ["2.4", "2.6"]\n', **points})
    midway = {"version": "2.4.1", "state": "failed", "origin": "2.2", "done": ["stop/db", "upgrade/db@2.4"]}
    consul.put(f"upgrade/hosts/{HOST}", json.dumps(midway))
    begin = plan(version="2.6", fleet=FLEET, instructions={"rolling_rules": {"global": 2}}, limit=[])
    tasks = [started(FLEET, [HOST], version="2.6", ways={HOST: way}), turn("begun"), step("upgrade/db")]
    played = run([begin, *composed(roles, "db"), prepared(), *tasks], environ=WATCHED)
    assert [one["failed"] for one in played] == [False] * len(played), played.stdout
    assert played[4]["done"] == kept
    found = record(consul)
    assert (found["version"], found["origin"], found.get("done", [])) == ("2.6", "2.2", kept)
