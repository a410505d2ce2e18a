# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start the daemon of a run. It closes all files that it inherits from ansible-playbook."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.processes import close_files_except, start_ticks, wait_for_exit
from .._daemon_client.address import LOG, SOCKET, run_folder, run_process

# All forks of ansible-playbook may connect at once.
_WAITING_CONNECTIONS = 1024


def ensure_daemon() -> Path:
    """Start the daemon of this run if it has not started; return its folder, which only this user can open.

    :raises UpgradeError: ``no_watch`` outside of a run with the callback convoy_watch or the live view; ``no_daemon``.
    """
    folder, process = run_folder(), run_process()
    if folder is None:
        raise UpgradeError(
            "no_watch",
            "Neither the callback convoy_watch nor the live view is enabled, and the daemon of a run needs one of them to end. Run a playbook "
            "of convoy.upgrade, or set callback_plugins (or ANSIBLE_CALLBACK_PLUGINS) to the folder callback_plugins beside these playbooks.",
        )
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return folder
    except OSError as error:
        raise UpgradeError(
            "no_daemon", f"The folder of this run can't be created: {error}. Free space in it or set another TMPDIR."
        ) from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen(_WAITING_CONNECTIONS)
        _detached(lambda: _run_daemon(folder, listener, process))
    return folder


def _detached(act: Callable[[], None]) -> None:
    """Call a function in a process that is not a child of this one, so that it leaves no zombie."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                act()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _run_daemon(folder: Path, listener: socket.socket, process: int) -> None:
    started = start_ticks(process)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    close_files_except(listener.fileno(), log)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
    try:
        # Imported here, so that a run that sends no message does not wait for the imports.
        from .server import serve

        serve(folder, listener, lambda: wait_for_exit(process, started or 0))
    except BaseException:
        # The error can be reported only in the log.
        traceback.print_exc()
