# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the hosts that have reported through convoy.upgrade, and so run it."""

from __future__ import annotations

from ...module_utils._codecs.record import decode_record
from .step import KeysFound


def record_index(found: KeysFound, host: str) -> int:
    """Return the index of a host's record; 0 if there is none, or if the host itself has not reported in it.

    Planners and operators write records too, such as for a retry.
    """
    key = found.keys.record(host)
    entry = found.entries.get(key)
    return entry.modify_index if entry is not None and decode_record(key, entry.value).has_reported else 0


def has_active_hosts(found: KeysFound) -> bool:
    """Return whether any host has reported through convoy.upgrade."""
    folder = found.keys.records
    return any(record_index(found, entry.key[len(folder) :]) for entry in found.below(folder) if entry.key != folder)
