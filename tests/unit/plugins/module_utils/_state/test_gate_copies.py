# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of gates for nodes that read the legacy layout."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import Operation
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import (
    Change,
    compare,
    compare_and_put,
    compare_and_remove,
    put,
    remove,
    remove_tree,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.gates import Gates, GateValue
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.migration import KEPT, REMOVING, RUNNING, Migration
from ansible_collections.convoy.upgrade.plugins.module_utils._state.gate_copies import GateCopies
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys

KEYS = Keys("cloud/")
OLD_GLOBAL = "cloud/config_state/global/enable_puppet"
OLD_HOST = "cloud/config_state/host/compute1/enable_puppet"


def mirror(text: str | None = None, *, state: str | None = None) -> GateCopies:
    """Return the copies for a fleet that has a copy of the global gate in the legacy layout."""
    old = Gates(GateValue(OLD_GLOBAL, text, 1, 5)) if text is not None else Gates()
    migration = Migration(state) if state is not None else None
    return GateCopies(KEYS, Snapshot(legacy_gates=old, migration=migration))


@pytest.mark.parametrize(
    ("found", "is_needed"),
    [
        (mirror(), False),
        (mirror("true"), True),
        (mirror(state=KEPT), True),
        (mirror(state=RUNNING), False),
        (mirror(state=REMOVING), False),
        (mirror("true", state=REMOVING), True),
    ],
)
def test_copies_are_needed_while_there_are_legacy_gates_or_they_are_kept(found: GateCopies, is_needed: bool) -> None:
    assert (found.is_needed, found.places) == (is_needed, 2 if is_needed else 1)
    one = put(KEYS.gate("global"), "True")
    assert len(found.operations([one])) == found.places
    assert len(found.changes([Change(KEYS.gate("global"), None, "True")])) == found.places


def test_writes_of_gates_are_repeated_and_others_are_not() -> None:
    given = [
        compare_and_put(KEYS.ledger, "{}", 7),
        put(KEYS.gate("host", "compute1"), "True", flags=9),
        compare_and_put(KEYS.gate("global"), "False", 3),
        put(KEYS.gate("role", "web"), "2.10"),
        remove(KEYS.gate("host", "compute1")),
        remove_tree(KEYS.onces),
    ]
    assert mirror("false").operations(given) == [
        given[0],
        put(KEYS.gate("host", "compute1"), "true", flags=9), compare_and_put(OLD_HOST, "true", 0, 9),
        compare_and_put(KEYS.gate("global"), "false", 3), compare_and_put(OLD_GLOBAL, "false", 5, 1),
        given[3], compare_and_put("cloud/config_state/role/web/enable_puppet", "2.10", 0, 1),
        given[4], compare(OLD_HOST, 0),
        given[5],
    ]  # fmt: skip


def test_copies_have_the_fleets_spelling_of_booleans() -> None:
    # python-jiocloud's status reads the gates of rollouts only as JSON.
    assert mirror("True").operations([put(KEYS.gate("global"), "False")]) == [
        put(KEYS.gate("global"), "false"),
        compare_and_put(OLD_GLOBAL, "False", 5, 1),
    ]
    assert mirror().operations([put(KEYS.gate("global"), "False")]) == [put(KEYS.gate("global"), "False")]


@pytest.mark.parametrize("text", ["False", "false", "maybe", ""])
def test_an_operators_pause_is_never_overwritten(text: str) -> None:
    found = GateCopies(
        KEYS,
        Snapshot(
            legacy_gates=Gates(GateValue(OLD_GLOBAL, text), hosts={"compute1": old_gate("host", "compute1", text)})
        ),
    )
    opened = [put(KEYS.gate("global"), "true"), put(KEYS.gate("host", "compute1"), "true")]
    assert found.operations(opened) == opened
    assert found.operations(wiped("true")) == wiped("true")
    assert found.wiped() == []
    assert found.changes([Change(KEYS.gate("global"), None, "True")]) == [Change(KEYS.gate("global"), None, "true")]
    assert found.unpaused("global", None, is_gone=False) == (remove(OLD_GLOBAL), Change(OLD_GLOBAL, text, None))
    assert mirror("false").unpaused("global", None, is_gone=False) is None


def old_gate(scope: str, name: str, text: str = "true") -> GateValue:
    return GateValue(f"cloud/config_state/{scope}/{name}/enable_puppet", text, index=6)


def wiped(value: str) -> list[Operation]:
    return [remove_tree(KEYS.gates), put(KEYS.gate("global"), value)]


def test_legacy_gates_are_removed_with_the_others_one_by_one() -> None:
    hosts = {f"compute{number}": old_gate("host", f"compute{number}") for number in range(39)}
    old = Gates(GateValue(OLD_GLOBAL, "true"), {"web": old_gate("role", "web")}, hosts)
    found = GateCopies(KEYS, Snapshot(legacy_gates=old))
    removed = [compare_and_remove(one.key, 6) for one in (*old.roles.values(), *hosts.values())]
    given = wiped("False")
    closed = [put(KEYS.gate("global"), "false"), compare_and_put(OLD_GLOBAL, "false", 0, 1)]
    assert found.operations(given) == [given[0], *removed, *closed]
    assert [one.key for one in found.wiped()] == [one.key for one in (*old.roles.values(), *hosts.values())]
    # Everything fits into one transaction.
    assert found.ahead(given) == []
    assert mirror().ahead(given) == []


@pytest.mark.parametrize("count", [100, 500])
def test_legacy_gates_that_do_not_fit_are_removed_first_while_gates_are_closed(count: int) -> None:
    hosts = {f"compute{number}": old_gate("host", f"compute{number}") for number in range(count)}
    roles = {"web": old_gate("role", "web"), "db": GateValue("cloud/config_state/role/db/enable_puppet", "false", 1, 6)}
    old = Gates(GateValue(OLD_GLOBAL, "true", index=5), roles, hosts)
    new = Gates(GateValue(KEYS.gate("global"), "True"), {"cache": GateValue(KEYS.gate("role", "cache"), "True")})
    found = GateCopies(KEYS, Snapshot(gates=new, legacy_gates=old))
    given = wiped("False")
    pieces = found.ahead(given)
    assert all(len(piece.operations) <= 62 for piece in pieces)
    early = [operation for piece in pieces for operation in piece.operations]
    closes = [put(KEYS.gate("global"), "false", flags=1), compare_and_put(OLD_GLOBAL, "false", 5, 1)]
    for role, index in (("web", 6), ("cache", 0)):
        legacy_key = f"cloud/config_state/role/{role}/enable_puppet"
        closes += [put(KEYS.gate("role", role), "false", flags=1), compare_and_put(legacy_key, "false", index, 1)]
    assert sorted(map(str, early[:6])) == sorted(map(str, closes))
    assert early[:2] == closes[:2]
    operations = found.operations(given)
    late = operations[1:-2]
    assert len(late) == 40
    # What was closed before has another index by now.
    first, *others = (*roles.values(), *hosts.values())
    assert [*early[6:], *late] == [remove(first.key), *(compare_and_remove(one.key, 6) for one in others)]
    assert operations[-1] == put(OLD_GLOBAL, "false", flags=1)
    # If the transaction opens all gates, none is closed before it.
    opens = GateCopies(KEYS, Snapshot(gates=new, legacy_gates=old)).ahead(wiped("True"))
    assert opens[0].operations[0] == compare_and_remove(roles["web"].key, 6)
    changes = {one.key: (one.before, one.after) for piece in pieces for one in piece.changes}
    assert changes[OLD_GLOBAL] == ("true", "false")
    assert changes[hosts["compute0"].key] == ("true", None)
    # No other transaction needs earlier writes.
    assert found.ahead([put(KEYS.gate("global"), "False"), remove_tree(KEYS.onces)]) == []


def test_changes_are_shown_for_both_layouts() -> None:
    changes = mirror("true").changes([Change(KEYS.gate("global"), None, "False"), Change(KEYS.ledger, None, "{}")])
    assert changes == [
        Change(KEYS.gate("global"), None, "false"),
        Change(OLD_GLOBAL, "true", "false"),
        Change(KEYS.ledger, None, "{}"),
    ]
