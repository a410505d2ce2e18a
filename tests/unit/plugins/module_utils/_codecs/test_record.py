# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host records, decoded with sanitized and truncated texts, and encoded again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import decode_record, encode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.failures import Failure, newest_failures
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    POST_STATES,
    RECORD_STATES,
    HostRecord,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.former_rollouts import newest_rollouts
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart, newest_steps
from hypothesis import given
from hypothesis import strategies as st
from raw_keys import NOT_TEXT, PRINTABLE, is_version, read


def test_a_full_record() -> None:
    record = HostRecord(
        "2.0", FAILED, "nova", "stop", 3, "no quorum", {"started": 5, "failed": 9}, "1.0", ("stop/nova",), "failed",
        trail=(StepStart(5, "nova", "stop"), StepStart(9)),
    )  # fmt: skip

    assert decode_record("k", encode_record(record).encode()) == record


TEXTS = st.none() | PRINTABLE


# A longer error is truncated; see below.
ERRORS = PRINTABLE.filter(lambda text: len(text) <= 200)
FAILURES = st.builds(
    Failure, st.integers(0, 2**37), st.integers(0, 99), PRINTABLE, PRINTABLE, ERRORS, st.integers(1, 99)
)
FORMER = st.builds(
    HostRecord,
    st.text(min_size=1).filter(is_version),
    st.sampled_from(RECORD_STATES),
    error=TEXTS,
    times=st.dictionaries(st.sampled_from(RECORD_STATES), st.integers(0, 2**37)),
    trail=st.lists(st.builds(StepStart, st.integers(0, 2**37), PRINTABLE, PRINTABLE), max_size=3).map(tuple),
)


@given(
    st.builds(
        HostRecord,
        st.text(min_size=1).filter(is_version),
        st.sampled_from(RECORD_STATES),
        TEXTS,
        TEXTS,
        st.integers(1, 99),
        TEXTS,
        st.dictionaries(st.sampled_from(RECORD_STATES), st.integers(0, 2**37)),
        TEXTS,
        st.lists(PRINTABLE).map(tuple),
        st.none() | st.sampled_from(POST_STATES),
        TEXTS,
        st.lists(st.builds(StepStart, st.integers(0, 2**37), PRINTABLE, PRINTABLE), max_size=8).map(newest_steps),
        st.lists(FORMER, max_size=3).map(newest_rollouts),
        TEXTS,
        st.lists(FAILURES, max_size=8).map(newest_failures),
    )
)
def test_a_record_comes_back_as_it_was(record: HostRecord) -> None:
    assert decode_record("k", encode_record(record).encode()) == record


def test_a_record_without_task_groups_is_stored_without_done() -> None:
    assert json.loads(encode_record(HostRecord("2.0", "started"))) == {
        "version": "2.0",
        "state": "started",
        "attempt": 1,
        "times": {},
    }


@pytest.mark.parametrize(
    ("trail", "found"),
    [
        (7, ()),
        (None, ()),
        ([[5, "nova", "stop"], [6, "nova"], ["noon", "a", "b"], [1e999, "a", "b"], [7, 8, "b"], 9, [9, None, "up\x1b"]],
         (StepStart(5, "nova", "stop"), StepStart(9, "", "up?"))),
        ([[at, "nova", "x" * 255] for at in range(99)], tuple(StepStart(at, "nova", "x" * 255) for at in range(85, 99))),
    ],
)  # fmt: skip
def test_unreadable_steps_are_left_out_and_the_last_ones_are_kept(trail: object, found: tuple[StepStart, ...]) -> None:
    record = decode_record("k", json.dumps({"version": "2.0", "state": "started", "trail": trail}).encode())

    assert record == HostRecord("2.0", "started", trail=found)


@pytest.mark.parametrize(
    ("former", "found"),
    [
        (7, ()),
        ([7, "x", {"version": "1"}, {"version": "1", "state": "lost"}, [["version", "1"]]], ()),
        ([{"version": "1", "state": "failed", "error": "up\x1b", "done": ["a"], "former": [{}], "mood": 1}],
         (HostRecord("1", "failed", error="up?"),)),
        ([{"version": f"{at}", "state": "upgraded", "error": "x" * 700} for at in range(9)],
         tuple(HostRecord(f"{at}", "upgraded", error="x" * 700) for at in (8,))),
    ],
)  # fmt: skip
def test_unreadable_former_rollouts_are_left_out_and_the_last_ones_are_kept(
    former: object, found: tuple[HostRecord, ...]
) -> None:
    record = decode_record("k", json.dumps({"version": "2.0", "state": "started", "former": former}).encode())

    assert record == HostRecord("2.0", "started", former=found)


@pytest.mark.parametrize(
    ("failures", "found"),
    [
        ([[5, 1, "nova", "stop", "no\nspace\x1b", 1], [9, 4, None, "", None, 3]],
         (Failure(5, 1, "nova", "stop", "no space?"), Failure(9, 4, total=3))),
        ([[5, 1, "nova"], [5, "1", "", "", "", 1], [5, 2**70, "", "", "", 1], ["x", 1, "", "", "", 1], [5, 1, 7, "", "", 1],
          [5, 1, "", "", "", True], [5, 1, "", "", "", -1], "x", None], ()),
        ([[5, 1, "", "", "x" * 900 + "y", 0]], (Failure(5, 1, error="x" * 199 + "y"),)),
        ("x", ()),
    ],
)  # fmt: skip
def test_unreadable_failures_are_left_out(failures: object, found: tuple[Failure, ...]) -> None:
    record = decode_record("k", json.dumps({"version": "2.0", "state": "started", "failures": failures}).encode())

    assert record == HostRecord("2.0", "started", failures=found)


