# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of a push run by themselves: what each takes and returns, and what is in Consul then."""

from __future__ import annotations

import json
from typing import Any

import pytest
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, seed
from integration.support.runs.playbook import Played, Runner, Task, plan
from integration.support.runs.push import WATCHED, host_task, prepared, push_run, started, step, stopped
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


def play(run: Runner, starting: list[Task], *tasks: Task, begin: Task | None = None) -> Played:
    """Begin a rollout, start a run and run tasks; return the results from the last task that starts it on."""
    given = {"rolling_rules": {"global": 2}}
    before = [begin or plan(version="v2", fleet=FLEET, instructions=given, limit=[])]
    played = run([*before, *starting, *tasks, stopped()], environ=WATCHED)
    return Played(played[len(before) + len(starting) - 1 : -1], played.stdout, played.code)


def record(consul: RawKV, host: str = HOST) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(consul.get(f"upgrade/hosts/{host}") or b"{}")
    return found


def test_a_host_goes_through_its_task_groups_and_is_upgraded(run: Runner, roles: Roles, consul: RawKV) -> None:
    played = play(
        run,
        started(roles, FLEET, [HOST]),
        host_task("begun"),
        step("stop/nginx", task_tags=[["step2", "stop", "nginx"]]),
        step("upgrade/nginx", task_tags=[["step3", "upgrade", "nginx"]]),
        step("upgrade/nginx", state="done"),
        step("start/nginx"),
        host_task("ended"),
        push_run(state="settled", play="dataplane"),
    )
    assert [result["failed"] for result in played] == [False] * 8, played.stdout
    begun, *steps, ended, settled = played[1:]
    assert (begun["go"], begun["state"], begun["done"]) == (True, "upgrading", [])
    assert [(result["run"], result["why"]) for result in (steps[0], steps[1], steps[3])] == [(True, "")] * 3
    assert ended["state"] == "upgraded"
    assert (settled["done"], settled["partial"], settled["blockers"]) == (True, {}, [])
    assert consul.get(f"running/versions/v2/{HOST}")
    assert consul.get("running/versions/v2/web2") is None


