# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What operators say in the middle of a run reaches it, and so do rules that stop it by themselves."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from typing import Any

import pytest
from integration.support.runs.hook import example, listening

from .site import Site, spans, wait_for

WEB = [f"web{number}" for number in range(1, 6)]
ONE: dict[str, Any] = {"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}


@pytest.fixture
def fleet(site: Site) -> Site:
    site.service("app", ["prepare", "upgrade"], meta="---\nallow_downgrade: true\n")
    site.inventory({"web": {"plane": "dataplane", "services": ["app"]}}, {"web": WEB})
    return site


def begun(fleet: Site) -> set[str]:
    """Return the hosts at which something was done."""
    return {one.host for one in fleet.entries()}


def at_work(fleet: Site, host: str) -> subprocess.Popen[str]:
    """Start an upgrade, and return it once a host has begun. The host works for longer than a command takes."""
    fleet.sleep(10, host)
    process = fleet.start("upgrade", version="v1", instructions=ONE)
    wait_for(lambda: fleet.entries(host), f"{host} has begun")
    return process


@pytest.mark.thorough
def test_a_run_that_is_paused_lets_its_hosts_finish_and_waits_for_the_command_to_resume(fleet: Site) -> None:
    process = at_work(fleet, "web1")
    fleet.play("pause", reason="logins fail", by="ann")
    fleet.sleep(0.05, "web1")
    wait_for(lambda: fleet.record("web1").get("state") == "upgraded", "web1 is upgraded")
    assert "No host is admitted: the rollout is paused by ann" in fleet.play("status")
    assert begun(fleet) == {"web1"}
    assert process.poll() is None
    fleet.play("resume")
    ended = fleet.end(process)
    assert ended.code == 0, ended.stdout
    assert fleet.reported("v1") == set(WEB)


@pytest.mark.thorough
def test_a_run_that_is_aborted_lets_its_hosts_finish_and_ends_with_the_reason(fleet: Site) -> None:
    process = at_work(fleet, "web1")
    fleet.play("abort", reason="the release is broken", by="ann")
    fleet.sleep(0.05, "web1")
    ended = fleet.end(process)
    assert ended.code == 2, ended.stdout
    assert "the release is broken" in ended.stdout
    assert begun(fleet) == {"web1"}
    assert fleet.done("web1") == ["app/prepare", "app/upgrade"]
    assert fleet.reported("v1") == {"web1"}
    # It is not begun again unawares.
    refused = " ".join(fleet.play("upgrade", version="v1", instructions=ONE, code=2).split())
    assert "The rollout to v1 was aborted by ann at " in refused
    assert (
        "Begin it again with restart: true (-e restart=true), or go back with ansible-playbook convoy.upgrade.rollback."
        in refused
    )
    fleet.play("upgrade", version="v1", instructions=ONE, restart=True)
    assert fleet.reported("v1") == set(WEB)
    assert fleet.done("web1") == ["app/prepare", "app/upgrade"]


@pytest.mark.thorough
def test_a_run_does_not_end_well_before_its_rollout_does(fleet: Site) -> None:
    process = at_work(fleet, "web5")
    fleet.play("pause", reason="logins fail", by="ann")
    fleet.consul.put("running/versions/v0/web6", "1700000000")
    fleet.sleep(0.05, "web5")
    wait_for(lambda: fleet.record("web5").get("state") == "upgraded", "it is upgraded")
    # It waits through a pause, although all of its hosts are upgraded.
    time.sleep(2)
    assert process.poll() is None
    fleet.play("resume")
    ended = fleet.end(process)
    assert ended.code == 2, ended.stdout
    assert ended.stdout.count("and this run goes on once that ends: the rollout is paused by ann") == 1
    assert "This run has ended, and the rollout is not complete: web6 (pending: it was not in this run)" in ended.stdout
    assert "Next: ansible-playbook " in ended.stdout.splitlines()[-1]


@pytest.mark.thorough
def test_an_upgrade_waits_for_the_one_before_on_request(fleet: Site) -> None:
    fleet.sleep(10, "web1")
    first = fleet.start("upgrade", version="v1", instructions=ONE, by="ann@desk")
    wait_for(lambda: fleet.entries("web1"), "web1 has begun")
    assert json.loads(fleet.consul.get("upgrade/ledger") or "")["who"] == "ann@desk"
    assert "[rollout_under_way]" in fleet.play("upgrade", version="v2", instructions=ONE, code=2)
    second = fleet.start("upgrade", version="v2", instructions=ONE, wait_for_other=True)
    fleet.sleep(0.05, "web1")
    ended = fleet.end(first)
    assert ended.code == 0, ended.stdout
    after = fleet.end(second)
    assert after.code == 0, after.stdout
    assert "The rollout under way goes to v1" in after.stdout
    assert "This run waits for its end." in after.stdout
    assert fleet.reported("v2") == set(WEB)
    assert fleet.done("web5") == ["app/prepare", "app/upgrade"] * 2


@pytest.mark.thorough
def test_a_host_keeps_its_slot_while_it_soaks(fleet: Site) -> None:
    fleet.play("upgrade", version="v1", instructions={**ONE, "health": {"soak": 2}})
    found = spans(fleet.entries())
    for before, after in itertools.pairwise(WEB):
        assert found[after][0] - found[before][1] >= 2, (before, after)
    assert fleet.reported("v1") == set(WEB)


@pytest.mark.thorough
def test_a_host_whose_check_fails_while_it_soaks_stops_what_the_budget_says(fleet: Site) -> None:
    catalog = {"Node": "web1", "Address": "127.0.0.1"}
    check = {"Node": "web1", "CheckID": "app", "Name": "app", "Status": "passing"}
    fleet.consul.call("PUT", "catalog/register", json.dumps({**catalog, "Check": check}).encode())
    rules = {**ONE, "health": {"soak": 4, "consul_checks": ["app"]}, "failure_rules": {"fleet": 1}}
    process = fleet.start("upgrade", version="v1", instructions=rules)
    try:
        wait_for(lambda: fleet.reported("v1"), "web1 has reported")
        check["Status"] = "critical"
        fleet.consul.call("PUT", "catalog/register", json.dumps({**catalog, "Check": check}).encode())
        time.sleep(5)
        assert begun(fleet) == {"web1"}
    finally:
        # It may take as long as it likes to pass; what is at stake is that no one follows it.
        fleet.play("abort", reason="seen enough")
        ended = fleet.end(process)
    assert ended.code == 2, ended.stdout
    assert begun(fleet) == {"web1"}


@pytest.mark.thorough
def test_a_budget_that_is_exhausted_stops_the_run_and_names_the_hosts(fleet: Site) -> None:
    fleet.fail("web1", "app/upgrade")
    for host in ("web2", "web3"):
        fleet.sleep(1.5, host)
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"web": 3}}, "failure_rules": {"fleet": 1}}
    ended = fleet.end(fleet.start("upgrade", version="v1", instructions=rules))
    assert ended.code == 2, ended.stdout
    assert "failure_rules.fleet" in ended.stdout
    assert "app-upgrade is broken here" in ended.stdout
    # Those that had begun with it finish, and no one follows them.
    assert begun(fleet) == set(WEB[:3])
    assert fleet.reported("v1") == {"web2", "web3"}


