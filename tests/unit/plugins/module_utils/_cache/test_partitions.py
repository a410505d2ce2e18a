# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Partitions cover all keys of a folder, each key once, and there are few of them."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._cache import partitions
from ansible_collections.convoy.upgrade.plugins.module_utils._cache.partitions import Partition, divide, outside
from hypothesis import given
from hypothesis import strategies as st

FOLDER = "upgrade/hosts/"


def named(*names: str) -> list[str]:
    return sorted(FOLDER + name for name in names)


def numbered(role: str, count: int) -> list[str]:
    return [f"{role}{number}" for number in range(1, count + 1)]


def test_a_small_folder_is_one_partition() -> None:
    assert divide(FOLDER, named(*numbered("web", 1000))) == (Partition(FOLDER),)
    assert divide(FOLDER, []) == (Partition(FOLDER),)


@pytest.mark.parametrize(("count", "most_partitions", "most_keys"), [(5_000, 10, 1112), (20_000, 20, 1112)])
def test_a_large_folder_has_few_partitions_of_some_size(count: int, most_partitions: int, most_keys: int) -> None:
    keys = named(*numbered("compute", count))
    found = divide(FOLDER, keys)
    assert len(found) <= most_partitions
    assert max(sum(map(part.holds, keys)) for part in found) <= most_keys


def test_a_name_that_others_begin_with_is_a_partition_of_its_own() -> None:
    found = divide(FOLDER, named(*numbered("compute", 20_000)))
    assert Partition(FOLDER + "compute1", is_key=True) in found
    assert Partition(FOLDER + "compute10") in found


@given(st.sets(st.text("ab1-", min_size=1, max_size=6), max_size=60), st.integers(1, 6))
def test_each_key_belongs_to_one_partition(names: set[str], most: int) -> None:
    keys = named(*names)
    found = [*partitions._divide(FOLDER, keys, most)] if keys else []
    for key in keys:
        # The longest prefix counts.
        holding = [part for part in found if part.holds(key)]
        assert len(holding) == 1, (key, found)
    assert all(sum(map(part.holds, keys)) <= most for part in found)
    assert len(found) <= len(keys)


@given(
    st.sets(st.text("ab1-é", min_size=1, max_size=5), max_size=60),
    st.sets(st.text("ab1-é", max_size=4), max_size=6),
    st.data(),
)
def test_keys_outside_of_all_partitions_are_found(names: set[str], prefixes: set[str], data: st.DataObject) -> None:
    keys = named(*names)
    parts = [Partition(FOLDER + prefix, is_key=data.draw(st.booleans())) for prefix in sorted(prefixes)]
    assert outside(parts, keys) == [key for key in keys if not any(part.holds(key) for part in parts)]
