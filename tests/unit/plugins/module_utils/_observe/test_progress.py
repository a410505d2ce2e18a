# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a rollout."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import UPGRADED as RECORDED_UPGRADED
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import ABORTED, COMPLETE, PAUSED, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import (
    MOST_FLIGHTS,
    RoleProgress,
    RolloutProgress,
    rollout_progress,
    segments,
    watched_hosts,
)
from fleets import NEW, OLD, Fleet, fleet
from hypothesis import given
from hypothesis import strategies as st

RULES = {"rolling_rules": {"global": 2}}


def rollout(state: str = "running", **roles: int) -> Fleet:
    site = fleet(**roles)
    site.ledger = Ledger(3, NEW, OLD, state=state, instructions=RULES, command={"by": "ann", "reason": "logins fail"})
    return site


def progress_of(site: Fleet) -> RolloutProgress:
    snapshot, plan = site.snapshot(), site.plan(RULES)
    return rollout_progress(snapshot, plan, watched_hosts(snapshot, plan))


def at(site: Fleet, host: str, since: int, **where: Any) -> None:
    site.opened(host)
    site.records[host] = HostRecord(NEW, STARTED, times={STARTED: since}, **where)


def test_bars_count_what_is_done_on_its_way_failed_and_waiting() -> None:
    site = rollout(controller=1, compute=6).upgraded("controller1", "compute1").failed("compute2").opened("compute3")
    site.held("host/compute4")

    assert progress_of(site).bars == (RoleProgress("compute", 6, 1, 1, 1, 3), RoleProgress("controller", 1, 1, 0, 0, 0))


def test_hosts_on_their_way_say_where_they_are_the_longest_first() -> None:
    site = rollout(compute=3)
    at(site, "compute1", 9_900)
    at(site, "compute2", 9_800, service="nginx", step="stop")
    site.opened("compute3")

    assert [(one.host, one.service, one.step, one.doing, one.since) for one in progress_of(site).flights] == [
        ("compute2", "nginx", "stop", "upgrading", 9_800),
        ("compute1", "", "", "upgrading", 9_900),
        ("compute3", "", "", "admitted", None),
    ]


def test_no_more_hosts_are_listed_than_the_limit() -> None:
    site = rollout(compute=MOST_FLIGHTS + 7)
    site.opened(*site.members)

    found = progress_of(site)
    assert (len(found.flights), found.more) == (MOST_FLIGHTS, 7)


def test_post_upgrade_tasks_bring_a_host_on_its_way_again_and_can_fail() -> None:
    site = rollout(COMPLETE, web=3).upgraded("web1", "web2", "web3")
    site.records["web1"] = HostRecord(NEW, RECORDED_UPGRADED, "nova", "post_upgrade", post="started")
    site.records["web2"] = HostRecord(NEW, RECORDED_UPGRADED, "nova", "post_upgrade", post="failed", error="no quorum")
    site.records["web3"] = HostRecord(NEW, RECORDED_UPGRADED, post="done")

    found = progress_of(site)
    assert found.bars == (RoleProgress("web", 3, 1, 1, 1, 0),)
    assert (found.flights[0].service, found.flights[0].step) == ("nova", "post_upgrade")
    assert not found.done
    hosts = watched_hosts(site.snapshot(), site.plan(RULES))
    assert hosts["web2"].reason == "failed after the upgrade, service nova, step post_upgrade: no quorum"


@pytest.mark.parametrize(
    ("state", "gate", "over", "done"),
    [
        ("running", "False", False, False),
        (PAUSED, "False", False, False),
        (ABORTED, "False", True, False),
        (COMPLETE, "False", False, True),
        (COMPLETE, "True", True, True),
    ],
)
def test_when_it_is_over(state: str, gate: str, over: bool, done: bool) -> None:
    site = rollout(state, compute=1).upgraded("compute1").gated(gate, "global")

    found = progress_of(site)
    assert (found.over, found.done) == (over, done)


def test_what_belongs_to_an_earlier_rollout_ends_nothing() -> None:
    site = rollout(ABORTED, compute=1)
    site.current = "3.0"

    assert not progress_of(site).over


def test_without_a_rollout_there_is_nothing_to_wait_for() -> None:
    site = fleet(compute=1)
    site.current = None

    assert progress_of(site).over
    assert progress_of(fleet(compute=1)).over


def test_a_pause_is_reported_with_its_reason_and_whether_hosts_finish() -> None:
    site = rollout(PAUSED, compute=2)
    assert progress_of(site).notes == (
        "No host is admitted: the rollout is paused by ann: logins fail; continue with ansible-playbook convoy.upgrade.resume",
    )
    at(site, "compute1", 9_000)
    assert (
        progress_of(site)
        .notes[0]
        .startswith("No host is admitted; hosts in flight finish: the rollout is paused by ann")
    )


def test_it_is_the_same_after_a_way_as_json() -> None:
    site = rollout(compute=3)
    at(site, "compute1", 9_900, service="nginx", step="stop")
    found = progress_of(site)

    assert RolloutProgress.from_plain(json.loads(json.dumps(asdict(found)))) == found


def test_a_time_that_is_left_is_reported_of_a_rollout_that_goes_on_alone() -> None:
    site = rollout(compute=2).upgraded("compute1").opened("compute1")
    assert site.ledger is not None
    site.records["compute1"] = HostRecord(NEW, RECORDED_UPGRADED, times={STARTED: 9_000, RECORDED_UPGRADED: 9_100})
    site.reported_at["compute1"] = 9_100
    assert progress_of(site).left == 100

    site.ledger = replace(site.ledger, state=ABORTED)
    assert progress_of(site).left is None


@given(
    st.tuples(*[st.integers(0, 10_000)] * 4).filter(any),
    st.integers(4, 200),
)
def test_a_bar_is_as_wide_as_it_is_and_shows_whatever_there_is(counts: tuple[int, int, int, int], width: int) -> None:
    cells = segments(RoleProgress("web", sum(counts), *counts), width)

    assert sum(cells) == width
    assert all((cell > 0) == (count > 0) for cell, count in zip(cells, counts, strict=True))


def test_a_bar_of_no_hosts_is_empty() -> None:
    assert segments(RoleProgress("web", 0, 0, 0, 0, 0), 10) == (0, 0, 0, 10)
