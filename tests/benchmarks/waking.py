# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What waiting nodes cost Consul: wake-ups and processor time of each admission, by what the nodes wait on.

One process holds a real blocking query for every waiting node, against one Consul server. Then hosts are admitted one by one, each in a
transaction as a planner writes it. Measured are the queries that an admission ends, the processor time of the server, and the time from
the write until the process of the node's agent run has started. Before that, the woken node reads its gate with the code of the agent. A process that
does nothing takes the place of the agent run itself. The rounds of all ways of waiting are in one run, one after the other.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "agent"))

from benchmarks.options import Options
from benchmarks.tables import NOTHING, Report, percentile
from convoy_node.node.connection import Connection
from convoy_node.node.consul import Consul
from convoy_node.node.gate import NodeKeys, answer
from devkit.agent import Agent

NAME = "waking"
ABOUT = "what 2,000 and 10,000 waiting nodes cost Consul at each admission, by what they wait on"
NEEDS_LAB = False

WATCHERS = [2_000, 10_000]
ADMISSIONS = 20
# The nodes' gates that are open when the measurement begins, as in the middle of a rollout.
ADMITTED_BEFORE = 100
WAIT = "10m"
# An admission may end at most so many queries of nodes, on average.
MOST_ENDED = 2.0
# Queries that an admission ends are counted for this long after it (seconds).
_SETTLE = 1.0
_SETTLE_OF_HERD = 6.0
# An agent run that has not started after this time does not start (seconds).
_LONGEST = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")

ROLE = "compute"
GATE, WAKE, LEDGER = "config_state/enable_puppet/host/", "upgrade/wake/", "upgrade/ledger"


@dataclass(frozen=True, slots=True)
class Way:
    """A way of waiting.

    :param path: host -> the path of its blocking query.
    :param writes_wake: whether an admission also writes the host's wake key.
    :param fires: whether an admission is followed by a user event.
    """

    name: str
    path: Callable[[str], str]
    writes_wake: bool = False
    fires: bool = False


WAYS = [
    Way("nothing (no node waits)", lambda _host: ""),
    Way("its own gate", lambda host: f"kv/{GATE}{host}?stale&"),
    Way("the ledger", lambda _host: f"kv/{LEDGER}?stale&"),
    Way("a user event", lambda _host: "event/list?name=convoy&", fires=True),
    Way("a key of its own", lambda host: f"kv/{WAKE}{host}?stale&", writes_wake=True),
]


@dataclass(slots=True)
class Counts:
    """What happened.

    :param ended: the ended queries.
    :param admitted: the host that was admitted last.
    :param at: host -> when its agent run started (seconds of the monotonic clock).
    """

    ended: int = 0
    admitted: str = ""
    at: dict[str, float] = field(default_factory=dict)


async def watch(port: int, host: str, way: Way, counts: Counts, ready: asyncio.Semaphore, waits: asyncio.Event) -> None:
    """Wait for a host again and again, as its agent does, and count the ended queries."""
    index = 1
    async with ready:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        index, _body = await ask(reader, writer, way.path(host))
    waits.set()
    while True:
        found, _body = await ask(reader, writer, f"{way.path(host)}index={index}&wait={WAIT}")
        counts.ended += 1
        if host == counts.admitted and host not in counts.at:
            loop = asyncio.get_running_loop()
            started = await loop.run_in_executor(None, start_agent_run, port, host)
            if started is not None:
                counts.at[host] = started
        index = found


