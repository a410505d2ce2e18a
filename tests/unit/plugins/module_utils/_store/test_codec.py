# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From raw keys to typed values and back, with all that old fleets hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._model.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._model.fleet import (
    FAILED,
    POST_STATES,
    RECORD_STATES,
    STARTED,
    Record,
    Report,
    Snapshot,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._model.gates import Gates, GateValue
from ansible_collections.convoy.upgrade.plugins.module_utils._model.holds import Hold, Holds
from ansible_collections.convoy.upgrade.plugins.module_utils._model.ledger import ABORTED, PAUSED, STATES, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._model.marks import Approval, Mark
from ansible_collections.convoy.upgrade.plugins.module_utils._model.shown import printable
from ansible_collections.convoy.upgrade.plugins.module_utils._model.trail import Begun, newest
from ansible_collections.convoy.upgrade.plugins.module_utils._store.client import Entry
from ansible_collections.convoy.upgrade.plugins.module_utils._store.codec import (
    decode_approval,
    decode_event,
    decode_hold,
    decode_ledger,
    decode_mark,
    decode_version,
    encode_approval,
    encode_event,
    encode_ledger,
    encode_mark,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._store.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._store.records import decode_record, encode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._store.snapshot import decode_snapshot
from hypothesis import given
from hypothesis import strategies as st

KEYS = Keys("cloud/")
NOT_TEXT = b"\xff\xfe\x00"


def is_version(text: str) -> bool:
    return text.isprintable() and "/" not in text and text == text.strip() and text.lower() not in ("true", "false")


def read(entries: dict[str, bytes]) -> Snapshot:
    """Return the snapshot of entries below the prefix, each one younger than the one before it."""
    return decode_snapshot(
        KEYS, [Entry(f"cloud/{key}", value, index) for index, (key, value) in enumerate(entries.items(), 5)]
    )


def test_nothing_at_all() -> None:
    assert read({}) == Snapshot()


def test_everything_is_found_in_its_place() -> None:
    ledger = Ledger(3, "2.0", "1.0")
    found = read(
        {
            "current_version": b"2.0\n",
            "upgrade/ledger": encode_ledger(ledger).encode(),
            "upgrade/schema": b"1",
            "running/versions/1.0/compute1": b"1700000000",
            "running/versions/2.0/compute2": b"1700000000.5",
            "config_state/enable_puppet/global": b"False",
            "config_state/enable_puppet/role/compute": b"true",
            "config_state/enable_puppet/host/compute1": b"2.0",
            "upgrade/hosts/compute1": b'{"version": "2.0", "state": "started"}',
            "upgrade/hold/global": b'{"reason": "freeze", "by": "ann", "at": "noon"}',
            "upgrade/hold/role/compute": b"{}",
            "upgrade/hold/host/compute1": b"RAM test",
        }
    )

    gates, holds = "cloud/config_state/enable_puppet", "cloud/upgrade/hold"
    assert found == Snapshot(
        current_version="2.0",
        ledger=ledger,
        reports={"compute1": Report("1.0", 1_700_000_000), "compute2": Report("2.0", 1_700_000_000.5)},
        records={"compute1": Record("2.0", STARTED)},
        gates=Gates(
            GateValue(f"{gates}/global", "False"),
            {"compute": GateValue(f"{gates}/role/compute", "true")},
            {"compute1": GateValue(f"{gates}/host/compute1", "2.0")},
        ),
        holds=Holds(
            Hold(f"{holds}/global", "freeze", "ann", "noon"),
            {"compute": Hold(f"{holds}/role/compute")},
            {"compute1": Hold(f"{holds}/host/compute1", "RAM test")},
        ),
        index=16,
        version_index=5,
        ledger_index=6,
        schema=1,
    )


def test_keys_of_another_prefix_and_of_others_are_left_alone() -> None:
    entries = [Entry("current_version", b"9", 1), Entry("cloud/current_version.bak", b"9", 2), Entry("x", b"", 3)]

    assert decode_snapshot(KEYS, entries) == Snapshot(index=3)


@pytest.mark.parametrize(
    ("value", "version"),
    [(b"2.10", "2.10"), (b" 2.10\r\n", "2.10"), (b"", None), (b" \n", None), (NOT_TEXT, None)],
)
def test_versions(value: bytes, version: str | None) -> None:
    assert decode_version(value) == version


def test_folder_placeholders_are_no_entries() -> None:
    folders = [
        "running/versions/",
        "running/versions/2.0/",
        "config_state/enable_puppet/",
        "config_state/enable_puppet/host/",
        "config_state/enable_puppet/role/",
        "config_state/enable_puppet/role/compute/",
        "upgrade/hosts/",
        "upgrade/hold/",
        "upgrade/hold/host/",
        "upgrade/hold/global/",
    ]

    assert read(dict.fromkeys(folders, b"")) == Snapshot(
        index=4 + len(folders), hold_index=5 + folders.index("upgrade/hold/")
    )


@pytest.mark.parametrize(
    ("key", "warning"),
    [
        (
            "running/versions/2.0/gb/compute1",
            "'cloud/running/versions/2.0/gb/compute1' is passed over: it is not running/versions/<version>/<host>.",
        ),
        (
            "running/versions/compute1",
            "'cloud/running/versions/compute1' is passed over: it is not running/versions/<version>/<host>.",
        ),
        (
            "running/versions//compute1",
            "'cloud/running/versions//compute1' is passed over: it is not running/versions/<version>/<host>.",
        ),
        (
            "running/versions/2.0/comp\ufffdte1",
            "'cloud/running/versions/2.0/comp\ufffdte1' is passed over: it is not running/versions/<version>/<host>.",
        ),
        (
            "config_state/enable_puppet/host/gb/compute1",
            "'cloud/config_state/enable_puppet/host/gb/compute1' is passed over: "
            "it is no gate of a host, a role or everything.",
        ),
        (
            "config_state/enable_puppet/hosts/compute1",
            "'cloud/config_state/enable_puppet/hosts/compute1' is passed over: "
            "it is no gate of a host, a role or everything.",
        ),
        (
            "config_state/enable_puppet/globl",
            "'cloud/config_state/enable_puppet/globl' is passed over: it is no gate of a host, a role or everything.",
        ),
        (
            "upgrade/hold/compute1",
            "'cloud/upgrade/hold/compute1' is passed over: it is no hold of a host, a role or everything.",
        ),
        (
            "upgrade/hold/role/a/b",
            "'cloud/upgrade/hold/role/a/b' is passed over: it is no hold of a host, a role or everything.",
        ),
    ],
)
def test_a_key_that_means_nothing_is_passed_over_with_a_warning(key: str, warning: str) -> None:
    assert read({key: b"True"}) == Snapshot(index=5, warnings=(warning,))


@pytest.mark.parametrize(("value", "text"), [(b"", ""), (b"Flase", "Flase"), (NOT_TEXT, None)])
def test_gates_that_can_not_be_read_are_kept_for_whoever_needs_them(value: bytes, text: str | None) -> None:
    found = read({"config_state/enable_puppet/host/compute1": value}).gates.hosts["compute1"]

    assert found.text == text
    with pytest.raises(UpgradeError, match="cloud/config_state/enable_puppet/host/compute1"):
        found.is_open("2.0")


# Reports


@pytest.mark.parametrize("value", [b"", b"yesterday", NOT_TEXT, b"nan", b"inf", b"-1e300"])
def test_a_report_counts_even_if_its_time_can_not_be_read(value: bytes) -> None:
    assert read({"running/versions/1.0/compute1": value}).reports == {"compute1": Report("1.0", None)}


@pytest.mark.parametrize(
    ("entries", "chosen", "passed_over"),
    [
        ({"1.0": b"100", "2.0": b"200"}, Report("2.0", 200.0), "1.0"),
        ({"1.0": b"200", "2.0": b"100"}, Report("1.0", 200.0), "2.0"),
        ({"1.0": b"100", "2.0": b"soon"}, Report("1.0", 100.0), "2.0"),
        ({"1.0": b"100", "2.0": b"100"}, Report("1.0", 100.0), "2.0"),
        ({"1.0": b"", "2.0": b""}, Report("1.0", None), "2.0"),
        ({"1.0": b"", "2.0": b"0"}, Report("2.0", 0.0), "1.0"),
    ],
)
def test_of_two_reports_the_later_counts_and_in_doubt_the_one_that_leaves_work_to_do(
    entries: dict[str, bytes], chosen: Report, passed_over: str
) -> None:
    reports = {f"running/versions/{version}/compute1": value for version, value in entries.items()}
    found = read({"current_version": b"2.0", **reports})

    assert found.reports == {"compute1": chosen}
    assert found.warnings == (
        f"compute1 reported several versions; {chosen.version!r} is taken, and passed over: "
        f"cloud/running/versions/{passed_over}/compute1.",
    )


# The ledger and the schema


def test_a_ledger_is_stored_without_what_goes_without_saying() -> None:
    assert json.loads(encode_ledger(Ledger(3, "2.0", who="ann", since=7))) == {
        "epoch": 3,
        "version": "2.0",
        "state": "running",
        "who": "ann",
        "since": 7,
    }


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(0, "2.0"),
        Ledger(9, "2.0", "1.0", "complete", {"rolling_rules": {"global": 1}}, r"(\w)\d", {"compute": 3}, "ann", 7),
        Ledger(4, "2.0", state=PAUSED, word={"by": "ann", "at": 7, "reason": "größe"}),
        Ledger(4, "2.0", state=ABORTED, word={"by": "ann", "at": 7}, stage={"number": 0}),
        Ledger(4, "1.0", "2.0", rollback=True, stage={"number": 2, "done_at": 0}),
    ],
)
def test_a_ledger_comes_back_as_it_was(ledger: Ledger) -> None:
    assert decode_ledger("upgrade/ledger", encode_ledger(ledger).encode()) == ledger


