# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which numbers are times."""

from __future__ import annotations

# Unix seconds: the first second after the year 9999, with which Python's datetime ends.
LATEST = 253_402_300_800


def is_time(value: object) -> bool:
    """Return whether a decoded value is a valid time: whole unix seconds, 0 or more, before the year 10000."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LATEST
