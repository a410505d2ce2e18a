# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gates: what their values mean, which one decides, and which text is stored."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.gates import (
    NOTHING_SET,
    GateAnswer,
    Gates,
    GateValue,
    gate_text,
)
from hypothesis import given
from hypothesis import strategies as st

KEY = "config_state/enable_puppet/host/compute1"


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("True", True),
        ("true", True),
        ("TRUE", True),
        (" True\n", True),
        ("False", False),
        ("false", False),
        ("fAlSe", False),
        ("2.10", True),
        ("2.10\n", True),
        ("2.1", False),
        ("v673", False),
        ("1", False),
        ("0", False),
    ],
)
def test_booleans_open_or_close_and_a_version_opens_while_it_is_current(text: str, is_open: bool) -> None:
    assert GateValue(KEY, text).is_open("2.10") is is_open


def test_a_current_version_without_a_digit_is_read_too() -> None:
    assert GateValue(KEY, "queens").is_open("queens")


@pytest.mark.parametrize("text", ["", "  ", "Flase", "yes", "null", "queens", '"2.1"', "{2: 1}", "[1]", "2.\x001"])
def test_any_other_value_is_an_error_that_names_the_key(text: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        GateValue(KEY, text).is_open("2.10")

    assert caught.value.code == "unreadable_gate"
    assert caught.value.message == (
        f"The gate {KEY} holds {text!r}, which is neither True, False nor a version. "
        "Set it with consul_enable_puppet, or delete the key."
    )
    assert caught.value.details == {"key": KEY}


def test_the_error_says_that_bytes_are_not_text() -> None:
    with pytest.raises(UpgradeError, match=f"The gate {KEY} holds bytes that are not UTF-8 text"):
        GateValue(KEY, None).is_open("2.10")


@pytest.mark.parametrize("current", [None, ""])
def test_an_empty_value_does_not_open_without_a_current_version(current: str | None) -> None:
    with pytest.raises(UpgradeError, match="neither True, False nor a version"):
        GateValue(KEY, "").is_open(current)


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "True"), (False, "False"), ("true", "True"), ("FALSE", "False"), ("2.9", "2.9"), (" v3 ", "v3"), (7, "7")],
)
def test_true_and_false_are_written_in_one_way_and_versions_as_they_are(value: object, text: str) -> None:
    assert gate_text(value, "2.10") == text


def test_the_current_version_is_written_even_without_a_digit() -> None:
    assert gate_text("queens", "queens") == "queens"


@pytest.mark.parametrize("value", ["", None, "on", "queens", [1], {"a": 1}])
def test_a_value_that_could_not_be_read_is_not_written(value: object) -> None:
    with pytest.raises(UpgradeError) as caught:
        gate_text(value, "2.10")

    assert caught.value.code == "bad_gate_value"
    assert caught.value.message.startswith(f"value: {value!r} is neither true, false nor a version")


@given(st.one_of(st.booleans(), st.text()), st.sampled_from((None, "2.10", "queens")))
def test_whatever_is_written_can_be_read(value: object, current: str | None) -> None:
    try:
        text = gate_text(value, current)
    except UpgradeError:
        return

    assert GateValue(KEY, text).is_open(current) in (True, False)


def gates(everywhere: str | None, role: str | None, host: str | None) -> Gates:
    def value(scope: str, text: str | None) -> GateValue | None:
        return GateValue(scope, text) if text is not None else None

    def one(name: str, found: GateValue | None) -> dict[str, GateValue]:
        return {name: found} if found else {}

    return Gates(value("global", everywhere), one("compute", value("role", role)), one("compute1", value("host", host)))


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (gates(None, None, None), NOTHING_SET),
        (gates("False", None, None), GateAnswer(False, "global", "global", "False")),
        (gates("False", "True", None), GateAnswer(True, "role", "role", "True")),
        (gates("False", "True", "False"), GateAnswer(False, "host", "host", "False")),
        (gates("True", None, "False"), GateAnswer(False, "host", "host", "False")),
        (gates("nonsense", "nonsense", "True"), GateAnswer(True, "host", "host", "True")),
    ],
)
def test_the_first_gate_that_is_set_decides_host_then_role_then_global(found: Gates, answer: GateAnswer) -> None:
    assert found.answer("compute1", "compute", "2.10") == answer


def test_a_gate_of_another_host_or_role_does_not_count() -> None:
    assert gates(None, "True", "True").answer("compute2", "controller", "2.10") == NOTHING_SET


def test_a_host_without_a_role_has_no_role_gate() -> None:
    assert gates("False", "True", None).answer("puzzle", None, "2.10").scope == "global"


def test_an_unreadable_deciding_gate_is_not_skipped() -> None:
    with pytest.raises(UpgradeError, match="The gate host holds 'nonsense'"):
        gates("True", "True", "nonsense").answer("compute1", "compute", "2.10")


def test_all_unreadable_gates_are_reported_at_once() -> None:
    errors = gates("nonsense", "", "True").unreadable("2.10")

    assert [error.details["key"] for error in errors] == ["global", "role"]
    assert gates("True", "2.9", "false").unreadable("2.10") == []