# What a host or an operator says is made printable when it is read.
PRINTABLE = st.text().map(printable)


@given(
    st.builds(
        Ledger,
        st.integers(0, 2**40),
        st.text(min_size=1),
        st.none() | st.text(),
        st.sampled_from(STATES),
        st.dictionaries(st.text(), st.integers()),
        st.none(),
        st.dictionaries(st.text(), st.integers(0, 99)),
        PRINTABLE,
        st.integers(0, 2**40),
        st.fixed_dictionaries({}, optional={"by": PRINTABLE, "at": st.integers(0, 2**40), "reason": PRINTABLE}),
        st.booleans(),
        st.dictionaries(st.sampled_from(("number", "done_at")), st.integers(0, 2**40)),
    )
)
def test_any_ledger_comes_back_as_it_was(ledger: Ledger) -> None:
    assert decode_ledger("upgrade/ledger", encode_ledger(ledger).encode()) == ledger


def test_a_paused_rollback_is_stored_with_its_word_and_its_stage() -> None:
    ledger = Ledger(
        4, "1", "2", PAUSED, who="ann", since=7, word={"by": "bob", "at": 9}, rollback=True, stage={"number": 0}
    )
    assert json.loads(encode_ledger(ledger)) == {
        "epoch": 4,
        "version": "1",
        "previous_version": "2",
        "state": "paused",
        "who": "ann",
        "since": 7,
        "word": {"by": "bob", "at": 9},
        "rollback": True,
        "stage": {"number": 0},
    }


