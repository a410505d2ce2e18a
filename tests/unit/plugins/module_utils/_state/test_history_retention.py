# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which entries of the history a write removes: as many as it has room for, and never one of a rollout that is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.values import decode_ledger, encode_ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import MOST_EPOCH, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._state.history_retention import (
    removable_epochs,
    with_kept_rollouts,
)
from hypothesis import given
from hypothesis import strategies as st


def rules(kept: int) -> dict[str, dict[str, int]]:
    return {"history": {"keep_rollouts": kept}}


def written(before: Ledger | None, what: str, kept: int, epoch: int | None = None, room: int = 61) -> Ledger:
    """Return the ledger after a write, as the ledger writer makes it."""
    following = before.epoch + 1 if before is not None else 1
    ledger = Ledger(epoch if epoch is not None else following, "2", instructions=rules(kept))
    ledger = with_kept_rollouts(before, ledger, what)
    return replace(ledger, history_from=removable_epochs(ledger, room).stop)


def test_the_first_rollout_of_a_fleet_removes_nothing() -> None:
    ledger = written(None, "begin", 2)
    assert (ledger.rollouts, ledger.history_from) == ((1,), 1)


def test_the_third_rollout_removes_the_first_if_two_are_kept() -> None:
    ledger = None
    for what in ("begin", "open", "complete", "begin", "open"):
        ledger = written(ledger, what, 2)
    assert ledger is not None
    assert (ledger.rollouts, ledger.history_from) == ((1, 4), 1)
    ledger = written(ledger, "adopt", 2)
    assert (ledger.rollouts, ledger.history_from) == ((4, 6), 4)


def test_a_write_removes_what_it_has_room_for_and_the_next_ones_the_rest() -> None:
    old = Ledger(1000, "1", rollouts=(1, 150, 900))
    begun = written(old, "begin", 2, room=54)
    assert (begun.rollouts, begun.history_from) == ((900, 1001), 55)
    assert removable_epochs(replace(begun, epoch=1002), 0) == range(55, 55)
    found = [begun]
    while found[-1].history_from < 900:
        found.append(written(found[-1], "open", 2, room=60))
    assert len(found) == 1 + 15
    assert [one.history_from for one in found[:3]] == [55, 115, 175]
    assert found[-1].history_from == 900
    assert removable_epochs(found[-1], 60) == range(900, 900)


def test_a_ledger_without_a_list_counts_all_earlier_entries_as_one_rollout() -> None:
    old = Ledger(700, "1")
    first = written(old, "begin", 3)
    assert (first.rollouts, first.history_from) == ((1, 701), 1)
    second = written(first, "begin", 3)
    assert (second.rollouts, second.history_from) == ((1, 701, 702), 1)
    third = written(second, "begin", 3)
    assert (third.rollouts, third.history_from) == ((701, 702, 703), 62)


def test_a_deleted_ledger_begins_a_new_list_after_the_newest_entry() -> None:
    ledger = written(None, "adopt", 2, epoch=80)
    assert (ledger.rollouts, ledger.history_from) == ((1, 80), 1)


def test_another_number_counts_from_the_write_that_sets_it() -> None:
    old = Ledger(100, "2", rollouts=(10, 20, 30, 40, 50), history_from=10)
    fewer = written(old, "rules", 2)
    assert (fewer.rollouts, fewer.history_from) == ((40, 50), 40)
    more = written(old, "rules", 50)
    assert (more.rollouts, more.history_from) == (old.rollouts, 10)
    # The number is part of the rules, which only this kind of write changes.
    paused = written(old, "pause", 2)
    assert (paused.rollouts, paused.history_from) == (old.rollouts, 10)


def test_epochs_that_continue_below_the_highest_one_remove_nothing_new() -> None:
    old = Ledger(MOST_EPOCH, "2", rollouts=(3, MOST_EPOCH - 5), history_from=MOST_EPOCH - 5)
    ledger = written(old, "begin", 2, epoch=8)
    assert (ledger.rollouts, ledger.history_from) == ((3, 8), 3)


def test_the_ledger_stores_both_fields_and_leaves_out_what_says_nothing() -> None:
    ledger = Ledger(9, "2", rollouts=(3, 7), history_from=3)
    found = decode_ledger("upgrade/ledger", encode_ledger(ledger).encode())
    assert (found.rollouts, found.history_from) == ((3, 7), 3)
    plain = encode_ledger(Ledger(9, "2"))
    assert "rollouts" not in plain
    assert "history_from" not in plain
    assert len(encode_ledger(Ledger(9, "2", rollouts=tuple(range(MOST_EPOCH - 1000, MOST_EPOCH))))) < 20_000


@pytest.mark.parametrize(
    "value",
    [
        '{"epoch": 9, "version": "2", "rollouts": [7, 3]}',
        '{"epoch": 9, "version": "2", "rollouts": [3, 3]}',
        '{"epoch": 9, "version": "2", "rollouts": ["3"]}',
        '{"epoch": 9, "version": "2", "rollouts": 3}',
        '{"epoch": 9, "version": "2", "history_from": 0}',
        '{"epoch": 9, "version": "2", "history_from": "all"}',
    ],
)
def test_fields_that_no_planner_writes_make_the_ledger_unreadable(value: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        decode_ledger("upgrade/ledger", value.encode())
    assert caught.value.code == "unreadable_ledger"


@given(
    st.integers(2, 5),
    st.lists(st.tuples(st.sampled_from(("begin", "adopt", "open", "pause", "rules")), st.integers(0, 61)), max_size=60),
)
def test_the_history_has_no_gap_and_all_kept_rollouts(kept: int, writes: list[tuple[str, int]]) -> None:
    entries: dict[int, str] = {}
    ledger = None
    for what, room in writes:
        epoch = ledger.epoch + 1 if ledger is not None else 1
        new = with_kept_rollouts(ledger, Ledger(epoch, "2", instructions=rules(kept)), what)
        gone = removable_epochs(new, room)
        assert len(gone) <= room
        entries[epoch] = what
        for one in gone:
            del entries[one]
        ledger = replace(new, history_from=gone.stop)
        begun = [at for at, kind in entries.items() if kind in ("begin", "adopt")]
        assert sorted(entries) == list(range(ledger.history_from, epoch + 1))
        assert set(ledger.rollouts) >= set(begun[-kept:])
        assert not ledger.rollouts or ledger.rollouts[-kept:] == ledger.rollouts