@pytest.mark.thorough
def test_ansible_cfg_ends_no_wait_and_leaves_no_host_of_a_wave_where_it_is(site: Site) -> None:
    site.service("app", ["stop", "upgrade", "start"])
    site.inventory(
        {
            "controller": {"plane": "controlplane", "services": ["app"]},
            "web": {"plane": "dataplane", "services": ["app"]},
        },
        {"controller": ["controller1", "controller2"], "web": WEB[:2]},
    )
    given = {
        "version": "v1",
        "instructions": {"rolling_rules": {"global": 1, "roles": {"controller": 2}}},
        "environ": {"ANSIBLE_TASK_TIMEOUT": "4", "ANSIBLE_ANY_ERRORS_FATAL": "true"},
    }
    broken = site.fail("controller2", "app/upgrade")
    site.play("upgrade", code=2, **given)
    assert site.reported("v1") == {"controller1"}
    assert site.record("controller2")["state"] == "failed"
    broken.unlink()
    # web2 waits for longer than a task may take.
    site.sleep(6, "web1")
    site.play("upgrade", retry_failed=True, **given)
    assert site.reported("v1") == {"controller1", "controller2", *WEB[:2]}


@pytest.mark.thorough
def test_a_rollback_takes_the_last_first_and_the_broken_when_the_others_are_well(fleet: Site) -> None:
    fleet.play("upgrade", version="v1", instructions=ONE)
    broken = fleet.fail("web3", "app/upgrade")
    fleet.play("upgrade", version="v2", instructions=ONE, code=2)
    assert fleet.reported("v2") == {"web1", "web2"}
    broken.unlink()
    # A mistake is refused before the rollout is turned round.
    tree = fleet.consul.tree()
    assert "'wbe1' fits no host" in fleet.play("rollback", upgrade_limit="wbe1", code=2)
    assert fleet.consul.tree() == tree
    before = len(fleet.entries())
    with listening() as chat:
        hook = {"upgrade_notify": str(example(fleet.folder)), "chat_webhook": chat.url}
        fleet.play("rollback", reason="it is slow", **hook)
    assert fleet.reported("v1") == set(WEB)
    assert fleet.consul.get("current_version") == b"v1"
    # The failure before is that of the rollout that was rolled back, from before there was a hook.
    assert [(one["event"], one["version"]) for one in chat.events] == [("begin", "v1"), ("end", "v1")]
    back = [one.host for one in fleet.entries()[before:] if one.what == "begin" and one.task == "app/prepare"]
    assert back == ["web2", "web1", "web3"]


