# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each line is printed at once, and a print into a pipe without a reader fails nowhere."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.output import print_each_line_at_once

print_each_line_at_once()
print_each_line_at_once()
"""


def _start(program: str, **files: int) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + program], env=environ, stdin=subprocess.PIPE, text=True, **files
    )


def test_each_line_is_printed_before_the_next_is_made() -> None:
    program = "for stream in sys.stdout, sys.stderr:\n    print('a line', file=stream)\nsys.stdin.read()"
    with _start(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "a line\n"
        assert process.stderr.readline() == "a line\n"


def test_a_print_without_a_reader_fails_nowhere() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = "for number in range(20000):\n    print('a line')\n    print('a line', file=sys.stderr, flush=True)\nsys.stdout.flush()"
    with _start(program, stdout=writer, stderr=writer) as process:
        os.close(writer)
    assert process.returncode == 0


def test_the_old_locks_are_held_while_printing() -> None:
    """ansible-core 2.19 and later wrap the methods of the stream below."""
    program = """
calls = []
below = sys.__stdout__.buffer
write, flush = below.write, below.flush
below.write = lambda data: (calls.append("write"), write(data))[1]
below.flush = lambda: (calls.append("flush"), flush())[1]
print("a line")
assert calls == ["write", "flush"], calls
"""
    with _start(program, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.read() == "a line\n"
    assert process.returncode == 0
