# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that don't outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process as soon as its parent is gone, however it went."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that dies with this one."""
    return subprocess.Popen(command, preexec_fn=die_with_parent, **options)


def stop(process: subprocess.Popen[Any], number: int = signal.SIGTERM, seconds: float = 5) -> None:
    """End a process, with force if it takes too long."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
