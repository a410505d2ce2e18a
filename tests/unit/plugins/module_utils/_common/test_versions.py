# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of versions: examples, comparison with Python's and Debian's tools, and properties for any text."""

from __future__ import annotations

import shutil
import subprocess
from itertools import combinations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.versions import VersionOrder
from hypothesis import given
from hypothesis import strategies as st
from missing import missing
from packaging.version import Version

_NUMBERS = st.lists(st.integers(0, 12).map(str), min_size=1, max_size=4).map(".".join)
_BEFORE = st.sampled_from(("a", "b", "rc"))
_PEP_440 = st.builds(
    "{}{}{}{}".format,
    _NUMBERS,
    st.one_of(st.just(""), st.builds("{}{}".format, _BEFORE, st.integers(0, 11))),
    st.one_of(st.just(""), st.builds(".post{}".format, st.integers(1, 11))),
    st.one_of(st.just(""), st.builds(".dev{}".format, st.integers(0, 11))),
)
# Versions of every kind, also with unknown words.
_ANY_KIND = st.builds(
    "{}{}{}".format,
    st.sampled_from(("", "v", "V", "release-", "1:")),
    _NUMBERS,
    st.lists(
        st.builds(
            "{}{}{}".format,
            st.sampled_from(("", ".", "-", "~", "+", "_")),
            st.sampled_from(("", "a", "b", "rc", "rc.", "dev", "p", "ubuntu", "deb", "git", "foo", "x", "g1234567")),
            st.one_of(st.just(""), st.integers(0, 11)),
        ),
        max_size=3,
    ).map("".join),
)


@pytest.mark.parametrize(
    "line",
    [
        "2.2 2.4 2.9 2.10 2.10.1 3",
        "2.10~5 2.10.dev1 2.10a1 2.10-beta2 2.10-M1 2.10~rc1 2.10-rc2 2.10rc10 2.10 2.10-1 2.10p1 2.10+git5 2.10.1",
        "2.9 2.10~bpo9+1 2.10",
        "v1 v2 v9 v10 v672 v673 v1000",
        "v2.9 v2.10-rc1 v2.10 v2.10-5-gabcdef0 v2.11",
        "snapshot-20261121 snapshot-20261122",
        "2026-01-31 2026-02-01 2026-11-21",
        "1.18.0-0ubuntu1 1.18.0-0ubuntu1.2 1.18.0-6ubuntu14 1.18.0-6ubuntu14.4 1.18.1-1",
        "1.0.2 1.0.2a 1.0.2a-1 1.0.2g-1ubuntu4 1.0.2k-1",
        "3.9 1:1.0 2:0.1",
        "2.10-SNAPSHOT 2.10",
        "2.10-foo1 2.10-foo2 2.11",
    ],
)
def test_versions_have_the_expected_order(line: str) -> None:
    order, versions = VersionOrder(), line.split()
    assert order.in_order(reversed(versions)) == versions
    for first, second in combinations(versions, 2):
        assert (order.compare(first, second), order.compare(second, first)) == (-1, 1)


@pytest.mark.parametrize(
    "line",
    [
        "2.10 2.10.0 2.010 2.10-final",
        "2.10rc1 2.10-rc1 2.10~rc1 2.10.RC.1 2.10-c1",
        "v673 V673 v0673",
        "2.10rc 2.10rc0",
        "xenial xenial",
    ],
)
def test_the_same_version_may_be_written_in_several_ways(line: str) -> None:
    for first, second in combinations(line.split(), 2):
        assert VersionOrder().compare(first, second) == 0


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("v673", "2.10", "'v673' begins with 'v' and '2.10' begins with a number"),
        ("xenial", "bionic", "'xenial' and 'bionic' can't be read as a version with numbers"),
        ("2.10", "stable", "'stable' can't be read as a version with numbers"),
        ("2.10", "2.x", "'2.x' can't be read as a version with numbers"),
        ("2.10", "2.10 rc1", "'2.10 rc1' can't be read as a version with numbers"),
        ("2.10-foo", "2.10", "after the same numbers, the order of 'foo' is not known"),
        (
            "2.10deb1",
            "2.10ubuntu1",
            "after the same numbers, the order of 'deb' and 'ubuntu' is not known",
        ),
    ],
)
def test_versions_without_an_order_are_refused_by_name(one: str, other: str, why: str) -> None:
    for first, second in ((one, other), (other, one)):
        with pytest.raises(UpgradeError) as caught:
            VersionOrder().compare(first, second)
        assert caught.value.code == "incomparable_versions"
        assert caught.value.message.startswith(f"{first!r} and {second!r} can't be compared as versions: ")
        assert caught.value.details == {"versions": [first, second]}
    with pytest.raises(UpgradeError) as caught:
        VersionOrder().compare(one, other)
    assert caught.value.message == (
        f"{one!r} and {other!r} can't be compared as versions: {why}. List all versions in their order under 'versions' in "
        "the service's meta/upgrade.yml."
    )


