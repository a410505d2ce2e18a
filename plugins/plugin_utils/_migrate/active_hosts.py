# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts have reported through convoy.upgrade, and so run it, and which have left the version that they reported."""

from __future__ import annotations

from ...module_utils._codecs.record import decode_record
from ...module_utils._fleet.fleet import FAILED, STARTED
from .step import KeysFound


def record_index(found: KeysFound, host: str) -> int:
    """Return the index of a host's record; 0 if there is none, or if the host itself has not reported in it.

    Planners and operators write records too, such as for a retry.
    """
    key = found.keys.record(host)
    entry = found.entries.get(key)
    return entry.modify_index if entry is not None and decode_record(key, entry.value).has_reported else 0


def has_left_version(found: KeysFound, host: str, index: int) -> bool:
    """Return whether a host has begun an upgrade, or failed in one, since it reported a version.

    :param index: the index of that report.
    """
    key = found.keys.record(host)
    entry = found.entries.get(key)
    if entry is None or entry.modify_index <= index:
        return False
    record = decode_record(key, entry.value)
    return record.readable and record.state in (STARTED, FAILED)


def has_active_hosts(found: KeysFound) -> bool:
    """Return whether any host has reported through convoy.upgrade."""
    folder = found.keys.records
    return any(record_index(found, entry.key[len(folder) :]) for entry in found.below(folder) if entry.key != folder)
