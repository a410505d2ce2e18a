# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line between a run's driver and the tasks of that run: a Unix socket, a JSON object each way."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...module_utils._common.errors import UpgradeError

SOCKET = "socket"


def call(folder: str, **message: Any) -> dict[str, Any]:
    """Ask the driver, and wait for its answer, however long that takes.

    :param folder: the driver's.
    :raises UpgradeError: what the driver says went wrong, or ``no_driver``.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(str(Path(folder) / SOCKET))
            line.sendall(json.dumps(message).encode() + b"\n")
            with line.makefile("rb") as answers:
                text = answers.readline()
    except OSError as error:
        raise _gone(folder, error.strerror or str(error)) from error
    if not text:
        raise _gone(folder, "it gave no answer")
    answer: Mapping[str, Any] = json.loads(text)
    failure = answer.get("failure")
    if failure is not None:
        raise UpgradeError(failure["code"], failure["message"], **failure["details"])
    return dict(answer)


def _gone(folder: str, why: str) -> UpgradeError:
    return UpgradeError(
        "no_driver",
        f"The driver of this run can't be asked: {why} ({folder}/{SOCKET}). What it did before is recorded in Consul; run "
        "the same command again, and it goes on from there.",
    )
