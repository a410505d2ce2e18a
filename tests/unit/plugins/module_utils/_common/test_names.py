# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names: natural order, suggestions for typos, and which names can be part of a Consul key."""

from __future__ import annotations

import difflib
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import (
    check_name,
    check_new_version,
    check_version,
    did_you_mean,
    in_order,
    listing,
    plural,
)
from hypothesis import given
from hypothesis import strategies as st


def test_numbers_in_names_are_compared_as_numbers() -> None:
    names = ["compute10", "compute2", "compute1", "ceph3", "compute2-az10", "compute2-az9"]

    assert in_order(names) == ["ceph3", "compute1", "compute2", "compute2-az9", "compute2-az10", "compute10"]


def test_a_name_comes_before_the_longer_one_that_begins_with_it() -> None:
    assert in_order(["db2", "db-a", "db", "1", "a"]) == ["1", "a", "db", "db2", "db-a"]


def test_names_that_differ_only_in_zeros_have_a_fixed_order() -> None:
    assert in_order(["node1", "node01"]) == in_order(["node01", "node1"]) == ["node01", "node1"]


NAMES = st.lists(st.text(alphabet="ab01-", max_size=6), unique=True)


@given(NAMES.flatmap(lambda names: st.tuples(st.just(names), st.permutations(names))))
def test_the_order_does_not_depend_on_the_input_order(both: tuple[list[str], list[str]]) -> None:
    names, shuffled = both

    assert in_order(shuffled) == in_order(names)


def test_the_closest_name_is_suggested_only_if_one_is_close() -> None:
    assert did_you_mean("computes", ["controller", "compute"]) == "; did you mean 'compute'?"
    assert did_you_mean("zebra", ["controller", "compute"]) == ""


def test_a_typo_among_very_many_names_is_compared_with_those_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = difflib.get_close_matches

    def get_close_matches(name: str, names: list[str], **options: Any) -> list[str]:
        compared.append(len(names))
        return real(name, names, **options)

    monkeypatch.setattr(difflib, "get_close_matches", get_close_matches)
    names = [f"compute{number}" for number in range(10_000)]
    assert did_you_mean("compute500x", names).startswith("; did you mean 'compute500")
    assert did_you_mean("zebra", names) == ""
    assert max(compared) <= 1000


@pytest.mark.parametrize(
    ("names", "shown"),
    [([], ""), (["a"], "a"), (["a", "b", "c"], "a, b, c"), (["a", "b", "c", "d", "e"], "a, b, c and 2 more")],
)
def test_long_lists_are_truncated(names: list[str], shown: str) -> None:
    assert listing(names, 3) == shown


def test_plural() -> None:
    assert [plural(0, "host"), plural(1, "host"), plural(2, "host")] == ["0 hosts", "1 host", "2 hosts"]
    assert plural(2, "host is", "hosts are") == "2 hosts are"


@pytest.mark.parametrize("name", ["compute1", "compute1.example.org", "gb-ax_2", "größe", "two words"])
def test_plain_names_are_returned(name: str) -> None:
    assert check_name("host", name, "fleet") == name


@pytest.mark.parametrize("name", ["", None, 7, ["compute1"]])
def test_a_name_that_is_not_text_is_refused(name: object) -> None:
    with pytest.raises(UpgradeError) as caught:
        check_name("host", name, "fleet")

    assert caught.value.code == "bad_name"
    assert caught.value.message == f"fleet: a host must be text that is not empty, not {name!r}."


@pytest.mark.parametrize("name", ["a/b", "/", " compute1", "compute1\n", "com\x00pute", "a\u2028b"])
def test_a_name_that_would_break_a_key_is_refused(name: str) -> None:
    with pytest.raises(UpgradeError, match="can't be part of a Consul key") as caught:
        check_name("role", name, "fleet.compute1")

    assert caught.value.message.startswith(f"fleet.compute1: the role {name!r} has a '/'")


def test_a_name_that_is_too_long_is_refused() -> None:
    assert check_name("host", "x" * 255, "fleet")
    with pytest.raises(UpgradeError) as caught:
        check_name("host", "x" * 300_000, "fleet")

    assert caught.value.message == (
        f"fleet: the host '{'x' * 199}... (300002 characters) is longer than 255 characters. Give its plain name."
    )


@pytest.mark.parametrize("version", ["2.10", "v673", "queens", "2.10~rc1+git"])
def test_versions_are_names(version: str) -> None:
    assert check_version(version, "version") == version


@pytest.mark.parametrize("version", ["true", "True", "FALSE"])
def test_a_version_that_reads_as_open_or_closed_is_refused(version: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        check_version(version, "version")

    assert caught.value.message == (
        f"version: the version can't be {version!r}, because a gate with that value means open or closed."
    )


def test_a_version_with_a_slash_is_refused() -> None:
    with pytest.raises(UpgradeError, match="version: the version '2/10'"):
        check_version("2/10", "version")


@pytest.mark.parametrize("version", ["2", "v673", "1:2.10~rc1-1ubuntu2+b1", "2026.1_final", "a" * 255])
def test_a_new_version_may_have_characters_that_are_safe_in_a_shell(version: str) -> None:
    assert check_new_version(version, "version") == version


@pytest.mark.parametrize(
    "version",
    ["2;reboot", "$(reboot)", "2 3", "`x`", "2\\n", "-rf", "~root", "2*", "'2'", '"2"', "2|3", "{2}", "é2", "2&", "<2"],
)
def test_a_new_version_may_not_have_characters_that_a_shell_interprets(version: str) -> None:
    with pytest.raises(UpgradeError) as refused:
        check_new_version(version, "version")
    assert refused.value.code == "bad_name"


def test_stored_versions_of_older_tools_are_still_read() -> None:
    assert check_version("2013.1 beta; x", "version") == "2013.1 beta; x"
