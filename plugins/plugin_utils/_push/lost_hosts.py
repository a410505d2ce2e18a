# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report hosts that became unreachable. Only callbacks get this event, and without a report the run would wait for these hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...module_utils._common.errors import UpgradeError
from .._daemon_client.address import is_started
from .._daemon_client.client import ask
from .messages import FailHost


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
