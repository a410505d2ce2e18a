# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that are run with a time limit."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._node.process import last_lines, run_process


def gone(pid: int, within: float = 5) -> bool:
    """Return whether a killed process ends, which takes a moment on a busy machine."""
    stat = Path(f"/proc/{pid}/stat")
    until = time.monotonic() + within
    while True:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)


def test_code_and_both_outputs_are_kept_without_colours() -> None:
    ended = run_process(["sh", "-c", r"printf '\033[1;31mred\033[0m\n'; echo err >&2; exit 3"], 10)
    assert (ended.code, ended.output) == (3, "red\nerr\n")
    assert 0 < ended.seconds < 10


def test_output_that_is_no_utf8_does_no_harm() -> None:
    assert run_process(["printf", r"a\377b"], 10).output == "a�b"


def test_nothing_comes_from_standard_input() -> None:
    assert run_process(["cat"], 10).output == ""


@pytest.mark.parametrize(
    "child",
    ["sleep 61", "setsid sleep 61", "sh -c 'trap \"\" TERM; sleep 61; sleep 61'"],
    ids=["plain", "session", "deaf"],
)
def test_a_timeout_ends_all_that_the_program_started(
    child: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ansible_collections.convoy.upgrade.plugins.module_utils._node.process._SECONDS_TO_END", 0.5)
    began = time.monotonic()
    ended = run_process(["sh", "-c", f"echo begun; {child} & echo $! > {tmp_path}/pid; wait"], 2)
    assert ended.code is None
    assert ended.output == "begun\n"
    assert time.monotonic() - began < 30
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_daemon_that_it_started_is_left_alone(tmp_path: Path) -> None:
    script = f"(setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 5' >/dev/null 2>&1 &); sleep 60"
    assert run_process(["sh", "-c", script], 1).code is None
    pid = int((tmp_path / "pid").read_text())
    assert not gone(pid, 0)
    os.kill(pid, 9)


def test_a_program_that_cannot_be_run_is_an_error() -> None:
    with pytest.raises(UpgradeError, match=r"^/nowhere/at/all can't be run: No such file or directory\.$") as caught:
        run_process(["/nowhere/at/all"], 10)
    assert caught.value.code == "not_runnable"


def test_last_lines_leaves_empty_ones_out() -> None:
    assert last_lines("a\n\nb  \n\n c\n\n", 2) == "b\n c"
    assert last_lines("") == ""


def test_output_is_kept_although_a_daemon_has_it_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_collections.convoy.upgrade.plugins.module_utils._node.process._SECONDS_TO_END", 0.5)
    script = f"echo begun; (setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' &); sleep 60"
    assert run_process(["sh", "-c", script], 2).output == "begun\n"
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_program_is_over_when_it_ends_though_a_service_that_it_started_has_its_output_open(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/pid\necho begun\nexit 4\n")
    hook.chmod(0o755)
    began = time.monotonic()
    ended = run_process([str(hook)], 20)
    assert (ended.code, ended.output) == (4, "begun\n")
    assert time.monotonic() - began < 10
    pid = int((tmp_path / "pid").read_text())
    assert not gone(pid, 0)
    os.kill(pid, 9)


def test_head_and_tail_of_an_endless_output_are_kept() -> None:
    tracemalloc.start()
    try:
        ended = run_process(["sh", "-c", "echo begun; yes & sleep 2; kill $!; wait; echo ended"], 20)
        assert tracemalloc.get_traced_memory()[1] < 50 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert ended.code == 0
    assert ended.output.startswith("begun\ny\n") and ended.output.endswith("y\nended\n")
    assert "bytes are left out]" in ended.output
    assert len(ended.output) < 3 * 1024 * 1024


def test_a_program_that_closes_its_output_still_has_its_time() -> None:
    ended = run_process(["sh", "-c", "echo begun; exec >&- 2>&-; sleep 1; exit 5"], 20)
    assert (ended.code, ended.output) == (5, "begun\n")
    assert ended.seconds >= 1
