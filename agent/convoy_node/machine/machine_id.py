# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An ID of this machine that stays the same when it reboots, and may be published."""

from __future__ import annotations

import hashlib
from pathlib import Path

_FILE = "/etc/machine-id"


def machine_id(path: str = _FILE) -> str:
    """Return the ID as ``machine_id`` of the collection does; empty where the machine has none.

    It is a hash of the content of the file, because machine-id(5) asks to keep that content confidential.
    """
    text = _content(path)
    return hashlib.sha256(f"convoy.upgrade {text}".encode()).hexdigest()[:16] if text else ""


def is_this_machine(found: str, path: str = _FILE) -> bool:
    """Return whether an ID in a record may be that of this machine. An older agent may have written the content of the file."""
    text = _content(path)
    return not (found and text) or found in (machine_id(path), text)


def _content(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    # systemd writes "uninitialized" before the first boot.
    return "" if text == "uninitialized" else text
