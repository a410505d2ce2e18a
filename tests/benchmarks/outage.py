# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long Redis and PostgreSQL take no writes during an upgrade: the longest gap between successful writes, in a lab.

Compares the services of this collection with a plain ``apt-get install``, and of a primary with a replica with a switch-over by hand. A part fails
if a switch-over did not take place.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.options import Options
from benchmarks.tables import Report, Table
from lab.guard import guarded
from lab.lab import Lab
from lab.node import Node
from services.databases import SWITCH, create, replicate, wait_for
from services.snapshots import publish, use_version
from services.steps import STEPS, Steps

NAME = "outage"
ABOUT = "how long Redis and PostgreSQL take no writes during an upgrade, in the lab"
NEEDS_LAB = True

HEAD = ["what", "longest gap between writes", "duration", "writes"]
REDIS = ["redis-server", "redis-tools"]
POSTGRESQL = ["postgresql-15", "postgresql-client-15"]
KEYS = 200_000
# The command that the service's page has. A replica reports once a second how far it is, so each switch-over takes up to a second.
FAILOVER = ["redis-cli", "-e", "FAILOVER", "TIMEOUT", "10000"]
# A version for each switch-over by the service, and as many by hand.
REDIS_SWITCHES = ("v4", "v5", "v6", "v7")
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


@dataclass(frozen=True)
class Gap:
    """The longest gap between two writes, and how long was written (seconds), and how often."""

    longest: float
    duration: float
    writes: int


def gap(write: Write, act: Callable[[], Any]) -> Gap:
    """Return the longest gap while something is done."""
    with writes(write) as times:
        act()
    return Gap(max(later - earlier for earlier, later in pairwise(times)), times[-1] - times[0], len(times))


def add(table: Table, what: str, *gaps: Gap) -> None:
    """Add a row with a gap, or with the median of several and their range."""
    found = sorted(one.longest for one in gaps)
    several = f" ({len(found)} times: {found[0]:.2f} to {found[-1]:.2f} s)" if len(found) > 1 else ""
    duration = sum(one.duration for one in gaps)
    table.add(what, f"{median(found):.2f} s{several}", f"{duration:.0f} s", sum(one.writes for one in gaps))


def measure(table: Table, what: str, write: Write, act: Callable[[], Any]) -> None:
    """Add a row with the longest gap while something is done."""
    add(table, what, gap(write, act))


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
    # As many operators do it, so that the service has to make it last.
    replica.run("redis-cli", "REPLICAOF", primary.address, "6379")
    both = redis_write(primary, replica)
    by_hand: list[Gap] = []
    of_replica: list[Gap] = []
    of_primary: list[Gap] = []
    for _switch in REDIS_SWITCHES:
        check_replication(primary, replica)
        by_hand.append(gap(both, partial(primary.run, *FAILOVER)))
        primary, replica = replica, primary
    settings = {"redis_switchover_command": FAILOVER}
    for version in REDIS_SWITCHES:
        check_replication(primary, replica)
        for node, gaps in ((replica, of_replica), (primary, of_primary)):
            use_version(node, version)
            gaps.append(gap(both, partial(steps.run, "redis", STEPS, [node.name], settings)))
            if node is replica:
                check_replication(primary, replica)
        primary, replica = replica, primary
    check_replication(primary, replica)
    add(table, "redis with a replica, a switch-over by hand", *by_hand)
    add(table, "redis with a replica, the replica by the service", *of_replica)
    add(table, "redis with a replica, then its primary by the service", *of_primary)


def check_replication(primary: Node, replica: Node) -> None:
    """Wait until a node is the primary of another one.

    :raises RuntimeError: it is not after a while, so that no switch-over was measured.
    """
    until = time.monotonic() + 30
    while True:
        one, other = (node.run("redis-cli", "INFO", "replication").stdout for node in (primary, replica))
        is_primary = "role:master" in one and "connected_slaves:1" in one and "state=online" in one
        if is_primary and f"master_host:{primary.address}" in other and "master_link_status:up" in other:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"{primary.name} is not the primary of {replica.name}:\n{one}\n{other}")
        time.sleep(0.2)


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
    check_streaming(primary, follower)
    measure(table, f"{what}, a switch-over by hand", write, lambda: primary.run(SWITCH))
    check_streaming(follower, primary)
    follower.run(SWITCH)
    check_streaming(primary, follower)
    settings = {"postgresql_major": 15, "postgresql_switchover_command": [SWITCH]}
    for name in ("db2", "db1"):
        use_version(lab.nodes[name], "v2")
        measure(
            table,
            f"{what}, {name} by the service",
            write,
            partial(steps.run, "postgresql", STEPS, [name], settings),
        )
    check_streaming(follower, primary)


def check_streaming(source: Node, standby: Node) -> None:
    """Wait until a standby streams from a primary; fail if it does not after a while, so that no switch-over was measured."""
    wait_for(source, "SELECT pg_is_in_recovery()", "f")
    wait_for(source, "SELECT state FROM pg_stat_replication", "streaming")
    wait_for(standby, "SELECT pg_is_in_recovery()", "t")


def run(_options: Options, report: Report) -> None:
    """Measure all."""
    title = f"No writes during an upgrade: Redis with {KEYS:,} keys, PostgreSQL with a million rows."
    table = report.table(title, HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for name, roles, packages, versions, act in (
            ("redis", {"redis1": "cache", "redis2": "cache"}, REDIS, ("v2", "v3", *REDIS_SWITCHES), redis),
            ("postgresql", {"db1": "database"}, POSTGRESQL, ("v2", "v3"), postgresql),
            ("standby", {"db1": "database", "db2": "database", "app1": "app"}, POSTGRESQL, ("v2",), standby),
        ):
            with guarded(f"outage-{name}") as lab:
                lab.up(roles, packages=[packages[0]])
                for version in versions:
                    publish(lab, packages, version)
                act(table, lab, Steps(lab, Path(folder) / name))
