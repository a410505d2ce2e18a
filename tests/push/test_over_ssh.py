# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong on the way to a host, with real nodes and real ssh."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.guard import guarded
from lab.lab import Lab
from missing import needs_lab

from .site import Site, kill, wait_for

HOSTS = ("web1", "web2")
STEPS = ["prepare", "stop", "upgrade", "upgrade,once", "start", "verify"]
TASKS = ["app/prepare", "app/stop", "app/upgrade", "app/upgrade-once", "app/start", "app/verify", "app/after"]
RULES = {"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}


@pytest.fixture
def lab() -> Iterator[Lab]:
    needs_lab()
    # Tests may run side by side.
    with guarded(f"push{os.environ.get('PYTEST_XDIST_WORKER', '')}") as found:
        found.up(dict.fromkeys(HOSTS, "web"))
        yield found


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Site:
    site = Site(tmp_path, lab)
    site.service("app", STEPS, after=["after"])
    site.inventory({"web": {"plane": "dataplane", "services": ["app"]}}, {"web": HOSTS})
    return site


@pytest.mark.thorough
def test_a_controller_that_is_killed_at_every_step_goes_on_where_it_was(site: Site) -> None:
    site.sleep(1.0)
    for number, task in enumerate(TASKS):
        process = site.start("upgrade", version="v1", instructions=RULES)
        begun = Counter(one.task for one in site.entries("web1") if one.what == "begin")[task]
        wait_for(
            lambda task=task, begun=begun: (
                Counter(one.task for one in site.entries("web1") if one.what == "begin")[task] > begun
            ),
            f"web1 has begun {task}",
            120,
        )
        kill(process)
        # Nothing of a controller's death reaches the host: the task ends there, and it is not reported.
        # Until it is started, a service that was stopped is stopped again.
        ended = 2 * number + 1 + len({3, 4, 5} & {*range(number + 1)})
        wait_for(lambda ended=ended: len(site.done("web1")) == ended, f"web1 has ended {task}", 30)
    site.sleep(0.1)
    site.play("upgrade", version="v1")
    # Of no other step that a controller saw the end of was there a second run; the others were run whole, and the tasks of a
    # service are made for that.
    assert Counter(site.done("web1")) == {**dict.fromkeys(TASKS, 2), "app/stop": 5}
    assert site.done("web2") == [task for task in TASKS if task != "app/upgrade-once"]
    assert site.reported("v1") == set(HOSTS)


def test_a_host_that_dies_at_a_step_keeps_its_slot_and_goes_on_there_when_it_is_back(lab: Lab, site: Site) -> None:
    site.sleep(0.1)
    site.sleep(20.0, "web1")
    process = site.start("upgrade", version="v1", instructions=RULES)
    wait_for(lambda: "app/prepare" in [one.task for one in site.entries("web1")], "web1 has begun", 120)
    lab.nodes["web1"].kill()
    ended = site.end(process)
    # What Ansible says where a host could not be reached.
    assert ended.code == 4, ended.stdout
    record = site.record("web1")
    assert (record["state"], record["step"], record["service"]) == ("failed", "prepare", "app")
    assert record["error"].startswith("unreachable: ")
    assert site.done("web2") == []
    assert "web1 (lost): lost, service app, step prepare: unreachable: " in ended.stdout

    # As long as no one asks for it, it is not tried again, and its slot is not given away.
    lab.nodes["web1"].boot()
    lab.nodes["web1"].wait(22)
    site.sleep(0.1, "web1")
    site.play("upgrade", version="v1", code=2)
    assert site.done("web2") == []
    site.play("upgrade", version="v1", retry_failed=True)
    assert site.done("web1") == TASKS
    assert site.reported("v1") == set(HOSTS)


@pytest.mark.thorough
def test_a_host_that_is_cut_off_in_a_task_does_not_hang_the_run(lab: Lab, site: Site) -> None:
    site.sleep(0.1)
    site.sleep(900.0, "web1")
    # Arguments of the inventory replace those of the environment.
    site.inventory(
        {"web": {"plane": "dataplane", "services": ["app"]}},
        {"web": HOSTS},
        web1={"ansible_ssh_extra_args": "-o Compression=no"},
    )
    rules = {"rolling_rules": {"global": "unlimited"}}
    process = site.start("upgrade", version="v1", instructions=rules)
    wait_for(lambda: "app/prepare" in [one.task for one in site.entries("web1")], "web1 has begun", 120)
    began = time.monotonic()
    lab.nodes["web1"].cut()
    ended = site.end(process)
    # Keepalives are sent for a minute.
    assert 30 < time.monotonic() - began < 180
    assert ended.code == 4, ended.stdout
    assert site.record("web1")["error"].startswith("unreachable: ")
    assert "web1 (lost): lost, service app, step prepare: unreachable: " in ended.stdout
    assert site.done("web2") == TASKS[:-1]

    lab.nodes["web1"].reconnect()
    site.sleep(0.1, "web1")
    site.play("upgrade", version="v1", retry_failed=True)
    assert site.reported("v1") == set(HOSTS)


@pytest.mark.thorough
@pytest.mark.parametrize("deadline", [7200, 15])
def test_a_host_that_is_cut_off_while_its_check_before_a_stop_is_tried_again_is_lost(
    lab: Lab, site: Site, deadline: int
) -> None:
    site.service("cluster", ["may_stop"])
    site.inventory({"web": {"plane": "dataplane", "services": ["cluster", "app"]}}, {"web": HOSTS})
    site.sleep(0.1)
    refused = site.fail("web1", "cluster/may_stop")
    rules = {"rolling_rules": {"global": "unlimited"}, "health": {"progress_deadline": deadline}}
    process = site.start("upgrade", version="v1", instructions=rules)
    wait_for(
        lambda: [one.task for one in site.entries("web1")].count("cluster/may_stop") > 1, "web1 tries it again", 120
    )
    lab.nodes["web1"].cut()
    # Its check may be tried for half an hour.
    ended = site.end(process, 300)
    assert ended.code in (2, 4), ended.stdout
    assert "web1 (lost): lost, service cluster, step may_stop: " in ended.stdout
    assert site.done("web1") == ["app/prepare"]
    assert site.done("web2") == ["app/prepare", "cluster/may_stop", *TASKS[1:-1]]

    lab.nodes["web1"].reconnect()
    refused.unlink()
    site.play("upgrade", version="v1", retry_failed=True)
    assert site.reported("v1") == set(HOSTS)


def test_a_host_that_is_reinstalled_in_mid_upgrade_runs_nothing_until_it_is_retried_and_then_everything(
    lab: Lab, site: Site
) -> None:
    def install(name: str, machine: str) -> None:
        for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            lab.nodes[name].write(path, f"{machine * 32}\n")

    install("web1", "a")
    install("web2", "b")
    site.sleep(0.1)
    site.sleep(3.0, "web1")
    process = site.start("upgrade", version="v1", instructions=RULES)
    wait_for(lambda: "app/upgrade" in [one.task for one in site.entries("web1")], "web1 has begun", 120)
    kill(process)
    wait_for(lambda: "app/upgrade" in site.done("web1"), "its task has ended", 30)
    site.sleep(0.1, "web1")
    ran = site.done("web1")
    machine = site.record("web1")["machine"]

    install("web1", "c")
    shown = site.play("upgrade", version="v1", code=2)
    assert "web1 is another machine (" in shown
    assert site.done("web1") == ran
    # Its slot is still taken.
    assert site.done("web2") == []

    site.play("upgrade", version="v1", retry_failed=True)
    assert site.done("web1") == [*ran, *TASKS]
    record = site.record("web1")
    assert (record["state"], record["other_machine"]) == ("upgraded", machine)
    assert site.reported("v1") == set(HOSTS)
