# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Durations in words."""

from __future__ import annotations

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def duration_in_words(seconds: float, none: str = "0s") -> str:
    """Return a duration in at most two units: ``45s``, ``12m 30s``, ``3h 5m``, ``2d 4h``.

    :param none: for less than half a second.
    """
    left = max(0, round(seconds))
    parts = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or none


def duration_as_rule(seconds: int) -> str:
    """Return a duration as the rules have it, in the largest unit that fits exactly: ``10m``, ``90m``, ``2h``."""
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0 or size == 1)
    return f"{seconds // size}{unit}" if seconds else "0s"
