# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pass writes besides admissions, tested with a writer in check mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import Change
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED, UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import HealthMark
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.host_health_notes import (
    ledger_to_write,
    noted_at,
    with_checks,
    write_health,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._state.ledger_writer import LedgerWriter
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from fleets import NEW, OLD, Fleet, fleet

SOAK = {"health": {"soak": 60}}
# Nothing listens at this address, so a request would fail.
NOWHERE = Store(Settings(port=1, timeout=0.01))


def noted(site: Fleet, rules: Mapping[str, Any] | None = None) -> tuple[list[Change], int]:
    """Return what is written besides the ledger, and the number of writes."""
    site.ledger = site.ledger or Ledger(5, NEW)
    snapshot, plan = site.snapshot(), site.plan(rules)
    writer = LedgerWriter(NOWHERE, snapshot, "ann@here", 9, dry=True)
    write_health(writer, snapshot, plan, replace(site.ledger, stage=plan.stage_mark, stopped=plan.exhausted_keys))
    assert writer.ledger is not None
    writes = writer.ledger.epoch - site.ledger.epoch
    site.ledger = writer.ledger
    return [change for change in writer.changes if change.key != NOWHERE.keys.ledger], writes


def recorded(site: Fleet, *hosts: str, at: int = 500, version: str = NEW) -> Fleet:
    """Let hosts report an upgrade only in their own records."""
    site.records.update({host: HostRecord(version, UPGRADED, times={UPGRADED: at}) for host in hosts})
    return site


def test_where_nothing_is_new_nothing_is_written() -> None:
    assert noted(fleet(compute=3).upgraded("compute1").started("compute2")) == ([], 0)


# Reports


def test_what_only_the_record_of_a_host_has_is_published_and_its_earlier_report_is_removed() -> None:
    changes, writes = noted(recorded(fleet(compute=2), "compute1"))
    assert changes == [
        Change("running/versions/2.0/compute1", None, "500"),
        Change("running/versions/1.0/compute1", "1", None),
    ]
    assert writes == 1


def test_a_host_that_never_reported_is_published_too() -> None:
    changes, _writes = noted(recorded(fleet(compute=2).silent("compute1"), "compute1"))
    assert changes == [Change("running/versions/2.0/compute1", None, "500")]


def test_a_record_without_times_is_published_as_of_now() -> None:
    site = fleet(compute=1).silent("compute1")
    site.records["compute1"] = HostRecord(NEW, UPGRADED)
    assert noted(site)[0] == [Change("running/versions/2.0/compute1", None, "10000")]


@pytest.mark.parametrize(
    "record",
    [
        HostRecord(NEW, STARTED, times={STARTED: 500}),
        # Older than the report: the host has upgraded to another version since.
        HostRecord(NEW, UPGRADED, times={UPGRADED: 0}),
        HostRecord(OLD, UPGRADED, times={UPGRADED: 500}),
        HostRecord(NEW, UPGRADED, times={UPGRADED: 500}, readable=False),
    ],
)
def test_no_other_record_is_published(record: HostRecord) -> None:
    site = fleet(compute=1)
    site.records["compute1"] = record
    assert noted(site) == ([], 0)


def test_hosts_of_no_role_are_not_published() -> None:
    assert noted(recorded(fleet(compute=1), "stranger")) == ([], 0)


@pytest.mark.parametrize(("count", "writes"), [(1, 1), (20, 1), (21, 2), (61, 4)])
def test_reports_are_published_twenty_to_a_write(count: int, writes: int) -> None:
    site = fleet(compute=count)
    changes, done = noted(recorded(site, *site.members))
    assert (len(changes), done) == (2 * count, writes)


def test_a_check_that_flaps_is_written_often_at_first_and_seldom_later() -> None:
    rules = {"health": {"consul_checks": ["nova"]}}
    site = fleet(compute=1).upgraded("compute1")

    def seen(status: str, written: int, at: int) -> int:
        site.checks = {"compute1": {"nova": status}}
        lost = status == "passing"
        site.marks["compute1"] = HealthMark(NEW, None if lost else 1, True, lost=lost, written=written, written_at=at)
        return noted(site, rules)[1]

    now = 9  # by the clock of the writer
    assert seen("passing", 19, now - 1) == 1
    assert seen("passing", 20, now - 599) == 0
    assert site.plan(rules).hosts["compute1"].state == "upgraded"
    assert seen("passing", 20, now - 600) == 1
    # A failure is written at once, however often.
    assert seen("critical", 99, now - 1) == 1


# Budgets


def test_a_budget_that_is_exhausted_is_written_once_and_when_it_is_not_any_more() -> None:
    site = fleet(compute=3).failed("compute1")
    rules = {"failure_rules": {"fleet": 1, "roles": {"compute": 1}}}
    assert noted(site, rules) == ([], 1)
    assert site.ledger is not None
    assert site.ledger.stopped == ("failure_rules.fleet", "failure_rules.roles.compute")
    assert noted(site, rules) == ([], 0)
    site.records.clear()
    assert noted(site, rules) == ([], 1)
    assert site.ledger.stopped == ()


def test_a_budget_and_a_stage_have_their_entries_also_beside_reports_and_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real = LedgerWriter.write

    def write(writer: LedgerWriter, ledger: Ledger, event: Mapping[str, Any], *more: Any) -> None:
        events.append(event["what"])
        real(writer, ledger, event, *more)

    monkeypatch.setattr(LedgerWriter, "write", write)
    site = recorded(fleet(compute=3).failed("compute1"), "compute2")
    stages = [{"name": "canary", "hosts": ["compute2"]}, {"name": "rest"}]
    noted(site, {**SOAK, "failure_rules": {"fleet": 1}, "stages": stages})
    assert events == ["budget", "stage", "publish", "health"]


STOPPED = Ledger(5, NEW, stopped=("failure_rules.fleet",), stage={"number": 1, "again": 1})
DONE = {"number": 1, "done_at": 100, "again": 1}


@pytest.mark.parametrize("change", [{"stopped": ()}, {"stage": DONE}], ids=["budget", "stage"])
def test_a_rollout_that_recovers_again_and_again_is_noted_at_once_at_first_and_seldom_later(
    change: dict[str, Any],
) -> None:
    found = ledger = STOPPED
    for count in range(1, 21):
        found = ledger_to_write(ledger, replace(ledger, **change), 1_000 + count)
        assert found == replace(STOPPED, **change)
        assert (found.recoveries, found.recovered_at) == (count, 1_000 + count)
        # What stops a rollout is noted at once, however often.
        ledger = ledger_to_write(found, replace(found, stopped=STOPPED.stopped, stage=STOPPED.stage), 1_000 + count)
        assert (ledger, ledger.recoveries) == (STOPPED, count)
    waiting = ledger_to_write(ledger, replace(ledger, **change), 1_619)
    assert (waiting, noted_at(waiting)) == (STOPPED, 1_620)
    later = ledger_to_write(ledger, replace(ledger, **change), 1_620)
    assert (later, later.recoveries, later.recovered_at) == (replace(STOPPED, **change), 21, 1_620)
    # A clock that went back makes nothing wait.
    assert ledger_to_write(ledger, replace(ledger, **change), 900) == replace(STOPPED, **change)


def test_a_rollout_that_begins_and_a_stage_that_begins_or_is_done_for_the_first_time_never_wait() -> None:
    often = replace(STOPPED, recoveries=99, recovered_at=1_000)
    first = replace(often, stage={"number": 1})
    done = replace(first, stage={"number": 1, "done_at": 1_001})
    assert ledger_to_write(first, done, 1_001) == done
    assert ledger_to_write(often, Ledger(6, "3.0"), 1_001) == Ledger(6, "3.0")
    begun = replace(often, stage={"number": 2})
    assert ledger_to_write(often, begun, 1_001) == begun


# Health


def test_a_mark_is_written_when_it_is_new_and_not_again() -> None:
    site = fleet(compute=2).upgraded("compute1")
    mark = '{"since": 10000, "upgraded": false, "version": "2.0"}'
    assert noted(site, SOAK) == ([Change("upgrade/health/compute1", None, mark)], 1)
    site.marks = {"compute1": HealthMark(NEW, 10_000)}
    site.now += 59
    assert noted(site, SOAK) == ([], 0)
    site.now += 1
    well = '{"since": 10000, "upgraded": true, "version": "2.0"}'
    assert noted(site, SOAK) == ([Change("upgrade/health/compute1", mark, well)], 1)


@pytest.mark.parametrize(("count", "writes"), [(60, 1), (61, 2)])
def test_marks_are_written_sixty_to_a_write(count: int, writes: int) -> None:
    site = fleet(compute=count)
    changes, done = noted(site.upgraded(*site.members), SOAK)
    assert (len(changes), done) == (count, writes)


def test_a_host_that_says_so_in_its_record_alone_is_published_and_marked() -> None:
    changes, writes = noted(recorded(fleet(compute=1), "compute1"), SOAK)
    assert [change.key for change in changes] == [
        "running/versions/2.0/compute1",
        "running/versions/1.0/compute1",
        "upgrade/health/compute1",
    ]
    assert writes == 2


def test_checks_are_read_from_consul_only_where_the_rules_need_them() -> None:
    snapshot = fleet(compute=1).snapshot()
    assert with_checks(NOWHERE, snapshot, parse(SOAK)) is snapshot
    assert NOWHERE.client.requests == 0


# Stages


def test_a_stage_is_written_when_it_comes_and_when_it_is_done() -> None:
    site = fleet(compute=2)
    rules = {"stages": [{"name": "canary", "hosts": 1, "soak": 60}]}
    stages = []
    for _pass in range(5):
        changes, writes = noted(site, rules)
        assert (changes, site.ledger is not None) == ([], True)
        stages.append((writes, dict(site.ledger.stage) if site.ledger else {}))
        if _pass == 1:
            site.upgraded("compute1")
        elif _pass == 3:
            site.now += 60
    assert stages == [
        (1, {"number": 0}),
        (0, {"number": 0}),
        (1, {"number": 0, "done_at": 10_000}),
        (0, {"number": 0, "done_at": 10_000}),
        (1, {"number": 1}),
    ]


def test_without_a_ledger_no_stage_is_written() -> None:
    snapshot, plan = fleet(compute=1).snapshot(), fleet(compute=1).plan({"stages": [{"name": "canary", "hosts": 1}]})
    writer = LedgerWriter(NOWHERE, snapshot, "ann@here", 9, dry=True)
    write_health(writer, snapshot, plan, Ledger(0, NEW, stage=plan.stage_mark))
    assert (writer.ledger, writer.changes) == (None, [])


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        ({}, {"number": 0, "done_at": 9_000}, [("health", False), ("stage", True)]),
        ({"number": 0, "done_at": 9_000}, {"number": 1}, [("health", True), ("stage", False)]),
        # It is not done any more.
        ({"number": 0, "done_at": 9_000}, {"number": 0}, [("stage", False), ("health", False)]),
    ],
)
def test_what_shows_that_a_stage_is_done_is_written_before_that_and_its_fall_comes_first(
    before: dict[str, int], after: dict[str, int], events: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = fleet(compute=2).upgraded("compute1")
    site.marks["compute1"] = HealthMark(NEW, since=100)
    site.ledger = Ledger(5, NEW, stage=before)
    writer = LedgerWriter(NOWHERE, site.snapshot(), "ann@here", 9, dry=True)
    found: list[tuple[str, bool]] = []
    write = writer.write

    def noting(ledger: Ledger, event: Mapping[str, Any], *rest: Any) -> None:
        found.append((str(event["what"]), "done_at" in ledger.stage))
        write(ledger, event, *rest)

    monkeypatch.setattr(writer, "write", noting)
    write_health(writer, site.snapshot(), site.plan(SOAK), replace(site.ledger, stage=after))
    assert found == events