def test_a_ledger_of_before_there_were_pauses_runs_and_is_no_rollback() -> None:
    old = decode_ledger("k", b'{"epoch": 1, "version": "2.0", "state": "running", "who": "ann", "since": 7}')
    assert (old.word, old.rollback, old.stage) == ({}, False, {})


def test_fields_that_a_later_release_added_are_left_alone() -> None:
    assert decode_ledger("k", b'{"epoch": 1, "version": "2.0", "mood": "good"}') == Ledger(1, "2.0")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b'{"version": "2.0"}', "it has no epoch)"),
        (b'{"epoch": "1", "version": "2.0"}', "epoch is '1'"),
        (b'{"epoch": 1, "version": ""}', "version is ''"),
        (b'{"epoch": 1, "version": "2.0", "state": "lost"}', "state is 'lost'"),
        (b'{"epoch": 1, "version": "2.0", "instructions": null}', "instructions is None"),
        (b'{"epoch": 1, "version": "2.0", "word": "ann"}', "word is 'ann'"),
        (b'{"epoch": 1, "version": "2.0", "rollback": "yes"}', "rollback is 'yes'"),
        (b'{"epoch": 1, "version": "2.0", "stage": "canary"}', "stage is 'canary'"),
        (b'{"epoch": 1, "version": "2.0", "stage": {"number": true}}', "stage is {'number': True}"),
        (b"[]", "it is no mapping of names to values"),
        (b'["epoch"]', "it is no mapping of names to values"),
        (b'"epoch"', "it is no mapping of names to values"),
        (b"7", "it is no mapping of names to values"),
        (b'{"epoch": 1, "version": "2.0", "stage": {"number": -1}}', "stage is {'number': -1}"),
        (b'{"epoch": 1, "version": "2.0", "word": {"at": 1%s}}' % (b"0" * 400), "word is {'at': 1000"),
        (b'{"epoch": 1, "version": "2.0", "who": ["ann"]}', "who is ['ann']"),
        (b'{"epoch": 1, "version": "2.0", "role_pattern": "(a){99999999999}"}', "role_pattern is '(a){99999999999}'"),
        (b'{"epoch": 1, "version": "2.0", "word": %s1%s}' % (b'{"a":' * 50, b"}" * 50), "it is nested too deeply"),
        (b"[" * 100_000, "it is nested too deeply"),
        (NOT_TEXT, "can't decode byte"),
    ],
)
def test_a_ledger_that_can_not_be_read_stops_everything(value: bytes, reason: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        read({"upgrade/ledger": value})

    assert caught.value.code == "unreadable_ledger"
    assert caught.value.message.startswith("The ledger cloud/upgrade/ledger can't be read (")
    assert caught.value.message.endswith(
        "), so nobody knows which rules hold, and nothing is opened. Restore it from a backup, or delete "
        "cloud/upgrade/ledger to let the next consul_upgrade_plan begin a new one."
    )
    assert reason in caught.value.message


@pytest.mark.parametrize(("value", "schema"), [(b"0", 0), (b"1\n", 1), (b"17", 17)])
def test_the_schema(value: bytes, schema: int) -> None:
    assert read({"upgrade/schema": value}).schema == schema


@pytest.mark.parametrize("value", [b"", b"one", b"1.0", NOT_TEXT])
def test_a_schema_that_can_not_be_read_stops_everything(value: bytes) -> None:
    with pytest.raises(UpgradeError) as caught:
        read({"upgrade/schema": value})

    assert caught.value.code == "unreadable_schema"
    assert caught.value.message == (
        f"cloud/upgrade/schema holds {value!r}, which is no version of the layout. Restore it from a backup, or delete it."
    )


# Records


def test_a_full_record() -> None:
    record = Record(
        "2.0", FAILED, "nova", "stop", 3, "no quorum", {"started": 5, "failed": 9}, "1.0", ("stop/nova",), "failed",
        trail=(Begun(5, "nova", "stop"), Begun(9)),
    )  # fmt: skip

    assert decode_record("k", encode_record(record).encode()) == record


TEXTS = st.none() | PRINTABLE


@given(
    st.builds(
        Record,
        st.text(min_size=1).filter(is_version),
        st.sampled_from(RECORD_STATES),
        TEXTS,
        TEXTS,
        st.integers(1, 99),
        TEXTS,
        st.dictionaries(st.sampled_from(RECORD_STATES), st.integers(0, 2**40)),
        TEXTS,
        st.lists(PRINTABLE).map(tuple),
        st.none() | st.sampled_from(POST_STATES),
        TEXTS,
        st.lists(st.builds(Begun, st.integers(0, 2**40), PRINTABLE, PRINTABLE), max_size=8).map(newest),
    )
)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert decode_record("k", encode_record(record).encode()) == record


def test_a_record_without_units_is_stored_as_before_there_were_any() -> None:
    assert json.loads(encode_record(Record("2.0", "started"))) == {
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
         (Begun(5, "nova", "stop"), Begun(9, "", "up?"))),
        ([[at, "nova", "x" * 255] for at in range(99)], tuple(Begun(at, "nova", "x" * 255) for at in range(85, 99))),
    ],
)  # fmt: skip
def test_what_can_not_be_read_of_a_trail_is_left_out_and_the_last_of_it_is_kept(
    trail: object, found: tuple[Begun, ...]
) -> None:
    record = decode_record("k", json.dumps({"version": "2.0", "state": "started", "trail": trail}).encode())

    assert record == Record("2.0", "started", trail=found)


