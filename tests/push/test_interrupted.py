# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A controller that is killed, and two that are at work at once."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from .site import Ended, Site, kill, most_at_once, spans, wait_for

ROLES = {"web": {"plane": "dataplane", "services": ["app"]}}
STEPS = ["prepare", "stop", "upgrade", "upgrade,once", "start", "verify"]
TASKS = ["app/prepare", "app/stop", "app/upgrade", "app/upgrade-once", "app/start", "app/verify"]
RULES = {"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}


@pytest.mark.thorough
@pytest.mark.parametrize("plane", ["controlplane", "dataplane"])
def test_a_controller_that_is_killed_at_every_step_goes_on_where_it_was(site: Site, plane: str) -> None:
    site.service("app", STEPS, after=["after"])
    site.inventory({"web": {"plane": plane, "services": ["app"]}}, {"web": ["web1", "web2"]})
    site.sleep(1.0)
    done: list[str] = []
    for number, task in enumerate([*TASKS, "app/after"]):
        process = site.start("upgrade", version="v1", instructions=RULES)
        wait_for(
            lambda task=task: [one for one in site.entries("web1") if one.task == task], f"web1 has begun {task}", 120
        )
        kill(process)
        # Until it is started, a service that was stopped is stopped again.
        done += [*["app/stop"] * (number in (3, 4, 5)), *TASKS[number - 1 : number]]
        assert site.done("web1") == done
        if number == 3:
            site.sleep(0.3)
    played = site.end(site.start("upgrade", version="v1"))
    assert played.code == 0, played.stdout
    # No other step that was finished has been run again, and what one host did for all was done by one.
    assert site.done("web1") == [*done, "app/after"]
    assert site.done("web2") == [task for task in [*TASKS, "app/after"] if task != "app/upgrade-once"]
    assert site.reported("v1") == {"web1", "web2"}


@pytest.mark.thorough
def test_of_two_runs_for_the_same_role_the_second_takes_what_the_first_has_not(site: Site) -> None:
    hosts = [f"web{number}" for number in range(1, 7)]
    site.service("app", ["prepare", "upgrade", "verify"])
    site.inventory(ROLES, {"web": hosts})
    site.sleep(0.5)
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"web": 2}}}
    first = site.start("role", forks=2, version="v1", role="web", instructions=rules)
    wait_for(site.entries, "the first run has begun")
    second = site.start("role", forks=4, version="v1", role="web")
    for ended in (site.end(first), site.end(second)):
        assert_ended_well(ended)
    assert site.reported("v1") == set(hosts)
    for host in hosts:
        assert site.done(host) == ["app/prepare", "app/upgrade", "app/verify"]
    assert most_at_once(spans(site.entries()), hosts) == 2


@pytest.mark.thorough
def test_two_runs_for_different_roles_keep_to_the_cap_of_the_fleet(site: Site) -> None:
    site.service("app", ["upgrade", "verify"])
    site.service("store", ["upgrade", "verify"])
    roles = {"web": {"plane": "dataplane", "services": ["app"]}, "cache": {"plane": "dataplane", "services": ["store"]}}
    hosts = {"web": ["web1", "web2", "web3"], "cache": ["cache1", "cache2", "cache3"]}
    site.inventory(roles, hosts)
    site.sleep(0.4)
    rules = {"rolling_rules": {"fleet": 2}}
    site.consul.put("current_version", "v0")
    runs = [site.start("role", version="v1", role="web", instructions=rules)]
    wait_for(site.entries, "the first run has begun")
    runs.append(site.start("role", version="v1", role="cache"))
    for run in runs:
        assert_ended_well(site.end(run))
    every = [host for names in hosts.values() for host in names]
    assert site.reported("v1") == set(every)
    assert most_at_once(spans(site.entries()), every) <= 2


def assert_ended_well(ended: Ended) -> None:
    assert ended.code == 0, ended.stdout


