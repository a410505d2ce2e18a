# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node agent as a process, with a real Consul: what starts an agent run, when, and which release goes on.

Agent runs are those of a program that notes how it was called. The lab's tests have real ones.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant, revoke
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import ROOT, Agent
from devkit.child import start, stop
from devkit.kv import RawKV
from missing import missing
from thorough import quick

HOST = "compute7"
GATE = f"config_state/enable_puppet/host/{HOST}"
EVERYWHERE = "config_state/enable_puppet/global"
WAKE = f"upgrade/wake/{HOST}"
RECORD = f"upgrade/hosts/{HOST}"

# What stands for Ansible: it notes its call, and reports as an agent run does, unless it is told otherwise.
PROGRAM = """\
#!{python}
import json, os, sys, time, urllib.request
from pathlib import Path
folder = Path({folder!r})
facts = {{}}
for name, value in zip(sys.argv, sys.argv[1:]):
    if name == "-e":
        text = Path(value[1:]).read_text() if value.startswith("@") else value
        facts.update(json.loads(text))
output = [os.readlink("/proc/self/fd/%s" % number) for number in (1, 2)]
call = {{"argv": sys.argv[1:], "facts": facts, "environ": dict(os.environ), "output": output, "at": time.time(), "pid": os.getpid()}}
with (folder / "runs").open("a") as out:
    out.write(json.dumps(call) + "\\n")
def told():
    return (folder / "what").read_text() if (folder / "what").exists() else "report"
what = told()
while what in ("wait", ""):
    time.sleep(0.02)
    what = told()
release = facts["puppet_gate_release"]
if what == "fail" or facts.get("puppet_gate_unusable"):
    sys.exit(2)
if what == "bring" and release == "r1":
    home = Path(facts["puppet_gate_home"])
    (home / "trial").write_text((home / "next").resolve().name + "\\n")
    (folder / "version").write_text("")
    sys.exit(0)
if what != "silence" and not (what == "bring" and "broken" in release):
    root = "http://%s:%s/v1/kv/" % ("127.0.0.1", facts["upgrade_consul_port"])
    version = urllib.request.urlopen(root + "current_version?raw").read().decode()
    record = json.dumps({{"version": version, "state": "upgraded", "release": release}}).encode()
    urllib.request.urlopen(urllib.request.Request(root + "upgrade/hosts/" + {host!r}, record, method="PUT"))
    (folder / "version").write_text(version + "\\n")
"""


