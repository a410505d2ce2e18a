# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_health on a real agent, whose answers are read without it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.health_checks import HealthCheck, publish
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.runs.playbook import Runner, Task, wait_until

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release


def health(*checks: dict[str, Any], critical: bool = True) -> Task:
    return {"convoy.upgrade.consul_health": {"checks": list(checks), "critical": critical}}


def seen_by_agent(consul: RawKV) -> dict[str, dict[str, Any]]:
    _code, _headers, body = consul.call("GET", "agent/checks")
    found: dict[str, dict[str, Any]] = json.loads(body)
    return found


def test_checks_are_set_once_and_renewed_without_a_change(run: Runner, consul: RawKV) -> None:
    good = {"name": "puppet", "status": "passing", "output": "version 2", "ttl": 60}
    bad = {"name": "validation", "status": "critical", "output": "no disk"}
    checked = run([health(good, bad)], check=True, diff=True)[0]
    assert checked["changed"] is True
    assert checked["diff"]["after"] == (
        "check puppet = passing (convoy.upgrade: renewed at least every 60 s)\n"
        "check validation = critical (convoy.upgrade: renewed at least every 3600 s)\n"
    )
    assert checked["diff"]["before"] == ""
    assert seen_by_agent(consul) == {}
    first, second = run([health(good, bad), health(good, bad)])
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["diff"] == checked["diff"]
    assert first["checks"] == [
        {"name": "puppet", "status": "passing", "output": "version 2", "ttl": 60},
        {"name": "validation", "status": "critical", "output": "no disk", "ttl": 3600},
    ]
    found = seen_by_agent(consul)
    assert {name: (one["Status"], one["Output"]) for name, one in found.items()} == {
        "puppet": ("passing", "version 2"),
        "validation": ("critical", "no disk"),
    }
    assert all(one["ServiceID"] == "" for one in found.values())


def test_another_status_is_a_change_and_another_output_is_none(run: Runner, consul: RawKV) -> None:
    played = run(
        [
            health({"name": "puppet", "status": "passing", "output": "a"}),
            health({"name": "puppet", "status": "passing", "output": "b"}),
            health({"name": "puppet", "status": "warning", "output": "c"}),
        ]
    )
    assert [one["changed"] for one in played] == [True, False, True]
    assert seen_by_agent(consul)["puppet"]["Output"] == "c"


def test_nothing_new_keeps_what_is_known(run: Runner, consul: RawKV) -> None:
    played = run(
        [
            health({"name": "puppet"}),
            health({"name": "puppet", "status": "critical", "output": "it broke"}),
            health({"name": "puppet"}),
        ]
    )
    assert [one["changed"] for one in played] == [False, True, False]
    assert played[0]["checks"] == [{"name": "puppet", "status": None, "output": None, "ttl": 3600}]
    assert played[2]["checks"] == [{"name": "puppet", "status": "critical", "output": "it broke", "ttl": 3600}]
    assert seen_by_agent(consul)["puppet"]["Output"] == "it broke"


@pytest.mark.thorough
def test_a_check_that_is_not_renewed_in_time_turns_critical(store: Store, consul: RawKV) -> None:
    def status() -> str:
        return str(seen_by_agent(consul)["puppet"]["Status"])

    publish(store, [HealthCheck("puppet", "passing", "fine", ttl=1)], critical=True)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        assert status() == "passing"
        time.sleep(0.3)
        publish(store, [HealthCheck("puppet", ttl=1)], critical=True)
    wait_until(lambda: status() == "critical", seconds=4, what="the end of its time")
    # What has expired stays so until something is known again.
    checks, changes = publish(store, [HealthCheck("puppet", ttl=1)], critical=True)
    assert checks[0].status == "critical"
    assert not changes


def services_found(consul: RawKV) -> list[str]:
    return [one["Service"]["ID"] for one in json.loads(consul.call("GET", "health/service/web?passing=1")[2])]


