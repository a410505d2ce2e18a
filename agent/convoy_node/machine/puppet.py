# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puppet's lock against its own runs: ``puppet agent --disable``, by an operator or by this agent."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from ..errors import printable

# The directories of Debian's packages, of those of Puppet and OpenVox, and where OpenVox documents it.
FOLDERS = (
    "/var/lib/puppet/state",
    "/var/cache/puppet/state",
    "/opt/puppetlabs/puppet/cache/state",
    "/var/opt/puppetlabs/puppet/cache/state",
)
_NAME = "agent_disabled.lock"
# How the reason of this agent's own lock begins. It is no hold of an operator.
OWN = "convoy.upgrade: "
_MOST_BYTES = 8192


def disabled_by_operator(folders: Sequence[str] = FOLDERS) -> Optional[str]:
    """Return the reason that an operator gave to ``puppet agent --disable``; None if no operator has disabled Puppet."""
    for folder in folders:
        reason = _reason(Path(folder) / _NAME)
        if reason is not None and not reason.startswith(OWN):
            return reason
    return None


def keep_out(reason: str, folders: Sequence[str] = FOLDERS) -> bool:
    """Disable Puppet's own runs, unless it is disabled already; return whether this call did it.

    Which folder Puppet uses depends on its packages and settings, so each that may be it gets a lock. Puppet creates the folder only in its
    first run, which has to be kept out too.
    """
    if disabled_by_operator(folders) is not None:
        return False
    found = False
    for folder in map(Path, folders):
        path = folder / _NAME
        if not folder.parent.is_dir() or os.path.lexists(path):
            continue
        folder.mkdir(mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as out:
                json.dump({"disabled_message": f"{OWN}{printable(reason)}"}, out)
            found = True
    return found


def let_in(folders: Sequence[str] = FOLDERS) -> bool:
    """Enable Puppet's own runs again, if this agent had disabled them; return whether it had."""
    found = False
    for folder in folders:
        path = Path(folder) / _NAME
        reason = _reason(path)
        if reason is not None and reason.startswith(OWN):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            found = True
    return found


def _reason(path: Path) -> Optional[str]:
    """Return the reason in a lock file; None if there is no such file. One that can't be read disables Puppet too."""
    if not os.path.lexists(path):
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return f"{path} can't be read: {error.strerror}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    reason = found.get("disabled_message") if isinstance(found, dict) else found
    return printable(str(reason or "").strip()) or "reason not specified"
