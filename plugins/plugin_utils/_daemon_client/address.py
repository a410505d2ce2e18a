# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The address of a run's daemon: a folder in an environment variable, for callbacks and Ansible's workers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError

# The process ID of ansible-playbook, the folder, and whether the callback convoy_watch is enabled.
_VARIABLE = "CONVOY_UPGRADE_RUN"
_WATCHED = "watched"

SOCKET = "socket"
LOG = "log"

# The path of a Unix socket has at most 107 characters.
_LONGEST = 80


def announce(*, watched: bool = False) -> None:
    """Choose the folder of this process's daemon if it has none. The folder is created when the daemon starts.

    :param watched: whether the caller is the callback that reports unreachable hosts and ends the daemon.
    """
    folder = _folder_of(os.getpid())
    if folder is None:
        below = tempfile.gettempdir()
        folder = f"{below if len(below) < _LONGEST else '/tmp'}/convoy-{runtime.new_id()[:16]}"
    watched = watched or _is_watched(os.getpid())
    os.environ[_VARIABLE] = f"{os.getpid()}:{_WATCHED if watched else ''}:{folder}"


def forget() -> None:
    """Forget the daemon, so that the next :func:`announce` chooses another folder."""
    os.environ.pop(_VARIABLE, None)


def run_process() -> int:
    """Return the process ID of ansible-playbook: this process, or its parent if this is one of Ansible's workers."""
    return os.getpid() if _folder_of(os.getpid()) else os.getppid()


def run_folder() -> Path | None:
    """Return the folder of this run's daemon, which may not have started; None if :func:`announce` was not called."""
    folder = _folder_of(run_process())
    return Path(folder) if folder else None


def is_started() -> bool:
    """Return whether this run has started its daemon."""
    folder = run_folder()
    return folder is not None and (folder / SOCKET).exists()


def require_watch() -> None:
    """Raise an error if the callback that reports unreachable hosts is not enabled.

    :raises UpgradeError: ``no_watch``.
    """
    if not _is_watched(run_process()):
        raise UpgradeError(
            "no_watch",
            "The callback convoy_watch is not enabled, and only callbacks get the event that a host became unreachable. Run a playbook of "
            "convoy.upgrade, or set callback_plugins (or ANSIBLE_CALLBACK_PLUGINS) to the folder callback_plugins beside these playbooks.",
        )


def _parts() -> list[str]:
    return os.environ.get(_VARIABLE, "").split(":", 2)


def _folder_of(process: int) -> str | None:
    parts = _parts()
    return parts[2] if len(parts) == 3 and parts[0] == str(process) else None


def _is_watched(process: int) -> bool:
    return _folder_of(process) is not None and _parts()[1] == _WATCHED
