# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations of a transaction, and the diff of their changes."""

from __future__ import annotations

import base64

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.answers import are_written
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import (
    Change,
    as_diff,
    check_lock,
    compare,
    compare_and_put,
    net_changes,
    put,
    remove,
    remove_tree,
)


def test_values_travel_as_base64_of_utf_8() -> None:
    operation = put("a/key", "größe")

    assert operation["KV"]["Verb"] == "set"
    assert operation["KV"]["Key"] == "a/key"
    assert base64.b64decode(operation["KV"]["Value"]).decode() == "größe"


def test_a_compare_and_set_has_the_index_that_was_read() -> None:
    assert compare_and_put("k", "v", 7) == {"KV": {"Verb": "cas", "Key": "k", "Value": "dg==", "Index": 7}}
    assert compare_and_put("k", "v", 0)["KV"]["Index"] == 0


def test_a_comparison_with_a_missing_key_has_another_verb() -> None:
    assert compare("k", 7) == {"KV": {"Verb": "check-index", "Key": "k", "Index": 7}}
    assert compare("k", 0) == {"KV": {"Verb": "check-not-exists", "Key": "k"}}


def test_removals() -> None:
    assert remove("k") == {"KV": {"Verb": "delete", "Key": "k"}}
    assert remove_tree("folder/") == {"KV": {"Verb": "delete-tree", "Key": "folder/"}}


def test_of_several_changes_to_a_key_the_first_state_and_the_last_count() -> None:
    changes = [
        Change("b", None, "1"),
        Change("a", "x", "y"),
        Change("b", "1", "2"),
        Change("same", "x", "x"),
        Change("back", "x", None),
        Change("back", None, "x"),
        Change("gone", "x", None),
    ]

    assert net_changes(changes) == [Change("a", "x", "y"), Change("b", None, "2"), Change("gone", "x", None)]


def test_the_diff_has_a_line_for_each_key_that_is_there() -> None:
    diff = as_diff(iter([Change("a", "x", "y"), Change("b", None, "2"), Change("gone", "x", None)]))

    assert diff["before"] == "a = x\ngone = x\n"
    assert diff["after"] == "a = y\nb = 2\n"
    assert (diff["before_header"], diff["after_header"]) == ("Consul before", "Consul after")


def test_a_value_in_the_diff_is_sanitized() -> None:
    diff = as_diff([Change("a\x1b", "x\nb = 3", "y\x9b\u202e")])

    assert (diff["before"], diff["after"]) == ("a? = x b = 3\n", "a? = y??\n")


def test_the_diff_of_nothing_is_empty() -> None:
    assert (as_diff([])["before"], as_diff([])["after"]) == ("", "")


def test_a_transaction_is_written_only_if_its_results_have_what_it_sets_and_compares() -> None:
    operations = [
        put("set", "1"),
        compare("compared", 7),
        check_lock("lease", "session"),
        remove("gone"),
        compare("never", 0),
    ]
    found = ["set", "compared", "lease"]
    assert are_written(operations, [{"Key": key} for key in found])
    for missing in found:
        assert not are_written(operations, [{"Key": key} for key in found if key != missing])
