# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processor time of a push run against a plain play with ``strategy: host_pinned`` that runs the same tasks on the same hosts.

    python tests/benchmarks/push_cost.py [--hosts N ...] [--rounds N] [--forks N]

Both run five trivial tasks on each host. The hosts are this machine under several names. Each round runs both, one after the other.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from devkit.agent import Agent
from devkit.wipe import wipe
from push.site import Site

SIZES = [10, 50, 200]
STEPS = ("prepare", "stop", "upgrade", "start", "verify")
_SET_CHILD_SUBREAPER = 36
_TASK = "- name: {step}\n  ansible.builtin.command: 'true'\n  changed_when: false\n  tags: [{step}]\n"


def measure(site: Site, playbook: str | Path, forks: int, **given: object) -> tuple[float, float]:
    """Return processor seconds and seconds of a run with all of its processes."""
    others = _children()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ended = site.end(site.start(playbook, forks=forks, **given), 3600)
    seconds = time.monotonic() - began
    if ended.code:
        sys.exit(ended.stdout)
    # The daemon of a run is adopted by this process, and ends with the run.
    for child in _children() - others:
        os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds


def _children() -> set[int]:
    return {
        int(child) for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
    }


def compare(size: int, rounds: int, forks: int) -> None:
    """Print both medians for a fleet of some size, and their ratio."""
    ours, plain = [], []
    for _round in range(rounds):
        with tempfile.TemporaryDirectory() as folder, Agent() as agent:
            wipe(agent.kv)
            site = Site(Path(folder), agent)
            service = Path(folder) / "roles/app/tasks"
            service.mkdir(parents=True)
            tasks = "".join(_TASK.format(step=step) for step in STEPS)
            (service / "upgrade_tasks.yml").write_text(f"---\n{tasks}")
            hosts = [f"web{number}" for number in range(1, size + 1)]
            site.inventory({"web": {"services": ["app"]}}, {"web": hosts})
            play = Path(folder) / "plain.yml"
            play.write_text(
                "---\n- hosts: web\n  strategy: ansible.builtin.host_pinned\n  gather_facts: false\n  tasks:\n"
                + "".join(f"    {line}\n" for line in tasks.splitlines())
            )
            plain.append(measure(site, play, forks))
            ours.append(
                measure(site, "upgrade", forks, version="v2", instructions={"rolling_rules": {"global": forks}})
            )
    medians = [statistics.median(one[at] for one in runs) for runs in (ours, plain) for at in (0, 1)]
    ratio = statistics.median(mine[0] / other[0] for mine, other in zip(ours, plain, strict=True))
    print(
        f"{size:5} hosts: {medians[0]:7.1f} s of processor against {medians[2]:7.1f} s of host_pinned, {ratio:.2f} times; "
        f"{medians[1]:.1f} s against {medians[3]:.1f} s in all",
        flush=True,
    )


def main() -> None:
    """Compare for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forks", type=int, default=5)
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for size in given.hosts:
        compare(size, given.rounds, given.forks)


if __name__ == "__main__":
    main()