@pytest.mark.thorough
def test_a_run_that_finds_consul_put_back_to_an_earlier_time_stops_and_says_so(fleet: Site) -> None:
    fleet.sleep(2, "web2")
    process = fleet.start("upgrade", version="v1", instructions=ONE)
    wait_for(lambda: fleet.entries("web1"), "web1 has begun")
    code, _headers, snapshot = fleet.consul.call("GET", "snapshot")
    assert code == 200
    wait_for(lambda: fleet.entries("web2"), "web2 has begun")
    assert fleet.consul.call("PUT", "snapshot", snapshot)[0] == 200
    ended = fleet.end(process)
    assert ended.code == 2, ended.stdout
    assert "earlier time, such as from a snapshot" in " ".join(ended.stdout.split())
    assert "/status.yml" in ended.stdout.rpartition("Next: ")[2], ended.stdout
    assert begun(fleet) == {"web1", "web2"}
    fleet.play("upgrade", version="v1", retry_failed=True)
    assert fleet.reported("v1") == set(WEB)


@pytest.mark.thorough
def test_a_host_that_is_retried_by_the_command_is_not_validated_while_its_service_is_down(site: Site) -> None:
    site.service("app", ["validate", "stop", "upgrade", "start"])
    site.inventory({"web": {"plane": "dataplane", "services": ["app"]}}, {"web": ["web1"]})
    broken = site.fail("web1", "app/upgrade")
    shown = site.play("role", version="v1", role="web", code=2)
    assert shown[shown.index("Next: ") :].rstrip().endswith("-e retry_failed=true")
    broken.unlink()
    # As its check would be while the service is stopped.
    site.fail("web1", "app/validate")
    site.play("retry", host="web1")
    site.play("role", version="v1", role="web")
    assert site.done("web1") == ["app/validate", "app/stop", "app/stop", "app/upgrade", "app/start"]
    assert site.reported("v1") == {"web1"}


@pytest.mark.thorough
def test_a_host_that_was_admitted_and_then_held_before_it_began_does_not_begin(fleet: Site) -> None:
    # As after a controller that died between the two.
    fleet.play("upgrade", version="v1", instructions=ONE)
    plan = [{"convoy.upgrade.consul_upgrade_plan": {"version": "v2", "instructions": ONE}}]
    play = {"hosts": "localhost", "gather_facts": False, "tasks": plan}
    (fleet.folder / "plan.yml").write_text(json.dumps([play]))
    fleet.play(fleet.folder / "plan.yml")
    assert fleet.consul.get("config_state/enable_puppet/host/web1") == b"True"
    fleet.play("hold", host="web1", reason="disk on order", by="ann")
    shown = fleet.play("upgrade", version="v2", instructions=ONE, code=2)
    assert fleet.done("web1") == ["app/prepare", "app/upgrade"]
    assert "disk on order" in shown
    fleet.play("unhold", host="web1")
    fleet.play("upgrade", version="v2")
    assert fleet.reported("v2") == set(WEB)


