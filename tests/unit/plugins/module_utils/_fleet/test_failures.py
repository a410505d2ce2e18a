# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures in a record take a bounded size, and none is forgotten."""

from __future__ import annotations

import json

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.failures import (
    MOST_FAILURES,
    Failure,
    newest_failures,
)
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text(max_size=200)
FAILURES = st.lists(
    st.builds(Failure, st.integers(0, 2**37), st.integers(0, 99), TEXTS, TEXTS, TEXTS, st.just(1)), max_size=60
)


@given(FAILURES, st.integers(100, MOST_FAILURES))
def test_they_fit_and_are_all_counted(failures: list[Failure], most: int) -> None:
    kept = newest_failures(failures, most)
    assert sum(len(json.dumps(one)) + 2 for one in kept) <= most
    assert sum(one.total for one in kept) == len(failures)
    assert [one.at for one in kept] == [one.at for one in failures[len(failures) - len(kept) :]]
    assert newest_failures(kept, most) == kept


def test_errors_are_left_out_before_failures() -> None:
    failures = [Failure(300 * number, number, "nova", "stop", f"{number} " + "x" * 190) for number in range(1, 13)]
    kept = newest_failures(failures)
    assert [one.attempt for one in kept] == [*range(1, 13)]
    assert [one.attempt for one in kept if one.error] == [8, 9, 10, 11, 12]


def test_of_a_thousand_the_first_ones_are_counted() -> None:
    kept: tuple[Failure, ...] = ()
    for number in range(1, 1001):
        kept = newest_failures((*kept, Failure(1_800_000_000 + number, number, "nova", "stop", "no space")))
    assert kept[-1] == Failure(1_800_001_000, 1000, "nova", "stop", "no space")
    assert kept[0].total == 1000 - len(kept) + 1
    assert {one.total for one in kept[1:]} == {1}
    assert len(kept) > 20


def test_the_last_one_keeps_as_much_of_its_error_as_fits() -> None:
    (kept,) = newest_failures([Failure(1, 1, "nova", "stop", "🜁" * 199 + "!")])
    assert kept.error.endswith("🜁!")
    assert len(kept.error) > 50
    (kept,) = newest_failures([Failure(1, 1, "🜁" * 200, "", "no space")])
    assert kept == Failure(1, 1)