class Node:
    """A node without a machine: a folder with settings, releases and what its agent has done."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.home = folder / "opt"
        self.settings = {
            "puppet_gate_host": HOST,
            "puppet_gate_role": "compute",
            "puppet_gate_version_file": str(folder / "version"),
            "puppet_gate_lock_file": str(folder / "run/node.lock"),
            "puppet_gate_health": False,
            "upgrade_consul_port": port,
        }
        self.file = folder / "node.json"
        self.write()
        self.at("v1")
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []

    def write(self, **settings: Any) -> None:
        """Write the settings, with these on top."""
        self.file.write_text(json.dumps({**self.settings, **settings}))

    def at(self, version: str) -> None:
        """Let the node be at a version."""
        (self.folder / "version").write_text(f"{version}\n")

    def release(self, name: str, python: str | None = None) -> Path:
        """Return the folder of a new release, which is not installed."""
        folder = self.folder / "new" / name
        shutil.copytree(
            ROOT / "agent", folder / "agent", ignore=shutil.ignore_patterns("__pycache__", ".*", "ruff.toml")
        )
        program = folder / "ansible"
        program.write_text(PROGRAM.format(python=sys.executable, folder=str(self.folder), host=HOST))
        program.chmod(0o755)
        (folder / "release.json").write_text(json.dumps({"name": name, "python": "ansible"}))
        (folder / "bin").mkdir()
        starter = folder / "bin/convoy-node"
        starter.write_text(f'#!/bin/sh\nexec {python or sys.executable} -I {self.home}/releases/{name}/agent "$@"\n')
        starter.chmod(0o755)
        return folder

    def install(self, name: str, *more: str) -> str:
        """Install a release, as enrolment and a package do."""
        folder = self.release(name)
        command = [sys.executable, folder / "agent", "install", folder, "--home", self.home, *more]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def command(self, *words: str) -> list[str]:
        return [str(self.home / "current/bin/convoy-node"), "--settings", str(self.file), *words]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "STATE_DIRECTORY": str(self.folder / "state"), "PYTHONUNBUFFERED": "1"}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, env=self.environ, check=False, timeout=60
        )

    def start(self, **environ: str) -> None:
        """Start the agent."""
        self.process = start(
            self.command("agent"),
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        lines = self.process.stdout
        threading.Thread(target=lambda: self.lines.extend(lines), daemon=True).start()

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)
        self.process = None

    @property
    def runs(self) -> list[dict[str, Any]]:
        file = self.folder / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def active(self) -> str:
        return (self.home / "current").resolve().name

    def says(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in line for line in list(self.lines))


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20) -> float:
    """Return the time at which the condition held (unix seconds)."""
    until = time.time() + seconds
    while not condition():
        assert time.time() < until, f"{what}: not within {seconds} s"
        time.sleep(0.01)
    return time.time()


@pytest.fixture
def node(consul: RawKV, agent: Agent, tmp_path: Path) -> Iterator[Node]:
    """A node at v1 of a fleet that is to run v2, not admitted yet."""
    consul.put("current_version", "v2")
    consul.put(EVERYWHERE, "False")
    found = Node(tmp_path, agent.http_port)
    found.install("r1")
    yield found
    found.stop()
    (tmp_path / "what").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def agent_of_node() -> Iterator[Agent]:
    """A second Consul agent, for the checks of the node alone."""
    with Agent() as running:
        yield running


def admit(consul: RawKV) -> None:
    """Admit the node as planners do."""
    consul.put(GATE, "True")
    consul.put(WAKE, str(time.time()))


def test_an_admission_starts_an_agent_run_and_nothing_else_does(consul: RawKV, node: Node) -> None:
    # By its own clock, it would look again in an hour. How soon it wakes is measured by the benchmark `waking`.
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
    # By its own clock, it would look again in an hour. How soon it wakes is measured by the benchmark `waking`.
    node.write(puppet_gate_interval=3600, puppet_gate_puppet_interval=7200)
    node.start()
    wait_for(lambda: consul.get(WAKE), "it has its key")
    set_gate(store, "host", HOST, True)
    wait_for(lambda: node.runs, "a run")


@pytest.mark.thorough
def test_puppet_has_a_clock_of_its_own(consul: RawKV, node: Node) -> None:
    consul.put(EVERYWHERE, "True")
    node.at("v2")
    node.write(puppet_gate_puppet_interval=2, puppet_gate_puppet_splay=0)
    (node.folder / "what").write_text("silence")
    node.start()
    wait_for(lambda: len(node.runs) == 3, "three runs", seconds=15)
    times = [run["at"] for run in node.runs]
    assert all(1.9 < after - before < 4 for before, after in itertools.pairwise(times))
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
def test_a_pending_node_goes_on_running_puppet_if_it_is_told_to(
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
    master = str(uuid.uuid4())
    acl = {"enabled": True, "default_policy": "deny", "tokens": {Agent.management_token_name(): master}}
    with Agent({"acl": acl}) as agent:
        kv = RawKV(agent.kv.url, master)
        kv.put("current_version", "v2")
        kv.put(EVERYWHERE, "False")
        store, kind = Store(Settings(port=agent.http_port, token=master)), TokenKind("node", HOST)
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


@pytest.mark.parametrize("what", quick(2, ["agent run", "cron", "wait"]))
def test_the_checks_of_a_node_outlast_what_it_does(what: str, consul: RawKV, node: Node, agent_of_node: Agent) -> None:
    # The checks are those of the Consul agent of the node, which need not be the one that it asks for its gate.
    checks = agent_of_node.kv
    # The node only waits if it is not admitted. By its own clock, it looks again in an hour.
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


def test_an_agent_that_is_killed_in_a_run_carries_on(consul: RawKV, node: Node) -> None:
    consul.put(GATE, "True")
    (node.folder / "what").write_text("wait")
    node.start()
    wait_for(lambda: node.runs, "a run")
    (node.folder / "version").write_text("")
    assert node.process is not None
    node.process.send_signal(signal.SIGKILL)
    os.kill(node.runs[0]["pid"], signal.SIGKILL)
    node.process.wait()
    (node.folder / "what").unlink()
    node.start()
    wait_for(lambda: (node.folder / "version").read_text() == "v2\n", "the next agent does it")
    assert len(node.runs) == 2


@pytest.mark.thorough
def test_settings_that_change_are_read_again_and_bad_ones_end_the_agent_with_one_sentence(
    consul: RawKV, node: Node
) -> None:
    node.start()
    wait_for(node.says("closed:"), "it waits")
    node.write(puppet_gate_role="storage")
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    wait_for(node.says("have changed"), "it reads them")
    consul.put("config_state/enable_puppet/role/storage", "False")
    node.write(puppet_gate_rle="compute")
    node.process.send_signal(signal.SIGHUP)
    assert node.process.wait(timeout=20) == 78
    wait_for(
        node.says(
            f"{node.file}: puppet_gate_rle is not a setting; did you mean puppet_gate_role? Correct or remove it."
        ),
        "it says why",
    )
    # With the settings before, an agent run has reported it.
    (run,) = node.runs
    assert "puppet_gate_rle is not a setting" in run["facts"]["puppet_gate_unusable"]
    assert run["facts"]["puppet_gate_role"] == "storage"


@pytest.mark.parametrize("fault", ["settings", "token"])
def test_settings_that_are_right_again_when_their_mistake_is_reported_start_the_agent_again(
    fault: str, node: Node
) -> None:
    token = node.folder / "token"
    token.write_text("5ec2e7\n")
    node.write(puppet_gate_token_file=str(token))
    node.start()
    wait_for(node.says("closed:"), "it waits")
    assert node.process is not None
    # The run that reports it lasts until it is told to end.
    (node.folder / "what").write_text("wait")
    if fault == "settings":
        node.write(puppet_gate_rle="compute")
    else:
        token.rename(node.folder / "elsewhere")
    node.process.send_signal(signal.SIGHUP)
    if fault == "settings":
        wait_for(lambda: node.runs, "it is reported")
        node.write()
        (node.folder / "what").write_text("fail")
    # With any code but 78, systemd starts it again.
    assert node.process.wait(timeout=20) == (1 if fault == "settings" else 75)
    assert len(node.runs) == (1 if fault == "settings" else 0)


def test_a_certificate_that_is_being_renewed_does_not_end_the_agent(node: Node) -> None:
    certificate = node.folder / "client.pem"
    certificate.write_text("half of it")
    node.write(
        upgrade_consul_scheme="https",
        upgrade_consul_client_cert=str(certificate),
        upgrade_consul_client_key=str(certificate),
    )
    node.start()
    wait_for(node.says(f"can't be reached: a certificate can't be read ({certificate}"), "it says so")
    time.sleep(1)
    assert node.process is not None and node.process.poll() is None
    assert node.runs == []


def test_settings_that_are_half_written_are_read_once_more(node: Node) -> None:
    node.start()
    wait_for(node.says("closed:"), "it waits")
    assert node.process is not None
    node.file.write_text('{"puppet_gate_ro')
    # A second signal does not shorten the pause before the second read.
    for _time in range(2):
        node.process.send_signal(signal.SIGHUP)
        time.sleep(0.15)
    node.write(puppet_gate_role="storage")
    wait_for(node.says("have changed"), "it reads them")
    assert node.process.poll() is None
    assert node.runs == []


@pytest.mark.parametrize(
    ("text", "told"),
    quick(
        3,
        [
            ("", "is empty"),
            ("{", "is not JSON"),
            ("[]", "is not an object"),
            ('{"puppet_gate_interval": "often"}', 'puppet_gate_interval is "often"; give a whole number above 0'),
            ('{"puppet_gate_puppet": "maybe"}', "give one of apply, agent"),
            (
                '{"puppet_gate_host": "compute7", "puppet_gate_token_file": "/nonexistent/token"}',
                "the token file /nonexistent/token can't be read",
            ),
            (None, "can't be read: No such file or directory"),
        ],
    ),
)
@pytest.mark.usefixtures("consul")
def test_bad_settings_fail_with_one_sentence_and_start_nothing(text: str | None, told: str, node: Node) -> None:
    node.file.unlink() if text is None else node.file.write_text(text)
    for command in ("agent", "once", "run", "check", "status"):
        done = node.call(command)
        # A token file that is right again is noticed by no unit of systemd.
        assert done.returncode == (75 if command == "agent" and "token" in told else 78), done
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert node.runs == []


def test_systemd_learns_that_it_is_ready_and_alive(consul: RawKV, node: Node) -> None:
    consul.put(EVERYWHERE, "False")
    # A short name, because those of sockets have at most 108 bytes.
    address = f"\0convoy-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(10)
        node.start(NOTIFY_SOCKET=f"@{address[1:]}", WATCHDOG_USEC="900000")
        assert manager.recv(400) == b"READY=1"
        alive, status = 0, ""
        until = time.monotonic() + 2
        while time.monotonic() < until:
            message = manager.recv(400).decode()
            alive += message == "WATCHDOG=1"
            status = message if message.startswith("STATUS=") else status
        assert alive >= 4
        assert status == f"STATUS=closed: {EVERYWHERE} is False"


@pytest.mark.parametrize("fault", quick(1, ["link", "folder"]))
def test_a_lock_that_another_user_could_hold_starts_nothing(fault: str, consul: RawKV, node: Node) -> None:
    consul.put(GATE, "True")
    folder, other = node.folder / "run", node.folder / "other"
    folder.mkdir(mode=0o755)
    other.write_text("its content")
    if fault == "link":
        (folder / "agent.lock").symlink_to(other)
        told = f"convoy-node: The lock can't be opened: {folder}/agent.lock is a symbolic link. Run rm {folder}/agent.lock\n"
    else:
        folder.chmod(0o777)
        told = (
            f"convoy-node: Locks in {folder} can't be trusted: {folder} can be written by other users than its owner (mode 0777). Run chmod "
            f"go-w {folder}, or set puppet_gate_lock_file to a path in /run/convoy\n"
        )
        # Nor are the temporary files of an agent run put there.
        done = node.call("run")
        assert (done.returncode, done.stderr) == (1, told)
    done = node.call("once")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
    assert (node.runs, other.read_text()) == ([], "its content")


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
def test_cron_makes_one_look_and_not_two_at_once(consul: RawKV, node: Node) -> None:
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


def test_a_release_that_an_upgrade_brings_finishes_it_and_becomes_active(consul: RawKV, node: Node) -> None:
    node.install("r2", "--stage")
    (node.folder / "what").write_text("bring")
    consul.put(GATE, "True")
    node.start()
    wait_for(node.says("convoy-node r2 waits"), "the agent is that of the new release")
    assert [run["facts"]["puppet_gate_release"] for run in node.runs] == ["r1", "r2"]
    assert node.active == "r2"
    assert (node.home / "previous").resolve().name == "r1"
    assert not os.path.lexists(node.home / "next")
    assert json.loads(consul.get(RECORD) or b"")["release"] == "r2"


@pytest.mark.parametrize("fault", quick(2, ["no report", "no loop", "no program"]))
def test_a_release_that_can_t_report_is_refused_and_the_one_before_goes_on(
    fault: str, consul: RawKV, node: Node
) -> None:
    node.install("broken", "--stage")
    (node.folder / "what").write_text("bring")
    if fault == "no program":
        (node.home / "releases/broken/bin/convoy-node").write_text("#!/bin/sh\nexit 3\n")
    if fault == "no loop":
        # It could report, but no agent would look for the gate after that.
        module = node.home / "releases/broken/agent/convoy_node/resident.py"
        module.write_text(
            module.read_text().replace("def _wait(self, seconds: float) -> None:", "def _waits(self) -> None:")
        )
        program = node.home / "releases/broken/ansible"
        program.write_text(program.read_text().replace('"broken" in release', "False"))
    consul.put(GATE, "True")
    node.start()
    wait_for(node.says("can't report"), "it is refused")
    wait_for(lambda: node.runs[-1]["facts"]["puppet_gate_release"] == "r1" and len(node.runs) > 1, "r1 goes on")
    assert node.active == "r1"
    refused = (node.home / "releases/broken/refused").read_text()
    told = {
        "no report": "without a report",
        "no loop": "agent of it ended with 1",
        "no program": "check of it ended with 3",
    }
    assert told[fault] in refused
    # The next upgrade brings a release that works.
    node.install("r3", "--stage")
    node.stop()
    (node.folder / "version").write_text("")
    node.start()
    wait_for(lambda: node.active == "r3", "r3 is active")
    wait_for(
        lambda: sorted(one.name for one in (node.home / "releases").iterdir()) == ["r1", "r3"], "others are removed"
    )


@pytest.mark.thorough
def test_an_installation_keeps_the_release_of_a_run(consul: RawKV, node: Node) -> None:
    consul.put(GATE, "True")
    (node.folder / "what").write_text("wait")
    node.start()
    wait_for(lambda: node.runs, "a run")
    node.install("r2")
    node.install("r3")
    assert sorted(one.name for one in (node.home / "releases").iterdir()) == ["r1", "r2", "r3"]
    (node.folder / "what").unlink()
    wait_for(node.says("convoy-node r3 waits"), "r3 goes on")
    node.install("r4")
    assert sorted(one.name for one in (node.home / "releases").iterdir()) == ["r3", "r4"]


@pytest.mark.thorough
def test_an_agent_that_is_stopped_in_a_run_goes_on_as_no_other_release(consul: RawKV, node: Node) -> None:
    consul.put(GATE, "True")
    (node.folder / "what").write_text("wait")
    node.start()
    wait_for(lambda: node.runs, "a run")
    node.install("r2")
    assert node.process is not None
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(timeout=20) == 0
    assert not node.says("r2 goes on")()


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
