# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases of the agent on a node: installed as a whole or not at all, and removed when no one needs them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import stat
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from convoy_node import agent_run, command_line, releases
from convoy_node.agent_run import Release
from convoy_node.machine.errors import ConsulError, InstallError
from convoy_node.machine.output import make_output_optional
from convoy_node.machine.processes import run_limited
from convoy_node.node.connection import Connection
from convoy_node.node.consul import ConsulKey
from convoy_node.node.settings import NodeSettings, read_settings
from convoy_node.node.state import is_rebooting
from convoy_node.releases import TrialResult


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "opt"


def source(folder: Path, name: str, python: str = "venv/bin/python") -> Path:
    found = folder / f"source-{name}"
    (found / "agent").mkdir(parents=True)
    (found / "agent/file").write_text(name)
    (found / "release.json").write_text(json.dumps({"name": name, "python": python}))
    return found


def names(home: Path) -> list[str]:
    return sorted(one.name for one in (home / "releases").iterdir())


def current(home: Path) -> str:
    found = releases.linked(home, releases.CURRENT)
    assert found is not None
    return found.name


def test_the_first_release_is_active_even_if_it_is_only_staged(home: Path, tmp_path: Path) -> None:
    folder, is_active = releases.install(source(tmp_path, "r1"), home, stage=True)
    assert (folder, is_active) == (home / "releases/r1", True)
    release = Release.at(folder)
    assert (release.name, release.home) == ("r1", home)
    assert release.python == str(folder / "venv/bin/python")
    assert releases.next_release(release) is None


def test_a_staged_release_waits_until_it_is_tried(home: Path, tmp_path: Path) -> None:
    releases.install(source(tmp_path, "r1"), home)
    _folder, is_active = releases.install(source(tmp_path, "r2"), home, stage=True)
    assert not is_active
    assert current(home) == "r1"
    new = releases.next_release(Release.at(home / "releases/r1"))
    assert new is not None
    assert new.name == "r2"
    (new.folder / releases.REFUSED).write_text("it can't report")
    assert releases.next_release(Release.at(home / "releases/r1")) is None
    # Installed again, it gets another chance.
    again = source(tmp_path / "again", "r2")
    releases.install(again, home, stage=True)
    assert releases.next_release(Release.at(home / "releases/r1")) is not None


@pytest.mark.parametrize("stage", [True, False])
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_package_that_goes_back_ends_the_trial_of_the_release_before(
    is_refused: bool, stage: bool, home: Path, tmp_path: Path
) -> None:
    releases.install(source(tmp_path, "r1"), home)
    newer, _is_active = releases.install(source(tmp_path, "r2"), home, stage=True)
    if is_refused:
        (newer / releases.REFUSED).write_text("it can't report")
    assert releases.install(source(tmp_path / "again", "r1"), home, stage=stage) == (home / "releases/r1", True)
    assert (current(home), names(home)) == ("r1", ["r1"])
    # The role looks for this link too.
    assert not (home / releases.NEXT).is_symlink()


def test_the_release_before_stays_and_older_ones_go(home: Path, tmp_path: Path) -> None:
    for name in ("r1", "r2", "r3"):
        releases.install(source(tmp_path, name), home)
    assert (current(home), names(home)) == ("r3", ["r2", "r3"])
    # Going back, as the docs say, is an installation too.
    releases.install(home / releases.PREVIOUS, home)
    assert (current(home), names(home)) == ("r2", ["r2", "r3"])


@pytest.mark.parametrize("file", [agent_run.RUN_LOCK, "release.json"])
def test_a_release_that_a_run_is_made_with_stays(file: str, home: Path, tmp_path: Path) -> None:
    releases.install(source(tmp_path, "r1"), home)
    if file == "release.json":
        # An older agent has installed it.
        (home / "releases/r1" / agent_run.RUN_LOCK).unlink()
    with (home / "releases/r1" / file).open("rb") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        for name in ("r2", "r3"):
            releases.install(source(tmp_path, name), home)
        assert names(home) == ["r1", "r2", "r3"]
    releases.install(source(tmp_path, "r4"), home)
    assert names(home) == ["r3", "r4"]


