# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting a driver: a process of its own, that lets go of all that Ansible's had open."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.processes import close_files_except, start_ticks, wait_for_exit
from .ipc import call
from .run import PushRun
from .server import serve_run

LOG = "log"

# A Unix socket's path may have 107 characters.
_LONGEST = 80


def make_folder(process: int) -> str:
    """Return a new folder for a run, that only this user can look into, and that is gone when a process is."""
    below = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="convoy-", dir=below if len(below) < _LONGEST else "/tmp")
    detached(lambda: _sweep(folder, process))
    return folder


def start(run: PushRun, process: int) -> None:
    """Start a run's driver; return when it listens.

    :param process: the process with which the run ends.
    :raises UpgradeError: what kept it from starting.
    """
    reading, writing = os.pipe()
    detached(lambda: _live(run, process, writing))
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    if not text:
        raise UpgradeError("no_driver", f"The driver of this run ended before it began; see {run.folder}/{LOG}.")
    failure = json.loads(text)
    if failure:
        raise UpgradeError(failure["code"], failure["message"], **failure["details"])


def stop(folder: str) -> None:
    """End a driver before its run does."""
    call(folder, do="close")


def detached(act: Callable[[], None]) -> None:
    """Do something in a process that is no one's child, so that it leaves no zombie."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                act()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _sweep(folder: str, process: int) -> None:
    started = start_ticks(process)
    close_files_except()
    wait_for_exit(process, started or 0)
    shutil.rmtree(folder, ignore_errors=True)


def _live(run: PushRun, process: int, telling: int) -> None:
    started = start_ticks(process)
    log = os.open(Path(run.folder) / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    close_files_except(telling, log)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)

    def tell(failure: dict[str, object]) -> None:
        os.write(telling, json.dumps(failure).encode())
        os.close(telling)

    try:
        serve_run(run, lambda: wait_for_exit(process, started or 0), ready=lambda: tell({}))
    except UpgradeError as error:
        tell(error.as_failure())
    except BaseException:
        # The log is all that is left to say it in.
        traceback.print_exc()
