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
EMPTY = "- hosts: all\n  gather_facts: false\n  tasks: []\n"


def measure(fleet: Fleet, runs: int) -> Iterator[tuple[str, float, float]]:
    """Return what was run, its seconds, and its seconds on the processor: the median of the runs."""
    node = fleet.lab.nodes[NODE]
    node.write("/root/empty.yml", EMPTY)
    ansible = [str(RUNTIME / "bin/ansible-playbook"), "-i", "localhost,", "-c", "local"]
    gate = f"config_state/enable_puppet/host/{NODE}"
    fleet.consul.put(gate, "False")
    yield "ansible-playbook with an empty play", *median(node, [*ansible, "/root/empty.yml"], runs)
    bare = ["convoy-node", "run", "-e", '{"puppet_gate_health": false}']
    yield "an agent run, gate closed, without health", *median(node, bare, runs)
    yield "an agent run, gate closed", *median(node, ["convoy-node", "run"], runs)
    fleet.consul.put(gate, "True")
    apply = ["puppet", "apply", "--detailed-exitcodes", "/usr/share/fleet/manifests/site.pp"]
    yield "puppet apply alone", *median(node, apply, runs)
    yield "an agent run, gate open, nothing to upgrade", *median(node, ["convoy-node", "run"], runs)


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
        fleet.enroll(puppet_gate_interval=100000)
        wait_for(lambda: fleet.version_of(NODE) == "v1", "the node is set up")
        node = lab.nodes[NODE]
        node.run("systemctl", "stop", "convoy-node.path", "convoy-node.service", "convoy-node-run.service")
        table = report.table("Agent runs on one node, the median.", HEAD)
        for what, seconds, busy in measure(fleet, options.repeated(9)):
            table.add(what, f"{seconds:.2f}", f"{busy:.2f}")
