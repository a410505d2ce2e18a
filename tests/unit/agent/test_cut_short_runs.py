# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Agent runs that Ansible ends by itself. The tests of agent runs by a real Ansible have what the role notes and reports then."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
from convoy_node import agent_run, command_line
from convoy_node.agent_run import Release
from convoy_node.node.connection import Connection
from convoy_node.node.settings import NodeSettings

# What stands for Ansible: it notes what a run does, as the role in tasks/run.yml does.
ANSIBLE = """\
#!/bin/sh
[ "$1" != -c ] || exit 0
for word; do last=$word; done
echo "$last" >>FOLDER/runs
run=$(printf %s "$last" | sed -n 's/.*"puppet_gate_run": "\\([^"]*\\)".*/\\1/p')
note() { echo "$*" >FOLDER/run/last_run; }
case $last in *cut_short*) exit 2;; esac
"""


class Runs:
    """Agent runs of a node."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.ansible = folder / "ansible"
        self.lock = folder / "run/node.lock"
        data = {"puppet_gate_lock_file": str(self.lock), "puppet_gate_version_file": str(folder / "version")}
        self.settings = NodeSettings("web1", "web", Connection(), data)
        release = Release(folder, "r1", str(self.ansible))
        monkeypatch.setattr(agent_run, "own_release", lambda: release)
        monkeypatch.setattr(command_line, "_LOCK_SECONDS", 0.1)

    def __call__(self, script: str, *arguments: str) -> int:
        """Make one; return its exit code."""
        self.ansible.write_text(f"{ANSIBLE.replace('FOLDER', str(self.folder))}{script}\n")
        self.ansible.chmod(0o755)
        return command_line._run(self.settings, "/nonexistent", arguments)

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The variables that each run got last."""
        return [json.loads(line) for line in (self.folder / "runs").read_text().splitlines()]

    @property
    def last(self) -> str:
        return agent_run.last_run(self.settings)[1]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


@pytest.mark.parametrize("code", [4, 0, 250])
def test_a_run_that_ansible_cut_short_is_reported_by_one_more(code: int, runs: Runs) -> None:
    assert runs(f"note working $run; exit {code}") == (code or 1)
    first, second = runs.facts
    assert first.keys() == {"puppet_gate_run"}
    why = second["puppet_gate_cut_short"]
    assert why.startswith(f"Ansible ended the agent run (exit code {code}) without a report.")
    assert "puppet_gate_run" not in second
    # It is no longer under way.
    assert runs.last == "ended"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("note working $run; note ended; exit 2", 2),
        # The node reboots, or a release that the upgrade has brought goes on.
        ("note working $run; note ended", 0),
        # A closed gate, or a failure before the lock.
        ("exit 0", 0),
        ("exit 2", 2),
        # Another run has the lock, and may have noted its own work after this one had noted that.
        ("note locked", 0),
        ("note locked; note working 1-1", 0),
        # It was killed, also by an interrupt, which Ansible turns into an exit code.
        ("note working $run; kill -9 $$", -9),
        ("note working $run; kill -15 $$", -15),
        ("note working $run; exit 99", 99),
    ],
)
def test_no_other_run_is_taken_for_one(script: str, code: int, runs: Runs) -> None:
    assert runs(script) == code
    assert len(runs.facts) == 1


@pytest.mark.parametrize("arguments", [["--check"], ["--trial"]])
def test_neither_is_one_with_arguments_or_the_trial_of_a_release(arguments: list[str], runs: Runs) -> None:
    assert runs("note working $run; exit 4", *arguments) == 4
    assert "puppet_gate_run" not in (runs.folder / "runs").read_text()
    assert len((runs.folder / "runs").read_text().splitlines()) == 1


def test_nothing_is_reported_while_another_run_works_already(runs: Runs) -> None:
    runs.lock.parent.mkdir()
    with runs.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert runs("note working $run; exit 4") == 4
    assert len(runs.facts) == 1


def test_each_run_has_an_id_of_its_own() -> None:
    assert len({agent_run.new_id() for _number in range(1000)}) == 1000
