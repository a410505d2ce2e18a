# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode and encode values, with the odd values of old fleets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.event import decode_event, encode_event
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import decode_record, encode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.values import (
    before_job,
    decode_approval,
    decode_health_mark,
    decode_hold,
    decode_ledger,
    decode_version,
    encode_approval,
    encode_health_mark,
    encode_ledger,
    ledger_of_versions,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import is_valid_version
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import Approval, HealthMark
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import Hold
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import ABORTED, PAUSED, STATES, Ledger
from hypothesis import given
from hypothesis import strategies as st
from raw_keys import NOT_TEXT, PRINTABLE, read

VERSIONS = st.text(min_size=1).filter(is_valid_version)


@pytest.mark.parametrize(
    ("value", "version"),
    [(b"2.10", "2.10"), (b" 2.10\r\n", "2.10"), (b"", None), (b" \n", None)],
)
def test_versions(value: bytes, version: str | None) -> None:
    assert decode_version("current_version", value) == version


@pytest.mark.parametrize("value", [NOT_TEXT, b"2.0\r1", b"2.0\x1b[2J", b"a/b", b"True", b"9" * 300])
def test_an_invalid_version_does_not_count_as_no_version(value: bytes) -> None:
    with pytest.raises(
        UpgradeError, match=r"^current_version holds .* \(consul kv put current_version 2\.0\)\.$"
    ) as raised:
        decode_version("current_version", value)
    assert raised.value.code == "unreadable_version"
    assert raised.value.message.isprintable()


# The ledger and the schema


def test_a_ledger_is_stored_without_default_values() -> None:
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
        Ledger(4, "2.0", state=PAUSED, command={"by": "ann", "at": 7, "reason": "größe"}),
        Ledger(4, "2.0", state=ABORTED, command={"by": "ann", "at": 7}, stage={"number": 0}),
        Ledger(4, "1.0", "2.0", rollback=True, stage={"number": 2, "done_at": 0}),
    ],
)
def test_a_ledger_comes_back_as_it_was(ledger: Ledger) -> None:
    assert decode_ledger("upgrade/ledger", encode_ledger(ledger).encode()) == ledger


@given(
    st.builds(
        Ledger,
        st.integers(0, 2**53 - 1),
        VERSIONS,
        st.none() | VERSIONS,
        st.sampled_from(STATES),
        st.dictionaries(PRINTABLE, st.integers()),
        st.none(),
        st.dictionaries(PRINTABLE, st.integers(0, 99)),
        PRINTABLE,
        st.integers(0, 2**37),
        st.fixed_dictionaries({}, optional={"by": PRINTABLE, "at": st.integers(0, 2**37), "reason": PRINTABLE}),
        st.booleans(),
        st.dictionaries(st.sampled_from(("number", "done_at")), st.integers(0, 2**37)),
    )
)
def test_any_ledger_comes_back_as_it_was(ledger: Ledger) -> None:
    assert decode_ledger("upgrade/ledger", encode_ledger(ledger).encode()) == ledger


def test_a_paused_rollback_is_stored_with_its_command_and_its_stage() -> None:
    ledger = Ledger(
        4, "1", "2", PAUSED, who="ann", since=7, command={"by": "bob", "at": 9}, rollback=True, stage={"number": 0}
    )
    assert json.loads(encode_ledger(ledger)) == {
        "epoch": 4,
        "version": "1",
        "previous_version": "2",
        "state": "paused",
        "who": "ann",
        "since": 7,
        "command": {"by": "bob", "at": 9},
        "rollback": True,
        "stage": {"number": 0},
    }


