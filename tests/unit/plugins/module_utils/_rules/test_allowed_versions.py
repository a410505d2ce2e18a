# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which versions of a service may be upgraded to which: ranges, tables, lists, and downgrades."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.allowed_versions import (
    VersionRules,
    parse_allowed_from,
    parse_range,
    version_rules_from,
)
from hypothesis import given
from hypothesis import strategies as st

TABLE = {"2.10": [">=2.8", "2.6"], "<3": ">=2.4, <2.10", ">=4, <5": "3.9"}


def ways(allowed_from: Any = None, *, versions: list[str] | None = None, back: bool = False) -> VersionRules:
    """Return version rules as a service's file gives them."""
    entries = None if allowed_from is None else parse_allowed_from(allowed_from)
    return VersionRules(
        "meta", None if versions is None else tuple(versions), entries, back, {"allowed_from": "meta:3"}
    )


def refusal(given: VersionRules, start: str | None, end: str) -> str | None:
    return given.refusal(start, end, given.order())


@pytest.mark.parametrize(
    ("allowed_from", "moves"),
    [
        (None, "2.2>2.10 1>9 2.10>2.10 2.10>2.10.0"),
        (">=2.4", "2.4>2.10 2.9>2.10 2.10>3"),
        (">= 2.4, <2.10", "2.4>2.10 2.9.9>3 2.10~rc1>2.10"),
        ("2.8", "2.8>2.10 2.8.0>2.10"),
        (["2.6", "2.8", "> 2.9"], "2.6>3 2.8>3 2.10>3"),
        ("!=2.9", "2.8>3 2.10>3"),
        ("== 2.8", "2.8>3"),
        ("*", "2.2>2.10"),
        (TABLE, "2.8>2.10 2.6>2.10 2.9>2.10 2.4>2.11 3.9>4.2"),
    ],
)
def test_allowed_upgrades(allowed_from: Any, moves: str) -> None:
    for move in moves.split():
        start, end = move.split(">")
        assert refusal(ways(allowed_from), start, end) is None, move


@pytest.mark.parametrize(
    ("allowed_from", "start", "end", "why"),
    [
        (">=2.4", "2.2", "2.10", "it can't go from 2.2 to 2.10, as allowed_from (meta:3) is >=2.4"),
        (">=2.4, <2.8", "2.8", "2.10", "it can't go from 2.8 to 2.10, as allowed_from (meta:3) is >=2.4, <2.8"),
        (["2.6", "2.8"], "2.7", "3", "it can't go from 2.7 to 3, as allowed_from (meta:3) is 2.6 or 2.8"),
        # The first entry that fits counts, although 2.10 is below 3 too.
        (TABLE, "2.4", "2.10", "it can't go from 2.4 to 2.10, as allowed_from (meta:3) is >=2.8 or 2.6 to 2.10"),
        (TABLE, "2.10", "3.5", "it can't go from 2.10 to 3.5, as allowed_from (meta:3) has no entry for 3.5"),
        (TABLE, "3.8", "4.2", "it can't go from 3.8 to 4.2, as allowed_from (meta:3) is 3.9 to >=4, <5"),
        (
            *(">=2.4", None, "2.10"),
            "its version is not known, and allowed_from (meta:3) allows only some versions",
        ),
        (
            *(">=2.4", "v673", "2.10"),
            "'v673' and '2.10' can't be compared as versions: 'v673' begins with 'v' and '2.10' begins with a number. List all "
            "versions in their order under 'versions' in the service's meta/upgrade.yml",
        ),
    ],
)  # fmt: skip
def test_refused_upgrades(allowed_from: Any, start: str | None, end: str, why: str) -> None:
    assert refusal(ways(allowed_from), start, end) == why


def test_downgrades_are_refused_by_default() -> None:
    assert refusal(ways(), "2.10", "2.9") == (
        "it can't go back from 2.10 to 2.9, as allow_downgrade: true is not set (meta)"
    )
    assert refusal(ways(back=True), "2.10", "2.9") is None


def test_with_allow_downgrade_only_allowed_upgrades_can_be_reversed() -> None:
    given = ways(">=2.4", back=True)
    assert refusal(given, "2.10", "2.4") is None
    assert refusal(given, "2.10", "2.2") == (
        "it can't go back from 2.10 to 2.2: it can't go from 2.2 to 2.10, as allowed_from (meta:3) is >=2.4, and a downgrade "
        "needs an allowed upgrade"
    )


def test_versions_without_an_order_are_allowed_if_the_answer_needs_no_order() -> None:
    assert refusal(ways(back=True), "xenial", "bionic") is None
    assert refusal(ways(), "bionic", "bionic") is None
    assert refusal(ways(), None, "bionic") is None
    assert "'xenial' and 'bionic' can't be compared" in str(refusal(ways(), "xenial", "bionic"))


def test_a_list_of_versions_is_the_order() -> None:
    given = ways(">=queens", versions=["pike", "queens", "rocky", "stein"])
    assert refusal(given, "queens", "stein") is None
    assert refusal(given, "pike", "stein") == "it can't go from pike to stein, as allowed_from (meta:3) is >=queens"
    assert str(refusal(given, "stein", "rocky")).startswith("it can't go back from stein to rocky")
    assert str(refusal(given, "stein", "train")).startswith(
        "'stein' and 'train' can't be compared, as 'train' is not in"
    )


@pytest.mark.parametrize("value", [*("", ",", ">=", ">=2.4,", "=>2", "2.4 <", ">>2", "<2>3", "2.*", ">=2.4, *")])
def test_invalid_ranges_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"is not a range of versions\. Give a version, bounds such as"):
        parse_range(value)


@pytest.mark.parametrize("value", [2.1, 2, None, True, [[">=2"]], {2.1: "2.0"}, {"2.1": 2.0}])
def test_versions_that_yaml_may_have_changed_are_refused(value: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"is not text but a number or the like, and YAML may have changed it \(2\.10 is read as 2\.1\)",
    ):
        parse_allowed_from(value)


@given(st.sampled_from((None, ">=2.4", "2.2, <3", ["2.6", "> 2.7"], TABLE, "*")), st.booleans(), st.booleans())
def test_rules_come_back_from_plain_data_as_they_were(allowed_from: Any, back: bool, listed: bool) -> None:
    given_ways = ways(allowed_from, versions=["1", "2"] if listed else None, back=back)
    found = version_rules_from(given_ways.plain())
    assert found == given_ways
    assert (found.file, found.where) == (given_ways.file, given_ways.where)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_a_downgrade_is_allowed_exactly_where_the_upgrade_is(start: int, end: int, lowest: int) -> None:
    given_ways = ways(f">=2.{lowest}", back=True)
    up, back = (refusal(given_ways, f"2.{one}", f"2.{other}") for one, other in ((start, end), (end, start)))
    assert (up is None) == (back is None) == (start == end or min(start, end) >= lowest)
