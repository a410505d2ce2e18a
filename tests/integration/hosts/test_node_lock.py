# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""node_lock between real runs of ansible-playbook: it lasts over tasks, keeps others out, and dies with its run."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from devkit.kv import RawKV
from integration.support.runs.playbook import Live, Runner, Task, wait_until

DEBUG: Task = {"ansible.builtin.debug": {"msg": "between"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def lock(path: Path, **options: Any) -> Task:
    return {"convoy.upgrade.node_lock": {"path": str(path), **options}}


def wait(path: Path) -> Task:
    """Return a task that lasts until a file is there."""
    return {"ansible.builtin.wait_for": {"path": str(path), "sleep": 1, "timeout": 60}}


def is_free(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def holding(run: Runner, path: Path, tmp_path: Path) -> Live:
    """Start a run that has the lock and keeps it."""
    live = run.start([lock(path), wait(tmp_path / "go")])
    wait_until(lambda: path.exists() and path.read_text() and not is_free(path), what="the lock")
    return live


@pytest.mark.thorough
def test_it_lasts_from_task_to_task_until_it_is_freed(run: Runner, path: Path) -> None:
    played = run([lock(path), DEBUG, lock(path), lock(path, state="absent"), lock(path, state="absent")])
    assert [task.get("acquired") for task in played] == [True, None, True, False, False]
    assert [task.get("released") for task in played] == [False, None, False, True, False]
    assert [task["changed"] for task in played] == [False] * 5
    assert played[0]["holder"] == played[2]["holder"]
    assert set(played[0]["holder"]) == {"who", "since", "pid"}
    assert is_free(path)


@pytest.mark.thorough
@pytest.mark.one_release
@pytest.mark.parametrize("pipelining", ["True", "False"])
def test_taking_it_does_not_keep_ansible_waiting(pipelining: str, run: Runner, path: Path) -> None:
    began = time.monotonic()
    played = run([lock(path, lease=60)], environ={"ANSIBLE_PIPELINING": pipelining})
    assert played[0]["acquired"]
    assert time.monotonic() - began < 20
    # The run has ended, and no one freed it.
    wait_until(lambda: is_free(path), seconds=2, what="the end of the lock")


@pytest.mark.thorough
@pytest.mark.one_release
def test_a_second_run_is_informed_and_can_neither_take_nor_free_it(run: Runner, path: Path, tmp_path: Path) -> None:
    first = holding(run, path, tmp_path)
    played = run([lock(path), lock(path, state="absent"), lock(path)])
    assert [task["acquired"] for task in played] == [False, False, False]
    assert played[1]["released"] is False
    assert f"(process {first.process.pid})" in played[0]["holder"]["who"]
    assert played[0]["failed"] is False
    assert not is_free(path)
    (tmp_path / "go").touch()
    assert first.end(60).code == 0
    assert run([lock(path)])[0]["acquired"]


def test_a_run_that_is_killed_has_it_no_more(run: Runner, path: Path, tmp_path: Path) -> None:
    first = holding(run, path, tmp_path)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    wait_until(lambda: is_free(path), seconds=1, what="the end of the lock")
    (tmp_path / "go").touch()


@pytest.mark.thorough
def test_check_mode_reports_whether_the_lock_is_free(run: Runner, path: Path, tmp_path: Path) -> None:
    assert run([lock(path)], check=True)[0]["acquired"] is True
    assert not path.exists()
    first = holding(run, path, tmp_path)
    played = run([lock(path), lock(path, state="absent")], check=True)
    assert [task["acquired"] for task in played] == [False, False]
    assert not is_free(path)
    (tmp_path / "go").touch()
    first.end(60)


@pytest.mark.thorough
@pytest.mark.one_release
def test_a_file_that_cannot_be_had_is_a_failure(run: Runner, path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "target")
    result = run([lock(path)])[0]
    assert result["failed"]
    assert result["failure"]["code"] == "bad_lock_file"
    assert result["failure"]["message"].startswith(f"path: {path} can't be opened: ")


@pytest.mark.thorough
@pytest.mark.one_release
def test_the_holder_can_be_named_and_the_id_of_its_run_can_not(run: Runner, path: Path, tmp_path: Path) -> None:
    first = run.start([lock(path, who="ann", run="mine", process=1), wait(tmp_path / "go")])
    wait_until(lambda: path.exists() and path.read_text() and not is_free(path), what="the lock")
    result = run([lock(path, run="mine", process=1)])[0]
    assert not result["acquired"]
    assert result["holder"]["who"] == "ann"
    (tmp_path / "go").touch()
    assert first.end(60).code == 0
    # Who holds it sees the end of the run a moment later, as in the other tests.
    wait_until(lambda: is_free(path), seconds=2, what="the end of the lock")


@pytest.mark.parametrize(
    ("update", "at", "now", "message"),
    [
        (True, "", "v2", "another run has brought the node to v2 meanwhile"),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in (
                (False, "v1", "v2", "another run has brought the node to v2 meanwhile"),
                (False, "v2", "", "another run has begun an upgrade meanwhile"),
            )
        ),
    ],
)
def test_an_agent_run_ends_if_another_one_has_worked_since_it_read_the_version(
    update: bool, at: str, now: str, message: str, run: Runner, consul: RawKV, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text(f"{now}\n" if now else "")
    # What ask.yml has found out before the lock was taken.
    found = {
        "puppet_gate_answer": {"value": True, "version": "v2", "scope": "host"},
        "puppet_gate_may_run": True,
        "puppet_gate_update": update,
        "puppet_gate_at": at,
        "puppet_gate_target": "v2" if update else at,
        "puppet_gate_why": "open",
        "puppet_gate_is_pending": False,
    }
    given = {
        "puppet_gate_host": "web1",
        "puppet_gate_lock_file": str(path),
        "puppet_gate_version_file": str(tmp_path / "version"),
        "puppet_gate_health": False,
        # What runs, runs into this.
        "puppet_gate_validation_dir": str(path),
        "puppet_gate_services": str(tmp_path / "none"),
    }
    role = {"name": "convoy.upgrade.puppet_gate", "tasks_from": "run"}
    played = run([{"ansible.builtin.set_fact": found}, {"ansible.builtin.include_role": role}], extra_vars=given)
    assert not [task for task in played if task["failed"]], played.stdout
    assert f"web1: {message}" in played.stdout
    assert consul.tree("upgrade/hosts/") == {}
    assert is_free(path)
