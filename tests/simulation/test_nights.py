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

# Of all nights, so many are part of `make test`.
_QUICK, _ALL = 6, 200


def seeds() -> list[Any]:
    """Return fresh seeds in a row."""
    # Processes that share the nights have to agree on them.
    first = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(10**6)
    found = range(first, first + _ALL)
    return [*found[:_QUICK], *(pytest.param(seed, marks=pytest.mark.thorough) for seed in found[_QUICK:])]


@pytest.mark.parametrize("seed", seeds())
def test_a_night_breaks_no_rule(seed: int) -> None:
    result = run(seed)
    assert not result.violations, told(*shrink(result))
    assert result.admissions
    assert result.faults


def test_a_seed_repeats_a_night() -> None:
    first, again = run(4), run(4)
    assert (first.seconds, first.requests, first.writes) == (again.seconds, again.requests, again.writes)
