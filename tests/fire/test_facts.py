# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Consul's index decides which of two records that a host wrote within one second came later."""

from __future__ import annotations

import json

import pytest

from .facts import CURRENT, GATES, RECORDS, REPORTS, Facts
from .fleet import NEW, OLD
from .replay import Entry
from .rules import CAPS

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


def test_a_host_that_was_put_back_after_its_report_takes_no_slot_if_its_gate_is_closed() -> None:
    record = {"version": OLD, "state": "retried", "times": {"retried": AT}}
    shut = facts(record, reported=5, recorded=6)
    shut.state[f"{GATES}global"] = Entry("False", 2)
    assert not shut.is_down("web1")
    assert facts(record, reported=5, recorded=6).is_down("web1")
