# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The former rollouts in a host's record, for reports on rollouts that are over, and for what one that did not end has stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .failures import newest_failures
from .fleet import HostRecord
from .step_trail import StepStart, newest_steps

# In characters as stored: all rollouts, and of one its steps, its error and its failures. Planners write 60 records at once, and Consul
# takes half a megabyte.
MOST_FORMER = 1500
_MOST_STEPS = 800
_MOST_ERROR = 200
_MOST_FAILURES = 500
FIELDS = ("version", "state", "service", "step", "attempt", "error", "times", "trail", "failures")


def with_former_rollout(before: HostRecord) -> tuple[HostRecord, ...]:
    """Return the former rollouts of a host whose target changes, with the one that is over as the last."""
    if not before.has_reported:
        return before.former
    over = HostRecord(
        before.version,
        before.state,
        before.service,
        before.step,
        before.attempt,
        before.error[-_MOST_ERROR:] if before.error is not None else None,
        before.times,
        trail=newest_steps(before.trail, _MOST_STEPS),
        failures=newest_failures(before.failures, _MOST_FAILURES),
    )
    return newest_rollouts((*before.former, over))


def newest_rollouts(rollouts: Sequence[HostRecord]) -> tuple[HostRecord, ...]:
    """Return as many of the last rollouts as fit into a record. Of the last one, at least the state and the steps are kept."""
    kept, size = len(rollouts), 0
    while kept and (size := size + len(json.dumps(rollouts[kept - 1].slim())) + 2) <= MOST_FORMER:
        kept -= 1
    if rollouts and kept == len(rollouts):
        last = rollouts[-1]
        # What it stopped may be stopped still.
        steps = {start.step: StepStart(start.at, "", start.step) for start in last.trail if start.step}
        return (HostRecord(last.version, last.state, attempt=last.attempt, times=last.times, trail=(*steps.values(),)),)
    return tuple(rollouts[kept:])


def rollout_within(record: HostRecord, version: str, since: int, until: int) -> HostRecord | None:
    """Return a host's last rollout to a version that overlaps two times (unix seconds), None if its record has none."""
    for one in reversed((*record.former, record)):
        times = one.times.values()
        if one.version == version and times and min(times) <= until and max(times) >= since:
            return one
    return None
