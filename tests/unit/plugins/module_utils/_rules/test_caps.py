# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Caps: which values are valid, and how many hosts they allow."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.caps import Cap, parse_cap
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("value", "cap"),
    [
        (3, Cap(3)),
        (0, Cap(0)),
        ("3", Cap(3)),
        (" 12 ", Cap(12)),
        ("25%", Cap(25, is_percent=True)),
        ("25 %", Cap(25, is_percent=True)),
        ("0%", Cap(0, is_percent=True)),
        ("100%", Cap(100, is_percent=True)),
    ],
)
def test_numbers_digits_and_percents_are_caps(value: object, cap: Cap) -> None:
    assert parse_cap(value, "rolling_rules.global") == cap


@pytest.mark.parametrize(
    "value",
    [
        *(-1, "-1", 1.5, 2.0, "1.5", "1/2", float("nan")),
        *(True, False, "true", None, "", "  ", "many", [3], {"compute": 3}),
        *("101%", "-5%", "12.5%", "%", "5 percent"),
    ],
)
def test_anything_else_is_refused_with_its_key_and_value(value: object) -> None:
    with pytest.raises(UpgradeError) as caught:
        parse_cap(value, "rolling_rules.roles.compute")

    assert caught.value.code == "bad_instructions"
    assert caught.value.message == (
        f"rolling_rules.roles.compute: {value!r} is not a cap. Give a whole number of hosts (0 admits none) or a percentage "
        "from 0% to 100%; leave the key out for no cap."
    )
    assert caught.value.details == {"key": "rolling_rules.roles.compute", "value": str(value)}


@pytest.mark.parametrize(
    ("cap", "members", "slots"),
    [
        ("25%", 10, 2),
        ("25%", 3, 1),
        ("1%", 99, 1),
        ("1%", 199, 1),
        ("1%", 200, 2),
        ("0%", 500, 0),
        ("100%", 7, 7),
        ("50%", 0, 1),
        (5, 2, 5),
        (0, 2, 0),
    ],
)
def test_a_percent_is_rounded_down_to_no_less_than_one_host(cap: int | str, members: int, slots: int) -> None:
    assert parse_cap(cap, "rolling_rules.global").hosts_of(members) == slots


@given(st.integers(0, 100), st.integers(1, 10_000))
def test_a_percent_never_exceeds_its_share_but_for_the_first_host(percent: int, members: int) -> None:
    slots = Cap(percent, is_percent=True).hosts_of(members)

    assert slots * 100 <= members * percent or (slots == 1 and percent)
    assert (slots == 0) == (percent == 0)


@given(st.builds(Cap, st.integers(0, 100), st.booleans()))
def test_a_cap_is_read_back_from_the_form_it_is_stored_in(cap: Cap) -> None:
    assert parse_cap(cap.plain(), "rolling_rules.fleet") == cap
