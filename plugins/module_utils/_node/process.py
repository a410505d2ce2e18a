# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program with a time limit, which also ends all processes that it started."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from .._common import runtime
from .._common.errors import UpgradeError
from .._common.processes import end_process_tree

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Variables of an agent run.
_OF_ANSIBLE = re.compile(r"PYTHONPATH$|ANSIBLE_")
_SECONDS_TO_END = 5


@dataclass(frozen=True)
class FinishedProcess:
    """The result of a program.

    :param code: its exit code, None if it took too long.
    :param output: its standard output and errors, without colours.
    :param seconds: how long it ran.
    """

    code: int | None
    output: str
    seconds: float


def run_process(command: Sequence[str], seconds: float, keep: Sequence[int] = ()) -> FinishedProcess:
    """Run a program; if it takes too long, end it with all processes that it has started.

    It gets the environment without what an agent run is made with: its libraries may be for another Python than those of the program.

    :param seconds: how long it may take.
    :param keep: file descriptors that it inherits.
    :raises UpgradeError: ``not_runnable``.
    """
    began = runtime.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=keep,
            env={name: text for name, text in os.environ.items() if not _OF_ANSIBLE.match(name)},
            cwd="/",
        )
    except OSError as error:
        raise UpgradeError("not_runnable", f"{command[0]} can't be run: {error.strerror}.") from error
    try:
        output, _none = process.communicate(timeout=seconds)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        output, code = _end(process), None
    except BaseException:
        _end(process)
        raise
    return FinishedProcess(code, _COLOURS.sub("", output.decode(errors="replace")), runtime.monotonic() - began)


def last_lines(text: str, most: int = 10) -> str:
    """Return the last ``most`` lines that are not empty."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-most:])


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """End a program with all its descendants; return its output."""
    end_process_tree(process, _SECONDS_TO_END)
    try:
        output: bytes = process.communicate(timeout=_SECONDS_TO_END)[0]
    except subprocess.TimeoutExpired as late:
        # A daemon still has the output open; there is no point in waiting for it.
        return late.output or b""
    return output
