# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The migration from layout 0 to 1 on keys in memory: moves, ignored keys and problems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import KVEntry
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.lock import MOST_MOVED
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.mover import chunks
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.preview import after_moves
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.step import KeysFound
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.steps.to_1 import STEP
from hypothesis import given
from hypothesis import strategies as st

RECORD = '{"version": "v1", "state": "upgraded", "times": {"upgraded": 1600000000}}'
# Records that consul_upgrade_control, the tasks after an upgrade or something unknown has written, and not the host.
UNSPOKEN = (
    '{"version": "v1", "state": "retried", "attempt": 0, "times": {"retried": 1600000000}}',
    '{"version": "v1", "state": "upgraded", "reported": "v1", "post": "open"}',
    '{"version": "v1", "state":',
)


def found(keys: Mapping[str, str | bytes], **options: Any) -> KeysFound:
    """Return keys that were written one after another."""
    entries = {
        key: KVEntry(key, value.encode() if isinstance(value, str) else value, at)
        for at, (key, value) in enumerate(keys.items(), 1)
    }
    return KeysFound(Keys(), dict(sorted(entries.items())), **options)


def changes(keys: Mapping[str, str | bytes], **options: Any) -> dict[str, str | None]:
    """Return the changes until no move is left."""
    before, changed = found(keys, **options), {}
    while moves := STEP.moves(before):
        changed |= {change.key: change.after for move in moves for change in move.changes}
        before = after_moves(before, moves)
    return changed


def wrong(keys: Mapping[str, str | bytes], **options: Any) -> list[str]:
    return [one.key for one in STEP.problems(found(keys, **options))]


def test_of_a_host_at_two_versions_the_later_report_counts_once_it_has_begun() -> None:
    keys = {"running_version/v1/web1": "20.5", "running_version/v2/web1": "10.5"}
    assert wrong(keys) == ["running_version/v2/web1"]
    assert wrong(keys, begun=True) == []
    assert changes(keys, begun=True) == {"running/versions/v1/web1": "20.5"}
    same = {"running_version/v1/web1": "20.5", "running_version/v2/web1": "20.5"}
    assert wrong(same, begun=True) == ["running_version/v1/web1"]


def test_a_report_through_convoy_counts_where_it_is_the_later_one() -> None:
    old = {"running_version/v1/web1": "20.5"}
    assert changes({**old, "running/versions/v2/web1": "30"}) == {}
    assert changes({**old, "running/versions/v2/web1": "10"}) == {
        "running/versions/v1/web1": "20.5",
        "running/versions/v2/web1": None,
    }
    assert changes({**old, "running/versions/v1/web1": "10"}) == {}
    assert changes({**old, "running/versions/v1/web1": "20.5", "running/versions/v0/web1": "1"}) == {
        "running/versions/v0/web1": None
    }
    assert wrong({**old, "running/versions/v2/web1": "20.5"}) == ["running/versions/v2/web1"]


def test_a_report_through_convoy_is_kept_whatever_the_clock_of_the_host_says() -> None:
    old, new, record = (
        {"running_version/v1/web1": "20.5"},
        {"running/versions/v2/web1": "10"},
        {"upgrade/hosts/web1": RECORD},
    )
    assert changes({**old, **new, **record}, begun=True, switched=True) == {}
    # A start after that does not make the older report the latest.
    assert changes({**new, **old, **record}, begun=True)["running/versions/v1/web1"] == "20.5"
    assert changes({**record, **old, **new}, begun=True)["running/versions/v1/web1"] == "20.5"


def test_any_number_of_outdated_reports_is_removed_some_at_a_time() -> None:
    outdated = {f"running/versions/v0.{number}/web1": f"{number}" for number in range(70)}
    now = found({**outdated, "running_version/v1/web1": "100"}, begun=True)
    while moves := STEP.moves(now):
        assert max(sum(len(move.operations) for move in chunk) for chunk in chunks(moves)) <= MOST_MOVED
        now = after_moves(now, moves)
    assert set(now.entries) == {"running/versions/v1/web1", "running_version/v1/web1"}


