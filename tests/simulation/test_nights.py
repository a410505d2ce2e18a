# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated nights break no rule, and a seed repeats a night exactly."""

from __future__ import annotations

import pytest

from . import night
from .fresh import fresh
from .night import Night, run
from .shrink import shortest_story

# Seeds that once found a fault: in the second one, a clock is set back while a planner waits; in the third one, a planner is frozen while it reads, and
# takes hosts for well since before that; in the last one, a host that failed in another version is retried by name, which is no fault.
# Both `make test` and `make test-all` have fresh ones too, as many as fit in 30 seconds and in 10 minutes of the processor.
_KNOWN, _QUICK, _FRESH = (300, 6176, 500285, 1796011627), 15, 400


@pytest.mark.parametrize("seed", [*_KNOWN, *fresh(_QUICK, _FRESH)])
def test_a_night_breaks_no_rule(seed: int) -> None:
    result = run(seed)
    assert not result.violations, shortest_story(result, night)
    assert result.admissions
    assert result.faults


def test_a_seed_repeats_a_night() -> None:
    first, again = run(4), run(4)
    assert (first.seconds, first.requests, first.writes) == (again.seconds, again.requests, again.writes)


def test_a_night_in_which_planners_note_recoveries_without_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def next_recovery(night: Night) -> float:
        nonlocal asked
        asked += 1
        assert asked < 100, "The night has no end."
        return night._world.now + 600

    monkeypatch.setattr(Night, "_next_recovery", next_recovery)
    monkeypatch.setattr(Night, "_note_end", lambda _night, _operator: None)
    (sentence,) = run(4).violations
    assert sentence.startswith(
        "the rollout did not come to an end although planners noted 4 recoveries after the faults"
    )