@pytest.mark.thorough
def test_a_host_that_failed_is_stuck_and_is_tried_again_only_when_that_is_asked_for(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    failing = [host_task("begun"), step("stop/nginx"), host_task("failed", error="no disk")]
    played = play(run, started(roles, FLEET, [HOST]), *failing, push_run(state="settled", play="dataplane"))
    assert played[3]["error"] == "no disk"
    assert (record(consul)["state"], record(consul)["error"], record(consul)["step"]) == ("failed", "no disk", "stop")
    settled = played[4]
    assert (settled["failed"], settled["failure"]["code"], settled["done"]) == (True, "stuck", False)
    assert any("no disk" in reason for reason in settled["blockers"])
    assert settled["msg"] == f"[stuck] {settled['failure']['message']}"

    again = plan(version="v2", fleet=FLEET, limit=[])
    played = play(run, started(roles, FLEET, [HOST], wait_timeout=2), host_task("begun"), begin=again)
    assert (played[1]["go"], played[1]["state"]) == (False, "failed")
    assert "no disk" in played[1]["reason"]
    retried = started(roles, FLEET, [HOST], retry_failed=True)
    played = play(run, retried, host_task("begun"), step("stop/nginx"), begin=again)
    assert (played[1]["go"], played[1]["done"]) == (True, [])
    # It was at this task_group when it failed, so this is where it goes on.
    assert played[2]["run"]


@pytest.mark.thorough
def test_a_service_is_tried_to_be_stopped_for_four_hours_at_most(run: Runner, roles: Roles) -> None:
    too_long, longest = (step("stop/nginx", patience=seconds) for seconds in (14401, 14400))
    played = play(run, started(roles, FLEET, [HOST]), host_task("begun"), too_long, longest)
    assert [result.get("failure", {}).get("code") for result in played] == [None, None, "bad_options", None]
    assert played[2]["msg"] == (
        f"[bad_options] upgrade_may_stop_timeout: 14401 s are too long on {HOST}; the most is 14400. stop/nginx was not run: give a shorter "
        "time, and run the same command with -e retry_failed=true."
    )


@pytest.mark.thorough
def test_the_hosts_of_a_wave_begin_together(run: Runner, roles: Roles, consul: RawKV) -> None:
    played = play(run, started(roles, FLEET, part="role", role="web"), host_task("begun", hosts=list(FLEET)))
    assert {host: answer["go"] for host, answer in played[1]["hosts"].items()} == {HOST: True, "web2": True}
    assert {host: gates(consul).get(f"host/{host}") for host in FLEET} == dict.fromkeys(FLEET, "True")


@pytest.mark.thorough
def test_a_host_of_a_wave_that_can_not_be_reached_is_not_admitted(run: Runner, roles: Roles, consul: RawKV) -> None:
    wave = host_task("begun", hosts=list(FLEET), unreachable=["web2"])
    played = play(run, started(roles, FLEET, part="role", role="web"), wave)
    assert {host: answer["go"] for host, answer in played[1]["hosts"].items()} == {HOST: True, "web2": False}
    assert "it could not be reached when its wave began" in played[1]["hosts"]["web2"]["reason"]
    assert "host/web2" not in gates(consul)


@pytest.mark.thorough
def test_a_host_that_fails_before_anything_on_it_stops_lists_the_services_that_were_drained(
    run: Runner, roles: Roles
) -> None:
    roles.simple("nginx", "drain", *STEPS)
    failing = host_task("failing", error="no disk")
    played = play(
        run,
        started(roles, FLEET, [HOST]),
        host_task("begun"),
        step("drain/nginx"),
        failing,
        step("stop/nginx"),
        failing,
    )
    assert [result["failed"] for result in played] == [False] * 6, played.stdout
    assert (played[3]["error"], played[3]["drained"]) == ("no disk", ["nginx"])
    assert played[5]["drained"] == []


@pytest.mark.thorough
def test_a_run_keeps_the_file_with_the_rules_and_the_rollout_to_replace(run: Runner, roles: Roles) -> None:
    file = run.folder / "rules.yml"
    file.write_text(json.dumps({"rolling_rules": {"global": 2}}))
    begun = plan(version="v2", fleet=FLEET, instructions={"rolling_rules": {"global": 1}}, limit=[])
    given = {"instructions_file": str(file), "replace": "v2", "by": "ann", "restart": True}
    composing = prepared(roles, FLEET, version="v3", **given)
    # What was composed before, as by convoy.upgrade.compose.
    composed = prepared(roles, FLEET, version="v3", composed=str(run.folder / "composed"), **given)
    played = run([begun, *composing, *composed], environ=WATCHED)
    first, second = played[2], played[4]
    rollout = first["rollout"]
    assert {name: rollout[name] for name in ("version", *given)} == {"version": "v3", **given}, played.stdout
    assert (second["failed"], second["rollout"]) == (False, rollout)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "waits", "hands_over"),
    [({}, True, False), ({"once": True}, False, False), ({"wait": False}, False, True)],
)
def test_a_run_of_hosts_that_upgrade_themselves_waits_unless_it_makes_one_pass_or_is_handed_over(
    run: Runner, roles: Roles, given: dict[str, Any], waits: bool, hands_over: bool
) -> None:
    of_pull = {"upgrade_roles": {"web": {"plane": "dataplane"}}, "instructions": {"rolling_rules": {"global": 2}}}
    played = run(prepared(roles, FLEET, **of_pull, **given, rollback=False), environ=WATCHED)
    rollout = played[-1]["rollout"]
    assert (rollout["wait"], rollout["hand_over"]) == (waits, hands_over), played.stdout


@pytest.mark.thorough
def test_a_step_without_its_push_service_or_out_of_order_is_refused(run: Runner, roles: Roles) -> None:
    played = play(
        run,
        started(roles, FLEET, [HOST]),
        step("stop/nginx"),
        host_task("begun"),
        step("sleep/nginx"),
        stopped(),
        step("stop/nginx"),
        push_run(state="settled", play="dataplane"),
    )
    codes = [result.get("failure", {}).get("code") for result in played]
    assert codes == [None, "not_admitted", None, "unknown_task_group", None, "no_push", "no_push"]
    for result in played:
        if result["failed"]:
            assert result["msg"] == f"[{result['failure']['code']}] {result['failure']['message']}"
    alone = run([host_task("begun")], environ=WATCHED)[0]
    assert alone["failure"]["code"] == "no_daemon"
    assert "Run the same command again to continue." in alone["msg"]