def test_a_record_needs_a_version_and_a_state_only() -> None:
    assert decode_record("k", b'{"version": "2.0", "state": "upgraded", "mood": "good"}') == Record("2.0", "upgraded")


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
        (b'{"version": "2.0", "state": "started", "times": {"started": 1%s}}' % (b"0" * 400), "is no unix time"),
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


def test_texts_without_end_in_a_record_are_cut_and_the_last_words_are_kept() -> None:
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
        ({"times": {f"state {at}": 1 for at in range(10_000)}}, "times {'state 0': 1"),
        ({"times": {"x" * 300_000: 1}}, "times {'xxx"),
    ],
)
def test_names_without_end_make_a_record_unreadable(more: dict[str, Any], reason: str) -> None:
    found = decode_record("k", json.dumps({"version": "2.0", "state": "failed", **more}).encode())

    assert (found.readable, found.version) == (False, "")
    assert found.error is not None
    assert found.error.startswith(f"the record k can't be read ({reason}")
    assert len(found.error) < 500


def test_nested_keys_among_the_records_are_no_records() -> None:
    assert read({"upgrade/hosts/compute1/old": b"{}"}).records == {}


# Holds


@pytest.mark.parametrize(
    ("value", "hold"),
    [
        (b'{"reason": "RAM test", "by": "ann", "at": "noon"}', Hold("k", "RAM test", "ann", "noon")),
        (b'{"reason": "RAM test", "by": "", "at": null}', Hold("k", "RAM test")),
        (b'{"at": 1700000000}', Hold("k", at="1700000000")),
        (b"{}", Hold("k")),
        (b"", Hold("k")),
        (b"  ", Hold("k")),
        (b"RAM test\n", Hold("k", "RAM test")),
        (b"[1]", Hold("k", "[1]")),
        (b"true", Hold("k", "true")),
        (b"\x00\x01", Hold("k")),
        (NOT_TEXT, Hold("k")),
    ],
)
def test_whatever_stands_in_a_hold_it_holds(value: bytes, hold: Hold) -> None:
    assert decode_hold("k", value) == hold


