# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nothing outlives a guarded run, however it ends: not even what left its session, its group and its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from devkit.agent import ROOT
from devkit.guard import PARENT

# A worker that starts a process without an environment in a session of its own, one whose parent has ended, and one that
# ignores signals; then it writes their numbers, and ends or waits.
_CODE = """
import subprocess, sys, time
from pathlib import Path
from devkit.guard import run_guarded

def act():
    folder = Path(sys.argv[1])
    subprocess.Popen(["env", "-i", "sh", "-c", f"echo $$ > {folder}/session; exec sleep 300"], start_new_session=True)
    subprocess.Popen(["sh", "-c", f"setsid sh -c 'echo $$ > {folder}/orphan; exec sleep 300' &"])
    subprocess.Popen(["sh", "-c", f"trap '' INT TERM HUP; echo $$ > {folder}/stubborn; sleep 300; sleep 300"])
    while not all((folder / name).exists() and (folder / name).read_text() for name in ("session", "orphan", "stubborn")):
        time.sleep(0.01)
    (folder / "up").touch()
    if sys.argv[2] == "wait":
        time.sleep(300)
    return 7

sys.exit(run_guarded(act, Path(sys.argv[1]) / "removed"))
"""


def _start(folder: Path, how: str, **environ: str) -> subprocess.Popen[bytes]:
    (folder / "removed").mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", _CODE, folder, how],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools"), **environ},
        start_new_session=True,
        # What runs the tests in the background may let them ignore what Ctrl-C sends.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )


def test_a_run_whose_parent_was_gone_before_it_leaves_nothing(tmp_path: Path) -> None:
    """As when make is killed while setup.sh runs."""
    with subprocess.Popen(["true"]) as parent:
        pass
    process = _start(tmp_path, "wait", **{PARENT: str(parent.pid)})
    assert process.wait(30) == 128 + signal.SIGTERM
    for name in ("session", "orphan", "stubborn"):
        file = tmp_path / name
        number = file.read_text().strip() if file.exists() else ""
        assert not number or _soon(lambda number=number: not Path(f"/proc/{number}").exists())


def _soon(condition: Callable[[], bool], seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _all_gone(folder: Path) -> bool:
    numbers = [(folder / name).read_text().strip() for name in ("session", "orphan", "stubborn")]
    return not any(Path(f"/proc/{number}").exists() for number in numbers) and not (folder / "removed").exists()


def test_a_run_that_ends_leaves_nothing_and_gives_its_code(tmp_path: Path) -> None:
    assert _start(tmp_path, "end").wait(30) == 7
    assert _all_gone(tmp_path)


@pytest.mark.parametrize("whom", ["the process", "its group"])
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda one: one.name
)
def test_a_run_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals, whom: str) -> None:
    process = _start(tmp_path, "wait")
    assert _soon((tmp_path / "up").exists)
    if whom == "its group":
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert process.wait(30) != 0
    assert _soon(lambda: _all_gone(tmp_path))
