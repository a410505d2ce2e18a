# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node agent as a process, with a real Consul: what starts an agent run, and when.

Agent runs are those of a program that notes how it was called. The lab's tests have real ones.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant, revoke
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.processes.agent_process import (
    EVERYWHERE,
    GATE,
    HOST,
    RECORD,
    WAKE,
    Node,
    admit,
    start_in_run,
    wait_for,
)
from integration.support.processes.guarded import MASTER, guarded_agent
from missing import missing
from thorough import quick


@pytest.fixture(scope="module")
def agent_of_node() -> Iterator[Agent]:
    """A second Consul agent, for the checks of the node alone."""
    with Agent() as running:
        yield running


def test_an_admission_starts_an_agent_run_and_nothing_else_does(consul: RawKV, node: Node) -> None:
    # By its own clock, it would read its gate again in an hour. How soon it wakes is measured by the benchmark `waking`.
    node.write(puppet_gate_interval=3600)
    node.start()
    wait_for(node.says(f"closed: {EVERYWHERE} is False"), "it waits")
    wait_for(lambda: consul.get(WAKE), "it has its key")
    # Other hosts are admitted, and the ledger is written.
    for number in range(20):
        consul.put(f"config_state/enable_puppet/host/compute{number + 10}", "True")
        consul.put(f"upgrade/wake/compute{number + 10}", "1")
        consul.put("upgrade/ledger", "{}")
    time.sleep(0.5)
    assert node.runs == []
    admit(consul)
    wait_for(lambda: node.runs, "a run")
    facts = node.runs[0]["facts"]
    assert (facts["puppet_gate_host"], facts["puppet_gate_release"]) == (HOST, "r1")
    assert facts["puppet_gate_home"] == str(node.home)
    time.sleep(0.5)
    assert len(node.runs) == 1


def test_a_gate_of_the_role_or_of_all_is_found_at_the_interval(consul: RawKV, node: Node) -> None:
    node.write(puppet_gate_interval=1)
    node.start()
    wait_for(node.says("is False"), "it waits")
    consul.put("config_state/enable_puppet/role/compute", "True")
    wait_for(lambda: node.runs, "a run", seconds=5)


def test_what_an_operator_opens_by_hand_wakes_the_node(consul: RawKV, node: Node, store: Store) -> None:
    # By its own clock, it would read its gate again in an hour. How soon it wakes is measured by the benchmark `waking`.
    node.write(puppet_gate_interval=3600, puppet_gate_puppet_interval=7200)
    node.start()
    wait_for(lambda: consul.get(WAKE), "it has its key")
    set_gate(store, "host", HOST, True)
    wait_for(lambda: node.runs, "a run")


@pytest.mark.thorough
def test_puppet_has_a_clock_of_its_own(consul: RawKV, node: Node) -> None:
    consul.put(EVERYWHERE, "True")
    consul.put(RECORD, json.dumps({"version": "v2", "state": "upgraded"}))
    node.at("v2")
    # It does not wait until it reads its gate again, which would be in an hour.
    node.write(puppet_gate_interval=3600, puppet_gate_puppet_interval=2, puppet_gate_puppet_splay=0)
    (node.folder / "what").write_text("silence")
    node.start()
    wait_for(lambda: len(node.runs) == 3, "three runs")
    times = [run["at"] for run in node.runs]
    assert all(after - before > 1.9 for before, after in itertools.pairwise(times))
    # A new agent knows when Puppet ran.
    node.stop()
    node.write(puppet_gate_puppet_interval=3600, puppet_gate_puppet_splay=0)
    node.start()
    time.sleep(1)
    assert len(node.runs) == 3
    # With a closed gate, it does not run at all.
    node.stop()
    node.write(puppet_gate_puppet_interval=1, puppet_gate_puppet_splay=0)
    consul.put(EVERYWHERE, "False")
    node.start()
    time.sleep(1.5)
    assert len(node.runs) == 3


