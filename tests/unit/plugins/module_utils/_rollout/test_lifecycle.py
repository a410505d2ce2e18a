# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lifecycle of a rollout: what each write contains, and the snapshot after it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import MOST_OPERATIONS, KVEntry, Operation
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import (
    Change,
    compare,
    compare_and_put,
    compare_and_remove,
    put,
    remove,
    remove_tree,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot, VersionReport
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.gates import Gates, GateValue
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import Approval
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import Hold, Holds
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import COMPLETE, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.lifecycle import (
    begin_rollout,
    change_rules,
    finish_rollout,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys

KEYS = Keys("cloud/")
GATES = "cloud/config_state/enable_puppet/"
LEDGER = Ledger(4, "2.0", "1.0", instructions={"rolling_rules": {"global": 1}}, who="ann")
WIPED = remove_tree(GATES)
# Once-per-rollout tasks, health marks and approvals of an earlier rollout are removed with its gates.
BEGUN = (
    compare_and_put("cloud/upgrade/hold/", "", 0),
    compare(f"{GATES}global", 0),
    put("cloud/current_version", "2.0"),
    WIPED,
    # The time of the snapshot, at least 1, shows nodes that a rollout closed it.
    put(f"{GATES}global", "False", 1),
    remove_tree("cloud/upgrade/once/"),
    remove_tree("cloud/upgrade/health/"),
    remove_tree("cloud/upgrade/approval/"),
)

OPEN_FLEET = Snapshot(
    current_version="1.0",
    reports={"compute1": VersionReport("1.0")},
    gates=Gates(
        GateValue(f"{GATES}global", "True"),
        {"compute": GateValue(f"{GATES}role/compute", "true")},
        {"compute1": GateValue(f"{GATES}host/compute1", None)},
    ),
    holds=Holds(hosts={"compute1": Hold("upgrade/hold/host/compute1")}),
    index=9,
    ledger_index=7,
)
CONVERGED = Gates(GateValue(f"{GATES}global", "True"))


def test_with_legacy_gates_the_global_gate_is_not_compared() -> None:
    """The planner may close it itself before, where there are too many for one transaction."""
    snapshot = replace(OPEN_FLEET, legacy_gates=Gates(GateValue("cloud/config_state/global/enable_puppet", "True")))
    operations = begin_rollout(KEYS, snapshot, LEDGER).operations
    assert compare(f"{GATES}global", 0) in begin_rollout(KEYS, OPEN_FLEET, LEDGER).operations
    assert compare(f"{GATES}global", 0) not in operations


def test_a_task_group_that_a_run_works_on_stays_locked() -> None:
    done = [KVEntry(f"cloud/upgrade/once/2.0/upgrade/{n}", b"", n) for n in range(1, 41)]
    running = KVEntry("cloud/upgrade/once/2.0/upgrade/shop", b"", 99, session="s1")

    def removed(*onces: KVEntry) -> list[Operation]:
        found = begin_rollout(KEYS, OPEN_FLEET, LEDGER, onces=onces).operations
        return [one for one in found if "/once/" in one["KV"]["Key"]]

    assert removed(running, *done[:2]) == [compare_and_remove(one.key, one.modify_index) for one in done[:2]]
    assert len(begin_rollout(KEYS, OPEN_FLEET, LEDGER, onces=[running, *done]).operations) < MOST_OPERATIONS - 5
    more = [*done, KVEntry("cloud/upgrade/once/2.0/upgrade/more", b"", 50)]
    assert removed(*more) == [remove_tree("cloud/upgrade/once/2.0/")]
    # Those of other versions go too, unless a run works on one.
    old = KVEntry("cloud/upgrade/once/1.0/upgrade/shop", b"", 7)
    older = KVEntry("cloud/upgrade/once/0.9/upgrade/shop", b"", 6, session="s0")
    assert removed(running, old, older, done[0]) == [
        remove_tree("cloud/upgrade/once/1.0/"),
        compare_and_remove(done[0].key, 1),
    ]
    with pytest.raises(UpgradeError, match="A run still works on") as caught:
        removed(*more, running)
    assert caught.value.code == "leased"


def test_a_rollout_begins_with_the_version_and_one_closed_gate_at_once() -> None:
    move = begin_rollout(KEYS, OPEN_FLEET, LEDGER)

    assert move.operations == BEGUN
    assert move.changes == (
        Change("cloud/current_version", "1.0", "2.0"),
        Change(f"{GATES}role/compute", "true", None),
        Change(f"{GATES}host/compute1", "", None),
        Change(f"{GATES}global", "True", "False"),
    )
    assert move.event == {
        "what": "begin",
        "from": "1.0",
        "instructions": LEDGER.instructions,
        "reason": "ann asked for 2.0",
    }
    assert move.ledger == LEDGER


def test_after_the_beginning_all_gates_are_closed_and_holds_are_kept() -> None:
    after = begin_rollout(KEYS, OPEN_FLEET, LEDGER).after

    assert after == replace(
        OPEN_FLEET, current_version="2.0", ledger=LEDGER, gates=Gates(GateValue(f"{GATES}global", "False"))
    )


def test_a_rollout_that_begins_on_an_empty_store_writes_the_layout_down() -> None:
    move = begin_rollout(KEYS, Snapshot(), Ledger(0, "2.0"))

    assert move.operations == (*BEGUN, put("cloud/upgrade/schema", "1", 1000))
    assert move.changes == (
        Change("cloud/current_version", None, "2.0"),
        Change(f"{GATES}global", None, "False"),
        Change("cloud/upgrade/schema", None, "1"),
    )
    assert move.after.schema == 1


def test_other_rules_change_the_ledger_alone() -> None:
    snapshot = replace(OPEN_FLEET, ledger=replace(LEDGER, instructions={}))
    move = change_rules(KEYS, snapshot, LEDGER)

    assert (move.operations, move.changes) == ((), ())
    assert move.event == {
        "what": "rules",
        "instructions": LEDGER.instructions,
        "reason": "the instructions changed",
    }
    assert move.after == replace(snapshot, ledger=LEDGER)


BACK = replace(LEDGER, rollback=True)
FORWARD = replace(BACK, instructions={**BACK.instructions, "rollback_order": "forward"})


@pytest.mark.parametrize(("ledger", "flags"), [(BACK, 1), (FORWARD, 0), (LEDGER, 0)])
def test_the_version_tells_nodes_whether_services_go_back_in_the_reversed_order(ledger: Ledger, flags: int) -> None:
    assert put("cloud/current_version", "2.0", flags) in begin_rollout(KEYS, OPEN_FLEET, ledger).operations


@pytest.mark.parametrize(
    ("before", "after", "flags"),
    [
        (BACK, FORWARD, 0),
        (FORWARD, BACK, 1),
        # A planner service, which may write for example after a job, may not write the version.
        (BACK, replace(BACK, services={"web": "a1"}), None),
        (FORWARD, replace(FORWARD, services={"web": "a1"}), None),
        (replace(LEDGER, instructions={}), LEDGER, None),
        # Something else has set another version since the rollback.
        (replace(BACK, version="1.5"), LEDGER, None),
    ],
)
def test_only_rules_with_another_order_change_what_nodes_read_of_it(
    before: Ledger, after: Ledger, flags: int | None
) -> None:
    move = change_rules(KEYS, replace(OPEN_FLEET, current_version="2.0", ledger=before), after)
    assert move.operations == (() if flags is None else (put("cloud/current_version", "2.0", flags),))


def test_a_rollout_that_something_else_began_is_adopted() -> None:
    for found in (None, replace(LEDGER, version="1.5")):
        move = change_rules(KEYS, replace(OPEN_FLEET, ledger=found), LEDGER)

        assert move.event["what"] == "adopt"
        assert move.event["reason"] == "current_version was set already, by something other than a planner"
        assert move.after.ledger == LEDGER


@pytest.mark.parametrize(
    "found", [None, replace(LEDGER, version="1.5"), replace(LEDGER, version="1.5", state=COMPLETE)]
)
def test_an_adopted_rollout_begins_without_the_approvals_of_the_one_before(found: Ledger | None) -> None:
    snapshot = replace(OPEN_FLEET, ledger=found, approvals={"canary": Approval("ann", 7)})
    move = change_rules(KEYS, snapshot, LEDGER)

    assert remove_tree("cloud/upgrade/approval/") in move.operations
    assert [(one.key, one.after) for one in move.changes] == [("cloud/upgrade/approval/canary", None)]
    assert move.after.approvals == {}


def test_approvals_stay_while_the_stages_of_a_rollout_are_the_same() -> None:
    snapshot = replace(OPEN_FLEET, ledger=replace(LEDGER, instructions={}), approvals={"canary": Approval("ann", 7)})
    move = change_rules(KEYS, snapshot, LEDGER)

    assert (move.operations, move.changes) == ((), ())
    assert move.after.approvals == snapshot.approvals


def test_approvals_from_the_first_changed_stage_on_are_removed() -> None:
    stages = [{"name": name, "hosts": hosts, "approve": True} for name, hosts in (("a", 1), ("b", 2), ("c", 3))]
    approvals = {one["name"]: Approval("ann", 7) for one in stages}
    snapshot = replace(OPEN_FLEET, ledger=replace(LEDGER, instructions={"stages": stages}), approvals=approvals)
    changed = [stages[0], {**stages[1], "hosts": 3}, stages[2]]
    move = change_rules(KEYS, snapshot, replace(LEDGER, instructions={"stages": changed}))
    gone = [f"cloud/upgrade/approval/{name}" for name in "bc"]
    assert move.operations == tuple(remove(key) for key in gone)
    assert [(one.key, one.after) for one in move.changes] == [(key, None) for key in gone]
    assert list(move.after.approvals) == ["a"]


def test_a_rollout_completes_without_a_touch_to_the_gates() -> None:
    move = finish_rollout(KEYS, OPEN_FLEET, LEDGER, converge=False)

    assert move is not None
    assert move.ledger == replace(LEDGER, state=COMPLETE)
    assert (move.operations, move.changes) == ((), ())
    assert move.event == {"what": "complete", "reason": "every host is upgraded"}
    assert move.after == replace(OPEN_FLEET, ledger=move.ledger)


def test_a_rollout_completes_once() -> None:
    assert finish_rollout(KEYS, OPEN_FLEET, replace(LEDGER, state=COMPLETE), converge=False) is None


def test_converging_opens_the_global_gate_and_removes_the_others_at_once() -> None:
    move = finish_rollout(KEYS, OPEN_FLEET, LEDGER, converge=True)

    assert move is not None
    assert move.operations == (WIPED, put(f"{GATES}global", "True"))
    assert move.changes == (
        Change(f"{GATES}role/compute", "true", None),
        Change(f"{GATES}host/compute1", "", None),
        Change(f"{GATES}global", "True", "True"),
    )
    assert move.event == {"what": "converge", "reason": "every host is upgraded; the global gate opens"}
    assert move.after == replace(OPEN_FLEET, ledger=move.ledger, gates=CONVERGED)


def test_a_completed_rollout_can_converge_later() -> None:
    move = finish_rollout(KEYS, OPEN_FLEET, replace(LEDGER, state=COMPLETE), converge=True)

    assert move is not None
    assert move.event["what"] == "converge"


def test_a_fleet_that_has_converged_is_left_alone() -> None:
    converged = replace(OPEN_FLEET, gates=CONVERGED)

    assert finish_rollout(KEYS, converged, replace(LEDGER, state=COMPLETE), converge=True) is None


def test_where_the_gates_are_plain_already_converging_only_completes() -> None:
    move = finish_rollout(KEYS, replace(OPEN_FLEET, gates=CONVERGED), LEDGER, converge=True)

    assert move is not None
    assert move.operations == ()
    assert move.event["what"] == "complete"
