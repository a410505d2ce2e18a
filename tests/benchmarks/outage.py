# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long Redis and PostgreSQL take no writes during an upgrade: the longest gap between successful writes, in a lab.

Compares the services of this collection with a plain ``apt-get install``, and of a primary with a replica with a switch-over by hand.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from benchmarks.tables import Report, Table
from lab.guard import guarded
from lab.lab import Lab
from lab.node import Node
from services.databases import SWITCH, create, replicate
from services.snapshots import publish, use_version
from services.steps import STEPS, Steps

NAME = "outage"
ABOUT = "how long Redis and PostgreSQL take no writes during an upgrade, in the lab"
NEEDS_LAB = True

HEAD = ["what", "longest gap between writes", "duration", "writes"]
REDIS = ["redis-server", "redis-tools"]
POSTGRESQL = ["postgresql-15", "postgresql-client-15"]
KEYS = 200_000
Write = Callable[[], bool]


@contextmanager
def writes(write: Write) -> Iterator[list[float]]:
    """Write again and again meanwhile; give the times of successful writes."""
    found: list[float] = []
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            if write():
                found.append(time.monotonic())

    thread = threading.Thread(target=go_on)
    thread.start()
    time.sleep(2)
    try:
        yield found
    finally:
        time.sleep(2)
        ended.set()
        thread.join()


def longest(times: list[float]) -> float:
    """Return the longest gap between two writes (seconds)."""
    return max(later - earlier for earlier, later in pairwise(times))


def measure(table: Table, what: str, write: Write, act: Callable[[], Any]) -> None:
    """Add a row with the longest gap while something is done."""
    with writes(write) as times:
        act()
    table.add(what, f"{longest(times):.2f} s", f"{times[-1] - times[0]:.0f} s", len(times))


def install(node: Node, packages: list[str]) -> None:
    """Install the packages as an operator would by hand."""
    options = ("-o", "Dpkg::Options::=--force-confold")
    node.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-yq", *options, "install", *packages)


def redis_write(*nodes: Node) -> Write:
    """Return what writes to the first of some nodes that takes it."""
    number = 0

    def write() -> bool:
        nonlocal number
        number += 1
        for node in nodes:
            done = node.run("timeout", "1", "redis-cli", "SET", "last", str(number), check=False)
            if done.stdout.strip() == "OK":
                return True
        return False

    return write


def redis(table: Table, lab: Lab, steps: Steps) -> None:
    """Measure a primary alone, and one with a replica."""
    primary, replica = lab.nodes["redis1"], lab.nodes["redis2"]
    for node in (primary, replica):
        node.write("/etc/redis/mine.conf", "bind 0.0.0.0\nprotected-mode no\n")
        node.run("sh", "-c", "echo include /etc/redis/mine.conf >>/etc/redis/redis.conf; systemctl start redis-server")
        node.wait(6379)
    primary.run("redis-cli", "EVAL", f"for i = 1, {KEYS} do redis.call('SET', 'key' .. i, i) end", "0")
    use_version(primary, "v2")
    measure(table, "redis, a primary alone, by apt-get", redis_write(primary), lambda: install(primary, REDIS))
    use_version(primary, "v3")
    measure(
        table,
        "redis, a primary alone, by the service",
        redis_write(primary),
        lambda: steps.run("redis", STEPS, ["redis1"], {}),
    )
    replica.run("redis-cli", "REPLICAOF", primary.address, "6379")
    time.sleep(10)
    both = redis_write(primary, replica)
    measure(table, "redis with a replica, a switch-over by hand", both, lambda: primary.run("redis-cli", "FAILOVER"))
    time.sleep(5)
    replica.run("redis-cli", "FAILOVER")
    time.sleep(5)
    settings = {"redis_switchover_command": ["redis-cli", "FAILOVER"]}
    for name in ("redis2", "redis1"):
        use_version(lab.nodes[name], "v4")
        measure(
            table,
            f"redis with a replica, {name} by the service",
            both,
            partial(steps.run, "redis", STEPS, [name], settings),
        )


def postgresql(table: Table, lab: Lab, steps: Steps) -> None:
    """Measure a primary alone."""
    node = lab.nodes["db1"]
    create(node)
    psql = ("runuser", "-u", "postgres", "--", "env", "PGCONNECT_TIMEOUT=1", "psql", "-XqAt", "-c")
    node.run(*psql, "CREATE TABLE written AS SELECT generate_series(1, 1000000) AS id")

    def write() -> bool:
        return not node.run(*psql, "INSERT INTO written VALUES (0)", check=False).returncode

    use_version(node, "v2")
    measure(table, "postgresql, a primary alone, by apt-get", write, lambda: install(node, POSTGRESQL))
    use_version(node, "v3")
    settings = {"postgresql_major": 15}
    measure(
        table,
        "postgresql, a primary alone, by the service",
        write,
        lambda: steps.run("postgresql", STEPS, ["db1"], settings),
    )


def standby(table: Table, lab: Lab, steps: Steps) -> None:
    """Measure a primary with a standby."""
    nodes = [lab.nodes["db1"], lab.nodes["db2"]]
    primary, follower = nodes
    for node in nodes:
        create(node)
    user = ("runuser", "-u", "postgres", "--")
    primary.run(*user, "psql", "-XqAtc", "CREATE TABLE written AS SELECT generate_series(1, 1000000) AS id")
    replicate(primary, follower)
    addresses = ",".join(node.address for node in nodes)
    target = f"host={addresses} user=postgres target_session_attrs=read-write connect_timeout=1"

    def write() -> bool:
        command = ("psql", "-XqAt", "-c", "INSERT INTO written VALUES (0)", target)
        return not lab.nodes["app1"].run(*command, check=False).returncode

    what = "postgresql with a standby"
    measure(table, f"{what}, a switch-over by hand", write, lambda: primary.run(SWITCH))
    time.sleep(5)
    follower.run(SWITCH)
    time.sleep(5)
    settings = {"postgresql_major": 15, "postgresql_switchover_command": [SWITCH]}
    for name in ("db2", "db1"):
        use_version(lab.nodes[name], "v2")
        measure(
            table,
            f"{what}, {name} by the service",
            write,
            partial(steps.run, "postgresql", STEPS, [name], settings),
        )


def run(_options: Options, report: Report) -> None:
    """Measure all."""
    title = f"No writes during an upgrade: Redis with {KEYS:,} keys, PostgreSQL with a million rows."
    table = report.table(title, HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for name, roles, packages, act in (
            ("redis", {"redis1": "cache", "redis2": "cache"}, REDIS, redis),
            ("postgresql", {"db1": "database"}, POSTGRESQL, postgresql),
            ("standby", {"db1": "database", "db2": "database", "app1": "app"}, POSTGRESQL, standby),
        ):
            with guarded(f"outage-{name}") as lab:
                lab.up(roles, packages=[packages[0]])
                for version in ("v2", "v3", "v4"):
                    publish(lab, packages, version)
                act(table, lab, Steps(lab, Path(folder) / name))