@pytest.mark.parametrize(
    "key", ["config_state/host/web\ufffd/enable_puppet", "config_state/enable_puppet/host/web\ufffd"]
)
def test_a_gate_whose_name_is_no_text_is_a_blocker_and_is_not_moved(key: str) -> None:
    for begun in (False, True):
        assert wrong({key: "True"}, begun=begun) == [key]
    assert (changes({key: "True"}), STEP.removals(found({key: "True"}))) == ({}, [])


@pytest.mark.parametrize(("state", "is_copied"), [("started", False), ("failed", False), ("upgraded", True)])
def test_the_report_of_a_version_that_a_host_has_left_is_not_made_newer_than_its_record(
    state: str, is_copied: bool
) -> None:
    report, record = {"running_version/v1/web1": "20.5"}, json.dumps({"version": "v2", "state": state})
    copied = {"running/versions/v1/web1": "20.5"}
    assert changes({**report, "upgrade/hosts/web1": record}, begun=True) == (copied if is_copied else {})
    # An old record says nothing of a later report.
    assert changes({"upgrade/hosts/web1": record, **report}, begun=True) == copied


def test_a_host_waits_until_its_record_is_newer_than_its_old_report() -> None:
    report, record = {"running_version/v1/web1": "20.5"}, {"upgrade/hosts/web1": RECORD}
    assert STEP.waiting(found(report)) == ["web1"]
    assert STEP.waiting(found({**record, **report})) == ["web1"]
    assert STEP.waiting(found({**report, **record})) == []
    gate = {"config_state/host/web2/enable_puppet": "True", "config_state/role/web/enable_puppet": "True"}
    assert STEP.waiting(found(gate)) == ["web2"]
    assert STEP.waiting(found({**gate, "upgrade/hosts/web2": RECORD})) == []


@pytest.mark.parametrize("text", UNSPOKEN)
def test_a_record_without_a_report_of_the_host_leaves_it_waiting(text: str) -> None:
    report, record = {"running_version/v1/web1": "20.5"}, {"upgrade/hosts/web1": text}
    assert STEP.waiting(found({**report, **record})) == ["web1"]
    assert STEP.waiting(found({"config_state/host/web1/enable_puppet": "True", **record})) == ["web1"]
    # It does not make the host's legacy report outdated either.
    assert (
        changes({**report, "running/versions/v2/web1": "10", **record}, begun=True)["running/versions/v1/web1"]
        == "20.5"
    )


@pytest.mark.parametrize("ledger", [{}, {"upgrade/ledger": "{}"}])
@pytest.mark.parametrize("place", ["global", "role/web", "host/web1"])
def test_a_pause_becomes_a_hold_whatever_the_gate_says_and_nothing_else_changes(
    place: str, ledger: dict[str, str]
) -> None:
    pause, gate = f"config_state/{place}/enable_puppet", f"config_state/enable_puppet/{place}"
    for text in ("False", "false", "v1"):
        for value in ("true", "False"):
            keys: dict[str, str | bytes] = {"current_version": "v2", **ledger, pause: text, gate: value}
            for options in ({}, {"begun": True}, {"begun": True, "switched": True}):
                assert (wrong(keys, **options), set(changes(keys, **options))) == ([], {f"upgrade/hold/{place}"})
    for text in ("True", "true", "v2"):
        # An open legacy key pauses no host, and opens nothing that a rollout keeps closed.
        keys = {"current_version": "v2", **ledger, pause: text, "config_state/enable_puppet/global": "false"}
        assert (wrong(keys), changes(keys)) == ([], {})


def test_a_gate_that_is_repeated_for_old_code_is_no_pause() -> None:
    before = found({"config_state/role/web/enable_puppet": "false", "config_state/enable_puppet/role/web": "false"})
    flagged = {key: entry._replace(flags=1) for key, entry in before.entries.items()}
    assert STEP.moves(replace(before, entries=flagged)) == []
    assert len(STEP.removals(replace(before, entries=flagged))) == 1


def test_hosts_that_are_exempt_from_a_pause_are_named_in_the_hold_that_covers_them() -> None:
    keys = {
        f"config_state/{place}/enable_puppet": "True" for place in ("role/db", "host/web10", "host/web2", "host/db1")
    }
    made = changes(
        {**keys, "config_state/global/enable_puppet": "False", "config_state/role/web/enable_puppet": "False"}
    )
    assert "exempted web2, web10," in str(made["upgrade/hold/role/web"])
    assert "exempted role db, db1" in str(made["upgrade/hold/global"])