def test_another_user_can_neither_keep_a_release_nor_take_the_protection_of_a_run_away(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _is_active = releases.install(source(tmp_path, "r1"), home)
    file = folder / agent_run.RUN_LOCK
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setattr(agent_run, "command", lambda *_given: ["sleep", "30"])
    settings = NodeSettings("web1", "web", Connection(), {"puppet_gate_lock_file": str(tmp_path / "run/node.lock")})
    for is_old in (False, True):
        if is_old:
            # An older agent has installed it: the first run creates the file.
            file.unlink()
        # What any user can open.
        with (folder / "release.json").open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            run = agent_run.start(Release.at(folder), settings, "node.json")
            try:
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
                fcntl.flock(other, fcntl.LOCK_UN)
                assert releases.is_in_use(folder)
            finally:
                run.kill()
                run.wait()
            fcntl.flock(other, fcntl.LOCK_EX)
            assert not releases.is_in_use(folder)


def test_a_run_of_a_checkout_leaves_nothing_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_run, "command", lambda *_given: ["true"])
    settings = NodeSettings("web1", "web", Connection(), {"puppet_gate_lock_file": str(tmp_path / "run/node.lock")})
    (tmp_path / "checkout").mkdir()
    assert agent_run.start(Release.at(tmp_path / "checkout"), settings, "node.json").wait() == 0
    assert not [*(tmp_path / "checkout").iterdir()]