def test_a_reason_without_end_is_cut_in_a_hold_and_in_an_approval() -> None:
    word = {"reason": "x" * 300_000, "by": "y" * 300_000, "at": 7}
    hold, approval = decode_hold("k", json.dumps(word).encode()), decode_approval(json.dumps(word).encode())

    assert approval is not None
    assert [len(text) for text in (hold.reason, hold.by, approval.reason, approval.by)] == [500] * 4
    assert len(decode_hold("k", b"x" * 300_000).reason) == 500


# An escape sequence, line breaks, a control of C1, what turns the direction of a line, and half of a character.
ACTING = "a\x1b[2Jb\rc\nd\x9be\u202ef\u2028g\ud800h"
TAME = "a?[2Jb c d?e?f g?h"


def test_no_words_of_a_host_act_on_the_terminal_that_shows_them() -> None:
    raw = {
        "version": "2.0", "state": "failed", "service": ACTING, "step": ACTING, "error": ACTING, "reported": ACTING,
        "times": {ACTING: 7}, "done": [ACTING],
    }  # fmt: skip
    found = decode_record("k", json.dumps(raw).encode())
    assert (found.service, found.step, found.error, found.reported) == (TAME, TAME, TAME, TAME)
    assert (found.times, found.done) == ({TAME: 7}, (TAME,))
    assert decode_record("k", encode_record(found).encode()) == found


