# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node agent as a process: settings, tokens and certificates that change, and those that can't be used."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.processes.agent_process import EVERYWHERE, GATE, HOST, RECORD, Node, wait_for
from integration.support.processes.guarded import MASTER, guarded_agent
from thorough import quick


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


def test_settings_that_are_right_again_when_their_mistake_is_reported_start_the_agent_again(node: Node) -> None:
    node.start()
    wait_for(node.says("closed:"), "it waits")
    assert node.process is not None
    # The run that reports it lasts until it is ended.
    (node.folder / "what").write_text("wait")
    node.write(puppet_gate_rle="compute")
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: node.runs, "it is reported")
    node.write()
    (node.folder / "what").write_text("fail")
    # With any code but 78, systemd starts it again.
    assert node.process.wait(timeout=20) == 1
    assert len(node.runs) == 1


def test_an_unreadable_token_ends_the_agent_and_is_reported_with_the_last_one(tmp_path: Path) -> None:
    with guarded_agent() as agent:
        kv = RawKV(agent.kv.url, MASTER)
        kv.put("current_version", "v2")
        kv.put(EVERYWHERE, "False")
        token, last = tmp_path / "token", tmp_path / "run/last_token"
        secret = grant(Store(Settings(port=agent.http_port, token=MASTER)), TokenKind("node", HOST)).secret
        token.write_text(secret)
        node = Node(tmp_path, agent.http_port)
        node.write(puppet_gate_token_file=str(token))
        node.install("r1")
        node.start()
        try:
            wait_for(node.says("closed:"), "it waits")
            assert (last.read_text(), last.stat().st_mode & 0o777) == (secret, 0o600)
            token.unlink()
            assert node.process is not None
            node.process.send_signal(signal.SIGHUP)
            assert node.process.wait(timeout=20) == 78
        finally:
            node.stop()
        sentence = f"the token file {token} can't be read: No such file or directory. Write the Consul token of this node there."
        wait_for(node.says(sentence), "it says why")
        (run,) = node.runs
        assert sentence in run["facts"]["puppet_gate_unusable"]
        assert str(last) in run["facts"]["upgrade_consul_token"]
        # systemd starts it again and again. It reports once, and again as soon as its gate is open.
        assert [node.call("agent").returncode for _time in range(2)] == [78, 78]
        assert len(node.runs) == 1
        kv.put(GATE, "True")
        assert node.call("agent").returncode == 78
        assert len(node.runs) == 2
        # With the same gate as before, a lost report is made up for after a while.
        os.utime(tmp_path / "run/reported", (0, 0))
        assert node.call("agent").returncode == 78
        assert len(node.runs) == 3
    token.write_text(secret)
    node.call("once")
    assert not (tmp_path / "run/reported").exists()
    node.write()
    node.call("once")
    assert not last.exists()


def test_bad_settings_are_reported_as_soon_as_consul_can_be_reached(tmp_path: Path) -> None:
    with Agent() as agent:
        agent.kv.put("current_version", "v2")
        agent.kv.put(EVERYWHERE, "False")
        node = Node(tmp_path, agent.http_port)
        node.install("r1")
        assert node.call("once").returncode == 0
        node.write(puppet_gate_rle="compute")
        agent.stop()
        done = node.call("agent")
        assert done.returncode == 78
        assert "puppet_gate_rle is not a setting" in done.stderr
        assert node.runs == []
        agent.start()
        assert node.call("agent").returncode == 78
        (run,) = node.runs
        assert "puppet_gate_rle is not a setting" in run["facts"]["puppet_gate_unusable"]


def test_the_first_settings_of_a_node_report_their_mistake_with_what_they_give(consul: RawKV, node: Node) -> None:
    consul.put("config_state/enable_puppet/role/storage", "False")
    secret = "00000000-0000-0000-0000-000000000000"
    # With a name that may be meant for the host, it is not certain who reports.
    node.settings["puppet_gate_role"] = "storage"
    node.write(puppet_gate_hostname="storage9", upgrade_consul_token=secret)
    assert node.call("agent").returncode == 78
    assert node.runs == []
    node.write(puppet_gate_manifst="site.pp", puppet_gate_interval="often", upgrade_consul_token=secret)
    assert node.call("agent").returncode == 78
    (run,) = node.runs
    assert "puppet_gate_manifst is not a setting" in run["facts"]["puppet_gate_unusable"]
    assert run["facts"]["puppet_gate_role"] == "storage"
    assert "puppet_gate_interval" not in run["facts"]
    # It may have a token.
    usable = node.folder / "run/usable.json"
    assert usable.stat().st_mode & 0o777 == 0o600
    assert secret not in " ".join(run["argv"])
    assert node.call("agent").returncode == 78
    assert len(node.runs) == 1
    node.write()
    node.call("once")
    assert not usable.exists()
    assert not (node.folder / "run/reported").exists()


