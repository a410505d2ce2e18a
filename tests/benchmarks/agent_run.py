# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent run costs, on a node of the lab, beside what Ansible and Puppet alone cost there.

All is measured in the same run, on the same node, which is otherwise at rest.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.options import Options
from benchmarks.tables import Report
from lab.guard import guarded
from lab.node import Node
from nodes.fleet import RUNTIME, Fleet, wait_for

NAME = "agent_run"
ABOUT = "an agent run on a node of the lab, beside Ansible and Puppet alone"
NEEDS_LAB = True

NODE = "compute1"
HEAD = ["what", "seconds", "of them on the processor"]
# All that starts agent runs.
UNITS = ("convoy-node.path", "convoy-node.service", "convoy-node-run.service")
# How often an agent reads its gate if nothing wakes it (seconds).
INTERVAL = 300
# The most that a waiting agent may take of the processor time of a timer that starts an agent run at that interval (percent). Both are counted in
# one run on one node, so the speed of the machine does not matter.
MOST_OF_TIMER = 1.0
CLOSED = "an agent run, gate closed"
WAITING = "a waiting agent, in {seconds} s"
EMPTY = "- hosts: all\n  gather_facts: false\n  tasks: []\n"


def measure(fleet: Fleet, runs: int, waiting: int) -> Iterator[tuple[str, float, float]]:
    """Return what was run, its seconds, and its seconds on the processor: the median of the runs.

    :param waiting: how long a waiting agent is watched (seconds).
    """
    node = fleet.lab.nodes[NODE]
    node.write("/root/empty.yml", EMPTY)
    ansible = [str(RUNTIME / "bin/ansible-playbook"), "-i", "localhost,", "-c", "local"]
    gate = f"config_state/enable_puppet/host/{NODE}"
    fleet.consul.put(gate, "False")
    yield "ansible-playbook with an empty play", *median(node, [*ansible, "/root/empty.yml"], runs)
    bare = ["convoy-node", "run", "-e", '{"puppet_gate_health": false}']
    yield "an agent run, gate closed, without health", *median(node, bare, runs)
    yield CLOSED, *median(node, ["convoy-node", "run"], runs)
    yield WAITING.format(seconds=waiting), float(waiting), idle(fleet, node, waiting)
    fleet.consul.put(gate, "True")
    apply = ["puppet", "apply", "--detailed-exitcodes", "/usr/share/fleet/manifests/site.pp"]
    yield "puppet apply alone", *median(node, apply, runs)
    yield "an agent run, gate open, nothing to upgrade", *median(node, ["convoy-node", "run"], runs)


def idle(fleet: Fleet, node: Node, seconds: int) -> float:
    """Return the processor seconds of an agent that waits for its gate. What it starts is in other units, and is not counted."""
    wake = f"upgrade/wake/{NODE}"
    fleet.consul.delete(wake)
    node.run("systemctl", "start", "convoy-node.service")
    # The agent creates it once it has read its gate.
    wait_for(lambda: fleet.consul.get(wake) is not None, "the agent waits for its gate")
    time.sleep(5)
    before = used(node)
    time.sleep(seconds)
    after = used(node)
    node.run("systemctl", "stop", *UNITS)
    return after - before


def compare_with_timer(report: Report, idle_seconds: float, waiting: int, run_seconds: float) -> None:
    """Say what a waiting agent takes of a timer, and note it as a mistake if it is too much.

    :param idle_seconds: the processor seconds of an agent that waited for ``waiting`` seconds.
    :param run_seconds: the processor seconds of an agent run whose gate is closed.
    """
    share = 100 * (idle_seconds / waiting) / (run_seconds / INTERVAL)
    report.say(
        f"\nA waiting agent takes {share:.1f} % of the processor time of a timer that starts an agent run every {INTERVAL} s."
    )
    if share > MOST_OF_TIMER:
        report.mistakes.append(
            f"A waiting agent takes {share:.1f} % of a timer's processor time; at most {MOST_OF_TIMER:g} % is promised."
        )


def used(node: Node) -> float:
    """Return the processor seconds that the agent's unit has used since its start."""
    shown = node.run("systemctl", "show", "--value", "-p", "CPUUsageNSec", "convoy-node.service").stdout.strip()
    # Without accounting, it is the greatest number or a text.
    assert shown.isdecimal() and int(shown) < 2**63, f"systemd counts no processor time: {shown}"
    return int(shown) / 1e9


def median(node: Node, command: Sequence[str], runs: int) -> tuple[float, float]:
    """Return the median of the seconds that a command takes on a node, and of those on the processor."""
    seconds, busy = [], []
    for _run in range(runs + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        node.run(*command)
        seconds.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # The first one fills caches.
    return statistics.median(seconds[1:]), statistics.median(busy[1:])


def run(options: Options, report: Report) -> None:
    """Measure agent runs on one node."""
    with tempfile.TemporaryDirectory() as folder, guarded("bench-agent") as lab:
        lab.up({NODE: "compute"})
        fleet = Fleet(lab, Path(folder))
        fleet.consul.put("current_version", "v1")
        fleet.enroll(puppet_gate_interval=INTERVAL)
        wait_for(lambda: fleet.version_of(NODE) == "v1", "the node is set up")
        node = lab.nodes[NODE]
        node.run("systemctl", "stop", *UNITS)
        table = report.table("Agent runs on one node, the median.", HEAD)
        waiting = 30 if options.quick else INTERVAL
        found = {}
        for what, seconds, busy in measure(fleet, options.repeated(9), waiting):
            table.add(what, f"{seconds:.2f}", f"{busy:.2f}")
            found[what] = busy
        compare_with_timer(report, found[WAITING.format(seconds=waiting)], waiting, found[CLOSED])
