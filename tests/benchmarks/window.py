# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the sliding window wins over batches on hosts of uneven speed, and what the bookkeeping costs for each host.

    python tests/benchmarks/window.py [--hosts N] [--cap N]

The same tasks on the same hosts, by the playbooks of this collection and by a bare playbook with `serial`, in one run. The
hosts are this machine under several names, and the window's tasks only sleep.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from devkit.agent import Agent
from push.site import Site, spans

STEPS = ("prepare", "stop", "upgrade", "start", "verify")
BARE = """\
- hosts: web
  gather_facts: false
  serial: {cap}
  vars: {{upgrade_version: v1, upgrade_version_before: ""}}
  tasks:
    - ansible.builtin.import_tasks: roles/app/tasks/upgrade_tasks.yml
"""


def ideal(seconds: Sequence[float], cap: int) -> float:
    """Return how long it takes if each host begins the moment a slot is free, and nothing but its tasks takes time."""
    free = [0.0] * cap
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


def batches(seconds: Sequence[float], cap: int) -> float:
    """Return the same for batches, each of which waits for its slowest host."""
    return sum(max(seconds[at : at + cap]) for at in range(0, len(seconds), cap))


def site_of(folder: Path, agent: Agent, hosts: Sequence[str], cap: int) -> Site:
    """Return a folder with one service on these hosts, and the same tasks as a bare playbook."""
    agent.kv.delete("", tree=True)
    folder.mkdir()
    site = Site(folder, agent)
    site.service("app", STEPS)
    site.inventory({"web": {"plane": "dataplane", "services": ["app"]}}, {"web": hosts})
    (folder / "bare.yml").write_text(BARE.format(cap=cap))
    return site


def timed(site: Site, playbook: str | Path, cap: int) -> tuple[float, float]:
    """Run a playbook; return the seconds from the first task's begin to the last one's end, and those on the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"web": cap}}}
    ended = site.end(site.start(playbook, forks=3 * cap, version="v1", instructions=rules), 1800)
    assert ended.code == 0, ended.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    entries = site.entries()
    took = entries[-1].at - entries[0].at
    assert len(spans(entries)) == len({one.host for one in entries})
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure both. What is faster is shown and never made sure of, as a machine may be busy with other things."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("--cap", type=int, default=3)
    given = parser.parse_args()
    hosts = [f"web{number}" for number in range(1, given.hosts + 1)]
    # One in three is slow, as hosts are that hold data.
    pauses = [1.0 if number % 3 == 0 else 0.2 for number in range(given.hosts)]
    with Agent() as agent, tempfile.TemporaryDirectory() as work:
        began = time.monotonic()
        found = {}
        for name, playbook in (("serial", Path("bare.yml")), ("window", "upgrade")):
            site = site_of(Path(work) / name, agent, hosts, given.cap)
            for host, pause in zip(hosts, pauses, strict=True):
                site.sleep(pause, host)
            found[name] = timed(site, playbook, given.cap)[0]
        every = [pause * len(STEPS) for pause in pauses]
        print(f"{given.hosts} hosts of uneven speed, {given.cap} at once, {len(STEPS)} tasks each:")
        print(
            f"  ideal, sleeping alone      {ideal(every, given.cap):6.1f} s   batches, sleeping alone {batches(every, given.cap):6.1f} s"
        )
        print(
            f"  convoy.upgrade             {found['window']:6.1f} s   serial: {given.cap} in a bare playbook {found['serial']:6.1f} s"
        )
        costs = {}
        for name, playbook in (("serial", Path("bare.yml")), ("window", "upgrade")):
            site = site_of(Path(work) / f"{name}-cost", agent, hosts, given.cap)
            site.sleep(0)
            costs[name] = timed(site, playbook, given.cap)
        print("The same hosts with tasks that take no time:")
        for name, label in (("serial", "a bare playbook"), ("window", "convoy.upgrade")):
            took, busy = costs[name]
            print(
                f"  {label:<17} {took / given.hosts:6.2f} s for each host, {busy / given.hosts:5.2f} s on the processor"
            )
        print(f"measured in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
