# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The trail: the steps that a host went through, with their times, for reports, and for what has been stopped on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

# In characters as stored. Planners write 60 records at once, and Consul takes half a megabyte.
MOST_TRAIL = 4000


class StepStart(NamedTuple):
    """A step and when it began (unix seconds, by the host's clock). Without names, it is the end of the last step."""

    at: int
    service: str = ""
    step: str = ""


def extended_trail(
    trail: Sequence[StepStart], at: int, service: str | None = None, step: str | None = None
) -> tuple[StepStart, ...]:
    """Return the trail with the step that begins now. The oldest steps are dropped when it gets too long.

    The trail of a host that reports no steps stays empty.

    :param at: unix seconds.
    :param service: None, like ``step``, if no step is running any more.
    """
    now = StepStart(at, service or "", step or "")
    last = trail[-1][1:] if trail else ("", "")
    return newest_steps((*trail, now)) if now[1:] != last else tuple(trail)


def newest_steps(trail: Sequence[StepStart], most: int = MOST_TRAIL) -> tuple[StepStart, ...]:
    """Return as many of the last steps as fit into ``most`` characters."""
    kept, size = len(trail), 0
    while kept and (size := size + len(json.dumps(trail[kept - 1])) + 2) <= most:
        kept -= 1
    return tuple(trail[kept:])
