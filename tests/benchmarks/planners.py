# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How soon the next host is admitted, by what happens to the planner service that acts.

Three services share a rollout with a cap of one. When a host reports that it is upgraded, the service that admitted it is left alone, stopped, killed
or suspended, and the time until the next gate is open is measured. The rounds of all ways are interleaved.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import hand_over
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from benchmarks.options import Options
from benchmarks.tables import Report, median
from devkit.agent import Agent
from integration.support.fleets.fleet import names, seed
from integration.support.processes.planner_service import Service, open_hosts, running, until
from integration.support.runs.commands import upgrade

NAME = "planners"
ABOUT = "how soon the next host is admitted after the planner service that acts was stopped, killed or suspended"
NEEDS_LAB = False

ROUNDS = 5
SERVICES = ("one", "two", "three")
HOSTS = names(web=4)
ONE = {"rolling_rules": {"global": 1}}
WAYS: dict[str, Callable[[Service], object]] = {
    "nothing": lambda _service: None,
    "systemctl stop": lambda service: service.process.terminate(),
    "kill -9": lambda service: service.kill(),
    "a freeze (SIGSTOP)": lambda service: service.suspend(),
}


def seconds_to_next(disturb: Callable[[Service], object]) -> float:
    """Return the time from a host's report to the next gate (seconds), with a Consul agent and services of its own."""
    with tempfile.TemporaryDirectory() as folder, Agent() as agent:
        settings = Settings(port=agent.http_port)
        store, consul = Store(settings), agent.kv
        services = [Service(Path(folder), agent.http_port, name) for name in SERVICES]
        try:
            until(lambda: len(running(consul)) == len(SERVICES))
            seed(consul, HOSTS)
            begun = make_pass(store, PassRequest("2", ONE))
            assert begun.ledger is not None
            hand_over(store, begun.ledger, None, dry=False)
            for one in services:
                one.says("carrying")
            upgrade(store, "web1")
            acting = until(lambda: next((one for one in services if "web2" in one.admitted()), None))
            disturb(acting)
            began = time.monotonic()
            upgrade(store, "web2")
            until(lambda: "web3" in open_hosts(consul, HOSTS))
            return time.monotonic() - began
        finally:
            for one in services:
                one.resume()
                one.kill()


def run(options: Options, report: Report) -> None:
    """Measure all ways."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _round in range(options.repeated(ROUNDS)):
        for name, disturb in WAYS.items():
            found[name].append(seconds_to_next(disturb))
    head = ["what happens to the service that acts", "median (s)", "slowest (s)", "rounds"]
    table = report.table("From a host's report to the next open gate, with three planner services.", head)
    for name, each in found.items():
        table.add(name, f"{median(each):.2f}", f"{max(each):.2f}", len(each))
