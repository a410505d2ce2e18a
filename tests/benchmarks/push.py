# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A push run beside plain playbooks with ``strategy: host_pinned`` and ``serial``, on the same hosts with the same tasks.

    python tests/benchmarks/playbooks.py [--hosts N ...] [--rounds N]

First with hosts whose upgrades take 2 to 16 s, three at once: the time from the first task to the last, and that of the whole run. Then with
five tasks that do nothing: the processor time of all processes, beside plain playbooks that gather the facts that an upgrade gathers, and none.
The hosts are this machine under several names.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from devkit.agent import Agent
from devkit.wipe import wipe
from push.site import Site

STEPS = ("prepare", "stop", "upgrade", "start", "verify")
# Not sorted, because durations are unknown before an upgrade.
SECONDS = (5, 12, 3, 9, 16, 2, 8, 14, 4, 10, 7, 6)
CAP, FORKS = 3, 5
PINNED, SERIAL = "strategy: ansible.builtin.host_pinned", f"serial: {CAP}"
_SET_CHILD_SUBREAPER = 36
_TASK = "- name: {step}\n  ansible.builtin.command: {command}\n  changed_when: false\n  tags: [{step}]\n"
_PLAY = "---\n- hosts: web\n  {facts}\n  {how}\n  tasks:\n    - ansible.builtin.import_tasks: roles/app/tasks/upgrade_tasks.yml\n"
NO_FACTS = "gather_facts: false"
# As upgrade_fact_subset in playbooks/group_vars.
SAME_FACTS = "gather_subset: ['!all', '!min', distribution, pkg_mgr, service_mgr, platform]"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took.

    :param seconds: its duration.
    :param busy: the processor time of all its processes (seconds).
    :param output: what it printed.
    """

    seconds: float
    busy: float
    output: str


def site_of(folder: str, agent: Agent, hosts: Sequence[str], tasks: str, each: Sequence[float] = ()) -> Site:
    """Return a folder with one service, whose tasks a plain playbook can run too."""
    wipe(agent.kv)
    site = Site(Path(folder), agent)
    (site.folder / "roles/app/tasks").mkdir(parents=True)
    (site.folder / "roles/app/tasks/upgrade_tasks.yml").write_text(f"---\n{tasks}")
    variables = {host: {"seconds": seconds} for host, seconds in zip(hosts, each, strict=False)}
    site.inventory({"web": {"services": ["app"]}}, {"web": hosts}, **variables)
    return site


def run(site: Site, how: str, forks: int, cap: int, facts: str = NO_FACTS) -> Cost:
    """Run the tasks by a plain playbook, or by an upgrade if ``how`` is empty."""
    others = _children()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    if how:
        play = site.folder / "plain.yml"
        play.write_text(_PLAY.format(how=how, facts=facts))
        ended = site.end(site.start(play, forks=forks), 3600)
    else:
        rules = {"rolling_rules": {"global": cap}}
        ended = site.end(site.start("upgrade", forks=forks, version="v2", instructions=rules), 3600)
    seconds = time.monotonic() - began
    if ended.code:
        sys.exit(ended.stdout)
    # The daemon of a run is adopted by this process, and ends with the run.
    for child in _children() - others:
        os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended.stdout)


def _children() -> set[int]:
    return {
        int(child) for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
    }


def uneven(rounds: int) -> None:
    """Print how long hosts of uneven speed take each way."""
    hosts = [f"web{number}" for number in range(1, len(SECONDS) + 1)]
    log = "{{ inventory_dir }}/times"
    shell = f"sh -c 'date +%s.%N >>{log}; sleep {{{{ seconds }}}}; date +%s.%N >>{log}'"
    ideal = sum(SECONDS) / CAP
    print(f"{len(hosts)} uneven hosts, {CAP} at once, {FORKS} forks; the ideal is {ideal:.0f} s:")
    for name, how, forks in (("convoy.upgrade", "", FORKS), ("host_pinned", PINNED, CAP), (SERIAL, SERIAL, FORKS)):
        work, whole = [], []
        for _round in range(rounds):
            with tempfile.TemporaryDirectory() as folder, Agent() as agent:
                site = site_of(folder, agent, hosts, _TASK.format(step="upgrade", command=shell), SECONDS)
                whole.append(run(site, how, forks, CAP).seconds)
                times = sorted(map(float, (site.folder / "times").read_text().split()))
                work.append(times[-1] - times[0])
        tasks = statistics.median(work)
        print(
            f"  {name:15} {tasks:5.1f} s, {tasks / ideal:.2f} of the ideal; {statistics.median(whole):5.1f} s as a whole",
            flush=True,
        )


def cost(size: int, rounds: int) -> None:
    """Print the processor time of both for a fleet of some size, and their ratios."""
    hosts = [f"web{number}" for number in range(1, size + 1)]
    tasks = "".join(_TASK.format(step=step, command="'true'") for step in STEPS)
    ours: list[float] = []
    plain: dict[str, list[float]] = {SAME_FACTS: [], NO_FACTS: []}
    for _round in range(rounds):
        with tempfile.TemporaryDirectory() as folder, Agent() as agent:
            site = site_of(folder, agent, hosts, tasks)
            for facts, found in plain.items():
                found.append(run(site, PINNED, FORKS, FORKS, facts).busy)
            ours.append(run(site, "", FORKS, FORKS).busy)
    same, none = (
        f"{statistics.median(found):6.1f} s ({statistics.median(mine / other for mine, other in zip(ours, found, strict=True)):.2f} times)"
        for found in plain.values()
    )
    print(
        f"{size:5} hosts with {len(STEPS)} tasks: {statistics.median(ours):6.1f} s of processor; host_pinned with the same facts {same}, "
        f"without facts {none}",
        flush=True,
    )


def main() -> None:
    """Compare both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=["uneven", "cost"])
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if given.only != "cost":
        uneven(given.rounds)
    for size in () if given.only == "uneven" else given.hosts:
        cost(size, given.rounds)


if __name__ == "__main__":
    main()