def test_a_stage_is_stored_as_an_older_release_writes_it() -> None:
    stage = {"number": 1, "done_at": 1_700_000_900, "done_at_behind": 1_700_000_000}
    ledger = Ledger(3, "2.0", stage=stage)
    stored = json.loads(encode_ledger(ledger))
    assert (stored["stage"], stored["stage_behind"]) == ({"number": 1, "done_at": 1_700_000_900}, 1_700_000_000)
    assert decode_ledger("upgrade/ledger", encode_ledger(ledger).encode()).stage == stage
    job = Ledger(4, "job/a-1", before=before_job(ledger))
    found = ledger_of_versions(job)
    assert found is not None
    assert found.stage == stage
    # An older release may keep it with a stage that is not done.
    stored["stage"] = {"number": 2}
    assert decode_ledger("upgrade/ledger", json.dumps(stored).encode()).stage == {"number": 2}


def test_a_ledger_without_later_fields_gets_defaults() -> None:
    old = decode_ledger("k", b'{"epoch": 1, "version": "2.0", "state": "running", "who": "ann", "since": 7}')
    assert (old.command, old.rollback, old.stage) == ({}, False, {})


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
        (b'{"epoch": 1, "version": "2.0", "command": "ann"}', "command is 'ann'"),
        (b'{"epoch": 1, "version": "2.0", "rollback": "yes"}', "rollback is 'yes'"),
        (b'{"epoch": 1, "version": "2.0", "stage": "canary"}', "stage is 'canary'"),
        (b'{"epoch": 1, "version": "2.0", "stage": {"number": true}}', "stage is {'number': True}"),
        (b"[]", "it is not a mapping of names to values"),
        (b'["epoch"]', "it is not a mapping of names to values"),
        (b'"epoch"', "it is not a mapping of names to values"),
        (b"7", "it is not a mapping of names to values"),
        (b'{"epoch": 1, "version": "2.0", "stage": {"number": -1}}', "stage is {'number': -1}"),
        (b'{"epoch": 1, "version": "2.0", "command": {"at": 1%s}}' % (b"0" * 400), "command is {'at': 1000"),
        (b'{"epoch": 1, "version": "2.0", "who": ["ann"]}', "who is ['ann']"),
        (b'{"epoch": 1, "version": "2.0", "role_pattern": "(a){99999999999}"}', "role_pattern is '(a){99999999999}'"),
        (b'{"epoch": 1, "version": "2.0", "command": %s1%s}' % (b'{"a":' * 50, b"}" * 50), "it is nested too deeply"),
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
        "), so the rules are unknown and no host is admitted. Restore it from a backup, or delete "
        "cloud/upgrade/ledger so that the next consul_upgrade_plan begins a new one."
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
        f"cloud/upgrade/schema holds {value!r}, which is not a version of the layout. Restore it from a backup, or delete it."
    )


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
def test_a_hold_with_any_value_holds(value: bytes, hold: Hold) -> None:
    assert decode_hold("k", value) == hold


def test_a_long_reason_of_a_hold_or_an_approval_is_truncated() -> None:
    given = {"reason": "x" * 300_000, "by": "y" * 300_000, "at": 7}
    hold, approval = decode_hold("k", json.dumps(given).encode()), decode_approval(json.dumps(given).encode())

    assert approval is not None
    assert [len(text) for text in (hold.reason, hold.by, approval.reason, approval.by)] == [500] * 4
    assert len(decode_hold("k", b"x" * 300_000).reason) == 500


# An escape sequence, line breaks, a C1 control, a right-to-left override, and a lone surrogate.
ACTING = "a\x1b[2Jb\rc\nd\x9be\u202ef\u2028g\ud800h"
TAME = "a?[2Jb c d?e?f g?h"


def test_texts_of_hosts_are_sanitized() -> None:
    raw = {
        "version": "2.0", "state": "failed", "service": ACTING, "step": ACTING, "error": ACTING, "reported": ACTING,
        "times": {ACTING: 7}, "done": [ACTING],
    }  # fmt: skip
    found = decode_record("k", json.dumps(raw).encode())
    assert (found.service, found.step, found.error, found.reported) == (TAME, TAME, TAME, TAME)
    assert (found.times, found.done) == ({TAME: 7}, (TAME,))
    assert decode_record("k", encode_record(found).encode()) == found


