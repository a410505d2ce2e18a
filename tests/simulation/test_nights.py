# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated nights break no rule, and a seed repeats a night exactly."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from .night import run
from .shrink import shrink, told

# These nights are part of `make test`; `make test-all` has fresh ones too.
# In the last one, a clock is set back while a planner waits.
_QUICK, _FRESH = (*range(300, 304), 6176), 200


def seeds() -> list[Any]:
    """Return the seeds of `make test`, and fresh ones in a row."""
    # Processes that share the nights have to agree on them.
    first = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(1000, 10**6)
    fresh = range(first, first + _FRESH)
    return [*_QUICK, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in fresh)]


@pytest.mark.parametrize("seed", seeds())
def test_a_night_breaks_no_rule(seed: int) -> None:
    result = run(seed)
    assert not result.violations, told(*shrink(result))
    assert result.admissions
    assert result.faults


def test_a_seed_repeats_a_night() -> None:
    first, again = run(4), run(4)
    assert (first.seconds, first.requests, first.writes) == (again.seconds, again.requests, again.writes)
