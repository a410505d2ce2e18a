# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signals of a process that goes on as another program: one that ends the service is never lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parents[4] / "agent"
# A signal comes before or after the process leaves signals to the system. Another program takes its place and says so.
PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from convoy_node.machine.signals import Signals
signals = Signals()
when, number = sys.argv[2], int(sys.argv[3])
if when == "before":
    os.kill(os.getpid(), number)
may_go_on = signals.leave_to_system()
if when == "after":
    os.kill(os.getpid(), number)
if may_go_on:
    os.execv(sys.executable, [sys.executable, "-c", "print('goes on')"])
print("ends")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("when", "code", "output"), [("before", 0, "ends\n"), ("after", None, ""), ("never", 0, "goes on\n")]
)
def test_a_signal_that_ends_the_service_is_not_lost(
    when: str, code: int | None, output: str, number: signal.Signals
) -> None:
    words = [sys.executable, "-c", PROGRAM, str(AGENT), when, str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-number if code is None else code, output), done.stderr
