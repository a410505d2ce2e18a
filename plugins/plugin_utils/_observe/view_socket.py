# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line from those that follow a rollout to the view of ansible-playbook: a Unix socket, a JSON object at a time.

Each is answered by a line, so that no one is ahead of what is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Set by the callback: the number of ansible-playbook's process and the view's folder.
SIGN = "CONVOY_UPGRADE_VIEW"

SOCKET = "view"
# There as long as somebody tells the view how the rollout goes, and after that, with this in it, if it was told to the end.
FED, OVER = "fed", "over"


def announce(folder: str) -> None:
    """Say where the view of this process listens."""
    os.environ[SIGN] = f"{os.getpid()}:{folder}"


def folder_of(process: int) -> Path | None:
    """Return the folder of a process's view, None where it has none; that of another one, which started it, is none."""
    number, _colon, folder = os.environ.get(SIGN, "").partition(":")
    return Path(folder) if folder and number == str(process) else None


def is_fed(process: int) -> bool:
    """Return whether the view of a process shows how the rollout goes, so that no one else has to."""
    folder = folder_of(process)
    return folder is not None and (folder / FED).exists()


def is_unfed(process: int) -> bool:
    """Return whether a process has a view that no one tells how the rollout goes."""
    folder = folder_of(process)
    with contextlib.suppress(OSError):
        return folder is not None and (folder / FED).read_text() == OVER
    return folder is not None


def wait_for_view(process: int, index: int, seconds: float) -> None:
    """Return once the view of a process, if it is fed, shows what Consul had at an index; after some seconds in any case.

    So that what is printed next does not come before it.
    """
    folder = folder_of(process)
    if folder is None or not is_fed(process):
        return
    with contextlib.suppress(OSError):
        sender = ViewSender(folder)
        sender.line.settimeout(seconds)
        sender.tell({"until": index})
        sender.close()


class ViewSender:
    """Tells a view."""

    def __init__(self, folder: Path) -> None:
        """Connect to it.

        :raises OSError: if it does not listen.
        """
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.line.connect(str(folder / SOCKET))

    def tell(self, message: Mapping[str, Any]) -> bool:
        """Tell it something, and return once it is shown; return False where the view is gone."""
        try:
            self.line.sendall(json.dumps(message).encode() + b"\n")
            return self.line.recv(1) != b""
        except OSError:
            return False

    def close(self) -> None:
        """Say no more."""
        with contextlib.suppress(OSError):
            self.line.close()
