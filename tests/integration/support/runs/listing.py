# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ansible-inventory prints, as plain data."""

from __future__ import annotations

from typing import Any


def unmarked(found: Any) -> Any:
    """Return data without the marks by which ansible-inventory shows what is not to be evaluated."""
    if isinstance(found, dict):
        return (
            found["__ansible_unsafe"]
            if set(found) == {"__ansible_unsafe"}
            else {k: unmarked(v) for k, v in found.items()}
        )
    return [unmarked(one) for one in found] if isinstance(found, list) else found