@pytest.mark.thorough
def test_a_host_that_is_held_after_its_run_was_cut_off_is_not_begun_again(fleet: Site) -> None:
    fleet.play("upgrade", version="v1", instructions=ONE)
    plan = [
        {"convoy.upgrade.consul_upgrade_plan": {"version": "v2", "instructions": ONE}},
        {"convoy.upgrade.consul_upgrade_host_report": {"name": "web1", "version": "v2", "state": "started"}},
    ]
    play = {"hosts": "localhost", "gather_facts": False, "tasks": plan}
    (fleet.folder / "plan.yml").write_text(json.dumps([play]))
    fleet.play(fleet.folder / "plan.yml")
    fleet.play("hold", host="web1", reason="disk on order", by="ann")
    shown = fleet.play("upgrade", version="v2", code=2)
    assert "disk on order" in shown
    assert fleet.done("web1") == ["app/prepare", "app/upgrade"]
    fleet.play("unhold", host="web1")
    fleet.play("upgrade", version="v2")
    assert fleet.reported("v2") == set(WEB)


@pytest.mark.thorough
def test_a_failed_host_is_not_tried_again_while_it_is_held_or_the_rollout_is_paused(fleet: Site) -> None:
    broken = fleet.fail("web1", "app/upgrade")
    fleet.play("upgrade", version="v1", instructions=ONE, code=2)
    broken.unlink()
    fleet.play("hold", host="web1", reason="disk on order")
    assert "disk on order" in fleet.play("upgrade", version="v1", retry_failed=True, code=2)
    assert fleet.done("web1") == ["app/prepare"]
    fleet.play("unhold", host="web1")
    fleet.play("pause", reason="logins fail")
    process = fleet.start("upgrade", version="v1", retry_failed=True)
    time.sleep(15)
    assert fleet.done("web1") == ["app/prepare"]
    fleet.play("resume")
    ended = fleet.end(process)
    assert ended.code == 0, ended.stdout
    assert fleet.reported("v1") == set(WEB)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "error"),
    [
        ("command: 'false'\n  any_errors_fatal: true", "Ansible failed it without a result"),
        ("meta: end_batch", "its tasks ended without a report"),
    ],
)
def test_hosts_of_a_wave_whose_tasks_end_because_of_another_host_fail_and_the_run_ends(
    site: Site, task: str, error: str
) -> None:
    """The tasks are in a role that a service includes, so they are not refused."""
    site.service("api", ["stop"])
    hidden = site.folder / "roles/hidden/tasks/main.yml"
    hidden.parent.mkdir(parents=True)
    hidden.write_text(f"---\n- {task}\n  when: inventory_hostname == 'controller1'\n")
    service = site.folder / "roles/api/tasks/upgrade_tasks.yml"
    included = f"- ansible.builtin.include_role: {{name: {hidden.parents[1]}}}\n  tags: [upgrade]\n"
    service.write_text(service.read_text() + "\n" + included)
    hosts = ["controller1", "controller2", "controller3"]
    site.inventory({"controller": {"plane": "controlplane", "services": ["api"]}}, {"controller": hosts})
    began = time.monotonic()
    rules = {"rolling_rules": {"global": 2}}
    printed = site.play("upgrade", version="v1", instructions=rules, upgrade_wait_timeout=400, code=2)
    assert time.monotonic() - began < 300, printed
    found = site.record("controller2")
    assert (found["state"], found["step"]) == ("failed", "upgrade"), printed
    assert found["error"].startswith(error)
    assert site.record("controller1")["state"] == "failed"
    assert not site.entries("controller3")
    assert site.consul.tree("upgrade/drivers/") == {}
