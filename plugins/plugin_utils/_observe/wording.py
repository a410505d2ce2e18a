# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout that is watched, in lines of plain text."""

from __future__ import annotations

import time

from ...module_utils._observe.progress import HostProgress, RolloutProgress

_MINUTE, _HOUR = 60, 3600


def about_minutes(seconds: float) -> str:
    """Return a time that is not known any better in words: ``about 4 min``."""
    if seconds < _MINUTE:
        return "less than a minute"
    minutes = round(seconds / _MINUTE)
    if minutes < 100:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60} min"


def elapsed(seconds: float) -> str:
    """Return how long something takes so far: ``1:05``, or ``2:01:05`` from an hour on."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, _HOUR)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def where(flight: HostProgress) -> str:
    """Return at what a host is: ``nginx, step stop``."""
    parts = [flight.service, f"step {flight.step}" if flight.step else ""]
    return ", ".join(part for part in parts if part) or flight.doing


def headline(found: RolloutProgress, left: float | None) -> str:
    """Return in a line how far the whole rollout is.

    :param left: seconds that are left by now, None where that can't be told.
    """
    if not found.version:
        return "No rollout has begun: current_version is not set."
    hosts, done = sum(row.hosts for row in found.bars), sum(row.done for row in found.bars)
    came = f" from {found.came_from}" if found.came_from else ""
    text = f"{found.version}{came}: {done} of {hosts} hosts upgraded"
    if found.done or found.state in ("paused", "aborted"):
        return f"{text}, {'complete' if found.done else found.state}"
    return text if left is None else f"{text}, {about_minutes(left)} left"


def ending(found: RolloutProgress) -> str:
    """Return how a rollout that is over ended."""
    if not found.version or not found.state:
        return "There is nothing to follow: no rollout has begun."
    if found.state == "aborted":
        count = len(found.flights) + found.more
        goes = "host that had begun continues" if count == 1 else "hosts that had begun continue"
        rest = f" {count} {goes}." if count else ""
        return f"The rollout to {found.version} was aborted.{rest}"
    return f"The rollout to {found.version} is complete."


def with_time(line: str, at: float | None = None) -> str:
    """Return a line with the time of day before it."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at))} {line}"
