# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated nights of post-upgrade tasks."""

from __future__ import annotations

import pytest

from .post_upgrade.night import WITH_SERVICES, described, run

# The nights of one test.
_TOGETHER = 10
_QUICK, _MORE = range(3), [range(first, first + _TOGETHER) for first in range(0, 60, _TOGETHER)]
_SERVICES, _MORE_SERVICES = WITH_SERVICES[:3], [WITH_SERVICES[first : first + _TOGETHER] for first in (0, 10, 20)]


@pytest.mark.parametrize(
    "seeds",
    [
        _QUICK,
        _SERVICES,
        *(pytest.param(one, marks=pytest.mark.thorough) for one in (*_MORE, *_MORE_SERVICES)),
    ],
    ids=str,
)
def test_nights_of_post_upgrade_tasks_break_no_rule(seeds: range) -> None:
    results = [run(seed) for seed in seeds]
    for result in results:
        assert not result.violations, described(result)
        assert result.faults
    # Otherwise the nights would show nothing of these.
    assert sum(result.admissions["after"] for result in results) >= 20 * len(results)
    assert sum(result.admissions["open"] for result in results)