@pytest.mark.parametrize(("by_a_rollout", "goes_on"), [(True, True), (False, False)])
def test_a_pending_node_goes_on_running_puppet_if_its_settings_say_so(
    by_a_rollout: bool, goes_on: bool, consul: RawKV, node: Node
) -> None:
    code, _headers, _body = consul.call("PUT", f"kv/{EVERYWHERE}?flags={1700000000 if by_a_rollout else 0}", b"False")
    assert code == 200
    node.write(puppet_gate_puppet_pending=True, puppet_gate_puppet_splay=0)
    (node.folder / "what").write_text("silence")
    done = node.call("once")
    assert done.returncode == 0, done.stderr
    assert bool(node.runs) == goes_on


def test_without_consul_nothing_is_started_and_it_goes_on_when_consul_is_back(
    consul: RawKV, agent: Agent, node: Node
) -> None:
    consul.put(EVERYWHERE, "True")
    consul.put(GATE, "False")
    node.start()
    wait_for(node.says(f"closed: {GATE} is False"), "it waits")
    agent.stop()
    try:
        wait_for(node.says("can't be reached"), "it notices")
        assert any("The node stays at v1" in line for line in node.lines)
        time.sleep(1)
        assert node.runs == []
        assert node.process is not None
        assert node.process.poll() is None
    finally:
        agent.start()
    admit(consul)
    wait_for(lambda: node.runs, "a run", seconds=40)


@pytest.mark.thorough
def test_a_gate_that_can_t_be_read_is_closed_and_an_agent_run_reports_it(consul: RawKV, node: Node) -> None:
    consul.put(GATE, "Flase")
    node.write(puppet_gate_interval=2)
    (node.folder / "what").write_text("fail")
    node.start()
    wait_for(node.says(f"the gate {GATE} is neither True, False nor a version"), "it says so")
    wait_for(lambda: node.runs, "it is reported")
    # Reported once, not every few seconds.
    time.sleep(3)
    assert len(node.runs) == 1


@pytest.mark.thorough
def test_a_token_that_is_revoked_starts_no_upgrade_until_there_is_another_one(tmp_path: Path) -> None:
    with guarded_agent() as agent:
        kv = RawKV(agent.kv.url, MASTER)
        kv.put("current_version", "v2")
        kv.put(EVERYWHERE, "False")
        store, kind = Store(Settings(port=agent.http_port, token=MASTER)), TokenKind("node", HOST)
        token = tmp_path / "token"
        token.write_text(grant(store, kind).secret)
        node = Node(tmp_path, agent.http_port)
        node.write(puppet_gate_token_file=str(token), puppet_gate_interval=1)
        node.install("r1")
        (tmp_path / "what").write_text("fail")
        node.start()
        try:
            wait_for(node.says(f"closed: {EVERYWHERE} is False"), "it waits")
            revoke(store, kind)
            admit(kv)
            wait_for(node.says("an agent run reports it"), "the doubt is reported")
            wait_for(lambda: node.runs, "an agent run")
            assert not node.says("agent run: upgrade")()
            token.write_text(grant(store, kind).secret)
            wait_for(node.says("agent run: upgrade to v2"), "it goes on with another token")
        finally:
            node.stop()
            (tmp_path / "what").unlink()


def test_a_failed_upgrade_is_tried_again_at_the_interval_or_when_the_node_is_woken(consul: RawKV, node: Node) -> None:
    consul.put(GATE, "True")
    (node.folder / "what").write_text("fail")
    node.start()
    wait_for(node.says("ended with 2"), "it fails")
    time.sleep(0.5)
    assert len(node.runs) == 1
    admit(consul)
    wait_for(lambda: len(node.runs) == 2, "it is tried again")


@pytest.mark.parametrize(("end", "next_run"), quick(1, [("silence", "post-upgrade of v2"), ("fail", "upgrade to v2")]))
def test_a_wake_during_an_agent_run_is_not_lost(end: str, next_run: str, consul: RawKV, node: Node) -> None:
    # By its own clocks, it would do nothing for an hour.
    node.write(
        puppet_gate_interval=3600,
        puppet_gate_puppet_interval=7200,
        puppet_gate_services=str(node.folder / "services"),
    )
    node.start()
    wait_for(lambda: consul.get(WAKE), "it has its key")
    (node.folder / "what").write_text("wait")
    admit(consul)
    wait_for(lambda: node.runs, "a run")
    # The run upgrades the node, or fails. Before it ends, a planner writes.
    if end == "silence":
        node.at("v2")
        consul.put(RECORD, json.dumps({"version": "v2", "state": "upgraded", "post": "open"}))
    consul.put(WAKE, str(time.time()))
    (node.folder / "what").write_text(end)
    wait_for(lambda: len(node.runs) == 2, "another run")
    assert [line for line in node.lines if "agent run: " in line][-1].endswith(f"(agent run: {next_run})\n")