@pytest.mark.thorough
def test_by_default_no_check_takes_services_out_of_consul_or_expires(run: Runner, consul: RawKV) -> None:
    assert consul.call("PUT", "agent/service/register", {"Name": "web"})[0] == 200
    failed = {"name": "puppet", "status": "critical", "output": "it broke", "ttl": 1}
    # One from before, which has expired by now.
    run([health({"name": "puppet", "status": "passing", "ttl": 1})])
    wait_until(lambda: seen_by_agent(consul)["puppet"]["Status"] == "critical", seconds=6, what="the end of its time")
    assert services_found(consul) == []
    renewed, again, unchanged = run([health({"name": "puppet"}, critical=False)] * 2 + [health(failed, critical=False)])
    assert [one["changed"] for one in (renewed, again, unchanged)] == [True, False, False]
    for one in (renewed, unchanged):
        assert (one["checks"][0]["status"], one["checks"][0]["ttl"]) == ("warning", None)
    time.sleep(1.5)
    found = seen_by_agent(consul)["puppet"]
    assert (found["Status"], found["Output"]) == ("warning", "it broke")
    codes = json.loads(consul.call("GET", "health/service/web")[2])[0]["Checks"]
    assert "critical" not in {one["Status"] for one in codes}
    run([health(failed)])
    wait_until(lambda: services_found(consul) == [], seconds=6, what="critical, where that is asked for")


def test_a_check_is_taken_away(run: Runner, consul: RawKV) -> None:
    gone = {"name": "puppet", "status": "absent"}
    run([health({"name": "puppet", "status": "passing"}, critical=False)])
    checked = run([health(gone, critical=False)], check=True)[0]
    assert checked["changed"]
    assert "puppet" in seen_by_agent(consul)
    first, second = run([health(gone, critical=False)] * 2)
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["checks"][0]["status"] == "absent"
    assert "puppet" not in seen_by_agent(consul)


def test_another_ttl_registers_it_again_without_turning_it_critical(store: Store, consul: RawKV) -> None:
    publish(store, [HealthCheck("puppet", "passing", "fine", ttl=60)], critical=True)
    index = consul.call("GET", "health/state/critical")[1]["X-Consul-Index"]
    checks, changes = publish(store, [HealthCheck("puppet", ttl=120)], critical=True)
    assert checks == [HealthCheck("puppet", "passing", "fine", 120)]
    assert len(changes) == 1
    found = seen_by_agent(consul)["puppet"]
    assert (found["Status"], found["Output"]) == ("passing", "fine")
    assert "120 s" in found["Notes"]
    _code, headers, body = consul.call("GET", f"health/state/critical?index={index}&wait=500ms")
    assert json.loads(body) == []
    assert headers["X-Consul-Index"]


def test_requests_are_one_to_read_and_one_for_each_check(store: Store) -> None:
    names = ("puppet", "validation")
    publish(store, [HealthCheck(name, "passing") for name in names])
    before = store.client.requests
    publish(store, [HealthCheck(name, "passing") for name in names])
    assert store.client.requests - before == 3


@pytest.mark.parametrize(
    "definition",
    [
        {"Name": "of a service", "ID": "puppet", "TTL": "60s", "ServiceID": "web"},
        {"Name": "of the agent", "ID": "puppet", "TCP": "127.0.0.1:1", "Interval": "60s"},
    ],
    ids=["service", "tcp"],
)
def test_a_check_that_is_not_the_nodes_own_is_left_alone(definition: Any, store: Store, consul: RawKV) -> None:
    assert consul.call("PUT", "agent/service/register", {"Name": "web"})[0] == 200
    assert consul.call("PUT", "agent/check/register", definition)[0] == 200
    before = seen_by_agent(consul)
    with pytest.raises(UpgradeError, match=r"has a check puppet already, of .* give another name") as caught:
        publish(store, [HealthCheck("validation", "passing"), HealthCheck("puppet", "passing")])
    assert caught.value.code == "bad_check"
    assert seen_by_agent(consul) == before


