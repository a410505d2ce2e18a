# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the daemon of this run over its Unix socket. Only the user of ansible-playbook can open the folder that it is in."""

from __future__ import annotations

from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TypeVar

from ...module_utils._common.errors import UpgradeError
from .address import LOG, SOCKET, run_folder
from .messages import Failure, Message

Answer = TypeVar("Answer")


def connect() -> Connection:
    """Return a connection to the daemon.

    :raises UpgradeError: ``no_daemon``.
    """
    folder = run_folder()
    try:
        return Client(str((folder or Path()) / SOCKET), "AF_UNIX")
    except OSError as error:
        raise _gone(error.strerror or str(error)) from error


def ask(message: Message[Answer]) -> Answer:
    """Send a message and return its answer, however long that takes.

    :raises UpgradeError: what the daemon answers, or ``no_daemon``.
    """
    try:
        with connect() as line:
            line.send(message)
            answer = line.recv()
    except (OSError, EOFError) as error:
        raise _gone(str(error) or "it closed the connection") from error
    if isinstance(answer, Failure):
        raise UpgradeError(answer.code, answer.message, **answer.details)
    found: Answer = answer
    return found


def _gone(why: str) -> UpgradeError:
    folder = run_folder()
    return UpgradeError(
        "no_daemon",
        f"The daemon of this run does not answer: {why} (its log is {(folder or Path()) / LOG}). All that it did is recorded in "
        "Consul. Run the same command again to continue.",
    )