def test_texts_of_operators_are_sanitized() -> None:
    stored = json.dumps({"reason": ACTING, "by": ACTING, "at": ACTING}).encode()
    assert decode_hold("k", stored) == Hold("k", TAME, TAME, TAME)
    assert decode_approval(stored) == Approval(TAME, 0, TAME)
    ledger = {"epoch": 1, "version": "2", "who": ACTING, "command": {"by": ACTING, "reason": ACTING}}
    read_back = decode_ledger("k", json.dumps(ledger).encode())
    assert (read_back.who, read_back.command) == (TAME, {"by": TAME, "reason": TAME})


def test_texts_of_the_history_are_sanitized() -> None:
    event = {"at": 7, "version": "2.0", "what": "retry", "by": ACTING, "hosts": {ACTING: ACTING}, "of": [ACTING]}
    assert decode_event(3, json.dumps(event).encode()) == {
        "epoch": 3,
        "at": 7,
        "version": "2.0",
        "what": "retry",
        "by": TAME,
        "hosts": {TAME: TAME},
        "of": [TAME],
    }


# The history


@pytest.mark.parametrize(
    "wrong",
    [
        *({"what": None}, {"what": ["open"]}, {"what": ""}, {"at": "7"}, {"at": 10**12}, {"at": -1}, {"at": True}),
        *({"version": None}, {"version": "a/b"}, {"version": 2}),
    ],
)
def test_an_entry_without_what_at_or_version_is_none(wrong: dict[str, Any]) -> None:
    event = {"what": "open", "at": 7, "version": "2.0"}
    assert decode_event(3, json.dumps(event).encode()) == {**event, "epoch": 3}
    assert decode_event(3, json.dumps({**event, **wrong}).encode()) is None


def test_other_fields_of_an_entry_have_the_form_that_planners_write() -> None:
    event = {"what": "open", "at": 7, "version": "2.0", "epoch": "nine", "by": ["ann"], "reason": 5, "keys": "ab"}
    event |= {
        "hosts": {"web1": 7, "web2": "why"},
        "roles": {"web": 5, "db": {"hosts": -1, "reason": []}},
        "instructions": 3,
    }
    assert decode_event(3, json.dumps(event).encode()) == {
        "what": "open",
        "at": 7,
        "version": "2.0",
        "epoch": 3,
        "hosts": {"web1": "7", "web2": "why"},
        "roles": {"web": {"reason": "5"}, "db": {"reason": "[]"}},
    }


def test_an_entry_of_the_history_is_stored_as_it_is() -> None:
    event = {"epoch": 7, "hosts": {"a": "no disk"}, "roles": {"b": {"hosts": 2, "reason": "r"}}, "reason": "why"}

    assert json.loads(encode_event(event)) == event


@pytest.mark.parametrize("hosts", [1, 20, 61])
def test_reasons_in_the_history_always_fit_into_a_transaction(hosts: int) -> None:
    rules = {"stages": [{"name": "n" * 3000}]}
    reason = "first " + "\U0001f600" * 300_000 + " last"
    reasons = {f"h{at}": reason for at in range(hosts)}
    text = encode_event({"instructions": rules, "hosts": reasons, "roles": {"r": {"reason": reason}}, "by": reason})

    # Base64 adds a third to each value, and a transaction takes half a megabyte.
    assert len(text) < 300_000
    event = json.loads(text)
    assert event["instructions"] == rules
    for one in (*event["hosts"].values(), event["roles"]["r"]["reason"], event["by"]):
        assert len(one) >= 300
        assert (one[:6], one[-5:]) == ("first ", " last")


# Health marks


