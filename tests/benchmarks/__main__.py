# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make bench`: what one pass costs over fleets of different sizes.

    python tests/benchmarks [--hosts N ...] [--write FILE]

For every size a real Consul is filled with a fleet in the middle of a rollout. Then one pass admits 61 hosts, and
requests, seconds and memory are taken. The last column is seconds per host against the smallest fleet: what stays about 1 is
linear.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent

SIZES = [100, 1_000, 10_000, 100_000]
ADMISSIONS = 61
ASKED = 99
PASSES = 3
OLD_KEYS = ", with both layouts"
HEAD = ["hosts", "operation", "requests", "seconds", "MiB", "per host against the smallest fleet"]


def fleet(size: int) -> Iterator[tuple[str, str]]:
    """Return the keys of a fleet in which a tenth is upgraded and the rest waits."""
    for number in range(1, size + 1):
        version = "v2" if number <= size // 10 else "v1"
        yield f"running/versions/{version}/compute{number}", "1789000000"
    yield "config_state/enable_puppet/global", "False"
    yield "current_version", "v1"


def legacy_keys(size: int) -> Iterator[tuple[str, str]]:
    """Return what JioCloud's code has in the old places of such a fleet, with as many gates as it can have."""
    for number in range(1, size + 1):
        yield f"running_version/v1/compute{number}", "1788999999"
        yield f"config_state/host/compute{number}/enable_puppet", "true"
    yield "config_state/global/enable_puppet", "true"
    yield "upgrade/schema", "1"
    yield "upgrade/migration", '{"state": "kept", "from": 0, "to": 1}'


def measure(agent: Agent, size: int) -> Iterator[tuple[str, int, float, float, int]]:
    """Return operation, requests, seconds, MiB and the hosts that it was for."""
    settings = Settings(port=agent.http_port, timeout=120)
    make_pass(Store(settings), PassRequest(version="v2", rules={"rolling_rules": {"global": ADMISSIONS}}))
    yield "pass that admits nothing", *_passes(settings, admits=0), size
    yield f"pass that admits {ADMISSIONS}", *_passes(settings, admits=ADMISSIONS), size
    store = Store(settings)
    began = time.perf_counter()
    ask_gate(store, {f"compute{number}": "compute" for number in range(1, ASKED + 1)})
    yield f"lookup for {ASKED} hosts", store.client.requests, time.perf_counter() - began, _memory(), size
    write_report(Store(settings), HostReport("compute1", "v2", "upgraded"))
    store = Store(settings)
    began = time.perf_counter()
    write_report(store, HostReport("compute1", "v3", "upgraded"))
    yield "one report", store.client.requests, time.perf_counter() - began, _memory(), size
    agent.kv.load(legacy_keys(size))
    yield f"pass that admits nothing{OLD_KEYS}", *_passes(settings, admits=0), size
    store = Store(settings)
    began = time.perf_counter()
    ask_gate(store, {f"compute{number}": "compute" for number in range(1, ASKED + 1)})
    lookup = f"lookup for {ASKED} hosts{OLD_KEYS}"
    yield lookup, store.client.requests, time.perf_counter() - began, _memory(), size


def _passes(settings: Settings, admits: int) -> tuple[int, float, float]:
    """Return requests, seconds and MiB of the quickest of some passes that open so many hosts."""
    times = []
    for _each in range(PASSES):
        if admits:
            reset_gates(Store(settings))
        store = Store(settings)
        began = time.perf_counter()
        outcome = make_pass(store, PassRequest())
        times.append((time.perf_counter() - began, store.client.requests))
        if len(outcome.admissions) != admits:
            raise RuntimeError(f"a pass admitted {len(outcome.admissions)} hosts instead of {admits}")
    seconds, requests = min(times)
    return requests, seconds, _memory()


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process_of_its_own(agent: Agent, size: int) -> list[tuple[str, int, float, float, int]]:
    """Measure one size, with the memory of that size alone."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            for operation, requests, seconds, memory, hosts in measure(agent, size):
                out.write(f"{operation}\t{requests}\t{seconds}\t{memory}\t{hosts}\n")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    _pid, status = os.wait()
    if status:
        sys.exit(f"The benchmark of {size} hosts failed.")
    return [(row[0], int(row[1]), float(row[2]), float(row[3]), int(row[4])) for row in rows]


def main() -> int:
    """Measure, show, and fail if a pass needs more than one request to read and one to write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=SIZES)
    parser.add_argument("--write", type=Path, help="a file for the table, in Markdown")
    options = parser.parse_args()
    lines = [f"| {' | '.join(HEAD)} |", "| ---: | :--- | ---: | ---: | ---: | ---: |"]
    first: dict[str, float] = {}
    wrong = []
    print("\n".join(lines), flush=True)
    for size in options.hosts:
        with Agent() as agent:
            agent.kv.load(fleet(size))
            for operation, requests, seconds, memory, hosts in in_a_process_of_its_own(agent, size):
                share = seconds / hosts / first.setdefault(operation, seconds / hosts)
                linear = f"{share:.2f}" if "pass" in operation else ""
                lines.append(f"| {hosts:,} | {operation} | {requests:,} | {seconds:.3f} | {memory:.0f} | {linear} |")
                print(lines[-1], flush=True)
                name = operation.removesuffix(OLD_KEYS)
                lookup = f"lookup for {ASKED} hosts"
                allowed = {"pass that admits nothing": 1, f"pass that admits {ADMISSIONS}": 2, lookup: 1}.get(name)
                if allowed is not None and requests != allowed:
                    wrong.append(f"{name} over {hosts} hosts took {requests} requests instead of {allowed}")
    if options.write:
        options.write.write_text("\n".join(lines) + "\n")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
