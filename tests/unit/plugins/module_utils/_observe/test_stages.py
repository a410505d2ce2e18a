# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a rollout in a result."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import Approval
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.stages import (
    StageSummary,
    as_plain,
    selection,
    stage_summaries,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.stages import parse_stages
from fleets import NEW, OLD, UNLIMITED, Fleet, fleet

STAGES = [{"name": "canary", "hosts": 1, "soak": "10m", "approve": True}, {"name": "half", "hosts": "50%"}]
RULES = {**UNLIMITED, "stages": STAGES}


def rollout(**stage: int) -> Fleet:
    site = fleet(compute=4)
    site.ledger = Ledger(3, NEW, OLD, instructions=RULES, stage=stage)
    return site


def summaries(site: Fleet, rules: dict[str, Any] = RULES) -> tuple[StageSummary, ...]:
    return stage_summaries(site.snapshot(), site.plan(rules))


def test_the_current_stage_has_its_counts_and_later_ones_wait() -> None:
    site = rollout(number=0).opened("compute1")
    assert [(one.name, one.state, one.hosts, one.upgraded, one.upgrading, one.failed) for one in summaries(site)] == [
        ("canary", "current", 1, 0, 1, 0), ("half", "waiting", 2, 0, 0, 0), ("rest", "waiting", 1, 0, 0, 0),
    ]  # fmt: skip
    assert (summaries(site)[0].soak, summaries(site)[0].approve) == (600, True)
    (failed, *_rest) = summaries(rollout(number=0).failed("compute1"))
    assert (failed.state, failed.failed) == ("current", 1)


@pytest.mark.parametrize(
    ("done_at", "approved", "first", "until"),
    [(9_900, False, "soak", 10_500), (9_000, False, "approval", 0), (9_000, True, "done", 0)],
)
def test_a_stage_whose_hosts_are_upgraded_soaks_then_needs_an_approval(
    done_at: int, approved: bool, first: str, until: int
) -> None:
    site = rollout(number=0, done_at=done_at).upgraded("compute1")
    if approved:
        site.approvals["canary"] = Approval("ann", 9_700)
    found = summaries(site)
    assert (found[0].state, found[0].until, found[0].approved_by) == (first, until, "ann" if approved else "")
    assert found[1].state == ("current" if approved else "waiting")


def test_all_stages_of_a_complete_rollout_are_done() -> None:
    site = rollout(number=2).upgraded("compute1", "compute2", "compute3", "compute4")
    site.approvals["canary"] = Approval("ann", 9_700)
    assert [one.state for one in summaries(site)] == ["done", "done", "done"]


def test_a_rollout_without_stages_has_none() -> None:
    assert summaries(rollout(), UNLIMITED) == ()
    assert as_plain(()) == []


def test_it_says_which_hosts_a_stage_has() -> None:
    stages = parse_stages(
        [{"hosts": 1}, {"hosts": "10%", "roles": ["web", "db"]}, {"hosts": ["web1", "web2"]}, {"roles": ["db"]}]
    )
    texts = [selection(one, is_last=at == len(stages) - 1) for at, one in enumerate(stages)]
    assert texts == ["1 of each role", "10% of web, db", "web1, web2", "all of db", "the rest"]
