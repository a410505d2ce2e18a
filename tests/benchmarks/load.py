# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nodes can do to Consul and to planners: all ask for their gates at once, and one writes its own record all the time.

The ways to read are interleaved. The node that writes says each time that it is upgraded, so that every pass wants to publish its version, and its
write makes that a conflict.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import encode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from benchmarks.options import Options
from benchmarks.stored_fleets import ADMISSIONS, KEYS, NEW, host_name, under_way
from benchmarks.tables import Report, median
from benchmarks.waking import ask, busy, many_connections
from devkit.agent import Agent
from devkit.kv import RawKV

NAME = "load"
ABOUT = "what 2,000 nodes that ask at once cost, and what a node that writes its record all the time does to passes"
NEEDS_LAB = False

ASKING = 2_000
# The ways to read, and what they add to the path.
READS = {"default": "", "consistent": "?consistent", "stale": "?stale"}
SIZES, QUICK_SIZES = (300, 2_000, 5_000), (300,)
RATES, QUICK_RATES = (0, 1, 10, 100, 400), (0, 100)


async def _ask_at_once(port: int, nodes: int, path: str) -> float:
    """Let all nodes send the same question, each on a connection of its own; return the time until the last answer (seconds)."""
    gate = asyncio.Semaphore(100)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with gate:
            return await asyncio.open_connection("127.0.0.1", port)

    connections = await asyncio.gather(*(connect() for _node in range(nodes)))
    began = time.perf_counter()
    await asyncio.gather(*(ask(reader, writer, path) for reader, writer in connections))
    took = time.perf_counter() - began
    for _reader, writer in connections:
        writer.close()
    return took


def _reads(options: Options, report: Report) -> None:
    nodes = options.sizes[-1] if options.sizes else 200 if options.quick else ASKING
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in READS}
    with many_connections(nodes) as agent:
        agent.kv.load(under_way(nodes))
        assert agent.process is not None
        for _round in range(options.repeated(5)):
            for name, more in READS.items():
                before = busy(agent.process.pid)
                took = asyncio.run(_ask_at_once(agent.http_port, nodes, f"kv/{KEYS.gate('global')}{more}"))
                found[name].append((took, busy(agent.process.pid) - before))
    head = ["read", "all answered after (s)", "server's processor (s)", "reads per second"]
    table = report.table(f"{nodes:,} nodes read one key at once, from one Consul server. Medians.", head)
    for name, each in found.items():
        took, used = (median([one[at] for one in each]) for at in (0, 1))
        table.add(name, f"{took:.2f}", f"{used:.2f}", f"{nodes / took:,.0f}")


def _write_all_the_time(url: str, host: str, rate: int) -> None:
    """Write the record of a host so many times a second, until the process is ended."""
    consul = RawKV(url)
    began = time.monotonic()
    for number in itertools.count():
        record = HostRecord(NEW, UPGRADED, times={"started": 1_789_100_000, "upgraded": 1_789_100_000 + number})
        consul.put(KEYS.record(host), encode_record(record))
        time.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))


@contextmanager
def _writer(agent: Agent, host: str, rate: int) -> Iterator[None]:
    """Let a process write a host's record; 0 for none."""
    if not rate:
        yield
        return
    process = multiprocessing.Process(target=_write_all_the_time, args=(agent.kv.url, host, rate))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _passes(options: Options, report: Report) -> None:
    head = ["hosts", "writes per second", "median (s)", "slowest (s)", "hosts admitted"]
    title = f"Passes that admit {ADMISSIONS} hosts, while one node writes its own record."
    table = report.table(title, head, 0)
    for size in options.sizes or (QUICK_SIZES if options.quick else SIZES):
        host = host_name(size)
        with Agent() as agent:
            settings = Settings(port=agent.http_port)
            agent.kv.load(under_way(size))
            for rate in QUICK_RATES if options.quick else RATES:
                times, admitted = [], set()
                for _round in range(options.repeated(5)):
                    reset_gates(Store(settings))
                    with _writer(agent, host, rate):
                        time.sleep(1.0 if rate else 0.0)
                        began = time.perf_counter()
                        outcome = make_pass(Store(settings), PassRequest())
                        times.append(time.perf_counter() - began)
                    admitted.add(len(outcome.admissions))
                    agent.kv.delete(KEYS.record(host))
                table.add(f"{size:,}", rate, f"{median(times):.2f}", f"{max(times):.2f}", min(admitted))
                if admitted != {ADMISSIONS}:
                    report.mistakes.append(f"With {rate} writes per second, a pass admitted {min(admitted)} hosts.")


def run(options: Options, report: Report) -> None:
    """Measure both."""
    _reads(options, report)
    _passes(options, report)