def test_nor_do_those_of_an_operator() -> None:
    word = json.dumps({"reason": ACTING, "by": ACTING, "at": ACTING}).encode()
    assert decode_hold("k", word) == Hold("k", TAME, TAME, TAME)
    assert decode_approval(word) == Approval(TAME, 0, TAME)
    ledger = {"epoch": 1, "version": "2", "who": ACTING, "word": {"by": ACTING, "reason": ACTING}}
    read_back = decode_ledger("k", json.dumps(ledger).encode())
    assert (read_back.who, read_back.word) == (TAME, {"by": TAME, "reason": TAME})


def test_nor_does_the_history() -> None:
    event = {"epoch": 3, "what": "retry", "by": ACTING, "hosts": {ACTING: ACTING}, "of": [ACTING]}
    assert decode_event(json.dumps(event).encode()) == {
        "epoch": 3,
        "what": "retry",
        "by": TAME,
        "hosts": {TAME: TAME},
        "of": [TAME],
    }


# The history


def test_an_entry_of_the_history_is_stored_as_it_is() -> None:
    event = {"epoch": 7, "hosts": {"a": "no disk"}, "roles": {"b": {"hosts": 2, "reason": "r"}}, "reason": "why"}

    assert json.loads(encode_event(event)) == event


@pytest.mark.parametrize("hosts", [1, 20, 61])
def test_reasons_in_the_history_have_room_in_a_transaction_whatever_they_are(hosts: int) -> None:
    rules = {"stages": [{"name": "n" * 3000}]}
    reason = "first " + "\U0001f600" * 300_000 + " last"
    told = {f"h{at}": reason for at in range(hosts)}
    text = encode_event({"instructions": rules, "hosts": told, "roles": {"r": {"reason": reason}}, "by": reason})

    # In a transaction a value takes a third more, and all of it half a megabyte at most.
    assert len(text) < 300_000
    event = json.loads(text)
    assert event["instructions"] == rules
    for one in (*event["hosts"].values(), event["roles"]["r"]["reason"], event["by"]):
        assert len(one) >= 300
        assert (one[:6], one[-5:]) == ("first ", " last")


# Marks of health


@pytest.mark.parametrize(
    "mark", [Mark("2.0", None), Mark("2.0", 0), Mark("2.0", 1_700_000_000, upgraded=True), Mark("größe", None, True)]
)
def test_a_mark_comes_back_as_it_was(mark: Mark) -> None:
    assert decode_mark(encode_mark(mark).encode()) == mark
    assert read({"upgrade/health/compute1": encode_mark(mark).encode()}).marks == {"compute1": mark}


def test_a_mark_is_stored_with_all_that_it_says() -> None:
    assert json.loads(encode_mark(Mark("2.0", None))) == {"version": "2.0", "since": None, "upgraded": False}


@pytest.mark.parametrize(
    ("value", "mark"),
    [
        (b'{"version": "2.0"}', Mark("2.0", None)),
        (b'{"version": "2.0", "since": "5", "mood": "good"}', Mark("2.0", 5)),
        # A word that is not plainly true makes nobody upgraded.
        (b'{"version": "2.0", "since": 5, "upgraded": "true"}', Mark("2.0", 5)),
        (b'{"version": "2.0", "since": 5, "upgraded": 1}', Mark("2.0", 5)),
    ],
)
def test_what_a_mark_lacks_makes_it_say_less(value: bytes, mark: Mark) -> None:
    assert decode_mark(value) == mark


