# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which finished task groups stay in a host's record after its reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import decode_job_record, encode_job_record
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import decode_record, encode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.failures import Failure
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    DELIVERED,
    FAILED,
    STARTED,
    UPGRADED,
    HostRecord,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, next_record
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry_records import put_back_record

BEFORE = HostRecord("2", STARTED, attempt=2, times={"started": 5}, done=("stop/nova",), post="started")


@pytest.mark.parametrize(
    ("version", "state", "done", "post"),
    [
        ("2", STARTED, ("stop/nova",), "started"),
        ("2", FAILED, ("stop/nova",), "started"),
        ("2", UPGRADED, (), "started"),
        ("3", STARTED, (), None),
        ("3", FAILED, (), None),
        ("3", UPGRADED, (), None),
    ],
)
def test_finished_task_groups_are_kept_until_the_upgrade_is_over(
    version: str, state: str, done: tuple[str, ...], post: str | None
) -> None:
    after = next_record(BEFORE, HostReport("compute1", version, state), 9)
    assert (after.done, after.post, after.state) == (done, post, state)


@pytest.mark.parametrize(
    ("version", "state", "done", "origin"),
    [
        ("2", STARTED, ("stop/db", "upgrade/db@1.5"), "1"),
        ("3", STARTED, ("upgrade/db@1.5",), "1"),
        ("3", FAILED, ("upgrade/db@1.5",), "1"),
        ("3", UPGRADED, (), None),
    ],
)
def test_finished_checkpoints_are_kept_until_the_host_is_upgraded(
    version: str, state: str, done: tuple[str, ...], origin: str | None
) -> None:
    before = HostRecord("2", FAILED, done=("stop/db", "upgrade/db@1.5"), origin="1")
    after = next_record(before, HostReport("db1", version, state), 9)
    assert (after.done, after.origin) == (done, origin)


@pytest.mark.parametrize(("machine", "done"), [("a", BEFORE.done), ("b", ()), (None, BEFORE.done)])
def test_another_machine_under_the_name_has_finished_no_task_group(machine: str | None, done: tuple[str, ...]) -> None:
    before = replace(BEFORE, machine="a")
    for version, kept in (("2", done), ("3", ())):
        assert next_record(before, HostReport("compute1", version, STARTED, machine=machine), 9).done == kept


def test_a_delivery_of_tasks_or_an_enrolment_corrects_the_role_and_nothing_else() -> None:
    before = replace(BEFORE, role="web", services="a")
    corrected = next_record(before, HostReport("compute1", "", DELIVERED, role="db"), 9)
    assert corrected == replace(before, role="db", former_role="web")
    assert next_record(corrected, HostReport("compute1", "", DELIVERED, role="web"), 9).former_role == "db"
    assert next_record(before, HostReport("compute1", "", DELIVERED, services="b"), 9) == replace(before, services="b")
    # Of several changes, the role counts that it last started with.
    third = next_record(corrected, HostReport("compute1", "", DELIVERED, role="cache"), 9)
    assert (third.role, third.former_role) == ("cache", "web")
    assert third.other_roles("mail") == {"cache", "web"}


def test_failures_are_kept_when_a_host_recovers_and_until_its_target_changes() -> None:
    now = next_record(BEFORE, HostReport("web1", "2", FAILED, "nova", "stop", "no \x1b" + "x" * 300), 9)
    assert now.failures == (Failure(9, 2, "nova", "stop", "x" * 200),)
    again = next_record(now, HostReport("web1", "2", FAILED, "nova", "stop", "no \x1b" + "x" * 300), 10)
    assert again == now
    put_back = put_back_record(now, "2", None, 11)
    started = next_record(put_back, HostReport("web1", "2", STARTED), 12)
    healed = next_record(
        next_record(started, HostReport("web1", "2", FAILED), 13), HostReport("web1", "2", UPGRADED), 14
    )
    assert [(one.at, one.attempt) for one in healed.failures] == [(9, 2), (13, 3)]
    on = next_record(healed, HostReport("web1", "3", STARTED), 20)
    assert (on.failures, on.former[-1].failures) == ((), healed.failures)


def test_a_first_or_an_unreadable_record_has_none() -> None:
    for before in (None, HostRecord("2", FAILED, done=("stop/nova",), readable=False)):
        after = next_record(before, HostReport("compute1", "2", STARTED), 9)
        assert after == HostRecord("2", STARTED, times={"started": 9})


def test_the_role_of_the_last_start_is_kept() -> None:
    started = next_record(None, HostReport("compute1", "2", STARTED, role="compte"), 5)
    assert started.role == "compte"
    assert next_record(started, HostReport("compute1", "2", UPGRADED), 9).role == "compte"
    assert put_back_record(started, "3", None, 9).role == "compte"
    assert next_record(started, HostReport("compute1", "3", STARTED, role="compute"), 9).role == "compute"


def test_the_same_report_again_changes_nothing() -> None:
    assert next_record(BEFORE, HostReport("compute1", "2", STARTED), 9) == BEFORE


def test_an_upgrade_that_only_a_planner_may_publish_keeps_its_time() -> None:
    before = HostRecord("2", UPGRADED, times={"upgraded": 5})
    after = next_record(before, HostReport("compute1", "2", UPGRADED), 9)
    assert (after.reported, after.times) == ("2", {"upgraded": 5})


def test_another_release_or_other_tasks_do_not_make_an_upgrade_younger() -> None:
    first = next_record(None, HostReport("web1", "2", UPGRADED, release="r1"), 100)
    second = next_record(first, HostReport("web1", "2", UPGRADED, release="r2", services="a1"), 500)
    assert (second.release, second.services, second.times) == ("r2", "a1", {"upgraded": 100})
    third = next_record(second, HostReport("web1", "3", UPGRADED, release="r2"), 900)
    assert third.times == {"upgraded": 900}


def test_a_host_is_lost_until_its_next_report() -> None:
    lost = next_record(
        BEFORE, HostReport("web1", "2", FAILED, "nova", "stop", "unreachable: no route", is_lost=True), 9
    )
    assert (lost.state, lost.is_lost, lost.times) == (FAILED, True, {"started": 5, "failed": 9, "lost": 9})
    # As the same host fails otherwise, begins again, is upgraded or is retried.
    for state in (FAILED, STARTED, UPGRADED):
        assert not next_record(lost, HostReport("web1", "2", state), 10).is_lost
    retried = put_back_record(lost, "2", None, 10)
    assert (retried.is_lost, retried.times) == (False, {"started": 5, "retried": 10})
    started = next_record(lost, HostReport("web1", "2", STARTED), 10)
    assert not next_record(started, HostReport("web1", "2", FAILED), 11).is_lost
    first = next_record(None, HostReport("web1", "2", FAILED, is_lost=True), 9)
    assert (first.is_lost, first.times) == (True, {"failed": 9, "lost": 9})
    # The same in the keys of a rollout and in those of a job.
    assert decode_record("key", encode_record(lost).encode()).is_lost
    job = next_record(None, HostReport("web1", "job:a1", FAILED, is_lost=True), 9)
    assert decode_job_record("key", encode_job_record(job).encode()).is_lost
