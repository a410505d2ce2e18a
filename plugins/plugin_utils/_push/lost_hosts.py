# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report hosts that became unreachable, or whose task took too long, and limit how long a task takes.

Only callbacks see each of these. Without a report, the run would wait for unreachable hosts, and a service could rescue a task that may still run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from .._daemon_client.address import is_started
from .._daemon_client.client import ask
from .messages import FailHost, NoteTimeout

# Process -> when its task began (monotonic seconds). Ansible runs each task of a host in a process of its own.
_BEGAN: dict[int, float] = {}


def time_left(seconds: object) -> int:
    """Return how many seconds a task may still take, at least 1; 0 for no limit.

    Ansible counts the keyword ``timeout`` for each item of a loop anew, and asks for its value before each of them.

    :param seconds: how long the task may take, with all items of its loop; 0 for no limit.
    """
    limit = int(str(seconds))
    if limit <= 0:
        return 0
    now = runtime.monotonic()
    return max(1, limit - int(now - _BEGAN.setdefault(os.getpid(), now)))


def took_too_long(result: Mapping[str, Any], seconds: float, limit: float) -> bool:
    """Return whether a task was ended because of its limit, and not because of a shorter one that the service gave it.

    :param result: of the task, or of all items of its loop.
    :param seconds: how long it took, with its start.
    :param limit: 0 for no limit.
    """
    items = result.get("results")
    each = [result, *(items if isinstance(items, list) else ())]
    return 0 < limit <= seconds and any(isinstance(one, Mapping) and one.get("timedout") for one in each)


def report_timeout(host: str) -> str | None:
    """Report that a task of a host took too long; return a warning if that was not possible."""
    if not is_started():
        return None
    try:
        ask(NoteTimeout(host))
    except UpgradeError as error:
        # The validation admits no host.
        return (
            None
            if error.code == "no_push"
            else f"A task took too long on {host}, but that can't be noted: {error.message}"
        )
    return None


def report_lost_host(host: str, result: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Report that a host is unreachable; return whether it is recorded as lost, and a warning if that was not possible."""
    if not is_started():
        return False, None
    text = " ".join(str(result.get("msg") or "").split())
    text = text.removeprefix("Task failed: ")
    try:
        ask(FailHost(host, f"unreachable: {text or 'Ansible lost the connection to it'}", is_lost=True))
    except UpgradeError as error:
        # Before the first host is admitted, there is nothing to record.
        is_early = error.code == "no_push"
        return False, None if is_early else f"{host} is unreachable, but that can't be recorded: {error.message}"
    return True, None