def test_of_very_many_failures_the_last_ones_are_kept() -> None:
    failures = [[at, at, "", "", "x" * 200, 1] for at in range(1000)]
    record = decode_record("k", json.dumps({"version": "2.0", "state": "started", "failures": failures}).encode())

    assert [one.at for one in record.failures] == [*range(1000 - len(record.failures), 1000)]
    assert sum(one.total for one in record.failures) == 1000
    assert record.failures[-1].error == "x" * 200


def test_a_record_needs_a_version_and_a_state_only() -> None:
    assert decode_record("k", b'{"version": "2.0", "state": "upgraded", "mood": "good"}') == HostRecord(
        "2.0", "upgraded"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (NOT_TEXT, "can't decode byte"),
        (b"[]", "no attribute 'get'"),
        (b"7", "no attribute 'get'"),
        (b'{"state": "started"}', "no 'version'"),
        (b'{"version": "2.0"}', "no 'state'"),
        (b'{"version": 2, "state": "started"}', "version 2, state 'started', attempt 1"),
        (b'{"version": "2.0", "state": "lost"}', "version '2.0', state 'lost', attempt 1"),
        (b'{"version": "2.0/compute2", "state": "upgraded"}', "version '2.0/compute2', state 'upgraded', attempt 1"),
        (b'{"version": "2.0", "state": "started", "times": {"started": 1%s}}' % (b"0" * 400), "is not a unix time"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"version": "2.0", "state": ["started"]}', "version '2.0', state ['started'], attempt 1"),
        (b'{"version": "2.0", "state": "started", "attempt": "2"}', "attempt '2'"),
        (b'{"version": "2.0", "state": "started", "step": 3}', "3 is not a text"),
        (b'{"version": "2.0", "state": "started", "times": [1]}', "times [1]"),
        (b'{"version": "2.0", "state": "started", "done": "stop/nova"}', "done 'stop/nova'"),
        (b'{"version": "2.0", "state": "started", "done": [1]}', "done [1]"),
        (b'{"version": "2.0", "state": "started", "post": "over"}', "post 'over'"),
        (b'{"version": "2.0", "state": "started", "post": ["done"]}', "post ['done']"),
        (b'{"version": "2.0", "state": "started", "times": {"started": "noon"}}', "invalid literal for int()"),
        (b'{"version": "2.0", "state": "started", "times": {"started": null}}', "int() argument must be"),
        (b'{"version": "2.0", "state": "started", "times": {"started": 1e999}}', "cannot convert float infinity"),
    ],
)
def test_a_record_that_can_not_be_read_has_failed_and_says_why(value: bytes, reason: str) -> None:
    record = read({"upgrade/hosts/compute1": value}).records["compute1"]

    assert (record.state, record.version, record.readable) == (FAILED, "", False)
    assert record.error is not None
    assert record.error.startswith("the record cloud/upgrade/hosts/compute1 can't be read (")
    assert record.error.endswith("); let the host report again, or delete the key")
    assert reason in record.error


def test_long_texts_in_a_record_are_truncated_and_their_ends_are_kept() -> None:
    text = f"first words {'x' * 400_000} last words"
    raw = {"version": "2.0", "state": "failed", "error": text, "service": text, "step": text}
    found = decode_record("k", json.dumps(raw).encode())

    assert (found.readable, found.version, found.state) == (True, "2.0", "failed")
    for cut, most in ((found.error, 4200), (found.service, 255), (found.step, 255)):
        assert cut is not None
        assert len(cut) == most
        assert cut.startswith("first words xxx")
        assert cut.endswith("xxx last words")
    assert decode_record("k", encode_record(found).encode()) == found


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"version": "9" * 300_000}, "version '9999"),
        ({"version": "9" * 256}, "version '9999"),
        ({"reported": "9" * 300_000}, "'9999"),
        ({"done": ["upgrade/nginx"] * 30_000}, "done has more than 20000 characters"),
        ({"done": [""] * 170_000}, "done has 170000 entries, and at most 2500 are allowed"),
        ({"done": ["\N{GRINNING FACE}" * 20_000]}, "it would take 240"),
        ({"times": {f"state {at}": 1 for at in range(10_000)}}, "times {'state 0': 1"),
        ({"times": {"x" * 300_000: 1}}, "times {'xxx"),
    ],
)
def test_names_that_are_too_long_make_a_record_unreadable(more: dict[str, Any], reason: str) -> None:
    found = decode_record("k", json.dumps({"version": "2.0", "state": "failed", **more}).encode())

    assert (found.readable, found.version) == (False, "")
    assert found.error is not None
    assert found.error.startswith(f"the record k can't be read ({reason}")
    assert len(found.error) < 500


def test_nested_keys_among_the_records_are_no_records() -> None:
    assert read({"upgrade/hosts/compute1/old": b"{}"}).records == {}