@pytest.mark.parametrize("what", quick(1, ["agent run", "cron", "wait"]))
def test_the_checks_of_a_node_outlast_what_it_does(what: str, consul: RawKV, node: Node, agent_of_node: Agent) -> None:
    # The checks are those of the Consul agent of the node, which need not be the one that it asks for its gate.
    checks = agent_of_node.kv
    # The node only waits if it is not admitted. By its own clock, it reads its gate again in an hour.
    node.write(
        puppet_gate_agent={"port": agent_of_node.http_port},
        puppet_gate_health=True,
        puppet_gate_health_critical=True,
        puppet_gate_health_ttl=3,
        puppet_gate_interval=3600,
    )
    for name in ("puppet", "validation"):
        check = {"Name": name, "TTL": "3s", "Status": "passing"}
        assert checks.call("PUT", "agent/check/register", json.dumps(check).encode())[0] == 200

    def statuses() -> list[tuple[str, str]]:
        found = json.loads(checks.call("GET", "agent/checks")[2])
        return sorted((name, found[name]["Status"]) for name in ("puppet", "validation"))

    passing = [("puppet", "passing"), ("validation", "passing")]
    try:
        (node.folder / "what").write_text("wait")
        if what != "wait":
            consul.put(GATE, "True")
        first = subprocess.Popen(node.command("once"), env=node.environ) if what == "cron" else None
        if first is None:
            node.start()
        wait_for(lambda: node.runs if what != "wait" else consul.get(WAKE), "it works")
        until = time.monotonic() + 7
        while time.monotonic() < until:
            if what == "cron":
                # As cron starts it, at the interval.
                assert "convoy-node runs already" in node.call("once").stdout
            assert statuses() == passing
            time.sleep(0.3)
        if first is not None:
            (node.folder / "what").unlink()
            first.communicate(timeout=20)
        node.stop()
        # Nothing else has renewed them.
        wait_for(lambda: statuses() == [("puppet", "critical"), ("validation", "critical")], "they expire")
        # Nor are they at the other Consul agent.
        assert not {"puppet", "validation"} & set(json.loads(consul.call("GET", "agent/checks")[2]))
    finally:
        for name in ("puppet", "validation"):
            checks.call("PUT", f"agent/check/deregister/{name}")


OURS = "convoy.upgrade: upgrade to v2"


@pytest.mark.parametrize("by_cron", quick(1, [False, True]))
@pytest.mark.parametrize(
    ("reason", "admitted", "record", "stays"),
    [
        (OURS, False, "", False),
        (OURS, True, "failed", False),
        (OURS, True, "started", True),
        ("a disk is replaced", False, "", True),
    ],
    ids=["not admitted any more", "failed", "goes on", "an operator's"],
)
def test_a_maintenance_that_a_killed_run_has_left_ends_unless_its_upgrade_goes_on(
    reason: str,
    admitted: bool,
    record: str,
    stays: bool,
    by_cron: bool,
    consul: RawKV,
    node: Node,
    agent_of_node: Agent,
) -> None:
    at = agent_of_node.kv

    def is_away() -> bool:
        return "_node_maintenance" in json.loads(at.call("GET", "agent/checks")[2])

    def set_maintenance(enable: str) -> None:
        assert at.call("PUT", f"agent/maintenance?enable={enable}&reason={quote(reason)}")[0] == 200

    node.write(puppet_gate_agent={"port": agent_of_node.http_port}, puppet_gate_maintenance=True)
    (node.folder / "version").write_text("")
    (node.folder / "what").write_text("fail")
    if record:
        consul.put(RECORD, json.dumps({"version": "v2", "state": record}))
    consul.put(GATE, str(admitted))
    set_maintenance("true")
    try:
        if by_cron:
            node.call("once")
        else:
            node.start()
            wait_for(
                lambda: any("agent run: " in line or "closed: " in line for line in list(node.lines)), "it has read"
            )
        # What follows the read has ended then.
        wait_for(lambda: node.runs if admitted else not is_away() or by_cron or consul.get(WAKE), "it is done with it")
        assert is_away() is stays
    finally:
        node.stop()
        set_maintenance("false")


