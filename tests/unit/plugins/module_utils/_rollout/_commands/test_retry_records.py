# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's record after a retry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.failures import Failure
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    REPORTED_LOST,
    RETRIED,
    STARTED,
    UPGRADED,
    HostRecord,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry_records import put_back_record

DONE = ("stop/db", "upgrade/db@2.4")
FRESH = HostRecord("2.10", RETRIED, attempt=0, times={RETRIED: 9})


def test_what_was_done_of_the_same_rollout_stays() -> None:
    before = HostRecord("2.10", FAILED, "db", "start", 2, "broken", {FAILED: 5}, done=DONE, origin="2.2")
    after = put_back_record(before, "2.10", "2.2", 9)
    # The failure stays known, and counts under no budget any more.
    failures = (Failure(5, 2, "db", "start", "broken"),)
    assert after == replace(before, state=RETRIED, error=None, times={RETRIED: 9}, failures=failures)
    again = put_back_record(replace(before, failures=failures), "2.10", "2.2", 9)
    assert again.failures == failures


def test_that_a_host_was_lost_stays_known() -> None:
    before = HostRecord("2.10", REPORTED_LOST, "db", "stop", 2, "no answer", {STARTED: 3, REPORTED_LOST: 5})
    assert put_back_record(before, "2.10", None, 9).failures == (Failure(5, 2, "db", "stop", "no answer"),)


@pytest.mark.parametrize(
    ("reported", "origin", "expected"),
    [
        # Its origin was declared and is stored only here.
        (None, "2.2", "2.2"),
        (None, None, None),
        # It may run the other version already, and only its origin can keep that.
        ("2.10", "2.10", "2.6"),
        # A host that Ansible does not upgrade.
        ("2.10", None, None),
        # It was upgrading again after a rollback that did not finish.
        ("2.10", "2.2", "2.2"),
    ],
)
def test_of_a_rollout_to_another_version_the_path_and_the_origin_stay(
    reported: str | None, origin: str | None, expected: str | None
) -> None:
    before = HostRecord("2.6", STARTED, "db", "start", 2, times={STARTED: 5}, done=DONE, origin=origin)
    after = put_back_record(before, "2.10", reported, 9)
    over = HostRecord("2.6", STARTED, "db", "start", 2, times={STARTED: 5})
    assert after == replace(FRESH, done=("upgrade/db@2.4",), origin=expected, former=(over,))


def test_the_step_at_which_it_was_is_over() -> None:
    before = HostRecord("2.10", STARTED, "db", "stop", trail=(StepStart(5, "db", "stop"),))
    assert put_back_record(before, "2.10", "2.2", 9).trail == (StepStart(5, "db", "stop"), StepStart(9))
    assert put_back_record(before, "2.12", "2.2", 9).trail == ()


@pytest.mark.parametrize(("version", "state"), [("2.10", FAILED), ("2.8", STARTED), ("2.8", UPGRADED)])
def test_what_belongs_to_the_host_stays(version: str, state: str) -> None:
    of_host = {
        "machine": "m",
        "release": "0.1.0",
        "role": "web",
        "services": "a1",
        "held": "a disk",
        "former_role": "db",
    }
    assert put_back_record(HostRecord(version, state, **of_host), "2.10", "2.8", 9).of_host() == of_host


def test_a_record_without_an_unfinished_rollout_leaves_nothing() -> None:
    unreadable = HostRecord("2.10", FAILED, done=DONE, origin="2.2", readable=False)
    over = HostRecord("2.8", UPGRADED, times={UPGRADED: 5})
    for before, former in ((None, ()), (unreadable, ()), (over, (over,))):
        assert put_back_record(before, "2.10", None, 9) == replace(FRESH, former=former)
    there = HostRecord("2.10", UPGRADED, attempt=3, times={UPGRADED: 5}, reported="2.10")
    assert put_back_record(there, "2.10", "2.10", 9) == replace(there, state=RETRIED, times={UPGRADED: 5, RETRIED: 9})