@pytest.mark.parametrize(
    "mark",
    [
        HealthMark("2.0", None),
        HealthMark("2.0", 0),
        HealthMark("2.0", 1_700_000_000, upgraded=True),
        HealthMark("größe", None, True),
        HealthMark("2.0", 1_700_000_900, since_behind=1_700_000_000),
    ],
)
def test_a_health_mark_is_decoded_as_it_was_encoded(mark: HealthMark) -> None:
    assert decode_health_mark(encode_health_mark(mark).encode()) == mark
    assert read({"upgrade/health/compute1": encode_health_mark(mark).encode()}).marks == {"compute1": mark}


def test_a_health_mark_is_stored_with_all_its_fields() -> None:
    assert json.loads(encode_health_mark(HealthMark("2.0", None))) == {
        "version": "2.0",
        "since": None,
        "upgraded": False,
    }


@pytest.mark.parametrize(
    ("value", "mark"),
    [
        (b'{"version": "2.0"}', HealthMark("2.0", None)),
        (b'{"version": "2.0", "since": "5", "mood": "good"}', HealthMark("2.0", 5)),
        # Only a JSON true counts as upgraded.
        (b'{"version": "2.0", "since": 5, "upgraded": "true"}', HealthMark("2.0", 5)),
        (b'{"version": "2.0", "since": 5, "upgraded": 1}', HealthMark("2.0", 5)),
    ],
)
def test_missing_fields_of_a_health_mark_get_defaults(value: bytes, mark: HealthMark) -> None:
    assert decode_health_mark(value) == mark


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
def test_a_health_mark_that_can_not_be_read_is_none(value: bytes) -> None:
    assert read({"upgrade/health/compute1": value}) == Snapshot(index=5)


# Approvals


@pytest.mark.parametrize(
    ("command", "approval"),
    [
        ({"by": "ann", "at": 7, "reason": "fine"}, Approval("ann", 7, "fine")),
        ({"by": "ann", "at": 7}, Approval("ann", 7)),
    ],
)
def test_an_approval_comes_back_as_it_was(command: dict[str, Any], approval: Approval) -> None:
    value = encode_approval(command).encode()

    assert decode_approval(value) == approval
    assert read({"upgrade/approval/stage 2": value}).approvals == {"stage 2": approval}


@pytest.mark.parametrize(
    ("value", "approval"),
    [
        (b"yes", Approval("an unknown operator", 0, "yes")),
        (b" ann: fine\n", Approval("an unknown operator", 0, "ann: fine")),
        (b'"yes"', Approval("an unknown operator", 0, "yes")),
        (b"true", Approval("an unknown operator", 0, "true")),
        (b'{"at": 7}', Approval("an unknown operator", 7)),
        (b'{"by": "ann", "at": "noon"}', Approval("ann", 0)),
    ],
)
def test_an_approval_may_be_written_by_hand(value: bytes, approval: Approval) -> None:
    assert decode_approval(value) == approval


@pytest.mark.parametrize(
    "value",
    [
        b"", b" \n", b"no", b"False", b'"no"', b"null", b"0", b"a\x07b", b"\xff", b'{"by": "ann"', b"[1]", b"[" * 20_000,
        b"{}", b'{"approved": false}', b'{"by": "", "at": 0}', b'{"by": null, "at": "noon", "reason": "fine"}',
    ],
)  # fmt: skip
def test_a_no_and_an_unreadable_value_do_not_approve(value: bytes) -> None:
    assert read({"upgrade/approval/canary": value}) == Snapshot(index=5)


def test_health_marks_and_approvals_are_read_and_their_folders_are_ignored() -> None:
    found = read(
        {
            "upgrade/approval/": b"",
            "upgrade/approval/canary": b'{"by": "ann", "at": 7}',
            "upgrade/health/": b"",
            "upgrade/health/canary": b'{"version": "2.0"}',
        }
    )

    assert found == Snapshot(
        approvals={"canary": Approval("ann", 7)}, marks={"canary": HealthMark("2.0", None)}, index=8
    )
