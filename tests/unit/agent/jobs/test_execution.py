# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands as real processes: their arguments, their output, and that nothing of them is left at their end."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from convoy_node.jobs.execution import HEAD, TAIL, Output, clean, environment, execute

Install = Callable[..., Path]


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_gone(pid: int) -> bool:
    until = time.monotonic() + 10
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_there(pid)


def test_arguments_come_as_json_and_as_variables_and_never_through_a_shell(install: Install) -> None:
    arguments = {"service": "$(touch /tmp/x); `id`\n'\"", "grace": 30, "force": True, "disks": ["a b", "c"]}
    program = install("a", "cat; echo; env | sort; echo $#")
    found = execute(program, arguments, 60, {"CONVOY_JOB": "j1"})
    lines = found.output.split("\n")
    assert json.loads(lines[0]) == arguments
    assert (
        "CONVOY_ARG_GRACE=30" in lines and "CONVOY_ARG_FORCE=true" in lines and 'CONVOY_ARG_DISKS=["a b", "c"]' in lines
    )
    assert "CONVOY_ARG_SERVICE=$(touch /tmp/x); `id`" in lines and "CONVOY_JOB=j1" in lines
    assert lines[-2] == "0"
    assert (found.exit_status, found.is_timeout) == (0, False)


def test_nothing_of_the_agent_s_environment_is_passed_on(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "secret")
    assert "secret" not in execute(install("a", "env"), {}, 60, {}).output
    assert set(environment({}, {})) == {"PATH", "LC_ALL", "HOME"}


@pytest.mark.parametrize("has_memory", [True, False])
def test_a_command_runs_without_a_folder_for_temporary_files(
    has_memory: bool, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = install("a", "cat")

    def refuse(_name: str) -> int:
        raise PermissionError(13, "Permission denied")

    if has_memory:
        monkeypatch.setattr(tempfile, "tempdir", str(trusted / "missing"))
    else:
        # A kernel may refuse such files.
        monkeypatch.setattr(os, "memfd_create", refuse)
    arguments = {"text": "x" * 100_000}
    assert execute(program, arguments, 60, {}).output.startswith('{"text": "xxx')


def test_exit_status_and_both_outputs_are_kept(install: Install) -> None:
    found = execute(install("a", "echo out; echo err >&2; exit 3"), {}, 60, {})
    assert (found.exit_status, found.output) == (3, "out\nerr\n")
    assert execute(install("b", "kill -9 $$"), {}, 60, {}).exit_status == -9


def test_a_command_is_killed_at_its_time_limit_with_all_that_it_started(install: Install, trusted: Path) -> None:
    pids = trusted / "pids"
    program = install("a", f"echo begun; sleep 300 & echo $! >'{pids}'; setsid sleep 300 & echo $! >>'{pids}'; wait")
    begun = time.monotonic()
    found = execute(program, {}, 1.5, {})
    assert found.is_timeout and found.output == "begun\n"
    assert time.monotonic() - begun < 60
    assert all(is_gone(int(pid)) for pid in pids.read_text().split())


def test_what_a_command_leaves_in_its_group_ends_with_it(install: Install, trusted: Path) -> None:
    pid = trusted / "pid"
    found = execute(install("a", f"sleep 300 & echo $! >'{pid}'; echo done"), {}, 60, {})
    assert (found.exit_status, found.output) == (0, "done\n")
    assert is_gone(int(pid.read_text()))


def test_a_command_that_never_stops_writing_is_stopped_too(install: Install) -> None:
    found = execute(install("a", "exec yes"), {}, 1, {})
    assert found.is_timeout
    assert len(found.output) <= HEAD + TAIL + 100 and "bytes are left out" in found.output


def test_a_command_that_closes_its_output_is_waited_for(install: Install) -> None:
    found = execute(install("a", "exec >/dev/null 2>&1; sleep 0.3; exit 4"), {}, 60, {})
    assert (found.exit_status, found.output) == (4, "")


def test_the_command_has_a_process_group_of_its_own(install: Install) -> None:
    seen: list[int] = []
    found = execute(install("a", "ps -o pgid= -p $$"), {}, 60, {}, seen.append)
    assert found.output.strip() in (str(seen[0]), "") and seen[0] != os.getpgid(0)


def test_head_and_tail_of_a_long_output_are_kept() -> None:
    output = Output()
    for number in range(10000):
        output.add(f"{number:05}\n".encode())
    text = output.text()
    assert text.startswith("00000\n00001\n") and text.endswith("09998\n09999\n")
    assert f"[{60000 - HEAD - TAIL} bytes are left out]" in text
    short = Output()
    short.add("ä".encode()[:1])
    short.add("ä".encode()[1:])
    assert short.text() == "ä"


def test_output_is_safe_on_a_terminal() -> None:
    assert clean(b"\x1b[31mred\x1b[0m\r\nnext\x07\x00\xff\tend\rX") == "?[31mred?[0m\nnext??\ufffd  end?X"
