# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The loop of the resident agent: what a signal ends, and when it ends by itself, without Consul and without systemd."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._node import puppet as collection
from convoy_node import agent_run, bad_settings, command_line, resident
from convoy_node.agent_run import Release
from convoy_node.decision import NextAction
from convoy_node.gate_reading import GateReading
from convoy_node.machine import puppet
from convoy_node.machine.errors import BadSettings, ConsulError
from convoy_node.node.consul import ConsulKey, WakeWatch
from convoy_node.node.settings import last_good
from convoy_node.resident import Resident
from no_signals import NoSignals


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resident:
    monkeypatch.setattr(resident, "Signals", NoSignals)
    monkeypatch.setattr(resident, "keep_good", lambda _settings, _path: None)
    file = tmp_path / "node.json"
    file.write_text(json.dumps({"puppet_gate_host": "compute7"}))
    return Resident(str(file), lambda _text: None)


@pytest.mark.parametrize("when", ["read", "run", "never"])
def test_a_signal_that_ends_the_service_starts_no_run_and_no_other_release(
    when: str, agent: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def note(what: str) -> None:
        done.append(what)
        agent._signals.is_over = agent._signals.is_over or what == when

    def read() -> NextAction:
        note("read")
        return NextAction("upgrade to v2", "open", 1.0)

    monkeypatch.setattr(agent._reading, "read", read)
    monkeypatch.setattr(agent, "_make_run", lambda _what: note("run"))
    monkeypatch.setattr(agent, "_release", Release(Path("/srv/releases/r1"), "r1", ""))
    monkeypatch.setattr(resident.releases, "linked", lambda home, _link: home / "releases/r2")
    monkeypatch.setattr(os, "execv", lambda program, _words: note(program))
    agent._act(agent._next_action())
    assert (
        done
        == {
            "read": ["read"],
            "run": ["read", "run"],
            "never": ["read", "run", "/srv/releases/r2/bin/convoy-node"],
        }[when]
    )


def test_the_trial_of_an_agent_reads_and_waits_and_starts_nothing(
    agent: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def read(only: bool = False) -> NextAction:
        done.append("read and change nothing" if only else "read")
        return NextAction("upgrade to v2", "open", 1.0)

    monkeypatch.setattr(agent._reading, "read", read)
    monkeypatch.setattr(agent, "_wait", lambda _seconds: done.append("wait"))
    monkeypatch.setattr(agent, "_make_run", lambda _what: done.append("run"))
    assert agent.try_once() == 0
    assert done == ["read and change nothing", "wait"]


@pytest.mark.parametrize("before", ["", "locked", "ended"])
@pytest.mark.parametrize(
    ("script", "has_worked"),
    [
        # The role in tasks/run.yml writes it.
        ("echo begun >last_run; echo locked >last_run", False),
        ("echo begun >last_run; exit 2", True),
        # Another run found the lock of this one.
        ("echo begun >last_run; echo locked >last_run; echo ended >last_run; exit 2", True),
        ("echo begun >last_run", True),
        # What systemctl does if it can't start the unit.
        ("exit 1", False),
        ("true", True),
    ],
)
def test_only_a_run_that_could_work_is_noted(
    script: str,
    has_worked: bool,
    before: str,
    agent: Resident,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*_arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["/bin/sh", "-c", script], cwd=tmp_path)

    if before:
        (tmp_path / "last_run").write_text(f"{before}\n")
        os.utime(tmp_path / "last_run", (1, 1))
    agent._settings = replace(agent._settings, data={"puppet_gate_lock_file": str(tmp_path / "node.lock")})
    ended: list[tuple[str, bool]] = []
    monkeypatch.setattr(agent._reading, "ended", lambda what, happened: ended.append((what, happened)))
    monkeypatch.setattr(agent._signals, "wait", lambda _seconds: time.sleep(0.01))
    monkeypatch.setattr(agent_run, "has_unit", lambda _unit: False)
    monkeypatch.setattr(agent_run, "start_program", start)
    agent._make_run("puppet")
    assert ended == [("puppet", has_worked)]


def test_a_run_that_was_under_way_already_counts_though_it_fails(agent: Resident, tmp_path: Path) -> None:
    settings = replace(agent._settings, data={"puppet_gate_lock_file": str(tmp_path / "node.lock")})
    (tmp_path / "last_run").write_text("begun\n")
    # systemctl waits for it.
    assert agent_run.has_worked(settings, agent_run.last_run(settings), 2)


def test_an_agent_run_notes_that_it_has_begun_and_ended(agent: Resident, tmp_path: Path) -> None:
    settings = replace(agent._settings, data={"puppet_gate_lock_file": str(tmp_path / "run/node.lock")})
    before = agent_run.last_run(settings)
    release = agent_run.Release(tmp_path, "r1", "/bin/false")
    code = agent_run.start(release, settings, str(tmp_path / "node.json")).wait()
    assert (before, code, agent_run.last_run(settings)[1]) == ((0, ""), 1, "begun")
    assert agent_run.has_worked(settings, before, code)
    # One with a closed gate takes no lock, so the role notes nothing.
    agent_run.note_end(settings)
    assert agent_run.last_run(settings)[1] == "ended"
    (tmp_path / "run/last_run").write_text("locked\n")
    agent_run.note_end(settings)
    assert agent_run.last_run(settings)[1] == "locked"


def test_settings_that_change_are_used_and_what_is_known_of_the_node_stays(agent: Resident, tmp_path: Path) -> None:
    before = agent._reading
    before.ended("upgrade to v2", has_worked=False)
    (tmp_path / "node.json").write_text(json.dumps({"puppet_gate_host": "compute7", "puppet_gate_interval": 60}))
    agent._reload()
    assert agent._reading.settings.interval == 60
    # An operator may have corrected what failed.
    assert agent._reading.facts == replace(before.facts, not_before=0.0)


def test_a_run_that_finds_the_lock_again_and_again_is_tried_less_often(agent: Resident) -> None:
    pauses = []
    for has_worked in (False, False, False, True, False):
        agent._reading.ended("puppet", has_worked)
        pauses.append(round(agent._reading.facts.not_before - time.monotonic()))
    assert pauses == [30, 60, 120, 0, 30]


@pytest.fixture
def puppet_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puppet's own lock, in a folder of the test."""
    lock = tmp_path / "puppet/state/agent_disabled.lock"
    lock.parent.mkdir(parents=True)
    for function in (puppet.keep_out, puppet.let_in, puppet.disabled_by_operator, puppet.is_enabled):
        monkeypatch.setattr(function, "__defaults__", ((str(lock.parent),),))
    monkeypatch.setattr("convoy_node.node.settings.FOLDER", str(tmp_path / "state"))
    return lock


@pytest.mark.parametrize("is_under_way", [True, False])
@pytest.mark.parametrize("schedule", ["external", "agent"])
def test_an_agent_that_is_stopped_keeps_out_puppet_s_own_runs(
    schedule: str,
    is_under_way: bool,
    agent: Resident,
    tmp_path: Path,
    puppet_lock: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = {"puppet_gate_lock_file": str(tmp_path / "node.lock")}
    agent._settings = replace(agent._settings, puppet_interval=None if schedule == "external" else 1800, data=data)
    agent._reading = GateReading(agent._settings, say=lambda _text: None)
    monkeypatch.setattr(agent._reading, "read", lambda: NextAction(None, "open", 1.0, keeps_puppet_out=False))
    monkeypatch.setattr(agent, "_wait", lambda _seconds: setattr(agent._signals, "is_over", True))
    with (tmp_path / "node.lock").open("w") as file:
        if is_under_way:
            fcntl.flock(file, fcntl.LOCK_EX)
        assert agent.run() == 0
    # Not each run that is under way runs Puppet, and then sets the lock again.
    assert puppet_lock.exists() == (schedule == "external")


@pytest.mark.parametrize("command", ["agent", "once", "run", "check"])
@pytest.mark.parametrize(
    ("now", "before", "is_kept_out"),
    [
        ({"puppet_gate_puppet_schedule": "external", "puppet_gate_rle": "a"}, None, True),
        ({"puppet_gate_puppet_shedule": "external"}, {"puppet_gate_puppet_schedule": "external"}, True),
        ("{", {"puppet_gate_puppet_schedule": "external"}, True),
        ("{", None, False),
        ({"puppet_gate_rle": "a"}, {"puppet_gate_puppet_schedule": "agent"}, False),
    ],
)
def test_settings_that_can_t_be_used_keep_out_puppet_s_own_runs(
    now: object,
    before: object,
    is_kept_out: bool,
    command: str,
    tmp_path: Path,
    puppet_lock: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "node.json"
    file.write_text(now if isinstance(now, str) else json.dumps(now))
    if before is not None:
        (tmp_path / "state").mkdir()
        Path(last_good(str(file))).write_text(json.dumps(before))
    monkeypatch.setattr(command_line, "report_bad_settings", lambda _error, _path: True)
    monkeypatch.setattr(resident, "Signals", NoSignals)
    assert command_line.main(["--settings", str(file), command]) == 78
    assert puppet_lock.exists() == (is_kept_out and command != "check")


def test_an_agent_without_its_token_fails_with_one_sentence_and_keeps_out_puppet_s_own_runs(
    tmp_path: Path, puppet_lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token, file = tmp_path / "token", tmp_path / "node.json"
    facts = {
        "puppet_gate_host": "compute7",
        "puppet_gate_token_file": str(token),
        "puppet_gate_puppet_schedule": "external",
    }
    file.write_text(json.dumps(facts))
    monkeypatch.setattr(resident, "Signals", NoSignals)
    reported: list[str] = []
    monkeypatch.setattr(command_line, "report_bad_settings", lambda error, _path: reported.append(str(error)))
    started: list[bool] = []
    monkeypatch.setattr(command_line, "start_again", lambda: started.append(True))
    reason = f"{file}: the token file {token} can't be read: No such file or directory. Write the Consul token of this node there."
    # Without systemd, nothing starts it again.
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert command_line.main(["--settings", str(file), "agent"]) == 78
    assert (reported, started) == ([reason], [])
    assert capsys.readouterr().err == f"convoy-node: {reason}\n"
    assert puppet_lock.exists()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "socket"))
    assert command_line.main(["--settings", str(file), "agent"]) == 78
    assert (reported, started) == ([reason] * 2, [True])
    # A release that is tried is not to blame.
    assert command_line.main(["--settings", str(file), "agent", "--trial"]) == 75
    file.write_text("{")
    monkeypatch.setattr(command_line, "_agent_code", lambda _path: pytest.fail("the settings are read again"))
    assert command_line.main(["--settings", str(file), "agent", "--trial"]) == 78
    assert len(reported) == 2


@pytest.mark.parametrize("wakes", [False, True])
def test_a_change_of_the_global_gate_keeps_puppet_out_at_once_and_is_read_over_some_seconds(
    wakes: bool, agent: Resident, tmp_path: Path, puppet_lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = agent._reading
    data = {**agent._settings.data, "puppet_gate_lock_file": str(tmp_path / "node.lock")}
    agent._settings = reading.settings = replace(agent._settings, puppet_interval=None, data=data)
    reading.is_answered, reading.entries = True, {key: ConsulKey(b"", 1) for key in reading.wake_keys}
    now, waits = [0.0], list[tuple[float, bool]]()

    def wait(watch: WakeWatch, seconds: float, _every: float, _pause: object) -> bool:
        waits.append((seconds, puppet_lock.exists()))
        # Another change of the global gate does not restart the wait, and the host's own key ends it.
        now[0] += 1.0 if len(waits) < 3 else seconds
        keys = reading.keys
        watch.changed = {keys.wake} if wakes and len(waits) == 2 else {keys.global_gate} if len(waits) < 3 else set()
        return bool(watch.changed)

    monkeypatch.setattr(WakeWatch, "wait", wait)
    monkeypatch.setattr("convoy_node.resident.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("convoy_node.resident.random.uniform", lambda _least, most: most)
    agent._wait(300.0)
    assert waits == [(330.0, False), (10.0, True), (9.0, True)][: 2 if wakes else 3]
    assert "closed: the global gate has changed" in puppet_lock.read_text()


@pytest.mark.parametrize("locked", ["node.lock", "puppet.lock", None])
@pytest.mark.parametrize("schedule", ["external", "agent"])
def test_a_lock_of_the_agent_that_is_removed_while_it_waits_is_set_again(
    schedule: str,
    locked: str | None,
    agent: Resident,
    tmp_path: Path,
    puppet_lock: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = puppet_lock
    # No one listens on this port, so the gate counts as closed.
    settings = {"puppet_gate_puppet_schedule": schedule, "upgrade_consul_port": 1}
    settings["puppet_gate_lock_file"] = str(tmp_path / "node.lock")
    (tmp_path / "node.json").write_text(json.dumps({"puppet_gate_host": "compute7", **settings}))
    agent._next_action()
    assert lock.exists() == (schedule == "external")
    assert not agent._has_reason(None)
    # As `puppet agent --enable` does.
    lock.unlink(missing_ok=True)
    monkeypatch.setattr(puppet, "RUN_LOCK", str(tmp_path / "puppet.lock"))
    # An agent run, or a run of Puppet over SSH, has removed it itself.
    with (tmp_path / (locked or "no.lock")).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert agent._has_reason(None) == (schedule == "external" and locked is None)
    agent._next_action()
    assert lock.exists() == (schedule == "external")
    # An operator who is faster wins.
    lock.unlink(missing_ok=True)
    lock.write_text('{"disabled_message":"its disk"}')
    assert agent._has_reason(None)
    assert not agent._has_reason("its disk")


def test_the_collection_and_the_agent_name_the_same_lock_of_puppet() -> None:
    assert puppet.RUN_LOCK == collection._OWN_LOCK


def test_systemd_learns_that_an_agent_works_whose_queries_take_long_to_begin(
    agent: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent._reading.is_answered = True
    monkeypatch.setattr(WakeWatch, "wait", lambda *_arguments: True)
    agent._wait(300.0)
    assert agent._watch is not None
    assert agent._watch._alive == agent._notifier.alive


@pytest.mark.parametrize("fails", ["query", "key"])
def test_a_wake_key_that_can_t_be_queried_is_tried_less_and_less_often(
    fails: str, agent: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    errors = [True]
    now = [0.0]
    lasts = [0.0]

    def ask(*_arguments: object) -> bool:
        now[0] += lasts[0]
        if errors[0]:
            raise ConsulError("Consul answered 429.")
        return True

    agent._reading.is_answered = True
    agent._reading.entries = {} if fails == "query" else {"another": ConsulKey(b"", 1)}
    monkeypatch.setattr(WakeWatch, "wait", ask)
    monkeypatch.setattr(agent._reading, "ensure_wake_key", ask)
    monkeypatch.setattr(agent, "_pause", lambda seconds, _disabled: pauses.append(seconds))
    monkeypatch.setattr("convoy_node.resident.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("convoy_node.resident.random.uniform", lambda _least, most: most)
    for _time in range(9):
        agent._wait(300.0)
    assert [round(one) for one in pauses] == [2, 4, 8, 16, 32, 64, 128, 256, 300]
    # What is due earlier does not wait.
    agent._wait(10.0)
    assert round(pauses[-1]) == 11
    # Each time, Consul is restarted after it took the query.
    lasts[0] = 400.0
    for _time in range(3):
        agent._wait(300.0)
        assert round(pauses[-1]) == 2
    errors[0], lasts[0] = False, 0.0
    agent._wait(300.0)
    errors[0] = True
    agent._wait(300.0)
    assert round(pauses[-1]) == 2


@pytest.mark.parametrize("is_service", [True, False])
def test_the_report_of_bad_settings_needs_only_folders_that_its_service_can_write(
    is_service: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, run = str(tmp_path / "elsewhere/node.lock"), str(tmp_path / "run")
    (tmp_path / "node.json").write_text(
        json.dumps({"puppet_gate_host": "compute7", "puppet_gate_lock_file": elsewhere})
    )
    # systemd sets it for RuntimeDirectory=convoy.
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    if is_service:
        monkeypatch.setenv("RUNTIME_DIRECTORY", run)
    program = tmp_path / "ansible"
    program.write_text(f'#!/bin/sh\necho "$ANSIBLE_LOCAL_TEMP" >{tmp_path}/folder\necho "$@" >{tmp_path}/words\n')
    program.chmod(0o755)
    monkeypatch.setattr(agent_run, "own_release", lambda: agent_run.Release(tmp_path, "r1", str(program)))
    monkeypatch.setattr(bad_settings, "last_good", lambda path: path)
    monkeypatch.setattr(GateReading, "read_keys", lambda _reading: {})
    assert bad_settings.report_bad_settings(BadSettings("it has a mistake"), str(tmp_path / "node.json"))
    folder = run if is_service else str(tmp_path / "elsewhere")
    assert (tmp_path / "folder").read_text() == f"{folder}/tmp\n"
    assert (f'"puppet_gate_lock_file": "{run}/node.lock"' in (tmp_path / "words").read_text()) == is_service
    assert (tmp_path / "elsewhere").exists() != is_service


def test_bad_settings_are_not_reported_while_an_upgrade_may_be_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, file = tmp_path / "node.lock", tmp_path / "node.json"
    file.write_text(json.dumps({"puppet_gate_host": "compute7", "puppet_gate_lock_file": str(lock)}))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))
    # It would end with an error.
    monkeypatch.setattr(agent_run, "start", None)
    monkeypatch.setattr(bad_settings, "last_good", lambda path: path)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not bad_settings.report_bad_settings(BadSettings("it has a mistake"), str(file))


@pytest.fixture
def signals() -> Iterator[None]:
    """Give the test's process its signals back."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(("is_outside", "has_systemd"), [(True, True), (True, False), (False, True)])
def test_it_ends_if_only_another_start_lets_it_lock_puppet_s_own_runs(
    is_outside: bool, has_systemd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_reason: str) -> bool:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(puppet, "keep_out", fail)
    monkeypatch.setattr(puppet, "is_outside_service", lambda: is_outside)
    if has_systemd:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    else:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setattr("convoy_node.resident.keep_good", lambda _settings, _path: None)
    settings = tmp_path / "node.json"
    # No one listens on this port, so the gate counts as closed.
    facts = {"puppet_gate_host": "compute7", "puppet_gate_puppet_schedule": "external", "upgrade_consul_port": 1}
    settings.write_text(json.dumps(facts))
    lines: list[str] = []
    agent = Resident(str(settings), lines.append)
    reads: list[None] = []
    read = GateReading.read

    def count(one: GateReading, only: bool = False) -> object:
        reads.append(None)
        if len(reads) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return read(one, only)

    monkeypatch.setattr(GateReading, "read", count)
    monkeypatch.setattr(Resident, "_wait", lambda _resident, _seconds: None)
    ends = is_outside and has_systemd
    assert agent.run() == int(ends)
    assert len(reads) == (1 if ends else 2)
    assert any("is read-only in it. The service ends" in line for line in lines) == ends