def test_odd_names_are_taken_or_refused_and_nothing_is_done_for_bad_ones(store: Store, consul: RawKV) -> None:
    publish(store, [HealthCheck("100%puppet run", "passing")])
    assert seen_by_agent(consul)["100%puppet run"]["Status"] == "passing"
    publish(store, [HealthCheck("100%puppet run", "warning")])
    assert seen_by_agent(consul)["100%puppet run"]["Status"] == "warning"
    before = seen_by_agent(consul)
    for checks, message in (
        ([HealthCheck("a"), HealthCheck("b/c", "passing")], "the check 'b/c' has a '/'"),
        ([HealthCheck("", "passing")], "must be text that is not empty"),
        (
            [HealthCheck("a", "passing"), HealthCheck("a", "critical")],
            "each name may occur once, and these are given: a, a",
        ),
        ([HealthCheck("a", "passing", ttl=0)], "the ttl of a is 0; give seconds above 0"),
    ):
        with pytest.raises(UpgradeError, match=message):
            publish(store, checks)
    assert seen_by_agent(consul) == before


def test_of_a_long_output_the_end_is_kept(store: Store, consul: RawKV) -> None:
    checks, _changes = publish(store, [HealthCheck("puppet", "critical", "x" * 5000 + "the end")], critical=True)
    assert checks[0].output is not None
    assert len(checks[0].output) == 4000
    assert seen_by_agent(consul)["puppet"]["Output"].endswith("the end")


def maintenance(reason: str) -> Task:
    return {"convoy.upgrade.consul_health": {"checks": [], "maintenance": reason}}


def test_the_maintenance_of_a_node_begins_and_ends_and_an_operator_s_stays(run: Runner, consul: RawKV) -> None:
    def reason() -> str | None:
        found = seen_by_agent(consul).get("_node_maintenance")
        return None if found is None else f"{found['Status']}: {found['Notes']}"

    def set_by_operator(enable: str) -> None:
        assert consul.call("PUT", f"agent/maintenance?enable={enable}&reason=a+disk")[0] == 200

    try:
        checked = run([maintenance("upgrade to v2")], check=True)[0]
        assert (checked["changed"], reason()) == (True, None)
        begun, again = run([maintenance("upgrade to v1 & more"), maintenance("upgrade to v1 & more")])
        assert (begun["changed"], again["changed"]) == (True, False)
        assert reason() == "critical: convoy.upgrade: upgrade to v1 & more"
        # Another rollout has begun meanwhile. Another reason would need the end of the maintenance for a moment.
        since = seen_by_agent(consul)["_node_maintenance"]
        assert run([maintenance("upgrade to v2")])[0]["changed"] is False
        assert seen_by_agent(consul)["_node_maintenance"] == since
        # Checks without the option, such as the renewals of a closed gate, do not end it.
        assert run([health({"name": "puppet", "status": "passing"})])[0]["changed"] is True
        assert reason() == "critical: convoy.upgrade: upgrade to v1 & more"
        ended, again = run([maintenance(""), maintenance("")])
        assert (ended["changed"], again["changed"], reason()) == (True, False, None)
        set_by_operator("true")
        assert [one["changed"] for one in run([maintenance("upgrade to v2"), maintenance("")])] == [False, False]
        assert reason() == "critical: a disk"
    finally:
        set_by_operator("false")


@pytest.mark.thorough
@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("maintenance", [True, False])
def test_a_node_that_leaves_asks_its_agent_only_if_it_has_set_something_there(
    checks: bool, maintenance: bool, run: Runner, agent: Agent, consul: RawKV
) -> None:
    run([health({"name": "puppet", "status": "passing"})])
    uses_agent = checks or maintenance
    given = {
        "puppet_gate_leave": True,
        "puppet_gate_home": str(run.folder),
        "puppet_gate_health": checks,
        "puppet_gate_maintenance": maintenance,
        # Nothing listens on port 1.
        "puppet_gate_agent": {"port": agent.http_port if uses_agent else 1},
    }
    played = run([{"ansible.builtin.include_role": {"name": "convoy.upgrade.puppet_gate"}}], extra_vars=given)
    assert not [task for task in played if task["failed"]], played.stdout
    assert ("puppet" in seen_by_agent(consul)) is not uses_agent
