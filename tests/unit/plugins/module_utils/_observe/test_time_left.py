# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The estimate of the time left, compared with values that were computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED, UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import PAUSED, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.time_left import admitted_at, seconds_left
from fleets import NEW, OLD, Fleet, fleet

NOW = 10_000
RULES = {"rolling_rules": {"roles": {"compute": 2, "controller": 1}}, "role_order": {"compute": "controller"}}


def rollout(**roles: int) -> Fleet:
    site = fleet(**roles)
    site.ledger = Ledger(3, NEW, OLD, instructions=RULES, begun_index=100)
    return site


def took(site: Fleet, host: str, seconds: int, *, ended: int = NOW - 500) -> None:
    """Let a host have finished after this time."""
    site.upgraded(host).opened(host)
    site.records[host] = HostRecord(NEW, UPGRADED, times={STARTED: ended - seconds, UPGRADED: ended})
    site.reported_at[host] = ended


def moving(site: Fleet, host: str, seconds: int) -> None:
    """Let a host be in flight for this time."""
    site.opened(host)
    site.records[host] = HostRecord(NEW, STARTED, times={STARTED: NOW - seconds})


def left(site: Fleet, soak: int = 0) -> tuple[float | None, int]:
    snapshot, plan = site.snapshot(), site.plan(RULES)
    moves = {
        host: admitted_at(snapshot, host, view.role) for host, view in plan.hosts.items() if view.state == "upgrading"
    }
    return seconds_left(snapshot, plan, soak, moves)


def test_without_an_upgraded_host_the_time_left_is_unknown() -> None:
    site = rollout(compute=4)
    moving(site, "compute1", 50)

    assert left(site) == (None, 0)


def test_each_wave_takes_as_long_as_the_middle_one_of_those_that_are_done() -> None:
    site = rollout(compute=9)
    for host, seconds in (("compute1", 100), ("compute2", 100), ("compute3", 700)):
        took(site, host, seconds)
    moving(site, "compute4", 30)
    moving(site, "compute5", 60)

    # 70 s until compute4 is done, then two waves of two.
    assert left(site) == (70 + 2 * 100, 3)


def test_one_that_takes_longer_than_the_others_did_is_not_a_time_below_zero() -> None:
    site = rollout(compute=2)
    took(site, "compute1", 100)
    moving(site, "compute2", 5000)

    assert left(site) == (0, 1)


def test_a_role_of_which_none_is_done_takes_as_long_as_the_others() -> None:
    site = rollout(controller=2, compute=2)
    took(site, "controller1", 60)
    moving(site, "controller2", 20)

    assert left(site) == (40 + 60, 1)


def test_soaking_is_part_of_an_upgrade() -> None:
    site = rollout(compute=4)
    took(site, "compute1", 100)
    took(site, "compute2", 100)

    assert left(site, soak=300) == (400, 2)


def test_the_time_before_a_host_begins_counts_from_its_gate_on() -> None:
    site = rollout(compute=2)
    took(site, "compute1", 100, ended=NOW - 500)
    site.gated_at = NOW - 500 - 100 - 40

    assert left(site) == (140, 1)


@pytest.mark.parametrize("gate", [NOW + 1000, 0])
def test_a_gate_that_was_opened_after_the_start_or_by_hand_says_nothing(gate: int) -> None:
    site = rollout(compute=2)
    took(site, "compute1", 100)
    site.gated_at = gate

    assert left(site) == (100, 1)


def test_hosts_that_were_there_before_the_rollout_are_no_measure() -> None:
    site = rollout(compute=3)
    took(site, "compute1", 100)
    site.records["compute1"] = replace(site.records["compute1"], index=99)

    assert left(site) == (None, 0)


def test_a_clock_that_was_set_back_meanwhile_is_no_measure() -> None:
    site = rollout(compute=3)
    took(site, "compute1", -100)

    assert left(site) == (None, 0)


def test_what_is_stopped_has_no_end_in_sight() -> None:
    site = rollout(compute=3)
    took(site, "compute1", 100)
    assert site.ledger is not None
    site.ledger = replace(site.ledger, state=PAUSED)

    assert left(site) == (None, 1)


def test_hosts_that_failed_do_not_come_to_an_end_by_themselves() -> None:
    site = rollout(compute=2)
    took(site, "compute1", 100)
    site.failed("compute2")

    assert left(site) == (None, 1)
