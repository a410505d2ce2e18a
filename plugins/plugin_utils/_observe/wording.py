# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts of the live view and of lines about a rollout."""

from __future__ import annotations

import time

from ...module_utils._common.names import is_job, target_text
from ...module_utils._observe.progress import HostProgress, RolloutProgress
from ...module_utils._observe.stages import APPROVAL, SOAK, StageSummary

_MINUTE, _HOUR = 60, 3600


def about_minutes(seconds: float) -> str:
    """Return an estimated time in words: ``about 4 min``."""
    if seconds < _MINUTE:
        return "less than a minute"
    minutes = round(seconds / _MINUTE)
    if minutes < 100:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60} min"


def elapsed(seconds: float) -> str:
    """Return a duration: ``1:05``, or ``2:01:05`` from an hour on."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, _HOUR)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def where(host: HostProgress) -> str:
    """Return where a host is in its upgrade: ``nginx, step stop``."""
    parts = [host.service, f"step {host.step}" if host.step else ""]
    return ", ".join(part for part in parts if part) or host.doing


def headline(progress: RolloutProgress, left: float | None) -> str:
    """Return a line on the whole rollout.

    :param left: the remaining seconds, None if not known.
    """
    if not progress.version:
        return "No rollout has begun: current_version is not set."
    hosts, done = sum(row.hosts for row in progress.bars), sum(row.done for row in progress.bars)
    came = f" from {progress.came_from}" if progress.came_from else ""
    text = f"{progress.version}{came}: {done} of {hosts} hosts upgraded"
    if is_job(progress.version):
        text = f"{target_text(progress.version)}: {done} of {hosts} hosts done"
    if progress.done or progress.state in ("paused", "aborted"):
        return f"{text}, {'complete' if progress.done else progress.state}"
    return text if left is None else f"{text}, {about_minutes(left)} left"


def stage_texts(progress: RolloutProgress) -> list[tuple[str, str]]:
    """Return the state and the text of each stage: ``early 3/7``."""
    return [(one.state, f"{one.name} {one.upgraded}/{one.hosts}{_stage_state(one)}") for one in progress.stages]


def _stage_state(stage: StageSummary) -> str:
    if stage.state == SOAK:
        return f", soaks until {time.strftime('%H:%M:%S', time.localtime(stage.until))}"
    return ", needs an approval" if stage.state == APPROVAL else ""


def ending(progress: RolloutProgress) -> str:
    """Return how a rollout ended."""
    if not progress.version or not progress.state:
        return "There is nothing to follow: no rollout has begun."
    what = f"The {target_text(progress.version)}" if is_job(progress.version) else f"The rollout to {progress.version}"
    if progress.state == "aborted":
        count = len(progress.flights) + progress.more
        noun = "host that had begun continues" if count == 1 else "hosts that had begun continue"
        rest = f" {count} {noun}." if count else ""
        return f"{what} was aborted.{rest}"
    return f"{what} is complete."


def with_time(line: str, at: float | None = None) -> str:
    """Return a line with the time of day before it."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at))} {line}"