@pytest.mark.thorough
def test_the_post_upgrade_tasks_have_a_phase_of_their_own(run: Runner, roles: Roles, consul: RawKV) -> None:
    consul.load([(f"running/versions/v2/{host}", "1700000000") for host in FLEET])
    consul.delete("running/versions/v1/", tree=True)
    roles.add("nginx", {POST: "- name: Say after\n  ansible.builtin.debug: {msg: after}\n"})
    played = play(
        run,
        prepared(roles, FLEET),
        {**plan(version="v2", fleet=FLEET, limit=[], since=0), "register": "passed"},
        push_run(state="finished", upgrade_roles={"web": {}}, wait_timeout=60),
        host_task("begun"),
        step("post_upgrade/nginx"),
        host_task("ended"),
    )
    assert [result["failed"] for result in played] == [False] * 6, played.stdout
    assert (played[2]["complete"], played[2]["post_upgrade"]) == (True, [HOST, "web2"])
    played = Played(played[2:], played.stdout, played.code)
    assert played[1]["go"]
    assert "rolling_rules.global admits 2 of role web at once" in played[1]["reason"]
    assert record(consul)["post"] == "done"


def test_post_upgrade_tasks_run_only_on_hosts_in_the_limit(run: Runner, roles: Roles, consul: RawKV) -> None:
    consul.load([(f"running/versions/v2/{host}", "1700000000") for host in FLEET])
    consul.delete("running/versions/v1/", tree=True)
    roles.add("nginx", {POST: "- name: Say after\n  ansible.builtin.debug: {msg: after}\n"})
    rules = {"rolling_rules": {"global": 2}}
    finished = push_run(state="finished", upgrade_roles={"web": {}}, wait_timeout=60)
    begin = plan(version="v2", fleet=FLEET, instructions=rules, limit=[], roles_with_post_upgrade=["web"])
    played = play(run, prepared(roles, FLEET, [HOST]), finished, begin=begin)
    assert (played[-1]["complete"], played[-1]["post_upgrade"]) == (False, [HOST])
    assert (
        "upgrade_limit leaves out web2. The gates open when the post-upgrade tasks are done there too." in played.stdout
    )


