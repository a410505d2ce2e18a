# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout that is paused, aborted, or taken back."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._model.fleet import FAILED, STARTED, Record
from ansible_collections.convoy.upgrade.plugins.module_utils._model.ledger import ABORTED, PAUSED, Ledger
from fleets import NEW, OLD, Fleet, fleet

WORD = {"by": "ann", "at": 1_700_000_000, "reason": "logins fail"}
ONE = {"rolling_rules": {"global": 1}}


@pytest.mark.parametrize(("state", "goes_on"), [(PAUSED, True), (ABORTED, False)])
def test_an_operators_word_stops_all_and_lets_hosts_finish(state: str, goes_on: bool) -> None:
    site = fleet(compute=3).opened("compute1").started("compute1")
    site.ledger = Ledger(1, NEW, state=state, word=WORD)
    plan = site.plan({})
    assert plan.openings == ()
    assert plan.can_move
    assert plan.hosts["compute2"].reason.startswith(
        f"the rollout {'is paused' if goes_on else 'was aborted'} by ann at 20"
    )
    assert ": logins fail; " in plan.hosts["compute2"].reason
    site.upgraded("compute1")
    assert site.plan({}).can_move is goes_on


def test_a_word_on_another_rollout_stops_nothing() -> None:
    site = fleet(compute=1)
    site.ledger = Ledger(1, OLD, state=PAUSED)
    assert len(site.plan({}).openings) == 1


def rollback(site: Fleet) -> Fleet:
    """Take back what the fleet was on its way to."""
    site.ledger = Ledger(9, OLD, previous_version=NEW, rollback=True)
    site.current = OLD
    return site


def order(site: Fleet, rules: dict[str, Any]) -> list[str]:
    return [host for wave in site.plan(rules).waves for host in wave]


def test_a_rollback_begins_with_the_hosts_that_changed_last() -> None:
    site = fleet(compute=4).upgraded("compute1", "compute2", "compute3")
    site.reported_at = {"compute1": 100.0, "compute2": 300.0, "compute3": 200.0}
    assert order(rollback(site), ONE) == ["compute2", "compute3", "compute1"]


def test_hosts_that_broke_on_the_way_are_taken_back_too_and_hold_nobody_up() -> None:
    site = fleet(compute=4).upgraded("compute1")
    site.records["compute2"] = Record(NEW, FAILED, error="no disk", times={FAILED: 500})
    site.records["compute3"] = Record(NEW, STARTED, times={STARTED: 600})
    plan = rollback(site).plan(ONE)
    # The one that began is mid-way, holds no slot, and gets its gate back; the other one comes after those that are well.
    assert plan.hosts["compute3"].state == "upgrading"
    assert [one.host for one in plan.openings] == ["compute3", "compute1"]
    assert plan.hosts["compute2"].state == "pending"
    assert plan.hosts["compute4"].state == "upgraded"


def test_a_host_that_fails_in_a_rollback_takes_no_slot_and_nobody_waits_for_it() -> None:
    site = fleet(controller=2, compute=1).upgraded("controller1", "controller2", "compute1")
    rules = {**ONE, "role_order": {"compute": "controller"}}
    site.records["controller1"] = Record(OLD, FAILED, error="no disk", times={FAILED: 700})
    assert [one.host for one in rollback(site).plan(rules).openings] == ["controller2"]
    site.running(OLD, "controller2")
    plan = site.plan(rules)
    assert [one.host for one in plan.openings] == ["compute1"]
    assert not plan.complete


def test_a_host_that_left_the_version_is_not_upgraded_to_it() -> None:
    site = fleet(compute=1)
    site.records["compute1"] = Record(NEW, FAILED, times={FAILED: 500})
    site.current = OLD
    assert site.plan({}).hosts["compute1"].state == "pending"
    site.records["compute1"] = Record(NEW, FAILED, times={FAILED: 0})
    assert site.plan({}).hosts["compute1"].state == "upgraded"
