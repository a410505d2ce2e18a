# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rollouts on a real cluster of three servers, under fire: no more hosts are admitted than was allowed, at any moment."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from lab.lab import Lab

from .faults import LEAST
from .run import run

# Of ten runs, so many are part of `make test`.
_QUICK = 2


def seeds() -> list[Any]:
    """Return the seeds of the runs: ten in a row, so that all kinds are there, or the one that CONVOY_TEST_SEED repeats."""
    given = os.environ.get("CONVOY_TEST_SEED")
    # Processes that share the runs have to agree on them.
    first = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(10**6)
    if given:
        return [int(given)]
    found = range(first, first + 10)
    return [*found[:_QUICK], *(pytest.param(seed, marks=pytest.mark.thorough) for seed in found[_QUICK:])]


@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: f"CONVOY_TEST_SEED={seed}")
def test_every_admission_was_allowed(lab: Lab, seed: int) -> None:
    result = run(lab, seed)
    assert result.violations == [], f"again with CONVOY_TEST_SEED={seed}"
    assert result.admissions >= result.least_admissions
    assert result.writes >= 50
    assert result.views >= 20
    assert sum(result.faults.values()) >= LEAST
