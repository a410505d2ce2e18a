# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a push run has finished of a move, under what a host says of itself."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._model.fleet import FAILED, STARTED, UPGRADED, Record
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.report import Word, next_record

BEFORE = Record("2", STARTED, attempt=2, times={"started": 5}, done=("stop/nova",), post="started")


@pytest.mark.parametrize(
    ("version", "state", "done", "post"),
    [
        ("2", STARTED, ("stop/nova",), "started"),
        ("2", FAILED, ("stop/nova",), "started"),
        ("2", UPGRADED, (), "started"),
        ("3", STARTED, (), None),
        ("3", FAILED, (), None),
        ("3", UPGRADED, (), None),
    ],
)
def test_units_are_kept_until_the_move_is_over(
    version: str, state: str, done: tuple[str, ...], post: str | None
) -> None:
    after = next_record(BEFORE, Word("compute1", version, state), 9)
    assert (after.done, after.post, after.state) == (done, post, state)


@pytest.mark.parametrize(
    ("version", "state", "done", "origin"),
    [
        ("2", STARTED, ("stop/db", "upgrade/db@1.5"), "1"),
        ("3", STARTED, ("upgrade/db@1.5",), "1"),
        ("3", FAILED, ("upgrade/db@1.5",), "1"),
        ("3", UPGRADED, (), None),
    ],
)
def test_a_path_stays_behind_a_host_until_it_reports(
    version: str, state: str, done: tuple[str, ...], origin: str | None
) -> None:
    before = Record("2", FAILED, done=("stop/db", "upgrade/db@1.5"), origin="1")
    after = next_record(before, Word("db1", version, state), 9)
    assert (after.done, after.origin) == (done, origin)


def test_a_first_or_an_unreadable_record_has_none() -> None:
    for before in (None, Record("2", FAILED, done=("stop/nova",), readable=False)):
        after = next_record(before, Word("compute1", "2", STARTED), 9)
        assert after == Record("2", STARTED, times={"started": 9})


def test_the_same_word_again_changes_nothing() -> None:
    assert next_record(BEFORE, Word("compute1", "2", STARTED), 9) is BEFORE