@pytest.mark.thorough
def test_hosts_of_a_run_elsewhere_are_left_to_it_and_taken_up_when_it_is_gone(site: Site) -> None:
    site.service("app", ["upgrade"])
    site.inventory(ROLES, {"web": ["web1", "web2"]})
    session = json.loads(
        site.consul.call("PUT", "session/create", b'{"TTL": "60s", "Behavior": "delete", "LockDelay": "0s"}')[2]
    )["ID"]
    there = {"by": "bob@elsewhere", "since": 1800000000, "machine": "another", "pid": 1, "started": 1}
    claim = json.dumps({**there, "session": session}).encode()
    assert site.consul.call("PUT", f"kv/upgrade/drivers/web1?acquire={session}", claim)[2] == b"true"

    process = site.start(
        "upgrade", version="v1", instructions={"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}
    )
    wait_for(lambda: site.reported("v1") == {"web2"}, "web2 has been upgraded")
    # The other run may still admit it.
    time.sleep(2)
    assert process.poll() is None
    assert site.done("web1") == []
    site.consul.call("PUT", f"session/destroy/{session}")
    ended = site.end(process)
    assert ended.code == 0, ended.stdout
    assert "web1 is not admitted (leased): its lease belongs to bob@elsewhere since " in ended.stdout
    assert "It is admitted once that run has ended with it" in ended.stdout
    assert site.reported("v1") == {"web1", "web2"}


@pytest.mark.thorough
def test_hosts_of_a_run_that_was_killed_here_with_its_daemon_are_taken_up_at_once(site: Site) -> None:
    site.service("app", STEPS)
    site.inventory(ROLES, {"web": ["web1"]})
    site.sleep(3.0)
    process = site.start("upgrade", version="v1", instructions=RULES)
    wait_for(lambda: site.entries("web1"), "web1 has begun")
    claim = json.loads(site.consul.get("upgrade/drivers/web1") or b"")
    os.kill(claim["pid"], signal.SIGKILL)
    kill(process)
    assert site.consul.get("upgrade/drivers/web1")
    site.sleep(0.1)
    site.play("upgrade", version="v1")
    assert site.done("web1") == TASKS
    sessions = {one["ID"] for one in json.loads(site.consul.call("GET", "session/list")[2])}
    assert claim["session"] not in sessions


@pytest.mark.thorough
def test_a_task_that_hangs_fails_at_the_deadline_and_the_others_go_on(site: Site) -> None:
    site.service("app", STEPS)
    site.inventory(ROLES, {"web": ["web1", "web2"]})
    site.sleep(0.1)
    site.sleep(600, "web1")
    rules = {"rolling_rules": {"global": "unlimited"}, "health": {"progress_deadline": 8}}
    ended = site.end(site.start("upgrade", version="v1", instructions=rules))
    assert ended.code == 2, ended.stdout
    assert site.done("web2") == TASKS
    assert site.done("web1") == []
    assert (site.record("web1")["state"], site.record("web1")["step"]) == ("failed", "prepare")
    assert "timed out" in site.record("web1")["error"].lower() or "timeout" in site.record("web1")["error"].lower()
    # The task may still run there, as on a host that is cut off.
    assert "web1 (lost): lost, service app, step prepare: " in ended.stdout
    (site.log / "sleep-web1").unlink()
    failed = site.fail("web1", "app/upgrade")
    ended = site.end(site.start("upgrade", version="v1", instructions=rules, retry_failed=True))
    assert "web1 (failed): failed, service app, step upgrade (attempt 2): " in ended.stdout
    failed.unlink()
    site.play("upgrade", version="v1", retry_failed=True)
    # It failed after it was stopped, so it is stopped again.
    assert site.done("web1") == ["app/prepare", "app/stop", "app/stop", "app/upgrade", "app/start", "app/verify"]


_HANGS = """
- name: Hang with each item
  ansible.builtin.command: sleep 100
  loop: "{{ range(60) | list }}"
  when: inventory_hostname == 'web1'
  changed_when: false
  tags: [prepare]
- name: Hang, and say something else
  tags: [prepare]
  block:
    - name: Hang
      ansible.builtin.command: sleep 100
      when: inventory_hostname == 'web2'
      changed_when: false
  rescue:
    - name: Say something else
      ansible.builtin.fail: {msg: The mirror does not answer.}
- name: Have a shorter time
  ansible.builtin.command: sleep 100
  timeout: 1
  when: inventory_hostname == 'web3'
  changed_when: false
  tags: [prepare]
"""


@pytest.mark.thorough
def test_a_host_is_lost_too_if_its_task_hangs_in_a_loop_or_its_service_says_something_else(site: Site) -> None:
    site.service("app", ["upgrade"])
    tasks = site.folder / "roles/app/tasks/upgrade_tasks.yml"
    tasks.write_text(tasks.read_text() + _HANGS)
    site.inventory(ROLES, {"web": ["web1", "web2", "web3", "web4"]})
    rules = {"rolling_rules": {"global": "unlimited"}, "health": {"progress_deadline": 8}}
    # Each item for itself would take eight minutes together.
    ended = site.end(site.start("upgrade", version="v1", instructions=rules), 300)
    assert ended.code == 2, ended.stdout
    assert site.done("web4") == ["app/upgrade"]
    assert "web1 (lost): lost, service app, step prepare: " in ended.stdout
    assert "web2 (lost): lost, service app, step prepare: The mirror does not answer." in ended.stdout
    assert "web3 (failed): failed, service app, step prepare: " in ended.stdout


@pytest.mark.thorough
def test_a_check_that_hangs_fails_at_the_deadline_and_nothing_is_touched(site: Site) -> None:
    site.service("app", ["validate", "upgrade"])
    site.inventory(ROLES, {"web": ["web1", "web2"]})
    site.sleep(600, "web1")
    rules = {"rolling_rules": {"global": "unlimited"}, "health": {"progress_deadline": 8}}
    ended = site.end(site.start("upgrade", version="v1", instructions=rules), 120)
    assert ended.code == 2, ended.stdout
    assert "Nothing was touched: 1 of 2 hosts can't be upgraded. web1: " in ended.stdout
    assert "timeout" in ended.stdout.lower()
    assert site.consul.tree() == {}


def test_a_run_whose_daemon_is_killed_admits_no_host_and_goes_on_with_the_same_command(site: Site) -> None:
    site.service("app", STEPS)
    site.inventory(ROLES, {"web": ["web1", "web2"]})
    site.sleep(3.0)
    process = site.start("upgrade", version="v1", instructions=RULES)
    wait_for(lambda: site.entries("web1"), "web1 has begun")
    daemon = json.loads(site.consul.get("upgrade/drivers/web1") or b"")["pid"]
    # Its output goes to the log in the folder of the run.
    folder = Path(f"/proc/{daemon}/fd/2").readlink().parent
    assert folder.exists()
    os.kill(daemon, signal.SIGKILL)
    ended = site.end(process)
    shown = " ".join(ended.stdout.split())
    assert ended.code != 0, shown
    assert "[no_daemon] The daemon of this run does not answer" in shown
    assert "Next: ansible-playbook" in shown
    assert not site.entries("web2")
    assert site.consul.get("config_state/enable_puppet/host/web2") != b"True"
    assert not folder.exists()
    site.sleep(0.1)
    site.play("upgrade", version="v1")
    # The end of the first step could not be recorded, so it is run again.
    assert site.done("web1") == [TASKS[0], *TASKS]
    assert site.reported("v1") == {"web1", "web2"}


@pytest.mark.thorough
def test_a_rollback_takes_over_the_hosts_of_a_wave_that_was_interrupted(site: Site) -> None:
    """The beginning of the rollback closes their gates. Hosts of the control plane begin together, in a wave."""
    roles = {"db": {"plane": "controlplane", "services": ["app"]}, "web": {"plane": "dataplane", "services": ["app"]}}
    rules = {"rolling_rules": {"global": 2}, "role_order": {"web": "db"}}
    site.service("app", ["prepare", "upgrade"], meta="---\nallow_downgrade: true\n")
    site.inventory(roles, {"db": ["db1", "db2"], "web": ["web1", "web2"]})
    site.play("upgrade", version="v1", instructions=rules)
    before = len(site.entries("db1"))
    for host in ("db1", "db2"):
        site.sleep(30, host)
    process = site.start("upgrade", version="v2", instructions=rules)
    wait_for(lambda: len(site.entries("db1")) > before, "db1 has begun")
    os.killpg(process.pid, signal.SIGINT)
    site.end(process)
    for host in ("db1", "db2"):
        site.sleep(0.05, host)
    assert_ended_well(site.end(site.start("rollback", reason="it is slow")))
    assert site.reported("v1") == {"db1", "db2", "web1", "web2"}


@pytest.mark.thorough
def test_a_run_takes_over_the_hosts_of_another_one_that_is_interrupted(site: Site) -> None:
    hosts = [f"web{number}" for number in range(1, 5)]
    site.service("app", ["upgrade", "verify"])
    site.inventory(ROLES, {"web": hosts})
    site.sleep(30, "web1")
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}
    first = site.start("upgrade", version="v1", instructions=rules)
    wait_for(lambda: site.entries("web1"), "web1 has begun")
    second = site.start("upgrade", version="v1")
    assert second.stdout is not None
    assert next(line for line in second.stdout if "web1 is not admitted (leased): its lease belongs to " in line)
    # What goes on waiting is left to others.
    wait_for(lambda: [*site.consul.tree("upgrade/drivers/")] == ["upgrade/drivers/web1"], "only web1 is leased")
    site.sleep(0.05, "web1")
    os.killpg(first.pid, signal.SIGINT)
    assert site.end(first).code != 0
    assert_ended_well(site.end(second))
    assert site.reported("v1") == set(hosts)
