# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that is run to its end, or to the end of its time, with all that it starts."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .._common.errors import UpgradeError
from .._common.processes import end_process_tree

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SECONDS_TO_END = 5


@dataclass(frozen=True)
class FinishedProcess:
    """How a program ended.

    :param code: its exit code, None if its time was up before.
    :param output: what it wrote to both of its outputs, without colours.
    :param seconds: how long it ran.
    """

    code: int | None
    output: str
    seconds: float


def run_process(command: Sequence[str], seconds: float, keep: Sequence[int] = ()) -> FinishedProcess:
    """Run a program; when its time is up, it is ended with all processes that it has started.

    :param seconds: how long it may take.
    :param keep: open files that it gets too.
    :raises UpgradeError: ``not_runnable``.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=keep,
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
    return FinishedProcess(code, _COLOURS.sub("", output.decode(errors="replace")), time.monotonic() - began)


def last_lines(text: str, most: int = 10) -> str:
    """Return the last lines that are not empty."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-most:])


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """End a program and all that it has started, gently first; return its output."""
    end_process_tree(process, _SECONDS_TO_END)
    try:
        output: bytes = process.communicate(timeout=_SECONDS_TO_END)[0]
    except subprocess.TimeoutExpired as late:
        # Something that got away has the output open: what came so far is all there is.
        return late.output or b""
    return output
