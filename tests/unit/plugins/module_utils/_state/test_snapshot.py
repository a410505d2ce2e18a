# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of layout 0 in a snapshot: which of two reports or gates counts, in each phase of a migration."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import KVEntry
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot, VersionReport
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.gates import Gates, GateValue
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import Holds
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.states import reported_version
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.legacy_keys import LegacyKeys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.snapshot import decode_snapshot
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.step import KeysFound
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.steps.to_1 import STEP
from hypothesis import given
from hypothesis import strategies as st

KEYS, OLD = Keys("cloud/"), LegacyKeys("cloud/")


def read(*entries: tuple[str, str]) -> Snapshot:
    """Return the snapshot of these entries, each with a higher ModifyIndex than the one before it."""
    return decode_snapshot(KEYS, [KVEntry(key, value.encode(), index) for index, (key, value) in enumerate(entries, 5)])


def test_legacy_keys_are_recognized() -> None:
    found = read((OLD.report("1", "compute1"), "100"), (OLD.gate("host", "compute2"), "true"))
    assert found.reports == {"compute1": VersionReport("1", 100.0)}
    assert found.reports["compute1"].is_legacy
    assert found.legacy_reports == {"compute1"}
    assert found.legacy_gates == Gates(hosts={"compute2": GateValue(OLD.gate("host", "compute2"), "true")})
    assert (found.gates, found.holds) == (Gates(), Holds())
    assert found.has_legacy_keys
    assert not read((KEYS.report("1", "compute1"), "100"), (KEYS.gate("global"), "True")).has_legacy_keys


@pytest.mark.parametrize(
    "key", ["config_state/host/compute1/debug", "config_state/global/x/y", "config_state/role/web"]
)
def test_keys_of_other_tools_beside_the_gates_are_not_legacy_keys(key: str) -> None:
    found = read((f"cloud/{key}", "1"))
    assert not found.has_legacy_keys
    assert not found.warnings


def test_folders_are_ignored_and_odd_reports_cause_warnings() -> None:
    found = read(
        (OLD.reports, ""), (f"{OLD.gates}host/", ""), (f"{OLD.gates}host/compute1/", ""), (f"{OLD.reports}stray", "1")
    )
    assert not found.has_legacy_keys
    assert found.warnings == ("'cloud/running_version/stray' is ignored: it is not running_version/<version>/<host>.",)


def test_a_copied_report_is_as_old_as_the_original() -> None:
    found = read((OLD.report("1", "compute1"), "100"), (KEYS.report("1", "compute1"), "100")).reports["compute1"]
    assert (found.version, found.at, found.index, found.is_legacy) == ("1", 100.0, 5, False)


@pytest.mark.parametrize(
    ("old", "new", "version"),
    [("100", "200", "new"), ("200", "100", "old"), ("?", "100", "new"), ("100", "?", "new"), ("100", "100", "new")],
)
def test_of_two_reports_the_later_time_counts_and_then_the_later_write(old: str, new: str, version: str) -> None:
    found = read((OLD.report("old", "compute1"), old), (KEYS.report("new", "compute1"), new))
    assert found.reports["compute1"].version == version
    assert not found.warnings


PLACES = [("global", None), ("role", "compute"), ("role", "web"), ("host", "compute1"), ("host", "web1")]


@given(st.dictionaries(st.sampled_from(PLACES), st.booleans()), st.data())
def test_no_answer_changes_when_pauses_become_holds_and_when_they_are_removed(
    pauses: dict[tuple[str, str | None], bool], data: st.DataObject
) -> None:
    closed = sorted((place for place, is_open in pauses.items() if not is_open), key=str)
    held = data.draw(st.sets(st.sampled_from(closed))) if closed else set()
    removed = data.draw(st.sets(st.sampled_from(sorted(held, key=str)))) if held else set()
    whole = read(*((OLD.gate(*place), str(is_open).lower()) for place, is_open in pauses.items()))
    half = read(
        *((OLD.gate(*place), str(is_open).lower()) for place, is_open in pauses.items() if place not in removed),
        *((KEYS.hold(*place), '{"by": "migrate_state.yml"}') for place in held),
    )
    for host, role in (("compute1", "compute"), ("compute2", "compute"), ("web1", "web"), ("db1", "db")):
        places = {("host", host), ("role", role), ("global", None)}
        assert bool(half.holds.covering(host, role)) is bool(whole.holds.covering(host, role))
        assert bool(whole.holds.covering(host, role)) is not places.isdisjoint(closed)


STARTED = '{"version": "3", "state": "started", "times": {"started": 1600000000}}'
RETRIED = '{"version": "3", "state": "retried", "attempt": 0, "times": {"retried": 1600000000}}'


@pytest.mark.parametrize(
    ("order", "version"),
    [
        # Its reports through convoy.upgrade count, whatever the time of the legacy one.
        (["old", "new", STARTED], "2"),
        (["old", STARTED, "new"], "2"),
        # The new report alone may be a copy; the record alone may be a start, or an operator's retry.
        (["old", "new"], "1"),
        (["new", "old", STARTED], "1"),
        ([STARTED, "old", "new"], "1"),
        (["old", "new", RETRIED], "1"),
    ],
)
def test_planner_and_migrator_agree_when_a_legacy_report_is_outdated(order: list[str], version: str) -> None:
    known = {"old": (OLD.report("1", "compute1"), "2000000000"), "new": (KEYS.report("2", "compute1"), "100")}
    pairs = [known.get(one, (KEYS.record("compute1"), one)) for one in order]
    assert reported_version(read(*pairs), "compute1") == version
    entries = {key: KVEntry(key, value.encode(), index) for index, (key, value) in enumerate(pairs, 5)}
    copied = [change.key for move in STEP.moves(KeysFound(KEYS, entries, begun=True)) for change in move.changes]
    # The copy would be newer than a record of a host that has left the version.
    is_copied = version == "1" and order[-1] != STARTED
    assert copied == ([KEYS.report("1", "compute1")] if is_copied else [])