def test_what_an_interrupted_installation_left_is_replaced(home: Path, tmp_path: Path) -> None:
    releases.install(source(tmp_path, "r1"), home)
    for left in ("releases/.r2.new/agent", "releases/r2"):
        (home / left).mkdir(parents=True)
    (home / ".current.new").symlink_to("nowhere")
    releases.install(source(tmp_path, "r2"), home)
    assert (home / "releases/r2/agent/file").read_text() == "r2"
    assert names(home) == ["r1", "r2"]


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"name": ""}', '{"name": "a/b"}', '{"name": ".x"}', '{"python": 1}']
)
def test_what_is_no_release_is_refused_and_changes_nothing(text: str | None, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    if text is not None:
        (folder / "release.json").write_text(text)
    with pytest.raises(InstallError, match="enroll the host again"):
        releases.install(folder, home)
    assert not home.exists()


def test_two_installations_at_once_are_refused(home: Path, tmp_path: Path) -> None:
    with releases.alone(home), pytest.raises(InstallError, match="Another installation works"):
        releases.install(source(tmp_path, "r1"), home)


def test_a_program_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"setsid sh -c 'sleep 2; touch {mark}' & sleep 60"
    with pytest.raises(subprocess.TimeoutExpired):
        run_limited(["sh", "-c", script], 0.5)
    time.sleep(2.5)
    assert not mark.exists()
    assert run_limited(["sh", "-c", "exit 3"], 5) == 3


class Record:
    """Consul, with the record of the host that the agent run of the new release has left."""

    found: dict[str, str] | None = None
    gate = b"True"
    # Requests of the given kind that have no answer, the first ones.
    failures: ClassVar[dict[str, int]] = {"read": 0, "get": 0}

    def __init__(self, _connection: Connection) -> None:
        pass

    def get(self, key: str) -> ConsulKey | None:
        assert key == "upgrade/hosts/compute7"
        self._answer("get")
        return ConsulKey(json.dumps(self.found).encode(), 1) if self.found is not None else None

    def read(self, _keys: Sequence[str], folder: str = "") -> dict[str, ConsulKey]:  # noqa: ARG002  of Consul
        self._answer("read")
        keys = {
            "config_state/enable_puppet/host/compute7": self.gate,
            "upgrade/hold/": b"0123",
            "upgrade/schema": b"1",
        }
        return {key: ConsulKey(value, 1) for key, value in keys.items()}

    def _answer(self, what: str) -> None:
        self.failures[what] -= 1
        if self.failures[what] >= 0:
            raise ConsulError("Consul is away.")


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> type[Record]:
    """Consul with the report of a release r2, and with an open gate."""
    monkeypatch.setattr(releases, "Consul", Record)
    monkeypatch.setattr(Record, "found", {"release": "r2", "state": "upgraded"})
    monkeypatch.setattr(Record, "gate", b"True")
    monkeypatch.setattr(Record, "failures", {"read": 0, "get": 0})
    monkeypatch.setattr(releases, "_REPORT_AGAIN", 0.01)
    return Record


@pytest.fixture
def node(home: Path, tmp_path: Path) -> NodeSettings:
    """A node with the release r1, which is active, and r2, which is staged; the script in ``tmp_path`` stands for r2."""
    releases.install(source(tmp_path, "r1"), home)
    new = source(tmp_path, "r2")
    (new / "bin").mkdir()
    (new / "bin/convoy-node").write_text(f"#!/bin/sh\n. {tmp_path}/script\n")
    (new / "bin/convoy-node").chmod(0o755)
    (tmp_path / "script").write_text("")
    releases.install(new, home, stage=True)
    (tmp_path / "version").write_text("")
    (tmp_path / "token").write_text("a-token")
    facts = {
        "puppet_gate_host": "compute7",
        "puppet_gate_role": "compute",
        "puppet_gate_lock_file": str(tmp_path / "run/node.lock"),
        "puppet_gate_version_file": str(tmp_path / "version"),
        "puppet_gate_token_file": str(tmp_path / "token"),
    }
    (tmp_path / "node.json").write_text(json.dumps(facts))
    return read_settings(str(tmp_path / "node.json"))


def tried(home: Path, node: NodeSettings) -> tuple[TrialResult, str]:
    old, new = Release.at(home / "releases/r1"), Release.at(home / "releases/r2")
    return releases.try_release(old, new, node, str(home.with_name("node.json")))


@pytest.mark.parametrize(
    ("found", "script", "reboots", "result", "text"),
    [
        ({"release": "r2", "state": "upgraded"}, "", False, TrialResult.ACTIVE, ""),
        # Whether the upgrade succeeds does not count, only that the release can report it.
        ({"release": "r2", "state": "failed"}, "", False, TrialResult.ACTIVE, ""),
        (
            {"release": "r2", "state": "started"},
            "",
            False,
            TrialResult.REFUSED,
            "wrote no report for compute7, whose record still says started",
        ),
        ({"release": "r1", "state": "upgraded"}, "", False, TrialResult.REFUSED, "wrote no report for compute7"),
        (None, "", False, TrialResult.REFUSED, "wrote no report for compute7"),
        (
            {"release": "r2", "state": "upgraded"},
            "exit 3",
            False,
            TrialResult.REFUSED,
            "its convoy-node check ended with 3",
        ),
        ({"release": "r2", "state": "started"}, "", True, TrialResult.REBOOTS, ""),
        # The command for jobs that has a mistake is not the release's.
        ({"release": "r2", "state": "upgraded"}, '[ "$3" != check ] || exit 65', False, TrialResult.ACTIVE, ""),
        # An agent that can't wait for the gate would be the last one that this node has.
        (
            {"release": "r2", "state": "upgraded"},
            '[ "$3" != agent ] || exit 1',
            False,
            TrialResult.REFUSED,
            "its convoy-node agent ended with 1",
        ),
        # The old release can read Consul, and the new one can't.
        (
            {"release": "r2", "state": "upgraded"},
            "exit 75",
            False,
            TrialResult.REFUSED,
            "its convoy-node check ended with 75",
        ),
    ],
)
def test_a_release_becomes_active_only_if_it_has_reported(
    found: dict[str, str] | None,
    script: str,
    reboots: bool,
    result: TrialResult,
    text: str,
    record: type[Record],
    node: NodeSettings,
    home: Path,
    tmp_path: Path,
) -> None:
    record.found = found
    (tmp_path / "script").write_text(script)
    if reboots:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        (tmp_path / "version.reboot").write_text(f"v2 {boot}")
    outcome, reason = tried(home, node)
    assert (outcome, text in reason, bool(reason)) == (result, True, bool(text))
    assert current(home) == ("r2" if result is TrialResult.ACTIVE else "r1")
    assert (home / "releases/r2" / releases.REFUSED).exists() == (result is TrialResult.REFUSED)
    # After a reboot, it is tried again.
    assert (releases.next_release(Release.at(home / "releases/r1")) is not None) == (result is TrialResult.REBOOTS)


@pytest.mark.usefixtures("record")
def test_the_trial_of_a_release_may_take_as_long_as_all_that_it_runs(
    node: NodeSettings, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(releases, "run_limited", lambda _command, seconds: limits.append(seconds) or 0)
    files = ["hooks/drain.d/10-a", "hooks/drain.d/20-b", "hooks/after.d/10-c", "validation.d/10-d", "validation.d/20-e"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = {
        "puppet": 10,
        "lock": 20,
        "package": 30,
        "package_lock": 40,
        "services": 50,
        "hooks": 1000,
        "validation": 60,
    }
    data = {
        **node.data,
        **{f"puppet_gate_{name}_timeout": seconds for name, seconds in names.items()},
        "puppet_gate_hooks_dir": str(tmp_path / "hooks"),
        "puppet_gate_validation_dir": str(tmp_path / "validation.d"),
    }
    tried(home, replace(node, data=data, services="/srv/services"))
    assert limits[-1] == releases._TRIAL_SECONDS + 10 + 20 + 30 + 40 + 50 + 3 * 1000 + 2 * 60


@pytest.mark.parametrize("installed", ["r1", "r3"])
@pytest.mark.usefixtures("record")
def test_a_release_that_is_tried_while_another_one_is_installed_does_not_become_active(
    installed: str, node: NodeSettings, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: Sequence[str], seconds: float) -> int:
        if words[3] == "run":
            releases.install(source(tmp_path / "meanwhile", installed), home, stage=installed == "r1")
        return run_limited(words, seconds)

    monkeypatch.setattr(releases, "run_limited", run)
    with (home / "releases/r2" / agent_run.RUN_LOCK).open("rb") as used:
        # As its agent run does.
        fcntl.flock(used, fcntl.LOCK_SH)
        assert tried(home, node) == (TrialResult.REPLACED, "it has reported")
    assert current(home) == installed
    assert not (home / releases.NEXT).is_symlink()


def test_a_trial_that_meets_the_lock_of_another_run_for_a_moment_refuses_no_release(
    record: type[Record], node: NodeSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: Sequence[str], seconds: float) -> int:
        code = run_limited(words, seconds)
        if words[3] == "run":
            file = agent_run.lock_file(node).with_name("last_run")
            file.parent.mkdir()
            file.write_text("locked\n")
        return code

    record.found = {"release": "r1", "state": "started"}
    monkeypatch.setattr(releases, "run_limited", run)
    assert tried(home, node) == (TrialResult.POSTPONED, "another agent run had the lock of this node")
    assert not (home / "releases/r2" / releases.REFUSED).exists()


def test_an_installation_that_removes_the_release_that_is_tried_refuses_none(
    record: type[Record], node: NodeSettings, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: Sequence[str], seconds: float) -> int:
        if words[3] == "agent":
            releases.install(source(tmp_path / "meanwhile", "r3"), home)
        return run_limited(words, seconds)

    record.found = {"release": "r1", "state": "started"}
    monkeypatch.setattr(releases, "run_limited", run)
    result, reason = tried(home, node)
    assert (result, "bin/convoy-node can't be run" in reason) == (TrialResult.REPLACED, True)
    assert current(home) == "r3"


@pytest.mark.parametrize("fails", [False, True])
def test_a_release_that_an_installation_has_activated_meanwhile_is_active(
    record: type[Record],
    node: NodeSettings,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fails: bool,
) -> None:
    def run(words: Sequence[str], seconds: float) -> int:
        code = run_limited(words, seconds)
        if words[3] == "run":
            releases.install(source(tmp_path / "meanwhile", "r2"), home)
        return code

    record.found = {"release": "r1" if fails else "r2", "state": "upgraded"}
    monkeypatch.setattr(releases, "run_limited", run)
    assert tried(home, node) == (TrialResult.ACTIVE, "its agent run wrote no report for compute7" if fails else "")
    assert current(home) == "r2"


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.usefixtures("record")
def test_a_release_that_has_reported_waits_for_an_installation_before_it_becomes_active(
    ends: bool, node: NodeSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if ends:
            installation.close()

    monkeypatch.setattr(releases, "_INSTALL_SECONDS", 0.3)
    monkeypatch.setattr("convoy_node.machine.lock_file.time.sleep", pause)
    with contextlib.ExitStack() as installation:
        installation.enter_context(releases.alone(home))
        result, reason = tried(home, node)
    assert (result, bool(reason)) == ((TrialResult.ACTIVE, False) if ends else (TrialResult.REPORTED, True))
    assert current(home) == ("r2" if ends else "r1")
    assert pauses
    # It is not refused, and stays staged.
    assert not (home / "releases/r2" / releases.REFUSED).exists()
    assert releases.linked(home, releases.NEXT) == (None if ends else home / "releases/r2")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("why", ["gate", "disabled", "lock", "Consul", "settings", "token"])
def test_a_release_is_not_refused_while_no_release_could_report(
    why: str,
    when: str,
    record: type[Record],
    node: NodeSettings,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record.found = {"release": "r1", "state": "started"}
    ran = tmp_path / "ran"
    (tmp_path / "script").write_text(f"touch {ran}\n")
    monkeypatch.setattr(releases, "_LOCK_SECONDS", 0.2)
    lock = tmp_path / "run/node.lock"
    lock.parent.mkdir()
    with lock.open("w") as file:

        def begin() -> None:
            if why == "lock":
                fcntl.flock(file, fcntl.LOCK_EX)
            elif why == "disabled":
                monkeypatch.setattr("convoy_node.machine.puppet.disabled_by_operator", lambda: "its disk")
            elif why == "gate":
                record.gate = b"False"
            elif why == "settings":
                (tmp_path / "node.json").write_text("{")
            elif why == "token":
                (tmp_path / "token").write_text("")
            else:
                record.failures["read"] = 1

        def run(words: Sequence[str], seconds: float) -> int:
            code = run_limited(words, seconds)
            begin()
            return code

        if when == "before":
            begin()
        else:
            monkeypatch.setattr(releases, "run_limited", run)
        outcome, reason = tried(home, node)
    reasons = {
        "gate": "is False",
        "disabled": "its disk",
        "lock": "has the lock",
        "Consul": "Consul is away",
        "settings": "is not JSON",
        "token": "is empty",
    }
    assert (outcome, reasons[why] in reason) == (TrialResult.POSTPONED, True), reason
    assert ran.exists() == (when == "meanwhile")
    assert not (home / "releases/r2" / releases.REFUSED).exists()
    assert releases.next_release(Release.at(home / "releases/r1")) is not None


def test_consul_that_is_away_for_a_moment_refuses_no_release(
    record: type[Record], node: NodeSettings, home: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    (tmp_path / "script").write_text(f"[ -e {first} ] || {{ touch {first}; exit 75; }}\n")
    record.failures["get"] = 2
    assert tried(home, node) == (TrialResult.ACTIVE, "")


@pytest.mark.usefixtures("record")
@pytest.mark.parametrize("code", [75, 78])
@pytest.mark.parametrize("command", ["check", "agent", "run"])
def test_settings_or_a_token_that_can_t_be_read_for_a_moment_refuse_no_release(
    command: str, code: int, node: NodeSettings, home: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    script = f'[ "$3" != {command} ] || [ -e {first} ] || {{ touch {first}; exit {code}; }}\n'
    (tmp_path / "script").write_text(f'echo "$3" >> {tmp_path}/commands\n{script}')
    assert tried(home, node) == (TrialResult.ACTIVE, "")
    commands = (tmp_path / "commands").read_text().split()
    assert list(dict.fromkeys(commands)) == ["check", "agent", "run"]
    assert [one for one in commands if commands.count(one) > 1] == [command, command]


def test_an_outage_at_the_moment_of_the_report_refuses_no_release(
    record: type[Record], node: NodeSettings, home: Path
) -> None:
    record.failures["get"] = 2
    record.found = {"release": "r2", "state": "started"}
    assert tried(home, node) == (TrialResult.POSTPONED, "Consul is away.")
    assert not (home / "releases/r2" / releases.REFUSED).exists()


def test_a_report_that_can_t_be_read_postpones_the_trial(
    record: type[Record], node: NodeSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "_REPORT_SECONDS", 0.0)
    record.failures["get"] = 1000
    assert tried(home, node) == (TrialResult.POSTPONED, "Consul is away.")
    assert not (home / "releases/r2" / releases.REFUSED).exists()


@pytest.mark.parametrize(
    ("left", "code", "arguments", "version", "goes_on"),
    [
        ("r2 1-2\n", 0, [], "", True),
        # An agent run that only reports a hold, or finds the lock of the node taken, leaves its upgrade to no other release.
        (None, 0, [], "", False),
        ("r3 1-2\n", 0, [], "", False),
        ("r2 1-2\n", 2, [], "", False),
        ("r2 1-2\n", 0, ["--check"], "", False),
        ("r2 1-2\n", 0, [], "v2", False),
    ],
)
def test_only_an_agent_run_that_leaves_its_upgrade_to_a_release_starts_a_trial(
    left: str | None,
    code: int,
    arguments: list[str],
    version: str,
    goes_on: bool,
    node: NodeSettings,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "version").write_text(version)
    # An earlier run left this and was killed, or has not read it yet.
    (home / releases.TRIAL).write_text("r2 3-4\n")
    trials: list[str] = []

    def start(*_arguments: object) -> subprocess.Popen[bytes]:
        if left is not None:
            (home / releases.TRIAL).write_text(left)
        return subprocess.Popen(["sh", "-c", f"exit {code}"])

    def try_release(_old: Release, new: Release, *_more: object) -> tuple[TrialResult, str]:
        trials.append(new.name)
        return TrialResult.POSTPONED, "Consul is away."

    monkeypatch.setattr(command_line.agent_run, "own_release", lambda: Release.at(home / "releases/r1"))
    monkeypatch.setattr(command_line.agent_run, "start", start)
    monkeypatch.setattr(command_line.agent_run, "new_id", lambda: "1-2")
    monkeypatch.setattr(command_line.agent_run, "runtime_problem", lambda _release, _settings: None)
    monkeypatch.setattr(releases, "try_release", try_release)
    assert command_line._run(node, "/nonexistent", arguments) == (1 if goes_on else code)
    assert trials == (["r2"] if goes_on else [])
    # The next agent run does not find what this one has left.
    assert not (goes_on and (home / releases.TRIAL).exists())
    if left is None:
        assert (home / releases.TRIAL).read_text() == "r2 3-4\n"


def test_a_text_with_letters_that_the_locale_lacks_is_printed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line.agent_run, "has_systemd", lambda: False)
    shown = io.BytesIO()
    given = io.TextIOWrapper(shown, encoding="iso-8859-1")
    monkeypatch.setattr("sys.stdout", given)
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.BytesIO()))
    make_output_optional()
    assert command_line.main(["install", "--home", str(home), str(source(tmp_path, "r\u017e"))]) == 0
    assert shown.getvalue() == b"r\\u017e is active\n"
    assert not given.closed


def test_a_reboot_is_one_of_this_boot(tmp_path: Path) -> None:
    version = tmp_path / "version"
    assert not is_rebooting(str(version))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    for text, found in ((f"v2 {boot}", True), ("v2 another\n", False), ("", False), (boot, False)):
        (tmp_path / "version.reboot").write_text(text)
        assert is_rebooting(str(version)) == found


@pytest.mark.parametrize(
    ("result", "code", "printed"),
    [
        (TrialResult.ACTIVE, 0, "the release r2 was activated by an installation, though its trial failed: it is so."),
        (TrialResult.REBOOTS, 0, "the node reboots, and the release r2 is tried again after the boot"),
        (
            TrialResult.REPORTED,
            0,
            "r2 has reported, but is not active: it is so. The next agent run of an upgrade of this node tries it again",
        ),
        (TrialResult.REPLACED, 0, "r2 does not become active, because {home}/next does not name it any more: it is so"),
        (
            TrialResult.POSTPONED,
            1,
            "no release can report now: it is so. The next agent run of the upgrade tries r2 again",
        ),
        (TrialResult.REFUSED, 7, "the release r2 can't report: it is so. The node stays at r1"),
    ],
)
def test_each_end_of_a_trial_has_its_sentence_and_exit_code(
    result: TrialResult,
    code: int,
    printed: str,
    node: NodeSettings,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (Path(node.version_file)).write_text("")

    def start(*_arguments: object) -> subprocess.Popen[bytes]:
        is_first = not started
        started.append("run")
        if is_first:
            (home / releases.TRIAL).write_text("r2 1-2\n")
        return subprocess.Popen(["sh", "-c", "exit 0" if is_first else "exit 7"])

    started: list[str] = []
    monkeypatch.setattr(command_line.agent_run, "own_release", lambda: Release.at(home / "releases/r1"))
    monkeypatch.setattr(command_line.agent_run, "start", start)
    monkeypatch.setattr(command_line.agent_run, "new_id", lambda: "1-2")
    monkeypatch.setattr(command_line.agent_run, "runtime_problem", lambda _release, _settings: None)
    monkeypatch.setattr(releases, "try_release", lambda *_given: (result, "it is so."))
    assert command_line._run(node, "/nonexistent", []) == code
    assert printed.format(home=home) in capsys.readouterr().out
