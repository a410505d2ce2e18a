# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send messages to the daemon of this run over its Unix socket, which only the user of ansible-playbook can open."""

from __future__ import annotations

import contextlib
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TypeVar

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.sanitize import sanitize, truncate
from .address import LOG, SOCKET, run_folder
from .messages import ErrorAnswer, Message

Answer = TypeVar("Answer")

# In characters.
_MOST_LOG = 4000


def connect() -> Connection:
    """Return a connection to the daemon.

    :raises UpgradeError: ``no_daemon``.
    """
    folder = run_folder()
    try:
        return Client(str((folder or Path()) / SOCKET), "AF_UNIX")
    except OSError as error:
        raise _no_daemon(error.strerror or str(error)) from error


def ask(message: Message[Answer]) -> Answer:
    """Send a message and return its answer. There is no timeout.

    :raises UpgradeError: the failure that the daemon answers with, or ``no_daemon``.
    """
    try:
        with connect() as connection:
            connection.send(message)
            answer = connection.recv()
    except (OSError, EOFError) as error:
        raise _no_daemon(str(error) or "it closed the connection") from error
    if isinstance(answer, ErrorAnswer):
        raise UpgradeError(answer.code, answer.message, **answer.details)
    result: Answer = answer
    return result


def _no_daemon(why: str) -> UpgradeError:
    log = _end_of_log()
    last = f" The last line of its log: {truncate(sanitize(log.rstrip().splitlines()[-1]))}." if log.strip() else ""
    return UpgradeError(
        "no_daemon",
        f"The daemon of this run does not answer: {why}.{last} Its results are stored in Consul. Run the same command again to continue.",
        **({"log": log} if last else {}),
    )


def _end_of_log() -> str:
    """Return the last part of the daemon's log; empty if there is none. The log is removed when the run ends."""
    folder = run_folder()
    if folder is None:
        return ""
    with contextlib.suppress(OSError):
        return (folder / LOG).read_text(errors="replace")[-_MOST_LOG:]
    return ""
