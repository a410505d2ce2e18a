# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's record keeps of its former moves, for reports of rollouts that are over. No plan depends on it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .failures import newest_failures
from .fleet import HostRecord
from .step_trail import newest_steps

# In characters, as it is stored: of all moves, of the steps of one, of its error, and of its failures. Planners write 61 records at once, and Consul
# takes half a megabyte.
MOST_FORMER = 1500
_MOST_STEPS = 800
_MOST_ERROR = 200
_MOST_FAILURES = 500
FIELDS = ("version", "state", "service", "step", "attempt", "error", "times", "trail", "failures")


def with_former_rollout(before: HostRecord) -> tuple[HostRecord, ...]:
    """Return the former moves of a host that now goes to another version: those so far, and the one that is over."""
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


def newest_rollouts(moves: Sequence[HostRecord]) -> tuple[HostRecord, ...]:
    """Return as many moves, from their end, as may be stored."""
    kept, size = len(moves), 0
    while kept and (size := size + len(json.dumps(moves[kept - 1].slim())) + 2) <= MOST_FORMER:
        kept -= 1
    return tuple(moves[kept:])


def rollout_within(record: HostRecord, version: str, since: int, until: int) -> HostRecord | None:
    """Return a host's last move to a version that was between two times (unix seconds), None where its record has none."""
    for one in reversed((*record.former, record)):
        times = one.times.values()
        if one.version == version and times and min(times) <= until and max(times) >= since:
            return one
    return None
