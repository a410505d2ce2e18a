# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated nights of jobs and rollouts together."""

from __future__ import annotations

from typing import Any

import pytest

from .job_night import run

_QUICK, _MORE = (0, 10), (*range(1, 10), *range(11, 60))


def seeds() -> list[Any]:
    return [*_QUICK, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in _MORE)]


@pytest.mark.parametrize("seed", seeds())
def test_a_night_of_jobs_breaks_no_rule(seed: int) -> None:
    result = run(seed)
    assert not result.violations, "\n".join([*result.violations[:5], *result.log[-40:]])
    assert result.begun["job"] and result.runs and result.faults