@pytest.mark.parametrize(
    ("ledger", "text", "made"),
    [(False, "False", True), (True, "False", False), (False, "True", False), (False, "v1", True)],
)
@pytest.mark.parametrize("place", ["host/compute1", "role/compute"])
def test_a_gate_that_a_hand_closed_becomes_a_hold_where_no_rollout_is_known(
    place: str, ledger: bool, text: str, made: bool
) -> None:
    keys: dict[str, str | bytes] = {"current_version": "v2", f"config_state/enable_puppet/{place}": text}
    if ledger:
        keys["upgrade/ledger"] = "{}"
    assert (f"upgrade/hold/{place}" in changes(keys)) is made
    # A gate that is closed after the switch gets no hold, because planners read that gate.
    assert changes(keys, begun=True, switched=True) == {}
    assert changes({"config_state/enable_puppet/global": "False"}) == {}


def test_other_settings_and_folders_are_left_alone() -> None:
    keys = {
        "config_state/host/web1/enable_update": "?",
        "config_state/role/web/": "",
        "config_version/host/web1/enable_puppet": "?",
        "config_state/enable_puppet/": b"\xff",
        "config_state/enable_puppet/host/": "",
        "running_version/v1/": "",
    }
    assert (wrong(keys), changes(keys)) == ([], {})
    assert [change.key for move in STEP.removals(found(keys)) for change in move.changes] == ["running_version/v1/"]


def test_an_empty_version_is_none_and_is_left_alone() -> None:
    for value in ("", " \n"):
        assert (wrong({"current_version": value}), changes({"current_version": value})) == ([], {})


HOSTS = st.sampled_from(["web1", "web2", "web10"])
REPORTS = st.dictionaries(
    st.tuples(st.sampled_from(["running_version", "running/versions"]), st.sampled_from(["v1", "v2"]), HOSTS),
    st.integers(1, 5),
)
GATES = st.dictionaries(
    st.tuples(st.booleans(), st.sampled_from(["global", "role/web", "host/web1", "host/web2"])),
    st.sampled_from(["True", "true", "False", "false ", "v1", "v2"]),
)


@given(REPORTS, GATES, st.booleans(), st.booleans())
def test_whatever_it_finds_it_comes_to_an_end_that_has_no_work_left(
    reports: dict[tuple[str, str, str], int], gates: dict[tuple[bool, str], str], begun: bool, has_ledger: bool
) -> None:
    keys: dict[str, str | bytes] = {"current_version": "v2 ", **({"upgrade/ledger": "{}"} if has_ledger else {})}
    keys |= {f"{folder}/{version}/{host}": str(at) for (folder, version, host), at in reports.items()}
    for (is_legacy, place), value in gates.items():
        keys[f"config_state/{place}/enable_puppet" if is_legacy else f"config_state/enable_puppet/{place}"] = value
    now = found(keys, begun=begun)
    if STEP.problems(now):
        return
    for _round in range(5):
        moves = STEP.moves(now)
        for chunk in chunks(moves):
            assert sum(len(move.operations) for move in chunk) <= MOST_MOVED
        now = after_moves(now, moves)
    assert STEP.moves(now) == []
    left = after_moves(now, STEP.removals(replace(now, switched=True)))
    assert STEP.removals(left) == []
    assert not [key for key in left.entries if key.startswith("running_version/") or key.endswith("/enable_puppet")]
    # Every host that reported has a report in the new layout, with the version of its latest report.
    latest: dict[str, tuple[int, str]] = {}
    for (_folder, version, host), at in reports.items():
        latest[host] = max(latest.get(host, (0, "")), (at, version))
    for host, (at, version) in latest.items():
        there = {
            key.split("/")[2]
            for key in left.entries
            if key.startswith("running/versions/") and key.endswith(f"/{host}")
        }
        same_time = {its for (_folder, its, name), one in reports.items() if (name, one) == (host, at)}
        assert there & same_time, host
        assert version in same_time
