# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Raw keys as Consul has them, read as a snapshot; and texts that any process may have written."""

from __future__ import annotations

from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import sanitize
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import KVEntry
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.snapshot import decode_snapshot
from hypothesis import strategies as st

KEYS = Keys("cloud/")

NOT_TEXT = b"\xff\xfe\x00"


def is_version(text: str) -> bool:
    """Return whether hosts may be at a version that is called so."""
    return text.isprintable() and "/" not in text and text == text.strip() and text.lower() not in ("true", "false")


def read(entries: dict[str, bytes]) -> Snapshot:
    """Return the snapshot of entries below the prefix, each one younger than the one before it."""
    return decode_snapshot(
        KEYS, [KVEntry(f"cloud/{key}", value, index) for index, (key, value) in enumerate(entries.items(), 5)]
    )


# What a host or an operator says is made printable when it is read.
PRINTABLE = st.text().map(sanitize)
