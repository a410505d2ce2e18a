# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated nights of post-upgrade tasks."""

from __future__ import annotations

import pytest

from .fresh import fresh
from .post_upgrade import night
from .post_upgrade.night import WITH_SERVICES, has_services, run
from .shrink import shortest_story

_FIRST = range(3)


@pytest.mark.parametrize("seeds", [_FIRST, WITH_SERVICES[:3]], ids=["push runs", "services"])
def test_nights_of_post_upgrade_tasks_break_no_rule(seeds: range) -> None:
    results = [run(seed) for seed in seeds]
    for result in results:
        assert not result.violations, shortest_story(result, night)
        assert result.faults
        assert result.admissions["after"] >= 20
    # Otherwise the nights would show nothing of these.
    assert sum(result.admissions["open"] for result in results)


@pytest.mark.parametrize("seed", fresh(4, 90))
def test_a_fresh_night_of_post_upgrade_tasks_breaks_no_rule(seed: int) -> None:
    result = run(seed)
    assert not result.violations, shortest_story(result, night)
    assert result.faults
    assert result.admissions["after"] >= 20


def test_planner_services_are_in_half_of_the_fresh_nights_and_in_those_whose_seed_says_so() -> None:
    assert not any(map(has_services, range(1000)))
    assert all(map(has_services, WITH_SERVICES))
    assert 450 < sum(map(has_services, range(2000, 3000))) < 550