def test_an_agent_without_the_setting_ends_the_maintenance_of_the_one_before(
    consul: RawKV, node: Node, agent_of_node: Agent
) -> None:
    at = agent_of_node.kv
    consul.put(GATE, "False")
    node.write(puppet_gate_agent={"port": agent_of_node.http_port})
    assert at.call("PUT", f"agent/maintenance?enable=true&reason={quote(OURS)}")[0] == 200
    try:
        node.call("once")
        assert "_node_maintenance" not in json.loads(at.call("GET", "agent/checks")[2])
    finally:
        at.call("PUT", "agent/maintenance?enable=false")


def test_a_maintenance_stays_as_long_as_another_agent_run_has_the_lock(
    consul: RawKV, node: Node, agent_of_node: Agent
) -> None:
    at = agent_of_node.kv
    consul.put(GATE, "False")
    node.write(puppet_gate_agent={"port": agent_of_node.http_port}, puppet_gate_maintenance=True)
    assert at.call("PUT", f"agent/maintenance?enable=true&reason={quote(OURS)}")[0] == 200
    try:
        (node.folder / "run").mkdir(exist_ok=True)
        with (node.folder / "run/node.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            node.call("once")
            assert "_node_maintenance" in json.loads(at.call("GET", "agent/checks")[2])
        assert "the maintenance in Consul that an upgrade began was ended" in node.call("once").stdout
        assert "_node_maintenance" not in json.loads(at.call("GET", "agent/checks")[2])
    finally:
        at.call("PUT", "agent/maintenance?enable=false")


def test_an_agent_that_is_killed_in_a_run_carries_on(consul: RawKV, node: Node) -> None:
    start_in_run(consul, node)
    (node.folder / "version").write_text("")
    assert node.process is not None
    node.process.send_signal(signal.SIGKILL)
    os.kill(node.runs[0]["pid"], signal.SIGKILL)
    node.process.wait()
    (node.folder / "what").unlink()
    node.start()
    wait_for(lambda: (node.folder / "version").read_text() == "v2\n", "the next agent does it")
    assert len(node.runs) == 2


def test_systemd_learns_that_it_is_ready_and_alive(consul: RawKV, node: Node) -> None:
    consul.put(EVERYWHERE, "False")
    # A short name, because those of sockets have at most 108 bytes.
    address = f"\0convoy-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(10)
        node.start(NOTIFY_SOCKET=f"@{address[1:]}", WATCHDOG_USEC="900000")
        # What may run Puppet starts after the first read.
        before = []
        while (message := manager.recv(400)) != b"READY=1":
            before.append(message)
        assert before.pop() == f"STATUS=closed: {EVERYWHERE} is False".encode()
        # Before each request of the read, and after it.
        assert len(before) >= 3
        assert set(before) == {b"WATCHDOG=1\nEXTEND_TIMEOUT_USEC=900000"}
        alive = 0
        until = time.monotonic() + 2
        while time.monotonic() < until:
            alive += manager.recv(400) == b"WATCHDOG=1"
        assert alive >= 4


@pytest.mark.parametrize("by_cron", quick(1, [True, False]))
def test_a_job_that_can_t_begin_keeps_neither_puppet_nor_an_upgrade_from_running(
    by_cron: bool, consul: RawKV, node: Node
) -> None:
    if not Path("/etc/machine-id").exists():
        missing("This machine has no /etc/machine-id.")
    consul.put("upgrade/current_job", "job/j1")
    consul.call("PUT", "kv/upgrade/job_gates/host/compute7?flags=1700000000", b"True")
    consul.put("upgrade/jobs/j1", json.dumps({"id": "j1", "command": "a", "expires": int(time.time()) + 600}))
    # Another machine with the name of this one has begun it.
    start = json.dumps({"job": "j1", "state": "started", "run": "r1", "machine": "another"})
    consul.put("upgrade/job_records/compute7", start)
    consul.put(GATE, "True")
    if by_cron:
        shown = node.call("once").stdout
        assert "job j1 does not start: The machine another has begun the job" in shown
    else:
        node.write(puppet_gate_puppet_splay=0)
        node.start()
    wait_for(lambda: (node.folder / "version").read_text() == "v2\n", "the upgrade", seconds=30)
    # Then Puppet, which has run in the upgrade, waits for its own time, and the job for its next try.
    if by_cron:
        shown = node.call("once").stdout
        assert shown.count("agent run: ") == 1 and f"open: {GATE} is True; the job j1 is tried again later" in shown
    else:
        wait_for(node.says(f"open: {GATE} is True; the job j1 is tried again later"), "it waits")
    assert len(node.runs) == 1
    assert consul.get("upgrade/job_records/compute7") == start.encode()


@pytest.mark.thorough
def test_cron_reads_the_gate_once_and_not_twice_at_once(consul: RawKV, node: Node) -> None:
    assert node.call("once").stdout == f"{HOST}: closed: {EVERYWHERE} is False\n"
    assert consul.get(WAKE) == b"enrolled"
    consul.put(GATE, "True")
    (node.folder / "what").write_text("wait")
    first = subprocess.Popen(node.command("once"), stdout=subprocess.PIPE, text=True, env=node.environ)
    wait_for(lambda: node.runs, "a run")
    assert node.call("once", "--delay", "0").stdout == f"{HOST}: convoy-node runs already\n"
    (node.folder / "what").unlink()
    first.communicate(timeout=20)
    assert (node.folder / "version").read_text() == "v2\n"
    assert len(node.runs) == 1


def test_an_output_that_can_t_be_written_keeps_cron_from_nothing(consul: RawKV, node: Node) -> None:
    consul.put(GATE, "True")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(node.command("once"), stdout=full, stderr=full, env=node.environ, check=False, timeout=60)
    assert done.returncode == 0
    assert (node.folder / "version").read_text() == "v2\n"
    # Ansible would fail too.
    assert node.runs[0]["output"] == ["/dev/null"] * 2
    # Bad settings are still reported.
    node.write(puppet_gate_interval=0)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(node.command("once"), stdout=full, stderr=full, env=node.environ, check=False, timeout=60)
    assert done.returncode == 78
    assert "puppet_gate_interval is 0" in node.runs[1]["facts"]["puppet_gate_unusable"]


@pytest.mark.parametrize("python", ["python3.9", "python3.13"])
def test_it_runs_on_old_and_new_pythons(python: str, consul: RawKV, node: Node, pythons: dict[str, str]) -> None:
    if python not in pythons:
        missing(f"no {python} here")
    starter = node.home / "releases/r1/bin/convoy-node"
    starter.write_text(starter.read_text().replace(sys.executable, pythons[python]))
    assert node.call("check").returncode == 0
    node.start()
    wait_for(lambda: consul.get(WAKE), "it has its key")
    admit(consul)
    wait_for(lambda: node.runs, "a run")


@pytest.fixture(scope="session")
def pythons() -> dict[str, str]:
    """Other Pythons of this machine."""
    found = {}
    for name in ("python3.9", "python3.13"):
        places = [*Path.home().glob(f".pyenv/versions/{name[6:]}*/bin/{name}"), shutil.which(name)]
        for place in filter(None, places):
            if subprocess.run([place, "-c", ""], check=False).returncode == 0:
                found[name] = str(place)
    return found


@pytest.mark.thorough
def test_what_it_costs_to_wait(consul: RawKV, node: Node) -> None:
    node.start()
    wait_for(lambda: consul.get(WAKE), "it has its key")
    time.sleep(1)
    assert node.process is not None
    before = busy(node.process.pid)
    time.sleep(4)
    # Blocking queries, not polling: one tick of the clock at most.
    assert busy(node.process.pid) - before <= 0.01
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    kilobytes = int(status.partition("VmRSS:")[2].split()[0])
    assert kilobytes < 28_000


def busy(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
