# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The six states of a host, and the facts that decide each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import strategies
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    RETRIED,
    STARTED,
    UPGRADED,
    HostRecord,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.host_state import HostState
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.state_names import STATES, TAKES_A_SLOT
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.closed_gates import begun_hosts
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.explanations import state_reason
from fleets import NEW, OLD, REPORTED_AT, Fleet, fleet
from hypothesis import given

HOST = "compute1"


def one() -> Fleet:
    return fleet(compute=1)


def state(site: Fleet) -> HostState:
    return site.states()[HOST]


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        (one(), "pending"),
        (one().silent(HOST), "pending"),
        (one().running("3.0", HOST), "pending"),
        (one().upgraded(HOST), "upgraded"),
        (one().upgraded(HOST).failed(HOST), "upgraded"),
        (one().upgraded(HOST).started(HOST).held("global"), "upgraded"),
        (one().failed(HOST), "failed"),
        (one().failed(HOST).opened(HOST), "failed"),
        (one().failed(HOST).held("global"), "failed"),
        (one().failed(HOST, version=OLD), "pending"),
        (one().failed(HOST, version=OLD).opened(HOST), "upgrading"),
        (one().opened(HOST), "upgrading"),
        (one().gated("True", "role/compute"), "upgrading"),
        (one().gated("True", "global"), "upgrading"),
        (one().gated(NEW, "role/compute"), "upgrading"),
        (one().gated(OLD, "role/compute"), "pending"),
        (one().started(HOST), "upgrading"),
        (one().started(HOST, version=OLD), "upgrading"),
        (one().started(HOST).held("host/compute1"), "upgrading"),
        (one().opened(HOST).held("host/compute1"), "upgrading"),
        (one().held("host/compute1"), "held"),
        (one().held("role/compute"), "held"),
        (one().held("global"), "held"),
        (one().held("role/controller", "host/compute2"), "pending"),
    ],
)
def test_each_state(site: Fleet, expected: str) -> None:
    assert state(site).state == expected


def test_a_record_that_says_upgraded_counts_for_nothing_without_the_report() -> None:
    site = one()
    site.records[HOST] = HostRecord(NEW, UPGRADED)

    assert state(site).state == "pending"


def test_a_host_on_whose_post_upgrade_tasks_a_run_works_takes_a_slot_also_once_a_rollback_began() -> None:
    site = one().running(OLD, HOST)
    site.records[HOST] = HostRecord("3.0", UPGRADED, post="started", index=50)
    found = state(site)
    # A run that was interrupted may have left it in the middle of them.
    assert (found.state, found.takes_a_slot) == ("pending", True)
    assert site.plan().hosts[HOST].reason.startswith("stopped in the post-upgrade tasks of 3.0, and keeps its slot; ")
    site.leases.add(HOST)
    found = state(site)
    # It stays pending, so that the run which has its lease can go on with it, in its own slot.
    assert (found.state, found.takes_a_slot) == ("pending", True)
    assert (
        site.plan().hosts[HOST].reason == "is in the post-upgrade tasks of 3.0, and keeps its slot; can be admitted now"
    )
    site.ledger = Ledger(1, NEW, "3.0", rollback=True)
    assert state(site).takes_a_slot
    # Nor has the end of that run ended the tasks.
    site.leases.clear()
    assert state(site).takes_a_slot
    assert [one.host for one in site.plan({"rolling_rules": {"global": 1}}).admissions] == [HOST]
    site.ledger = replace(site.ledger, broken=(HOST,))
    assert not state(site).takes_a_slot
    site.records[HOST] = HostRecord("3.0", UPGRADED, post="done")
    assert not state(site).takes_a_slot


def test_a_host_that_failed_elsewhere_keeps_its_slot_until_it_reports_or_is_retried() -> None:
    def down(record: HostRecord, *, site: Fleet | None = None) -> bool:
        site = site or one()
        site.records[HOST] = record
        return state(site).takes_a_slot

    failed = HostRecord("1.5", FAILED, index=50)
    assert down(failed)
    assert down(failed, site=one().held("host/compute1"))
    assert down(failed, site=one().silent(HOST))
    # It has reported a version since, or was retried, or is brought back by a rollback.
    assert not down(HostRecord("1.5", FAILED, index=0))
    assert not down(HostRecord("1.5", RETRIED, index=50))
    rollback = one()
    rollback.ledger = Ledger(1, NEW, OLD, rollback=True)
    assert not down(failed, site=rollback)


def test_a_record_that_can_not_be_read_has_failed_whatever_the_version() -> None:
    site = one()
    site.records[HOST] = HostRecord("", FAILED, readable=False)

    assert state(site).state == "failed"


@pytest.mark.parametrize("origin", [OLD, NEW, None])
def test_a_newer_record_with_started_or_failed_supersedes_an_older_report(origin: str | None) -> None:
    for site, expected in (
        (one().upgraded(HOST).started(HOST), "upgrading"),
        (one().upgraded(HOST).failed(HOST), "failed"),
    ):
        for index, found in ((9, expected), (int(REPORTED_AT), "upgraded")):
            site.records[HOST] = replace(site.records[HOST], origin=origin, index=index)
            assert state(site).state == found


def test_a_newer_record_that_can_not_be_read_supersedes_an_older_report() -> None:
    site = one().upgraded(HOST)
    site.records[HOST] = HostRecord("", FAILED, readable=False, index=9)
    assert state(site).state == "failed"


