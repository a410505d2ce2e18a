# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps that a host went through, and when: for whoever looks back. No plan depends on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

# In characters, as it is stored. Planners write 61 records at once, and Consul takes half a megabyte.
MOST_TRAIL = 4000


class StepStart(NamedTuple):
    """A step and when it began (unix seconds, of the host's clock); without names, when the last one ended."""

    at: int
    service: str = ""
    step: str = ""


def extended_trail(
    trail: Sequence[StepStart], at: int, service: str | None = None, step: str | None = None
) -> tuple[StepStart, ...]:
    """Return a trail with what begins now. Of one that gets too long the oldest steps are left out.

    A host that reports no steps has no trail, so that its record does not grow.

    :param at: unix seconds.
    :param service: None, like ``step``, where it is at none any more.
    """
    now = StepStart(at, service or "", step or "")
    last = trail[-1][1:] if trail else ("", "")
    return newest_steps((*trail, now)) if now[1:] != last else tuple(trail)


def newest_steps(trail: Sequence[StepStart], most: int = MOST_TRAIL) -> tuple[StepStart, ...]:
    """Return as much of a trail, from its end, as has room in so many characters."""
    kept, size = len(trail), 0
    while kept and (size := size + len(json.dumps(trail[kept - 1])) + 2) <= most:
        kept -= 1
    return tuple(trail[kept:])
