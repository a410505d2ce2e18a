# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of their own, each of which can be killed, stopped, have its clock set, and be started again."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from devkit.child import die_with_parent

# How a planner ends that finds Consul put back to an earlier time.
WENT_BACK = 3
# Forked from a process that has imported all that they need, they are at work at once, also on a busy machine.
_CONTEXT = multiprocessing.get_context("forkserver")
_clock = time.time


def prepare(*modules: str) -> None:
    """Start the process that all others are forked from; where it is there already, that will do."""
    former = os.environ.get("PYTHONPATH")
    # It is given nothing of our own path.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        _CONTEXT.set_forkserver_preload(list(modules))
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if former is not None:
            os.environ["PYTHONPATH"] = former


class Shared:
    """Numbers that several processes see, without a lock that a killed one could keep."""

    def __init__(self) -> None:
        # By how much the clock is ahead, the newest epoch that was seen, whether all is to calm down, whether the fleet
        # is to be taken back, whether it is at work.
        self.clock: Any = _CONTEXT.RawValue("d", 0.0)
        self.epoch: Any = _CONTEXT.RawValue("q", 0)
        self.calm: Any = _CONTEXT.RawValue("b", 0)
        self.target: Any = _CONTEXT.RawValue("b", 0)
        self.ready: Any = _CONTEXT.RawValue("b", 0)


class Child:
    """A process that can be started again whenever it has ended.

    :param folder: where it writes what it dies of.
    """

    def __init__(self, name: str, folder: Path, act: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        self.shared = Shared()
        self._file = folder / name
        self._act = act
        self._arguments = arguments
        # When its clock was set, and by how much it was ahead from then on.
        self.clocks: list[tuple[float, float]] = [(0.0, 0.0)]
        self.start()

    def start(self) -> None:
        """Start it, and again after it has ended."""
        arguments = (self._act, self.shared, str(self._file), self._arguments)
        self.shared.epoch.value = 0
        self.process = _CONTEXT.Process(target=_run, args=arguments, daemon=True)
        self.process.start()

    def set_clock(self, ahead: float) -> None:
        """Set its clock."""
        self.clocks.append((time.time(), ahead))
        self.shared.clock.value = ahead

    def ahead_around(self, at: float, seconds: float = 8) -> float | None:
        """Return by how much its clock was ahead, None where it was set within some seconds before or after that."""
        known = [ahead for since, ahead in self.clocks if since <= at + seconds]
        recent = [since for since, _ahead in self.clocks if abs(since - at) < seconds]
        return None if recent else known[-1]

    def most_ahead_around(self, at: float, seconds: float = 8) -> float:
        """Return by how much its clock was ahead at most within some seconds before or after a time."""
        before = [ahead for since, ahead in self.clocks if since <= at - seconds]
        return max([*before[-1:], *(ahead for since, ahead in self.clocks if abs(since - at) < seconds)])

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.process.is_alive() and self.process.pid:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kill it, whatever it is at, and make sure that it is gone."""
        self.signal(signal.SIGKILL)
        self.process.join(30)
        assert self.code is not None, f"{self.name} is still there after it was killed"

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.exitcode

    def stacks(self) -> str:
        """Return what each of its threads is at."""
        self.signal(signal.SIGUSR1)
        time.sleep(0.3)
        file = _stacks_of(str(self._file))
        return file.read_text() if file.exists() else ""

    @property
    def last_output(self) -> str:
        """What it died of."""
        return self._file.read_text() if self._file.exists() else ""


def _end_with_the_run() -> None:
    run = multiprocessing.parent_process()
    if run is not None:
        run.join()
        os.kill(os.getpid(), signal.SIGKILL)


def _stacks_of(file: str) -> Path:
    return Path(f"{file}.stacks")


def _run(act: Callable[..., None], shared: Shared, file: str, arguments: Sequence[Any]) -> None:
    die_with_parent()
    # Its parent is the process that all are forked from, which outlives the run where that is killed.
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    faulthandler.register(signal.SIGUSR1, _stacks_of(file).open("w"))
    time.time = lambda: _clock() + shared.clock.value
    shared.ready.value = 1
    try:
        act(shared, *arguments)
    except UpgradeError as error:
        if error.code == "went_back":
            sys.exit(WENT_BACK)
        Path(file).write_text(traceback.format_exc())
        raise
    except Exception:
        Path(file).write_text(traceback.format_exc())
        raise
