# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A controller that is killed, and two that are at work at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from .site import Ended, Site, most_at_once, spans, wait_for

ROLES = {"web": {"stage": "dataplane", "services": ["app"]}}
STEPS = ["prepare", "stop", "upgrade", "upgrade,once", "start", "verify"]
TASKS = ["app/prepare", "app/stop", "app/upgrade", "app/upgrade-once", "app/start", "app/verify"]
RULES = {"rolling_rules": {"roles": {"web": 1}}}


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a run and the tasks that are under way, as when the power of their machines fails."""
    found, family = [process.pid], []
    while found:
        family.append(found.pop())
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{family[-1]}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    # From the top, so that nobody sees that another one is gone.
    for one in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("stage", ["controlplane", "dataplane"])
def test_a_controller_that_is_killed_at_every_step_goes_on_where_it_was(site: Site, stage: str) -> None:
    site.service("app", STEPS, after=["after"])
    site.inventory({"web": {"stage": stage, "services": ["app"]}}, {"web": ["web1", "web2"]})
    site.sleep(1.0)
    for number, task in enumerate([*TASKS, "app/after"]):
        process = site.start("upgrade", version="v1", instructions=RULES)
        wait_for(
            lambda task=task: [one for one in site.entries("web1") if one.task == task], f"web1 has begun {task}", 120
        )
        kill(process)
        assert site.done("web1") == [*TASKS, "app/after"][:number]
        if number == 3:
            site.sleep(0.3)
    played = site.end(site.start("upgrade", version="v1"))
    assert played.code == 0, played.stdout
    # No step that was finished has been run again, and what one host did for all was done by one.
    assert site.done("web1") == [*TASKS, "app/after"]
    assert site.done("web2") == [task for task in [*TASKS, "app/after"] if task != "app/upgrade-once"]
    assert site.reported("v1") == {"web1", "web2"}


def test_of_two_runs_for_the_same_role_the_second_takes_what_the_first_has_not(site: Site) -> None:
    hosts = [f"web{number}" for number in range(1, 7)]
    site.service("app", ["prepare", "upgrade", "verify"])
    site.inventory(ROLES, {"web": hosts})
    site.sleep(0.5)
    rules = {"rolling_rules": {"roles": {"web": 2}}}
    first = site.start("role", forks=2, version="v1", role="web", instructions=rules)
    wait_for(site.entries, "the first run has begun")
    second = site.start("role", forks=4, version="v1", role="web")
    for ended in (site.end(first), site.end(second)):
        assert_ended_well(ended)
    assert site.reported("v1") == set(hosts)
    for host in hosts:
        assert site.done(host) == ["app/prepare", "app/upgrade", "app/verify"]
    assert most_at_once(spans(site.entries()), hosts) == 2


def test_two_runs_for_different_roles_keep_to_the_cap_of_the_fleet(site: Site) -> None:
    site.service("app", ["upgrade", "verify"])
    site.service("store", ["upgrade", "verify"])
    roles = {"web": {"stage": "dataplane", "services": ["app"]}, "cache": {"stage": "dataplane", "services": ["store"]}}
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
