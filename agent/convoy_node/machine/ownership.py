# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether another user than root can write a file of this node."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Optional

from .errors import sanitize


def owners() -> tuple[int, ...]:
    """Return the users that may own trusted files: root, and the agent's own user where it does not run as root."""
    return (0,) if os.geteuid() == 0 else (0, os.geteuid())


def problem_of(path: Path, facts: os.stat_result) -> Optional[str]:
    """Return why a file or folder can't be trusted, because of its owner or mode; None if it can.

    :param facts: what stat() says about it.
    """
    name = sanitize(str(path))
    if facts.st_uid not in owners():
        return f"{name} belongs to user {facts.st_uid} and not to root. Run chown root {name}"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(facts.st_mode)
        return f"{name} can be written by other users than its owner (mode {mode:04o}). Run chmod go-w {name}"
    return None
