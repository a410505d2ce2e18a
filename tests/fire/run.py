# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run under fire: a rollout with planners, an operator and nodes, while servers and planners are shot at."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from ansible_collections.convoy.upgrade.plugins.module_utils._store.settings import Settings
from devkit.kv import RawKV
from lab.lab import Lab

from .faults import Faults
from .fleet import FLEET, GATES, NEW, OLD
from .processes import Child, be_nodes, be_operator, be_planner
from .proxy import CuttingProxy
from .watcher import Witness

_SECONDS = 180
_FIRE = 12


@dataclass
class Result:
    """What a run came to.

    :param violations: sentences of the witness, and of the look at the end.
    """

    seed: int
    seconds: float = 0
    faults: Counter[str] = field(default_factory=Counter)
    openings: int = 0
    views: int = 0
    violations: list[str] = field(default_factory=list)


def wait_for_cluster(lab: Lab, seconds: float = 30) -> None:
    """Return when every server has a leader."""
    until = time.monotonic() + seconds
    while not all(RawKV(f"http://{node.address}:8500").has_leader() for node in lab.servers.values()):
        assert time.monotonic() < until, "the cluster has no leader"
        time.sleep(0.1)


def run(lab: Lab, seed: int) -> Result:
    """Run a rollout to its end under fire."""
    wait_for_cluster(lab)
    assert lab.kv.delete("", tree=True)
    lab.kv.load([*((f"running/versions/{OLD}/{host}", "1700000000") for host in FLEET), ("current_version", OLD)])
    lab.kv.put(f"{GATES}/global", "True")
    result, began = Result(seed), time.monotonic()
    addresses = [node.address for node in lab.servers.values()]
    proxies = [CuttingProxy(address) for address in addresses]
    settings = [Settings(port=proxy.port, timeout=3) for proxy in proxies]
    hosts = list(FLEET)
    planners = [Child(be_planner, one, FLEET) for one in (*settings, settings[0])]
    nodes = [Child(be_nodes, settings[at], {host: FLEET[host] for host in hosts[at::3]}, seed + at) for at in range(3)]
    operator = Child(be_operator, settings[seed % 3], seed)
    everybody = [*planners, *nodes, operator]
    until = began + _FIRE
    faults = Faults(seed, lab, planners, proxies, over=lambda: time.monotonic() > until)
    with Witness([f"http://{address}:8500" for address in addresses]) as witness:
        # On this thread: a child that is started again dies with the thread that did it.
        faults.run()
        _wait(everybody, began + _SECONDS, result)
    for child in everybody:
        child.kill()
    for proxy in proxies:
        proxy.close()
    result.seconds, result.faults, result.views = time.monotonic() - began, faults.count, witness.views
    result.violations += witness.failures
    _look_back(lab, result)
    return result


def _wait(everybody: list[Child], until: float, result: Result) -> None:
    """Wait until all have ended."""
    left = list(everybody)
    while left and time.monotonic() < until:
        left = [child for child in left if child.code is None]
        time.sleep(0.1)
    result.violations += [f"a process ended with {child.code}" for child in everybody if child.code not in (0, None)]
    if left:
        result.violations.append(f"{len(left)} processes did not come to an end")


def _look_back(lab: Lab, result: Result) -> None:
    """Look at what is there in the end."""
    keys = lab.kv.texts()
    behind = [host for host in FLEET if f"running/versions/{NEW}/{host}" not in keys]
    if behind:
        result.violations.append(f"never upgraded: {behind}")
    result.openings = sum(1 for key in keys if key.startswith(f"{GATES}/host/"))
