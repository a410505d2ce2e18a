# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The callback rollout where there is no rollout: what it shows of tasks, and what not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from integration.support.runs.playbook import Runner, wait_until

ROLLOUT = {"ANSIBLE_STDOUT_CALLBACK": "convoy.upgrade.rollout"}
TASKS = [
    {"name": "Go well", "ansible.builtin.command": "true"},
    {"name": "Talk", "ansible.builtin.debug": {"msg": "a\x1b[2Jb"}},
    {"name": "Talk of a variable", "ansible.builtin.debug": {"var": "folder"}},
    {
        "name": "Talk of items",
        "ansible.builtin.debug": {"msg": "it is {{ item }}"},
        "loop": ["one", "no", "three"],
        "when": "item != 'no'",
    },
    {"name": "Talk of variables of items", "ansible.builtin.debug": {"var": "item"}, "loop": ["four"]},
    {"name": "Show", "convoy.upgrade.show": {"lines": ["role  hosts"]}},
    {"name": "Be forgiven", "ansible.builtin.command": "false", "ignore_errors": True},
    {"name": "Pass over", "ansible.builtin.command": "true", "when": False},
    {"name": "Write", "ansible.builtin.copy": {"content": "new\x1b[2J\n", "dest": "{{ folder }}/file"}},
]
SECRET = {"name": "Hide", "ansible.builtin.shell": "echo topsecret; false", "no_log": True}
LOOP = {
    "name": "Take items",
    "ansible.builtin.shell": "echo said by {{ item }}; test {{ item }} = one",
    "loop": ["one", "two"],
    "ignore_errors": False,
}


@pytest.mark.thorough
def test_only_what_is_there_to_be_shown_is_shown(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old\n")
    shown = run.start([*TASKS, LOOP], diff=True, extra_vars={"folder": str(tmp_path)}, environ=ROLLOUT).end()
    assert shown.code == 2
    lines = shown.stdout.splitlines()
    assert "localhost: a?[2Jb" in lines
    printed = [line.removeprefix("localhost: ") for line in lines if line.startswith("localhost: ")]
    assert printed == ["a?[2Jb", f"folder: {tmp_path}", "it is one", "it is three", "item: four"]
    assert "role  hosts" in lines
    assert "-old" in lines
    assert "+new?[2J" in lines
    at = next(number for number, line in enumerate(lines) if line.startswith("localhost failed at 'Take items'"))
    assert "non-zero return code" in lines[at + 2]
    assert [lines[at + 1], *lines[at + 3 : at + 5]] == ["  item two:", "    stdout:", "      said by two"]
    assert lines[-1] == "failed: localhost"
    for none in ("Go well", "Be forgiven", "Pass over", "ok:", "TASK", "PLAY", "\x1b", "said by one"):
        assert none not in shown.stdout, shown.stdout


@pytest.mark.thorough
def test_each_task_has_a_line_where_that_is_asked_for_and_secrets_stay_hidden(run: Runner, tmp_path: Path) -> None:
    variables = {"folder": str(tmp_path)}
    secret = {**SECRET, "ignore_errors": False}
    shown = run.start([*TASKS, secret], extra_vars=variables, environ=ROLLOUT, verbosity=1).end()
    assert shown.code == 2
    lines = shown.stdout.splitlines()
    for there in ("changed: localhost: Go well", "skipped: localhost: Pass over", "ok: localhost: Show"):
        assert there in lines, shown.stdout
    assert any(line.startswith("localhost failed at 'Hide'") for line in lines)
    assert "no_log" in shown.stdout
    assert "topsecret" not in shown.stdout


@pytest.mark.thorough
def test_a_run_that_reaches_no_host_says_so(run: Runner) -> None:
    shown = run.start([TASKS[0]], play={"hosts": "compute7"}, environ=ROLLOUT).end()
    assert shown.code == 0, shown.stdout
    assert "No host was matched, so nothing was done: look at -i and --limit." in " ".join(shown.stdout.split())


@pytest.mark.thorough
def test_a_run_leaves_neither_files_nor_processes(run: Runner) -> None:
    # Not pytest's folder: ansible-core 2.21 needs a Unix socket in TMPDIR, whose path must be shorter than 108 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        shown = run.start([TASKS[0]], environ={**ROLLOUT, "TMPDIR": temporary}).end()
        assert shown.code == 0, shown.stdout
        assert shown.stdout == ""
        wait_until(lambda: not any(Path(temporary).iterdir()), 10, "the removal of all files")
