# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated nights of jobs and rollouts together."""

from __future__ import annotations

import pytest
from thorough import quick

from . import job_night
from .fresh import fresh
from .job_night import run
from .shrink import shortest_story

# The nights of one test. In a single one, other work may leave no time for a job.
_TOGETHER = (range(0, 20, 10), range(20, 30))


@pytest.mark.parametrize("seeds", quick(1, _TOGETHER), ids=str)
def test_nights_of_jobs_break_no_rule(seeds: range) -> None:
    results = [run(seed) for seed in seeds]
    for result in results:
        assert not result.violations, shortest_story(result, job_night)
        assert result.faults
    for count in (sum(result.begun["job"] for result in results), sum(result.runs for result in results)):
        assert count >= len(results)
    # Otherwise the nights would show nothing of these.
    assert sum(result.begun["version"] for result in results) and sum(result.lost for result in results)


@pytest.mark.parametrize("seed", fresh(4, 50))
def test_a_fresh_night_of_jobs_breaks_no_rule(seed: int) -> None:
    result = run(seed)
    assert not result.violations, shortest_story(result, job_night)
    assert result.faults
