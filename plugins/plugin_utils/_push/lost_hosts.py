# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that Ansible loses: it tells of them to callbacks alone, and the driver has to know, or it would wait for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...module_utils._common.errors import UpgradeError
from .ipc import SOCKET, call

# Set by the callback to the process ID of ansible-playbook.
_SIGN = "CONVOY_UPGRADE_WATCH"

_FOLDER = "CONVOY_UPGRADE_DRIVER"


def announce() -> None:
    """Say that hosts which are lost will be told of."""
    os.environ[_SIGN] = str(os.getpid())


def require_watch() -> None:
    """Make sure that the callback which reports unreachable hosts is enabled, from a worker of ansible-playbook.

    :raises UpgradeError: ``no_watch``.
    """
    if os.environ.get(_SIGN) != str(os.getppid()):
        raise UpgradeError(
            "no_watch",
            "The callback convoy_watch is not enabled, and only callbacks learn that a host became unreachable. It lies in "
            "callback_plugins beside the playbooks of convoy.upgrade, where Ansible finds it; for a playbook elsewhere, set "
            "callback_plugins (or ANSIBLE_CALLBACK_PLUGINS) to that folder.",
        )


def remember(result: Mapping[str, Any]) -> None:
    """Take note of where the driver is, from the result of the task that prepared it."""
    folder = result.get("driver")
    if isinstance(folder, str):
        os.environ[_FOLDER] = folder


def report_lost_host(host: str, result: Mapping[str, Any]) -> str | None:
    """Tell the driver that a host can't be reached; return why that was not possible, None where it was."""
    folder = os.environ.get(_FOLDER)
    if not folder or not (Path(folder) / SOCKET).exists():
        return None
    text = " ".join(str(result.get("msg") or "").split())
    text = text.removeprefix("Task failed: ")
    try:
        call(folder, do="fail", host=host, error=f"unreachable: {text or 'Ansible lost the connection to it'}")
    except UpgradeError as error:
        return f"{host} is unreachable, and that can't be recorded: {error.message}"
    return None
