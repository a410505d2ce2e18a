# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Consul's index decides which of two records that a host wrote within one second came later."""

from __future__ import annotations

import json

import pytest

from .facts import CURRENT, GATES, LEDGER, MARKS, RECORDS, REPORTS, Facts
from .fleet import NEW, OLD
from .replay import Entry
from .rules import CAPS, LONG_SOAKS

AT = 1_795_392_000


def facts(record: dict[str, object], *, reported: int, recorded: int) -> Facts:
    """Return a host that reported the new version, and its record, each with its index."""
    return Facts(
        {
            CURRENT: Entry(NEW, 1),
            f"{REPORTS}{NEW}/web1": Entry(str(AT), reported),
            f"{RECORDS}web1": Entry(json.dumps(record), recorded),
        },
        CAPS,
    )


@pytest.mark.parametrize("state", ["started", "failed", "retried"])
@pytest.mark.parametrize("version", [OLD, NEW, "0.9"])
def test_a_host_that_starts_or_fails_after_its_report_is_not_done(state: str, version: str) -> None:
    record = {"version": version, "state": state, "times": {state: AT}}
    assert not facts(record, reported=5, recorded=6).is_done("web1")
    assert facts(record, reported=6, recorded=5).is_done("web1")


@pytest.mark.parametrize(("begun", "is_done"), [(6, True), (5, False)])
def test_a_host_that_reported_before_the_rollout_began_need_not_soak(begun: int, is_done: bool) -> None:
    early = facts({"version": NEW, "state": "upgraded", "times": {"upgraded": AT}}, reported=6, recorded=6)
    early.state[LEDGER] = Entry(json.dumps({"version": NEW, "begun_index": begun}), 7)
    mark = {"version": NEW, "upgraded": True, "since": AT - LONG_SOAKS.soak}
    early.state[f"{MARKS}web1"] = Entry(json.dumps(mark), 8)
    assert Facts(early.state, LONG_SOAKS, steady=True).is_done("web1") == is_done


def test_a_host_that_was_put_back_after_its_report_takes_no_slot_if_its_gate_is_closed() -> None:
    record = {"version": OLD, "state": "retried", "times": {"retried": AT}}
    shut = facts(record, reported=5, recorded=6)
    shut.state[f"{GATES}global"] = Entry("False", 2)
    assert not shut.is_down("web1")
    assert facts(record, reported=5, recorded=6).is_down("web1")