def test_a_host_that_failed_during_the_upgrade_before_a_rollback_comes_back_step_by_step() -> None:
    site = one()
    site.current = OLD
    site.records[HOST] = HostRecord(NEW, FAILED, index=9)
    assert state(site).state == "pending"
    assert state(site.opened(HOST)).state == "upgrading"
    # It has begun to go back. Its earlier report of that version does not count any more.
    site.records[HOST] = HostRecord(OLD, STARTED, index=10)
    assert state(site).state == "upgrading"
    site.records[HOST] = HostRecord(OLD, FAILED, index=11)
    assert state(site).state == "failed"
    site.records[HOST] = HostRecord(OLD, UPGRADED, index=12)
    assert state(site).state == "upgraded"


def test_a_record_that_only_a_hold_or_a_retry_wrote_is_no_beginning() -> None:
    site = one()
    site.records[HOST] = HostRecord(NEW, "retried", times={"retried": 5}, held="disk on order")
    assert state(site).begun is None
    midway = HostRecord(OLD, FAILED, times={FAILED: 4})
    site.records[HOST] = replace(site.records[HOST], former=(midway,))
    assert state(site).begun == NEW


def test_without_any_gate_a_host_is_open() -> None:
    site = one()
    site.gates.clear()

    assert (state(site).state, state(site).gate.is_open, state(site).gate.scope) == ("upgrading", True, None)


@pytest.mark.parametrize("value", ["", "Flase", None])
def test_a_gate_that_can_not_be_read_counts_as_closed(value: str | None) -> None:
    found = state(one().gated("True", "role/compute").gated(value, f"host/{HOST}"))

    assert (found.state, found.gate.is_open, found.gate.scope) == ("pending", False, "unreadable")


def test_an_unreadable_gate_of_a_role_spares_hosts_with_a_gate_of_their_own() -> None:
    states = fleet(compute=3).gated("Flase", "role/compute").opened("compute2").states()

    assert [one.state for one in states.values()] == ["pending", "upgrading", "pending"]


def test_without_a_current_version_hosts_are_pending_or_held() -> None:
    site = fleet(compute=2).opened("compute1").started("compute1").held("host/compute2")
    site.current = None

    assert [one.state for one in site.states().values()] == ["pending", "held"]


@pytest.mark.parametrize(
    ("site", "can_finish", "needs_its_gate"),
    [
        (one().opened(HOST), True, False),
        (one().opened(HOST).started(HOST), True, False),
        (one().started(HOST, version=OLD).admitted(HOST), True, True),
        (one().started(HOST).admitted(HOST).held("global"), True, False),
        # A host's own report does not admit it.
        (one().started(HOST, version=OLD), False, False),
        (one().started(HOST), False, False),
        (one().opened(HOST).held("global"), False, False),
        (one().failed(HOST), False, False),
        (one(), False, False),
        (one().upgraded(HOST), False, False),
    ],
)
def test_which_hosts_can_finish_and_which_need_a_gate(site: Fleet, can_finish: bool, needs_its_gate: bool) -> None:
    assert (state(site).can_finish, state(site).needs_its_gate) == (can_finish, needs_its_gate)


def test_a_host_that_started_has_not_ended() -> None:
    assert state(one().started(HOST)).has_started
    assert not state(one().failed(HOST)).has_started
    assert not state(one()).has_started


def reported_version(site: Fleet, host: str) -> str | None:
    """The version that a host reports, from its record if that is newer than its report."""
    record = site.records.get(host)
    in_record = record is not None and record.readable and record.state == UPGRADED
    if record is not None and in_record and (host not in site.reports or record.times.get(UPGRADED, 0) > REPORTED_AT):
        return record.version
    return site.reports.get(host)


def has_left(site: Fleet, host: str) -> bool:
    """Whether it began or failed after it reported."""
    record = site.records.get(host)
    return (
        record is not None
        and (record.state in (STARTED, FAILED) or not record.readable)
        and host in site.reports
        and record.times.get(record.state, 0) > REPORTED_AT
    )


@given(strategies.any_fleets())
def test_every_host_is_in_exactly_one_state(site: Fleet) -> None:
    for host, found in site.states().items():
        role = site.members[host]
        gate = found.gate.is_open
        record = site.records.get(host)
        tests = {
            "upgraded": reported_version(site, host) == site.current and not has_left(site, host),
            "failed": bool(record and record.state == FAILED and (record.version == NEW or not record.readable)),
            "lost": False,
            "upgrading": bool(gate or (record and record.state == STARTED)),
            "held": bool({"global", f"role/{role}", f"host/{host}"} & set(site.holds)),
            "pending": True,
        }

        assert tuple(tests) == STATES
        assert found.state == next(name for name, holds_true in tests.items() if holds_true)


def test_the_states_that_take_a_slot() -> None:
    assert set(STATES) - TAKES_A_SLOT == {"upgraded", "held", "pending"}


def test_a_retried_host_does_not_count_at_the_version_that_it_left() -> None:
    site = one()
    site.current = OLD
    site.records[HOST] = HostRecord(NEW, RETRIED, done=("stop/db",), times={"failed": 50, RETRIED: 60})
    assert state(site).state == "pending"


def test_a_host_that_its_run_lost_is_lost_and_keeps_its_slot_and_its_gate() -> None:
    site = one().opened(HOST).failed(HOST)
    failed = replace(site.records[HOST], times={"started": 5, "failed": 9})
    site.records[HOST] = replace(failed, times={**failed.times, "lost": 9}, error="unreachable: no route")
    found = state(site)
    assert (found.state, found.takes_a_slot, found.needs_its_gate, found.can_finish) == ("lost", True, False, False)
    assert state_reason(found, NEW) == "lost: unreachable: no route"
    # An abort does not close the gate of a host that has begun.
    assert begun_hosts(site.snapshot(), site.members) == {HOST}
    site.records[HOST] = replace(failed, times={**failed.times, "lost": 8})
    assert state(site).state == "failed"