def start_agent_run(port: int, host: str) -> float | None:
    """Read the gate as an agent does; return when the process of the agent run had started, None if the gate is closed."""
    keys = NodeKeys(host, ROLE)
    if not answer(keys, Consul(Connection(port=port)).read(keys.all), default=True).is_open:
        return None
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""], stdin=subprocess.DEVNULL)
    at = time.monotonic()
    process.wait()
    return at


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> tuple[int, bytes]:
    """Send one request; return Consul's index and the body."""
    writer.write(f"GET /v1/{path} HTTP/1.1\r\nHost: consul\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    index = length = 0
    for line in head.split(b"\r\n"):
        name, _colon, value = line.partition(b":")
        if name.lower() == b"x-consul-index":
            index = int(value)
        elif name.lower() == b"content-length":
            length = int(value)
    return index, await reader.readexactly(length)


def busy(pid: int) -> float:
    """Return the processor time of a process so far (seconds)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def put(key: str, value: str) -> dict[str, Any]:
    """Return an operation of a transaction."""
    return {"KV": {"Verb": "set", "Key": key, "Value": base64.b64encode(value.encode()).decode()}}


def admit(agent: Agent, way: Way, host: str, epoch: int) -> float:
    """Write what a planner writes to admit one host; return when it was written (seconds of the monotonic clock)."""
    operations = [
        put(LEDGER, f'{{"epoch": {epoch}}}'),
        put(f"upgrade/history/{epoch}", "{}"),
        put(f"{GATE}{host}", "True"),
    ]
    operations += [put(f"{WAKE}{host}", str(epoch))] if way.writes_wake else []
    began = time.monotonic()
    code, _headers, body = agent.kv.call("PUT", "txn", operations)
    if code != 200:
        raise RuntimeError(body)
    if way.fires:
        agent.kv.call("PUT", "event/fire/convoy", host.encode())
    return began


@contextmanager
def many_connections(count: int) -> Iterator[Agent]:
    """Yield an agent that accepts so many connections of one machine."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with Agent({"limits": {"http_max_conns_per_client": count + 100}}) as agent:
        yield agent


async def measure(agent: Agent, way: Way, watchers: int, admissions: int) -> tuple[float, float, list[float]]:
    """Return the ended queries of an admission, the server's processor time of one (seconds), and the times until agent runs started."""
    hosts = [f"{ROLE}{number}" for number in range(1, watchers + ADMITTED_BEFORE + 1)]
    random.Random(1).shuffle(hosts)
    before, hosts = hosts[:ADMITTED_BEFORE], hosts[ADMITTED_BEFORE:]
    agent.kv.delete("", tree=True)
    agent.kv.load((f"{WAKE}{host}", "0") for host in hosts + before)
    agent.kv.load((f"upgrade/hosts/{host}", "{}") for host in hosts + before)
    agent.kv.load((f"{GATE}{host}", "True") for host in before)
    agent.kv.load([("current_version", "v2"), ("config_state/enable_puppet/global", "False"), (LEDGER, "{}")])
    agent.kv.call("PUT", "event/fire/convoy", b"")
    counts = Counts()
    tasks = []
    if way.path(hosts[0]):
        ready = asyncio.Semaphore(100)
        events = [asyncio.Event() for _host in hosts]
        for host, waits in zip(hosts, events, strict=True):
            tasks.append(asyncio.create_task(watch(agent.http_port, host, way, counts, ready, waits)))
        for waits in events:
            await waits.wait()
    await asyncio.sleep(3)
    assert agent.process is not None
    loop = asyncio.get_running_loop()
    ended, used, times = [], [], []
    settle = _SETTLE
    for number in range(admissions):
        host = hosts[number]
        woken, before_it, counts.admitted = counts.ended, busy(agent.process.pid), host
        at = await loop.run_in_executor(None, admit, agent, way, host, number + 1)
        await asyncio.sleep(settle)
        ended.append(counts.ended - woken)
        if ended[-1] > watchers / 2:
            settle = _SETTLE_OF_HERD
        used.append(busy(agent.process.pid) - before_it)
        if tasks:
            while host not in counts.at and time.monotonic() < at + _LONGEST:
                await asyncio.sleep(0.05)
            times.append(counts.at.get(host, float("inf")) - at)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return statistics.mean(ended), statistics.mean(used), times


def run(options: Options, report: Report) -> None:
    """Measure all ways with all numbers of waiting nodes."""
    head = [
        "waiting nodes",
        "they wait on",
        "ended queries",
        "server's processor (s)",
        "agent run started after, p95 (s)",
    ]
    table = report.table("What one admission costs the server, by what the nodes wait on.", head, 2)
    for watchers in options.sizes or (WATCHERS[:1] if options.quick else WATCHERS):
        for way in WAYS:
            with many_connections(watchers) as agent:
                count = options.rounds or (5 if options.quick else ADMISSIONS)
                ended, used, times = asyncio.run(measure(agent, way, watchers, count))
            woken = f"{percentile(times, 95):.3f}" if times else NOTHING
            table.add(f"{watchers:,}", way.name, f"{ended:,.0f}", f"{used:.3f}", woken)
            if way.writes_wake and ended > MOST_ENDED:
                report.mistakes.append(
                    f"With {watchers:,} waiting nodes, an admission ends {ended:g} of their queries."
                )
