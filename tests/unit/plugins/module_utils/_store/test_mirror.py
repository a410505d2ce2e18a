# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is added to a write of gates for nodes that look in the old place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._model.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._model.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._model.gates import Gates, GateValue
from ansible_collections.convoy.upgrade.plugins.module_utils._model.migration import KEPT, REMOVING, RUNNING, Migration
from ansible_collections.convoy.upgrade.plugins.module_utils._store.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._store.mirror import Mirror
from ansible_collections.convoy.upgrade.plugins.module_utils._store.operations import (
    Change,
    compare_and_put,
    put,
    remove,
    remove_tree,
)

KEYS = Keys("cloud/")
OLD_GLOBAL = "cloud/config_state/global/enable_puppet"
OLD_HOST = "cloud/config_state/host/compute1/enable_puppet"


def mirror(text: str | None = None, *others: str, state: str | None = None) -> Mirror:
    """Return one for a fleet whose global gate, where there is one, is in the old place alone."""
    old = Gates(GateValue(OLD_GLOBAL, text)) if text is not None else Gates()
    migration = Migration(state) if state is not None else None
    folders = {f"{key.rpartition('/')[0]}/": (key,) for key in others}
    return Mirror(KEYS, Snapshot(gates=old, old_gates=old, others_keys=folders, migration=migration))


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
def test_it_is_needed_while_old_gates_are_there_or_kept(found: Mirror, is_needed: bool) -> None:
    assert (found.is_needed, found.places) == (is_needed, 2 if is_needed else 1)
    one = put(KEYS.gate("global"), "True")
    assert len(found.operations([one])) == found.places
    assert len(found.changes([Change(KEYS.gate("global"), None, "True")])) == found.places


def test_what_sets_and_removes_gates_is_done_twice_and_all_else_once() -> None:
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
        given[1], put(OLD_HOST, "true"),
        given[2], put(OLD_GLOBAL, "false"),
        given[3], put("cloud/config_state/role/web/enable_puppet", "2.10"),
        given[4], remove(OLD_HOST),
        given[5],
    ]  # fmt: skip


def test_values_are_spelled_as_the_fleet_spells_them() -> None:
    assert mirror("True").operations([put(KEYS.gate("global"), "False")])[1] == put(OLD_GLOBAL, "False")


def test_the_old_gates_are_wiped_with_the_others() -> None:
    given = [remove_tree(KEYS.gates), put(KEYS.gate("global"), "False")]
    folders = [remove_tree(f"cloud/config_state/{scope}/") for scope in ("global", "role", "host")]
    assert mirror("true").operations(given) == [given[0], *folders, given[1], put(OLD_GLOBAL, "false")]


def test_where_keys_of_others_stand_among_them_each_gate_is_removed_by_itself() -> None:
    found = mirror("true", "cloud/config_state/global/debug")
    trees = [remove_tree(f"cloud/config_state/{scope}/") for scope in ("role", "host")]
    assert found.operations([remove_tree(KEYS.gates)])[1:] == [*trees, remove(OLD_GLOBAL)]


def test_more_than_a_transaction_takes_are_refused() -> None:
    folder = "cloud/config_state/host/"
    hosts = {f"compute{number}": GateValue(f"{folder}compute{number}/enable_puppet", "true") for number in range(41)}
    other = f"{folder}compute1/debug"
    snapshot = Snapshot(old_gates=Gates(hosts=hosts), others_keys={folder: (other,)})
    with pytest.raises(UpgradeError) as caught:
        Mirror(KEYS, snapshot).operations([remove_tree(KEYS.gates)])
    assert caught.value.code == "others_keys"
    assert caught.value.details["keys"] == [other]
    # Those of another folder are in nobody's way.
    elsewhere = replace(snapshot, others_keys={"cloud/config_state/role/": ("cloud/config_state/role/web/debug",)})
    assert len(Mirror(KEYS, elsewhere).operations([remove_tree(KEYS.gates)])) == 3


def test_a_gate_that_stood_in_the_old_place_alone_was_not_in_the_new_one() -> None:
    changes = mirror("true").changes([Change(KEYS.gate("global"), "true", "False"), Change(KEYS.ledger, None, "{}")])
    assert changes == [
        Change(KEYS.gate("global"), None, "False"),
        Change(OLD_GLOBAL, "true", "false"),
        Change(KEYS.ledger, None, "{}"),
    ]
