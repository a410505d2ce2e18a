# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""redis: a real primary and a real replica, with a password."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from lab.node import Node

from .conftest import MakeSteps
from .snapshots import installed, publish, use_version
from .steps import STEPS, Steps, one_line

PACKAGES = ["redis-server", "redis-tools"]
PASSWORD = "not-to-be-seen"
KEYS = 5000
NOTED = "/var/lib/convoy/redis-6379-role"
SWITCH = ["redis-cli", "-e", "FAILOVER", "TIMEOUT", "10000"]
# No save points: what is not saved by the service is lost.
CONFIG = f'bind 0.0.0.0\nprotected-mode no\nrequirepass {PASSWORD}\nmasterauth {PASSWORD}\nsave ""\n'


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A primary with keys and its replica, and snapshots of their packages."""
    steps = make_steps({"redis1": "redis", "redis2": "redis"}, packages=["redis-server"])
    for version in ("v2", "v3"):
        publish(steps.lab, PACKAGES, version)
    primary, replica = steps.lab.nodes["redis1"], steps.lab.nodes["redis2"]
    for node in (primary, replica):
        node.write("/etc/redis/mine.conf", CONFIG + (f"replicaof {primary.address} 6379\n" if node is replica else ""))
        node.run(
            "sh", "-c", "echo include /etc/redis/mine.conf >>/etc/redis/redis.conf && systemctl start redis-server"
        )
        node.wait(6379)
        use_version(node, "v2")
    cli(primary, "EVAL", f"for i = 1, {KEYS} do redis.call('SET', 'key' .. i, i) end", "0")
    wait_until(lambda: "state=online" in cli(primary, "INFO", "replication"))
    return steps


def cli(node: Node, *one_line: str) -> str:
    return node.run("env", f"REDISCLI_AUTH={PASSWORD}", "redis-cli", *one_line).stdout.strip()


def forget(node: Node) -> None:
    """Let its configuration not have that it is a replica."""
    node.run("sed", "-i", "/^replicaof/d", "/etc/redis/redis.conf", "/etc/redis/mine.conf")


def replicates(node: Node) -> str:
    """Return what its configuration makes it a replica of."""
    return node.run("sed", "-n", "s/^replicaof //p", "/etc/redis/redis.conf").stdout.strip()


def fail_over(former: Node, new: Node) -> None:
    cli(former, "FAILOVER")
    wait_until(lambda: "role:master" in cli(new, "INFO", "replication"))
    wait_until(lambda: "master_link_status:up" in cli(former, "INFO", "replication"))


def process_of(node: Node) -> str:
    return node.run("systemctl", "show", "--property=MainPID", "--value", "redis-server").stdout.strip()


def wait_until(condition: Callable[[], object], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def run(steps: Steps, host: str, *which: str, code: int = 0, check: bool = False, **more: Any) -> str:
    settings = {"redis_password": PASSWORD, "redis_link_timeout": 20, "redis_load_timeout": 10, **more}
    # With it, Ansible prints the commands that it runs on the host, and sudo would log these.
    arguments = ["-vvv", *(["--check"] if check else [])]
    shown = steps.run("redis", which or STEPS, [host], settings, *arguments, code=code)
    assert PASSWORD not in shown
    return one_line(shown)


@pytest.mark.thorough
def test_a_replica_is_upgraded_and_follows_again(steps: Steps) -> None:
    replica = steps.lab.nodes["redis2"]
    run(steps, "redis2", check=True)
    assert not installed(replica, "redis-server").endswith("+v2")
    shown = run(steps, "redis2")
    assert f"is a replica of {steps.lab.nodes['redis1'].address}:6379, and has {KEYS} keys." in shown
    assert [installed(replica, name).endswith("+v2") for name in PACKAGES] == [True, True]
    assert cli(replica, "DBSIZE") == str(KEYS)
    cli(steps.lab.nodes["redis1"], "SET", "after", "1")
    assert cli(steps.lab.nodes["redis1"], "WAIT", "1", "5000") == "1"
    assert cli(replica, "GET", "after") == "1"
    cli(steps.lab.nodes["redis1"], "DEL", "after")


def test_a_primary_keeps_its_data_even_what_was_written_after_it_was_saved(steps: Steps) -> None:
    primary = steps.lab.nodes["redis1"]
    shown = run(steps, "redis1", "validate", "prepare")
    assert f"is a primary with 1 replicas, and has {KEYS} keys." in shown
    cli(primary, "SET", "late", "1")
    # It serves until it is restarted from the new packages.
    run(steps, "redis1", "upgrade")
    assert installed(primary, "redis-server").endswith("+v2")
    process = process_of(primary)
    cli(primary, "SET", "late", "1")
    assert "redis1: Redis still runs from packages that were replaced." in run(steps, "redis1", "verify", code=2)
    run(steps, "redis1", "start", "verify")
    assert process_of(primary) != process
    assert (cli(primary, "DBSIZE"), cli(primary, "GET", "late")) == (str(KEYS + 1), "1")
    cli(primary, "SET", "late", "2")
    assert cli(primary, "WAIT", "1", "5000") == "1"


@pytest.mark.thorough
def test_one_that_an_earlier_upgrade_has_left_stopped_is_upgraded(steps: Steps) -> None:
    primary = steps.lab.nodes["redis1"]
    run(steps, "redis1", "validate", "prepare")
    cli(primary, "SAVE")
    primary.run("systemctl", "stop", "redis-server")
    assert "Redis at 127.0.0.1:6379 does not answer" in run(steps, "redis1", "validate", code=2)
    later = ("prepare", "drain", "upgrade", "start", "verify")
    shown = run(steps, "redis1", *later, redis_switchover_command=["false"])
    assert "an earlier upgrade has left Redis stopped" in shown
    assert cli(primary, "DBSIZE") == str(KEYS + 1)
    wait_until(lambda: "state=online" in cli(primary, "INFO", "replication"))


def test_a_restart_that_would_lose_data_or_the_role_is_refused(steps: Steps) -> None:
    primary, replica = steps.lab.nodes["redis1"], steps.lab.nodes["redis2"]
    process = process_of(primary)
    refused = "redis1: Redis was not restarted, because it would start with other data or in another role:"

    # Append-only files that do not exist yet would be all that it reads: redis/redis#12484.
    primary.run("sh", "-c", "echo 'AppendOnly  Yes' >>/etc/redis/mine.conf")
    use_version(primary, "v3")
    shown = run(steps, "redis1", "validate", code=2)
    assert f"{refused} it runs with 'appendonly no', and would start with 'yes'; the latter is in" in shown
    run(steps, "redis1", "prepare", "upgrade")
    # As if Puppet had written it in the step upgrade.
    assert refused in run(steps, "redis1", "start", code=2)
    assert (process_of(primary), cli(primary, "DBSIZE")) == (process, str(KEYS + 1))
    primary.run("sed", "-i", "/^AppendOnly/d", "/etc/redis/mine.conf")

    # A primary that was promoted without CONFIG REWRITE.
    primary.run("sh", "-c", f"echo 'slaveof  {replica.address}   6379' >>/etc/redis/mine.conf")
    shown = run(steps, "redis1", "start", code=2)
    assert f"it runs with 'replicaof no one', and would start with '{replica.address} 6379'" in shown
    primary.run("sed", "-i", "$d", "/etc/redis/mine.conf")

    # Another file, by the command line of the unit; and one that can't be read.
    unit = "[Service]\nExecStart=\nExecStart=/usr/bin/redis-server /etc/redis/redis.conf --supervised systemd --daemonize no --dbfilename"
    primary.run("mkdir", "-p", "/etc/systemd/system/redis-server.service.d")
    primary.write("/etc/systemd/system/redis-server.service.d/mine.conf", f"{unit} other.rdb --dir /srv\n")
    primary.run("systemctl", "daemon-reload")
    shown = run(steps, "redis1", "start", code=2)
    assert "it runs with 'dbfilename dump.rdb', and would start with 'other.rdb';" in shown
    assert "it runs with 'dir /var/lib/redis', and would start with '/srv';" in shown
    # It does not matter where a cache has its data.
    run(steps, "redis1", "validate", redis_save=False)
    primary.run("rm", "/etc/systemd/system/redis-server.service.d/mine.conf")
    primary.run("systemctl", "daemon-reload")
    primary.run("sh", "-c", "echo include /etc/redis/none.conf >>/etc/redis/mine.conf")
    shown = run(steps, "redis1", "start", code=2)
    assert "redis1: what Redis would start with can't be read, so it was not restarted:" in shown
    assert "/etc/redis/none.conf" in shown
    primary.run("sed", "-i", "$d", "/etc/redis/mine.conf")

    assert process_of(primary) == process
    run(steps, "redis1", "start")
    assert process_of(primary) != process
    # As if it had loaded little of it.
    cli(primary, "EVAL", f"for i = 1, {KEYS} do redis.call('EXPIRE', 'key' .. i, 3600) end", "0")
    shown = run(steps, "redis1", "verify", code=2)
    assert (
        f"redis1: Redis has {KEYS + 1} keys now, 1 of them without an expiry. Before its restart, it had {KEYS + 1} and {KEYS + 1}."
        in shown
    )
    cli(primary, "EVAL", f"for i = 1, {KEYS} do redis.call('PERSIST', 'key' .. i) end", "0")
    run(steps, "redis1", "verify")
    wait_until(lambda: "state=online" in cli(primary, "INFO", "replication"))


@pytest.mark.thorough
def test_a_second_run_keeps_it_too_and_restarts_nothing(steps: Steps) -> None:
    primary = steps.lab.nodes["redis1"]
    process = process_of(primary)
    run(steps, "redis1")
    assert cli(primary, "DBSIZE") == str(KEYS + 1)
    assert process_of(primary) == process


@pytest.mark.thorough
def test_a_primary_is_switched_over_before_it_is_taken_down(steps: Steps) -> None:
    primary, replica = steps.lab.nodes["redis1"], steps.lab.nodes["redis2"]
    # What an earlier use on the host has left.
    left = {"redis_role": {"stdout": "role:slave"}}
    command = ["redis-cli", "FAILOVER", "TO", "nowhere", "1"]
    shown = run(steps, "redis1", "drain", code=2, redis_switchover_command=command, **left)
    assert "redis1: this primary could not be switched over, and was not stopped: ERR" in shown
    # Its restart would make two primaries.
    primary.run("chmod", "555", "/etc/redis")
    shown = run(steps, "redis1", "drain", code=2, redis_switchover_command=SWITCH)
    assert "redis1: Redis at 127.0.0.1:6379 does not write its role into its configuration, so" in shown
    assert "ERR Rewriting config file: Permission denied" in shown
    assert "role:master" in cli(primary, "INFO", "replication")
    shown = run(steps, "redis2", "drain", code=2, redis_switchover_command=SWITCH)
    assert f"redis2: Redis at {primary.address}:6379 does not write its role" in shown
    primary.run("chmod", "2770", "/etc/redis")
    run(steps, "redis1", "drain", redis_switchover_command=SWITCH)
    assert "role:master" in cli(replica, "INFO", "replication")
    assert replicates(primary) == f"{replica.address} 6379"
    assert not replicates(replica)
    cli(replica, "SET", "elsewhere", "1")
    assert cli(replica, "WAIT", "1", "5000") == "1"
    # A replica is not switched over.
    run(steps, "redis1", "drain", redis_switchover_command=["false"])
    # As if the configuration were managed.
    forget(primary)
    primary.run("systemctl", "restart", "redis-server")
    primary.wait(6379)
    shown = run(steps, "redis1", "verify", code=2, redis_link_timeout=2)
    assert f"redis1: Redis was a replica of {replica.address}:6379 in this upgrade, was restarted, and is" in shown
    assert f"Run 'redis-cli -h 127.0.0.1 -p 6379 REPLICAOF {replica.address} 6379'" in shown
    cli(primary, "REPLICAOF", replica.address, "6379")
    run(steps, "redis1", "verify")
    assert primary.run("test", "-e", NOTED, check=False).returncode == 1
    fail_over(replica, primary)


@pytest.mark.thorough
def test_a_primary_whose_replicas_are_gone_is_not_restarted_without_a_switch_over(steps: Steps) -> None:
    primary, replica = steps.lab.nodes["redis1"], steps.lab.nodes["redis2"]
    replica.run("systemctl", "stop", "redis-server")
    try:
        wait_until(lambda: "connected_slaves:0" in cli(primary, "INFO", "replication"))
        # The command must not run.
        shown = run(steps, "redis1", "drain", code=2, redis_switchover_command=["true"], redis_link_timeout=2)
    finally:
        replica.run("systemctl", "start", "redis-server")
        replica.wait(6379)
    assert (
        "redis1: no replica is connected to this primary, which has replicated before, so it can't be switched over, and was not stopped."
        in shown
    )
    assert "set redis_switchover_command to [] for this host." in shown
    wait_until(lambda: "state=online" in cli(primary, "INFO", "replication"))
    # A script may print what looks like an error of Redis, and does what it has to.
    primary.write("/root/switch", f"#!/bin/sh\n{' '.join(SWITCH)} >/dev/null && echo DONE with it\n")
    run(steps, "redis1", "drain", redis_switchover_command=["sh", "/root/switch"])
    assert "role:master" in cli(replica, "INFO", "replication")
    fail_over(replica, primary)


@pytest.mark.thorough
def test_a_primary_that_never_had_a_replica_needs_no_switch_over(steps: Steps) -> None:
    primary = steps.lab.nodes["redis1"]
    primary.write("/root/alone.conf", f'port 6390\ndir /root\nsave ""\nrequirepass {PASSWORD}\n')
    primary.run("systemd-run", "--quiet", "--unit=alone", "redis-server", "/root/alone.conf")
    try:
        primary.wait(6390)
        more = {"redis_port": 6390, "redis_unit": "alone.service", "redis_switchover_command": ["false"]}
        run(steps, "redis1", "drain", **more)
    finally:
        primary.run("systemctl", "stop", "alone")


@pytest.mark.thorough
def test_a_primary_that_does_not_answer_is_waited_for_with_a_limit(steps: Steps) -> None:
    primary = steps.lab.nodes["redis1"]
    primary.run("systemctl", "kill", "--signal=STOP", "redis-server")
    try:
        shown = run(steps, "redis2", "drain", code=2, redis_switchover_command=SWITCH, redis_link_timeout=4)
    finally:
        primary.run("systemctl", "kill", "--signal=CONT", "redis-server")
    assert f"redis2: Redis at {primary.address}:6379 does not write its role" in shown
    assert "could make two primaries or none: no answer within 5 s. It was not stopped." in shown


@pytest.mark.thorough
def test_the_save_point_of_an_interrupted_restart_does_not_last(steps: Steps) -> None:
    replica = steps.lab.nodes["redis2"]
    run(steps, "redis2", "prepare")
    # As if the run had been killed in the step start.
    cli(replica, "CONFIG", "SET", "save", "3600 1")
    run(steps, "redis2", "drain", redis_switchover_command=SWITCH)
    assert cli(replica, "CONFIG", "GET", "save") == "save"
    assert "save 3600 1" not in (replica.read("/etc/redis/redis.conf") or "").splitlines()


@pytest.mark.thorough
def test_a_replica_that_sentinel_makes_one_again_is_not_refused(steps: Steps) -> None:
    primary, replica = steps.lab.nodes["redis1"], steps.lab.nodes["redis2"]
    sentinel = (
        f"port 26379\nsentinel monitor mymaster {primary.address} 6379 1\nsentinel auth-pass mymaster {PASSWORD}\n"
    )
    primary.write("/root/sentinel.conf", sentinel)
    primary.run("systemd-run", "--quiet", "--unit=sentinel", "redis-server", "/root/sentinel.conf", "--sentinel")
    try:
        primary.wait(26379)
        replicas = ("redis-cli", "-p", "26379", "SENTINEL", "REPLICAS", "mymaster")
        wait_until(lambda: replica.address in primary.run(*replicas).stdout, 30)
        run(steps, "redis2", "prepare")
        # As if the configuration were managed.
        forget(replica)
        replica.run("systemctl", "restart", "redis-server")
        replica.wait(6379)
        run(steps, "redis2", "start", "verify", redis_link_timeout=60)
        assert replicates(replica) == f"{primary.address} 6379"
    finally:
        primary.run("systemctl", "stop", "sentinel")


def test_a_replica_that_comes_back_as_a_primary_is_refused(steps: Steps) -> None:
    primary, replica = steps.lab.nodes["redis1"], steps.lab.nodes["redis2"]
    # As after REPLICAOF without CONFIG REWRITE.
    forget(replica)
    use_version(replica, "v3")
    refused = (
        f"redis2: Redis was a replica of {primary.address}:6379 in this upgrade, was restarted, and is a primary now"
    )
    assert refused in run(steps, "redis2", code=2, redis_link_timeout=2)
    assert installed(replica, "redis-server").endswith("+v3")
    # Again, as nothing was done about it.
    assert refused in run(steps, "redis2", "start", code=2, redis_link_timeout=2)
    assert refused in run(steps, "redis2", "verify", code=2, redis_link_timeout=2)
    cli(replica, "REPLICAOF", primary.address, "6379")
    run(steps, "redis2", "start")
    # A switch-over, before it is verified, promotes it as it runs.
    wait_until(lambda: "state=online" in cli(primary, "INFO", "replication"))
    fail_over(primary, replica)
    run(steps, "redis2", "verify")
    assert replica.run("test", "-e", NOTED, check=False).returncode == 1
    fail_over(replica, primary)


@pytest.mark.thorough
def test_what_an_aborted_upgrade_has_noted_refuses_no_later_one(steps: Steps) -> None:
    primary, replica = steps.lab.nodes["redis1"], steps.lab.nodes["redis2"]
    run(steps, "redis2", "prepare")
    forget(replica)
    replica.run("systemctl", "restart", "redis-server")
    replica.wait(6379)
    wait_until(lambda: "role:master" in cli(replica, "INFO", "replication"))
    # An upgrade that failed before anything stopped begins with it again.
    assert "redis2: Redis was a replica of" in run(steps, "redis2", "prepare", code=2, redis_link_timeout=2)
    run(steps, "redis2", "prepare", "verify", upgrade_version="v4")
    cli(replica, "REPLICAOF", primary.address, "6379")
    wait_until(lambda: "state=online" in cli(primary, "INFO", "replication"))


@pytest.mark.thorough
def test_without_a_password_no_command_waits_for_its_input(steps: Steps) -> None:
    primary = steps.lab.nodes["redis1"]
    cli(primary, "CONFIG", "SET", "requirepass", "")
    # By default, Ansible gives its modules a terminal as their input.
    run(steps, "redis1", "validate", "prepare", redis_password="", ansible_pipelining=False)
    primary.run("redis-cli", "CONFIG", "SET", "requirepass", PASSWORD)
    run(steps, "redis1", "validate", ansible_pipelining=False)


@pytest.mark.thorough
def test_failures_are_sentences(steps: Steps) -> None:
    primary, replica = steps.lab.nodes["redis1"], steps.lab.nodes["redis2"]
    shown = run(steps, "redis1", "validate", code=2, redis_password="")
    assert "redis1: Redis at 127.0.0.1:6379 does not answer as it should: NOAUTH Authentication required." in shown
    assert "Set redis_password." in shown
    shown = run(steps, "redis1", "validate", code=2, redis_port=6380)
    assert "redis1: Redis at 127.0.0.1:6380 does not answer as it should: Could not connect to Redis" in shown
    cli(replica, "ACL", "SETUSER", "limited", "on", f">{PASSWORD}", "~*", "+@all", "-config|get")
    shown = run(steps, "redis2", "validate", code=2, redis_user="limited")
    assert "redis2: Redis refused CONFIG GET (NOPERM" in shown
    cli(primary, "CONFIG", "SET", "requirepass", "another")
    cli_other = ("env", "REDISCLI_AUTH=another", "redis-cli")
    primary.run(*cli_other, "CLIENT", "KILL", "TYPE", "replica")
    shown = run(steps, "redis2", "verify", code=2, redis_link_timeout=2)
    assert f"redis2: this replica has no link to its primary {primary.address}:6379 within 2 s" in shown
    primary.run(*cli_other, "CONFIG", "SET", "requirepass", PASSWORD)
    run(steps, "redis2", "verify")
    run(steps, "redis2", "prepare")
    cli(replica, "REPLICAOF", "NO", "ONE")
    cli(replica, "FLUSHALL")
    shown = run(steps, "redis2", "verify", code=2)
    assert "redis2: Redis has 0 keys now, 0 of them without an expiry. Before its restart, it had" in shown
    # A cache may be empty after a restart.
    run(steps, "redis2", "verify", redis_save=False)
    replica.run(
        "sh", "-c", "rm -f /var/lib/redis/dump.rdb; mkdir /var/lib/redis/dump.rdb; chown redis: /var/lib/redis/dump.rdb"
    )
    cli(replica, "SET", "key", "1")
    shown = run(steps, "redis2", "prepare", code=2, redis_save_timeout=3)
    assert "redis2: Redis did not save its data within 3 s" in shown
    shown = run(steps, "redis2", "validate", code=2)
    assert "redis2: Redis could not save its data the last time" in shown