def test_a_real_agent_run_reports_the_mistake_in_the_first_settings(consul: RawKV, node: Node, agent: Agent) -> None:
    release = {"name": "r1", "python": sys.executable}
    (node.home / "releases/r1/release.json").write_text(json.dumps(release))
    mistake = "puppet_gate_manifst is not a setting; did you mean puppet_gate_manifest? Correct or remove it."
    node.write(puppet_gate_manifst="site.pp", puppet_gate_health=True, puppet_gate_agent={"port": agent.http_port})
    assert node.call("agent").returncode == 78
    check = json.loads(consul.call("GET", "agent/checks")[2])["puppet"]
    assert (check["Status"], mistake in check["Output"], consul.get(RECORD)) == ("warning", True, None)
    consul.put(GATE, "True")
    assert node.call("agent").returncode == 78
    record = json.loads(consul.get(RECORD) or b"{}")
    assert (record["state"], record["step"], record["version"], record["role"]) == ("failed", "ask", "v2", "compute")
    assert mistake in record["error"]
    assert (node.folder / "version").read_text() == "v1\n"
    # It was Ansible, and not what stands for it in the other tests.
    assert node.runs == []


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
    ("text", "sentence"),
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
def test_bad_settings_fail_with_one_sentence_and_start_nothing(text: str | None, sentence: str, node: Node) -> None:
    node.file.unlink() if text is None else node.file.write_text(text)
    for command in ("once", "run", "check", "status", "agent"):
        done = node.call(command)
        assert done.returncode == 78, done
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert node.runs == []


@pytest.mark.usefixtures("consul")
def test_the_check_names_all_that_would_keep_a_job_from_running(node: Node) -> None:
    folder = node.folder / "commands.d"
    folder.mkdir(mode=0o755)
    (folder / "restart").write_text("#!/bin/sh\n")
    (folder / "restart").chmod(0o755)
    signers = node.folder / "signers"
    node.write(
        puppet_gate_commands_dir=str(folder),
        puppet_gate_allowed_signers=str(signers),
        puppet_gate_require_signed_jobs=True,
    )
    done = node.call("check")
    without_schema, without_signers = done.stderr.splitlines()
    assert done.returncode == 65
    assert f"{folder}/restart.json can't be read: No such file" in without_schema
    assert f"{signers} can't be read: No such file" in without_signers


def test_a_python_without_ansible_is_reported_with_its_remedy_and_no_run_begins(consul: RawKV, node: Node) -> None:
    consul.put(GATE, "True")
    (node.folder / "another_python").touch()
    for command in ("check", "run", "once"):
        done = node.call(command)
        assert done.returncode == 1
        assert "can't import Ansible with" in done.stderr
        assert "ModuleNotFoundError: No module named 'ansible'." in done.stderr
        assert "Run ansible-playbook convoy.upgrade.enroll --limit compute7" in done.stderr
    assert node.runs == []


@pytest.mark.parametrize("fault", quick(1, ["link", "folder"]))
def test_a_lock_that_another_user_could_hold_starts_nothing_but_a_report(
    fault: str, consul: RawKV, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It stands for /run/convoy.
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(node.folder / "default"))
    consul.put(GATE, "True")
    folder, other = node.folder / "run", node.folder / "other"
    folder.mkdir(mode=0o755)
    other.write_text("its content")
    if fault == "link":
        (folder / "agent.lock").symlink_to(other)
        sentence = f"convoy-node: The lock can't be opened: {folder}/agent.lock is a symbolic link. Run rm {folder}/agent.lock\n"
    else:
        folder.chmod(0o777)
        sentence = (
            f"convoy-node: Locks in {folder} can't be trusted: {folder} can be written by other users than its owner (mode 0777). Run chmod "
            f"go-w {folder}, or set puppet_gate_lock_file to a path in /run/convoy\n"
        )
        # Nor are the temporary files of an agent run put there.
        done = node.call("run")
        assert (done.returncode, done.stderr) == (1, sentence)
    done = node.call("once")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
    (report,) = node.runs
    assert sentence == f"convoy-node: {report['facts']['puppet_gate_unusable']}\n"
    assert report["facts"]["puppet_gate_lock_file"] == f"{node.folder}/default/node.lock"
    assert (sorted(one.name for one in folder.iterdir() if one.name != "agent.lock"), other.read_text()) == (
        [],
        "its content",
    )