UNREADABLE = [b"", b"{", b"[]", b"7", b"null", b"{}", NOT_TEXT]


@pytest.mark.parametrize(
    "value",
    [
        *UNREADABLE,
        b'{"since": 5}',
        b'{"version": "2.0", "since": "noon"}',
        b'{"version": "2.0", "since": [5]}',
        b'{"version": "2.0", "since": 1e999}',
        b'{"version": "2.0", "since": NaN}',
    ],
)
def test_a_mark_that_can_not_be_read_is_none_and_stops_nobody(value: bytes) -> None:
    assert read({"upgrade/health/compute1": value}) == Snapshot(index=5)


# Approvals


@pytest.mark.parametrize(
    ("word", "approval"),
    [
        ({"by": "ann", "at": 7, "reason": "fine"}, Approval("ann", 7, "fine")),
        ({"by": "ann", "at": 7}, Approval("ann", 7)),
    ],
)
def test_an_approval_comes_back_as_it_was_said(word: dict[str, Any], approval: Approval) -> None:
    value = encode_approval(word).encode()

    assert decode_approval(value) == approval
    assert read({"upgrade/approval/stage 2": value}).approvals == {"stage 2": approval}


@pytest.mark.parametrize(
    ("value", "approval"),
    [
        (b"yes", Approval("somebody", 0, "yes")),
        (b" ann: fine\n", Approval("somebody", 0, "ann: fine")),
        (b'"yes"', Approval("somebody", 0, "yes")),
        (b"true", Approval("somebody", 0, "true")),
        (b"{}", Approval("somebody", 0)),
        (b'{"at": 7}', Approval("somebody", 7)),
        (b'{"by": "ann", "at": "noon"}', Approval("ann", 0)),
    ],
)
def test_an_approval_may_be_written_by_hand(value: bytes, approval: Approval) -> None:
    assert decode_approval(value) == approval


@pytest.mark.parametrize(
    "value",
    [b"", b" \n", b"no", b"False", b'"no"', b"null", b"0", b"a\x07b", b"\xff", b'{"by": "ann"', b"[1]", b"[" * 20_000],
)
def test_a_no_and_what_can_not_be_read_approves_nothing(value: bytes) -> None:
    assert read({"upgrade/approval/canary": value}) == Snapshot(index=5)


def test_marks_and_approvals_are_found_beside_each_other_and_their_folders_are_none() -> None:
    found = read(
        {
            "upgrade/approval/": b"",
            "upgrade/approval/canary": b'{"by": "ann", "at": 7}',
            "upgrade/health/": b"",
            "upgrade/health/canary": b'{"version": "2.0"}',
        }
    )

    assert found == Snapshot(approvals={"canary": Approval("ann", 7)}, marks={"canary": Mark("2.0", None)}, index=8)


# Anything


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(
                (
                    *(
                        "running/versions/",
                        "config_state/enable_puppet/",
                        "upgrade/hosts/",
                        "upgrade/hold/",
                        "upgrade/",
                    ),
                    *("upgrade/health/", "upgrade/approval/", "upgrade/drivers/"),
                )
            ),
            st.text(alphabet="a1/ glob\ufffd", max_size=8),
        ).map("".join),
        st.binary(max_size=12) | st.sampled_from((b"{}", b"True", b"2.0", b"1700000000")),
    )
)
def test_no_key_and_no_bytes_stop_the_reader(entries: dict[str, bytes]) -> None:
    assert isinstance(read(entries), Snapshot)


FIELDS = st.sampled_from(("version", "state", "times", "attempt", "reason", "by", "at", "since", "started"))
SCALARS = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner), max_leaves=12))
def test_no_json_stops_the_reader_of_records_and_holds_marks_and_approvals(data: Any) -> None:
    value = json.dumps(data).encode()

    assert decode_record("k", value).state in RECORD_STATES
    assert decode_hold("k", value).key == "k"
    assert isinstance(decode_mark(value), Mark | None)
    assert isinstance(decode_approval(value), Approval | None)
