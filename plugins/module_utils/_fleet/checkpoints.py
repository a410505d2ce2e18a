# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The points of a service's path: versions at which something has to be done on the way from an older one to a newer one."""

from __future__ import annotations

_SIGN = "@"

# How many characters the names of the units have together that a record or a provider's key says are finished. A planner reads
# the records of all hosts at once.
MOST_DONE = 20_000


def checkpoint_name(service: str, version: str) -> str:
    """Return what a point is called, such as ``nginx@2.4``; no service has that sign in its name."""
    return f"{service}{_SIGN}{version}"


def is_checkpoint_group(unit: str) -> bool:
    """Return whether a unit, such as ``upgrade/nginx@2.4``, belongs to a point."""
    return _SIGN in unit
