# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that end when a primary of Redis was switched over and is not upgraded yet, and runs that go on from there."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from lab.node import Node

from .conftest import MakeSteps
from .resume import Fleet, Services
from .snapshots import installed, publish

PACKAGES = ["redis-server", "redis-tools"]
# One for each test, in whatever order they run.
VERSIONS = ("v2", "v3")
# Redis itself does not write into its configuration what FAILOVER changed, so that after a restart both would be primaries.
SWITCH = "/usr/local/sbin/switch"
_SCRIPT = """\
#!/bin/sh -e
redis-cli FAILOVER
until redis-cli INFO replication | grep -q 'master_link_status:up'; do sleep 0.1; done
redis-cli CONFIG REWRITE
redis-cli -h {other} CONFIG REWRITE
"""
ROLES = {"cache": Services(["cache1", "cache2"], ["redis"], PACKAGES, ["redis-server"])}


@pytest.fixture(scope="module")
def fleet(make_steps: MakeSteps, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    lab = make_steps({"cache1": "cache", "cache2": "cache"}, packages=["redis-server"]).lab
    for version in VERSIONS:
        publish(lab, PACKAGES, version)
    nodes = lab.nodes
    for host, other in (("cache1", "cache2"), ("cache2", "cache1")):
        nodes[host].write(SWITCH, _SCRIPT.format(other=nodes[other].address), 0o755)
        nodes[host].run(
            "sh",
            "-c",
            "sed -i 's/^bind .*/bind 0.0.0.0/; s/^protected-mode .*/protected-mode no/' /etc/redis/redis.conf "
            "&& systemctl start redis-server",
        )
        nodes[host].wait(6379)
    redis(nodes["cache2"], "REPLICAOF", nodes["cache1"].address, "6379")
    redis(nodes["cache2"], "CONFIG", "REWRITE")
    redis(nodes["cache1"], "SET", "key", "1")
    until = time.monotonic() + 30
    while "state=online" not in redis(nodes["cache1"], "INFO", "replication"):
        assert time.monotonic() < until
        time.sleep(0.1)
    variables = {"redis_switchover_command": [SWITCH]}
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