def test_a_list_orders_names_that_have_no_order() -> None:
    order = VersionOrder(["queens", "rocky", "stein", "2.0", "1.0"], "meta/upgrade.yml:3")
    assert order.in_order(["1.0", "stein", "queens"]) == ["queens", "stein", "1.0"]
    assert order.compare("2.0", "1.0") == -1
    assert order.between("queens", "2.0", ["1.0", "2.0", "queens", "rocky"]) == ["rocky", "2.0"]


def test_a_version_that_the_list_lacks_is_refused_with_the_place_of_the_list() -> None:
    order = VersionOrder(["queens", "rocky"], "meta/upgrade.yml:3")
    with pytest.raises(UpgradeError) as caught:
        order.compare("rocky", "train")
    assert caught.value.code == "incomparable_versions"
    assert caught.value.message == (
        "'rocky' and 'train' can't be compared, as 'train' is not in the list of meta/upgrade.yml:3. It has queens, rocky. Add "
        "the missing versions in their order."
    )
    with pytest.raises(UpgradeError, match=r"as '2\.9' and '2\.10' are not in the list"):
        order.compare("2.9", "2.10")
    assert order.compare("train", "train") == 0


def test_between_excludes_the_start_and_includes_the_end() -> None:
    order, checkpoints = VersionOrder(), ["2.10", "2.4", "2.8", "2.6", "2.12"]
    assert order.between("2.2", "2.10", checkpoints) == ["2.4", "2.6", "2.8", "2.10"]
    assert order.between("2.8", "2.10", checkpoints) == ["2.10"]
    assert order.between("2.8.0", "2.11", checkpoints) == ["2.10"]
    assert order.between("2.8~rc1", "2.9", checkpoints) == ["2.8"]
    assert order.between("2.10", "2.2", checkpoints) == []
    assert order.between("2.10", "2.10", checkpoints) == []


@given(_PEP_440, _PEP_440)
def test_the_order_is_that_of_python_s_packaging(one: str, other: str) -> None:
    a, b = Version(one), Version(other)
    assert VersionOrder().compare(one, other) == (a > b) - (a < b)


def test_the_order_is_that_of_dpkg() -> None:
    if shutil.which("dpkg") is None:
        missing("there is no dpkg on this machine to be asked")
    line = "2.9 2.10~bpo9+1 2.10~rc1 2.10~rc2 2.10 2.10-0ubuntu1 2.10-1 2.10-1ubuntu2 2.10p1-1 2.10+dfsg-1 2.10.1-1 3.0 1:1.0"
    for first, second in combinations(line.split(), 2):
        subprocess.run(["dpkg", "--compare-versions", first, "lt", second], check=True)
        assert VersionOrder().compare(first, second) == -1


def _compared(one: str, other: str) -> int | None:
    try:
        return VersionOrder().compare(one, other)
    except UpgradeError as error:
        assert error.code == "incomparable_versions"
        assert error.details == {"versions": [one, other]}
        return None


@given(_PEP_440, _PEP_440, _PEP_440)
def test_versions_of_one_kind_have_a_total_order(one: str, other: str, third: str) -> None:
    order = VersionOrder()
    assert order.compare(one, other) == -order.compare(other, one)
    first, second, last = order.in_order([one, other, third])
    assert order.compare(first, second) <= 0 and order.compare(second, last) <= 0 and order.compare(first, last) <= 0


@given(st.one_of(_ANY_KIND, st.text(max_size=12)), st.one_of(_ANY_KIND, st.text(max_size=12)))
def test_a_comparison_in_reverse_has_the_opposite_result(left: str, right: str) -> None:
    found, turned = _compared(left, right), _compared(right, left)
    assert (found is None) == (turned is None)
    assert found is None or found == -(turned or 0)
    assert _compared(left, left) == 0


@given(_ANY_KIND, _ANY_KIND, _ANY_KIND)
def test_the_order_is_transitive(one: str, other: str, third: str) -> None:
    first, second = _compared(one, other), _compared(other, third)
    if first is not None and second is not None and first <= 0 and second <= 0:
        assert _compared(one, third) == min(first, second)


@given(st.lists(st.text(min_size=1, max_size=5), unique=True, min_size=1), st.data())
def test_a_list_is_the_order(names: list[str], data: st.DataObject) -> None:
    mixed = data.draw(st.permutations(names))
    assert VersionOrder(names).in_order(mixed) == names
