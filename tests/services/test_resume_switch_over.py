# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A primary and a replica of Redis, which trade places in one run, or in one that ends in between and one that goes on from there."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lab.node import Node

from .conftest import MakeSteps
from .resume import Fleet, Services
from .snapshots import installed, publish

PACKAGES = ["redis-server", "redis-tools"]
# One for each test, in whatever order they run.
VERSIONS = ("v2", "v3", "v4")
# As the service's page has it, without anything that makes the roles last.
SWITCH = ["redis-cli", "-e", "FAILOVER", "TIMEOUT", "10000"]
ROLES = {"cache": Services(["cache1", "cache2"], ["redis"], PACKAGES, ["redis-server"])}


@pytest.fixture(scope="module")
def fleet(make_steps: MakeSteps, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    lab = make_steps({"cache1": "cache", "cache2": "cache"}, packages=["redis-server"]).lab
    for version in VERSIONS:
        publish(lab, PACKAGES, version)
    nodes = lab.nodes
    for host in ("cache1", "cache2"):
        nodes[host].run(
            "sh",
            "-c",
            "sed -i 's/^bind .*/bind 0.0.0.0/; s/^protected-mode .*/protected-mode no/' /etc/redis/redis.conf "
            "&& systemctl start redis-server",
        )
        nodes[host].wait(6379)
    redis(nodes["cache2"], "REPLICAOF", nodes["cache1"].address, "6379")
    redis(nodes["cache1"], "SET", "key", "1")
    wait_for_link(nodes["cache2"])
    variables = {"redis_switchover_command": SWITCH}
    return Fleet(lab, tmp_path_factory.mktemp("resume"), ROLES, variables, stop_together=False)


@pytest.fixture(scope="module")
def versions() -> Iterator[str]:
    return iter(VERSIONS)


@pytest.fixture
def version(versions: Iterator[str]) -> str:
    """Return a version that no test before this one has upgraded to."""
    return next(versions)


@pytest.fixture
def pair(fleet: Fleet) -> tuple[str, str]:
    """Return the primary, and its replica. Each test leaves them the other way round."""
    hosts = ROLES["cache"].hosts
    primaries = [host for host in hosts if "role:master" in redis(fleet.lab.nodes[host], "INFO", "replication")]
    assert len(primaries) == 1, f"{primaries} are primaries, and one has to be"
    (replica,) = set(hosts) - set(primaries)
    return primaries[0], replica


def redis(node: Node, *command: str) -> str:
    return node.run("redis-cli", *command).stdout.strip()


def wait_for_link(replica: Node) -> None:
    until = time.monotonic() + 30
    while "master_link_status:up" not in redis(replica, "INFO", "replication"):
        assert time.monotonic() < until
        time.sleep(0.1)


@contextmanager
def writes(*nodes: Node) -> Iterator[set[str]]:
    """Write numbers meanwhile, each to the first node that accepts it, as clients do; give the accepted ones."""
    accepted: set[str] = set()
    ended = threading.Event()

    def go_on() -> None:
        for number in map(str, itertools.count()):
            for node in nodes:
                # Redis may have it, and its answer be lost; so only an answer counts.
                if node.run("timeout", "2", "redis-cli", "SADD", "numbers", number, check=False).stdout.strip() == "1":
                    accepted.add(number)
                    break
            if ended.is_set():
                return

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield accepted
    finally:
        ended.set()
        thread.join()


def check_switched(fleet: Fleet, former: str, new: str, version: str) -> None:
    """Check that the former primary was switched over, runs, and has its old packages."""
    nodes = fleet.lab.nodes
    assert "role:master" in redis(nodes[new], "INFO", "replication")
    assert "role:slave" in redis(nodes[former], "INFO", "replication")
    assert installed(nodes[new], "redis-server").endswith(f"+{version}")
    assert not installed(nodes[former], "redis-server").endswith(f"+{version}")
    redis(nodes[new], "SET", "written", version)


def check_finished(fleet: Fleet, former: str, new: str, version: str) -> None:
    """Check that the primary was switched over only once, and that the former one follows with all data."""
    nodes = fleet.lab.nodes
    assert "role:master" in redis(nodes[new], "INFO", "replication")
    assert "master_link_status:up" in redis(nodes[former], "INFO", "replication")
    assert (redis(nodes[former], "GET", "key"), redis(nodes[former], "GET", "written")) == ("1", version)


@pytest.mark.thorough
def test_no_write_is_lost_in_a_run_with_a_switch_over(fleet: Fleet, pair: tuple[str, str], version: str) -> None:
    primary, replica = (fleet.lab.nodes[host] for host in pair)
    with writes(primary, replica) as accepted:
        fleet.finish(version)
    assert "role:master" in redis(replica, "INFO", "replication")
    assert "master_link_status:up" in redis(primary, "INFO", "replication")
    assert accepted
    assert redis(replica, "WAIT", "1", "5000") == "1"
    for node in (primary, replica):
        assert accepted - set(redis(node, "SMEMBERS", "numbers").split()) == set()
    # It lasts.
    for node in (replica, primary):
        node.run("systemctl", "restart", "redis-server")
        node.wait(6379)
    wait_for_link(primary)
    assert "role:master" in redis(replica, "INFO", "replication")


@pytest.mark.thorough
def test_after_a_kill(fleet: Fleet, pair: tuple[str, str], version: str) -> None:
    primary, replica = pair
    fleet.kill_in("stop", [primary], version)
    check_switched(fleet, primary, replica, version)
    fleet.finish(version)
    check_finished(fleet, primary, replica, version)


@pytest.mark.thorough
def test_after_a_failure(fleet: Fleet, pair: tuple[str, str], version: str) -> None:
    primary, replica = pair
    fleet.fail_in("stop", [primary], version)
    check_switched(fleet, primary, replica, version)
    fleet.finish(version, retry_failed=True)
    check_finished(fleet, primary, replica, version)