@pytest.mark.thorough
def test_post_upgrade_tasks_wait_for_hosts_outside_the_limit_and_name_a_host_that_left_the_inventory(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    fleet = {HOST: "web", "web2": "web", "web3": "web"}
    consul.load([(f"running/versions/v2/{host}", "1700000000") for host in fleet])
    consul.delete("running/versions/v1/", tree=True)
    roles.add("nginx", {POST: "- name: Say after\n  ansible.builtin.debug: {msg: after}\n"})
    stages = [{"name": "canary", "hosts": ["web2"]}]
    begin = plan(
        version="v2",
        fleet=fleet,
        instructions={"rolling_rules": {"global": 2}, "stages": stages},
        limit=[],
        roles_with_post_upgrade=["web"],
    )
    finished = push_run(state="finished", upgrade_roles={"web": {}}, wait_timeout=60)
    played = play(run, prepared(roles, fleet, [HOST]), finished, begin=begin)
    assert (played[-1]["complete"], played[-1]["post_upgrade"]) == (False, [])
    refused = play(run, prepared(roles, FLEET, [HOST]), finished, begin=begin)[-1]
    assert (refused["failure"]["code"], refused["failure"]["details"]) == ("not_in_inventory", {"hosts": ["web3"]})
    assert refused["msg"].startswith("[not_in_inventory] web3 reported to Consul and is not in the inventory")


def test_a_host_that_is_not_in_the_inventory_any_more_is_refused_by_name(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    seed(consul, {"web3": "web"}, "v1")
    refused = run(prepared(roles, FLEET, instructions={"rolling_rules": {"global": 2}}), environ=WATCHED)[-1]
    assert (refused["failure"]["code"], refused["failure"]["details"]) == ("not_in_inventory", {"hosts": ["web3"]})
    assert refused["msg"].endswith("run ansible-playbook convoy.upgrade.forget -e host=web3.")


def test_a_host_that_upgrades_itself_is_admitted_also_if_it_is_not_in_the_inventory(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    seed(consul, ["cache1"], "v1")
    waiting = push_run(state="settled", play="dataplane", wait_timeout=1)
    played = play(run, started(roles, FLEET, ["cache1"]), waiting)
    assert played[-1]["failure"]["code"] == "timeout"
    assert gates(consul)["host/cache1"] == "True"


def test_hosts_that_run_post_upgrade_tasks_themselves_need_not_be_in_the_inventory(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    hosts = [*FLEET, "cache1"]
    consul.load([(f"running/versions/v2/{host}", "1700000000") for host in hosts])
    consul.delete("running/versions/v1/", tree=True)
    roles.add("redis", {POST: "- name: Say after\n  ansible.builtin.debug: {msg: after}\n"})
    upgrade_roles = {
        "web": {"plane": "dataplane", "services": ["nginx"]},
        "cache": {"plane": "dataplane", "services": ["redis"], "pull": True},
    }
    rules = {"rolling_rules": {"global": 2}}
    begin = plan(version="v2", fleet=FLEET, instructions=rules, limit=[], roles_with_post_upgrade=["cache"])
    finished = push_run(state="finished", upgrade_roles=upgrade_roles, wait_timeout=60)
    waiting = push_run(state="settled", play="post_upgrade", wait_timeout=1)
    starting = prepared(roles, FLEET, upgrade_roles=upgrade_roles)
    played = play(run, starting, finished, waiting, begin=begin)
    assert played[-1]["failure"]["code"] == "timeout"
    assert record(consul, "cache1")["post"] == "open"


@pytest.mark.thorough
def test_a_host_goes_through_the_checkpoints_of_its_path_and_upgrades_a_provider(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    consul.delete("running/versions/v1/", tree=True)
    seed(consul, FLEET, "2.4")
    task = "- command: x\n  tags: upgrade\n"
    checkpoints = {f"tasks/upgrade_to/{checkpoint}.yml": task for checkpoint in ("2.4", "2.6")}
    for name, more in (("db", ""), ("cloud", "provider: true\n")):
        roles.add(name, {TASKS: task, META: f'upgrade_path: ["2.4", "2.6"]\n{more}', **checkpoints})
    begin = plan(version="2.6", fleet=FLEET, instructions={"rolling_rules": {"global": 2}}, limit=[])
    task_groups = ("db@2.4", "cloud@2.4", "db@2.6", "cloud@2.6", "db", "cloud")
    steps = [
        one
        for task_group in task_groups
        for one in (
            step(f"upgrade/{task_group}"),
            *([step(f"upgrade/{task_group}", state="done")] * (task_group not in ("db@2.4", "db"))),
        )
    ]
    played = run(
        [
            begin,
            *started(roles, FLEET, [HOST], "2.6", services=["db", "cloud"], provider_versions={"cloud": "2.2"}),
            host_task("begun"),
            *steps,
        ],
        environ=WATCHED,
    )
    assert [one["failed"] for one in played] == [False] * len(played), played.stdout
    route = played[2]["hosts"][HOST]
    assert route["version_before"] == "2.4"
    assert route["checkpoints"] == ["db@2.6", "cloud@2.4", "cloud@2.6"]
    answers = [one for one in played[5:] if "run" in one]
    assert [(one["run"], one["why"]) for one in answers] == [
        (False, "it is not on the host's upgrade path"),
        *[(True, "")] * 5,
    ]
    # The run is gone, and what it did stays: the last task_group of the provider made it what it should be.
    assert json.loads(consul.get("upgrade/providers/cloud") or b"")["version"] == "2.6"
    found = record(consul)
    assert (found["origin"], found["step"], found["service"]) == ("2.4", "upgrade", "cloud")
    assert found["done"] == ["upgrade/cloud@2.4", "upgrade/db@2.6", "upgrade/cloud@2.6", "upgrade/db"]


@pytest.mark.thorough
def test_checkpoints_that_a_host_has_finished_are_not_run_again(run: Runner, roles: Roles, consul: RawKV) -> None:
    task = "- command: x\n  tags: upgrade\n"
    checkpoints = {f"tasks/upgrade_to/{checkpoint}.yml": task for checkpoint in ("2.4", "2.6")}
    roles.add("db", {TASKS: task, META: 'upgrade_path: ["2.4", "2.6"]\n', **checkpoints})
    consul.delete("running/versions/v1/", tree=True)
    midway = {"version": "2.4.1", "state": "failed", "origin": "2.2", "done": ["stop/db", "upgrade/db@2.4"]}
    consul.put(f"upgrade/hosts/{HOST}", json.dumps(midway))
    begin = plan(version="2.6", fleet=FLEET, instructions={"rolling_rules": {"global": 2}}, limit=[])
    starting = started(roles, FLEET, [HOST], "2.6", services=["db"], retry_failed=True)
    played = run([begin, *starting, host_task("begun"), step("upgrade/db")], environ=WATCHED)
    assert [one["failed"] for one in played] == [False] * len(played), played.stdout
    assert played[2]["hosts"][HOST]["checkpoints"] == ["db@2.6"]
    assert played[4]["done"] == ["upgrade/db@2.4"]
    found = record(consul)
    assert (found["version"], found["origin"], found["done"]) == ("2.6", "2.2", ["upgrade/db@2.4"])


@pytest.mark.thorough
def test_a_host_that_can_not_be_upgraded_or_reports_nothing_keeps_the_run_from_beginning(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    played = play(
        run,
        prepared(roles, FLEET),
        push_run(state="validated"),
        host_task("invalid", error="no disk"),
        push_run(state="validated"),
    )
    codes = [result.get("failure", {}).get("code") for result in played]
    assert codes == [None, "not_upgradable", None, "not_upgradable"], played.stdout
    both = f"2 of 2 hosts can't be upgraded. {HOST}: "
    assert (
        f"{both}it can't be reached (see above). | web2: it can't be reached (see above). Fix that" in played[1]["msg"]
    )
    assert f"{both}no disk | web2: it can't" in played[3]["msg"]
    assert not [key for key in consul.tree() if key.startswith(("upgrade/hosts/", "upgrade/drivers/"))]

    # No other rollout is under way.
    more = {"wait_for_other": True, "wait_timeout": 10}
    played = play(run, prepared(roles, FLEET, [HOST], **more), host_task("valid"), push_run(state="validated"))
    assert [result["failed"] for result in played] == [False] * 3, played.stdout


@pytest.mark.thorough
def test_a_host_that_has_the_agent_too_is_refused_by_a_run_that_would_begin_it(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    mine = {"version": "v1", "state": "upgraded", "times": {"upgraded": 1}, "release": "0.1.0-a"}
    consul.put("upgrade/hosts/web2", json.dumps(mine))
    rules = {"instructions": {"rolling_rules": {"global": 2}}}
    refused = run(prepared(roles, FLEET, **rules), environ=WATCHED)[-1]
    assert (refused["failure"]["code"], refused["failure"]["details"]) == ("agent_on_push_host", {"hosts": ["web2"]})
    assert "Nothing was touched: Ansible upgrades web2, and the agent convoy-node on it" in refused["msg"]
    assert refused["msg"].endswith("convoy.upgrade.forget -e host=web2.")
    # Another part of the fleet goes on, and so does what a run has begun there, but not what the agent has.
    assert not run(prepared(roles, FLEET, [HOST], **rules), environ=WATCHED)[-1]["failed"]
    begun = {**mine, "version": "v2", "state": "started", "times": {"started": 2}}
    for more in ({}, {"trail": [[2, "nginx", "stop"]], "services": "a1"}, {"state": "failed", "error": "no disk"}):
        consul.put("upgrade/hosts/web2", json.dumps({**begun, **more}))
        refused = run(prepared(roles, FLEET, retry_failed=True, **rules), environ=WATCHED)[-1]
        assert refused["failure"]["code"] == "agent_on_push_host", more
    consul.put("upgrade/hosts/web2", json.dumps({**begun, "trail": [[2, "nginx", "stop"]]}))
    assert not run(prepared(roles, FLEET, **rules), environ=WATCHED)[-1]["failed"]
    # A hold of its own ends with its next report.
    consul.put("upgrade/hosts/web2", json.dumps({**mine, "held": "Puppet is disabled"}))
    assert run(prepared(roles, FLEET, **rules), environ=WATCHED)[-1]["failure"]["code"] == "agent_on_push_host"


@pytest.mark.thorough
def test_a_host_that_may_not_go_there_keeps_the_run_from_being_prepared(
    run: Runner, roles: Roles, consul: RawKV
) -> None:
    consul.delete("running/versions/v1/", tree=True)
    seed(consul, FLEET, "2.4")
    roles.add("db", {TASKS: "- command: x\n  tags: upgrade\n", META: 'allowed_from: ">=2.6"\n'})
    given = {"instructions": {"rolling_rules": {"global": 2}}}
    played = run(prepared(roles, FLEET, version="2.8", services=["db"], **given), environ=WATCHED)
    for result in played[1:]:
        assert result["failure"]["code"] == "forbidden_upgrade", played.stdout
        assert "2 of 2 hosts may not go to 2.8. localhost, web2 (2.4): db of the role web" in result["msg"]
