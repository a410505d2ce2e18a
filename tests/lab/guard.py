# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab that is taken down when the process that wanted it ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .lab import Lab

HERE = Path(__file__).resolve().parent


@contextlib.contextmanager
def guarded(name: str) -> Iterator[Lab]:
    """Give a lab, which is not up yet, and take it down at the end.

    A process of its own waits for the end of this one: a ``kill -9`` leaves no time to do anything.

    :param name: the process's number is added, so that tests of two checkouts can run at once.
    """
    name = f"{name}-{os.getpid()}"
    guard = subprocess.Popen(
        [sys.executable, HERE, "--name", name, "guard"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdout is not None
    guard.stdout.readline()
    lab = Lab(name)
    try:
        yield lab
    finally:
        lab.down()
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()
