# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The earlier rollouts in a host's record."""

from __future__ import annotations

import json

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.former_rollouts import (
    newest_rollouts,
    rollout_within,
    with_former_rollout,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart

STEPS = (StepStart(11, "nova", "stop"), StepStart(15))
TO_1 = HostRecord("1", "upgraded", times={"started": 1, "upgraded": 5})
TO_2 = HostRecord("2", "failed", "nova", "start", 2, "no disk", {"started": 10, "failed": 19}, trail=STEPS)


def test_a_former_rollout_is_kept_without_what_only_the_current_one_needs() -> None:
    more = {"reported": "1", "done": ("stop/nova",), "post": "done", "origin": "1", "former": (TO_1,)}
    before = HostRecord(TO_2.version, TO_2.state, "nova", "start", 2, "no disk", TO_2.times, trail=STEPS, **more)

    assert with_former_rollout(before) == (TO_1, TO_2)


def test_a_host_that_never_reported_has_no_former_rollout() -> None:
    assert with_former_rollout(HostRecord("2", "retried", attempt=0, times={"retried": 7}, former=(TO_1,))) == (TO_1,)


def test_of_many_rollouts_with_many_steps_the_last_are_kept_shortened() -> None:
    former: tuple[HostRecord, ...] = ()
    trail = tuple(StepStart(at, "neutron", f"step{at}") for at in range(100))
    for at in range(20):
        record = HostRecord(f"{at}", "failed", error="x" * 4000 + "!", times={"failed": at}, trail=trail, former=former)
        former = with_former_rollout(record)
    assert former[-1].version == "19"
    assert former[-1].error is not None
    assert (former[-1].error[-3:], len(former[-1].error)) == ("xx!", 200)
    assert former[-1].trail[-1] == trail[-1]
    assert 1000 < len(json.dumps([one.slim() for one in former])) <= 1502
    assert newest_rollouts(former) == former


def test_the_last_rollout_to_a_version_within_a_time_is_found() -> None:
    again = HostRecord("2", "upgraded", times={"started": 40, "upgraded": 45}, former=(TO_2, TO_1))

    assert rollout_within(again, "2", 38, 50) is again
    assert rollout_within(again, "2", 8, 39) is TO_2
    assert rollout_within(again, "2", 20, 39) is None
    assert rollout_within(again, "1", 0, 99) is TO_1
    assert rollout_within(again, "3", 0, 99) is None
    assert rollout_within(HostRecord("2", "started"), "2", 0, 99) is None
