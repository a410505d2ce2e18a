# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge lets only planner services, and those that hand rollouts over to them, write their keys: no node may."""

from __future__ import annotations

import pytest

from .facts import CURRENT, HANDOVER, REPORTS
from .findings import Findings
from .fleet import FLEET, OLD
from .journal import Write
from .judge import Judge
from .replay import Entry, Step

_BASE = {CURRENT: Entry(OLD, 1), **{f"{REPORTS}{OLD}/{host}": Entry("1", 2) for host in FLEET}}
_ALLOWED = [(who, key) for who in ("planner1", "beginner") for key in (HANDOVER, "upgrade/planners/one")]
_REFUSED = [(who, key) for who in ("nodes0", "nodes2") for key in (HANDOVER, "upgrade/planners/one")]


def judged(who: str, key: str, after: Entry | None) -> list[str]:
    """Return what the judge says of a write: an entry that is put, or None for one that is deleted."""
    before = {**_BASE, key: Entry("{}", 3)}
    left = {name: entry for name, entry in before.items() if name != key}
    step = Step(4, before, left if after is None else {**left, key: after}, Write(who, [], None))
    findings = Findings()
    Judge(_BASE, [step], lambda _given: None, lambda _who, _at: 0.0, lambda _who, _at: 0.0, steady=True).judge(findings)
    return findings.sentences()


@pytest.mark.parametrize("after", [Entry("1", 4), None], ids=["written", "deleted"])
@pytest.mark.parametrize(("who", "key"), _REFUSED)
def test_no_node_writes_what_planner_services_write(who: str, key: str, after: Entry | None) -> None:
    assert judged(who, key, after) == [f"at index 4: {who} changed {key} beside the ledger"]


@pytest.mark.parametrize("after", [Entry("1", 4), None], ids=["written", "deleted"])
@pytest.mark.parametrize(("who", "key"), _ALLOWED)
def test_others_may(who: str, key: str, after: Entry | None) -> None:
    assert judged(who, key, after) == []


def test_a_node_may_still_write_what_it_says_itself_and_what_wakes_agents() -> None:
    for key in ("upgrade/wake/web1", "upgrade/once/web1"):
        assert judged("nodes1", key, Entry("1", 4)) == []
