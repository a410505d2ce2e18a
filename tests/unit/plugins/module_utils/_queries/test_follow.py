# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often a rollout is read that changes all the time."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._queries import follow


@pytest.mark.parametrize("between_rollouts", [False, True])
@pytest.mark.parametrize(
    ("seconds", "of_processor", "pause"),
    [(0.02, 0.02, 0.48), (0.5, 0.5, 1.5), (0.5, 0.01, 0.5)],
    ids=["small fleet", "large fleet", "small fleet on a busy machine"],
)
def test_reads_take_a_quarter_of_the_processor_and_half_of_the_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, of_processor: float, pause: float, between_rollouts: bool
) -> None:
    clock = SimpleNamespace(now=0.0, busy=0.0)
    slept: list[float] = []

    def read(*_given: Any, **_options: Any) -> Any:
        clock.now += seconds
        clock.busy += of_processor
        return SimpleNamespace(
            plan=SimpleNamespace(wake_at=None), snapshot=SimpleNamespace(is_job=False, ledger=None, now=0)
        )

    update = SimpleNamespace(hosts={}, progress=SimpleNamespace(over=between_rollouts, done=False))
    stand_in = SimpleNamespace(
        monotonic=lambda: clock.now, processor_seconds=lambda: clock.busy, now=lambda: clock.now, sleep=slept.append
    )
    monkeypatch.setattr(follow, "runtime", stand_in)
    monkeypatch.setattr(follow, "read_fleet", read)
    monkeypatch.setattr(follow, "progress_update", lambda *_given: update)
    watch: Any = SimpleNamespace(mark=lambda: 1, wait=lambda _mark, _seconds: True)
    store: Any = None
    updates = follow._followed(store, watch, None, 15, until_hosts_finish=False, endless=between_rollouts)
    next(updates)
    next(updates)
    assert slept == [pytest.approx(pause)]


def test_what_an_operator_has_to_do_is_read_when_it_is_due_though_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    reads: list[float] = []
    is_due_at = 20.0

    def read(*_given: Any, **_options: Any) -> Any:
        reads.append(clock.now)
        return SimpleNamespace(
            plan=SimpleNamespace(wake_at=None), snapshot=SimpleNamespace(is_job=False, ledger=None, now=clock.now)
        )

    def wait(_mark: int, seconds: float) -> bool:
        clock.now += seconds
        return False

    stand_in = SimpleNamespace(
        monotonic=lambda: clock.now,
        processor_seconds=lambda: 0.0,
        now=lambda: clock.now,
        sleep=lambda _seconds: None,
        seconds_until=lambda at, *_known: float("inf") if at is None else at - clock.now,
    )
    update = SimpleNamespace(hosts={}, progress=SimpleNamespace(over=False, done=False))
    monkeypatch.setattr(follow, "runtime", stand_in)
    monkeypatch.setattr(follow, "read_fleet", read)
    monkeypatch.setattr(follow, "progress_update", lambda *_given: update)
    monkeypatch.setattr(follow, "next_need_at", lambda snapshot, _plan: is_due_at if snapshot.now < is_due_at else None)
    watch: Any = SimpleNamespace(mark=lambda: 1, wait=wait)
    store: Any = None
    updates = follow._followed(store, watch, None, 15, until_hosts_finish=False, endless=False)
    for _update in itertools.islice(updates, 21):
        pass
    assert reads == [0.0, 25.0, 55.0, 85.0]


def test_between_rollouts_the_fleet_is_read_twice_a_minute_and_a_job_that_is_over_gives_way_to_the_rollout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    reads: list[tuple[float, bool | None]] = []
    # A job under way, its end, and the rollout to a version that ended before it.
    found = [(True, False), (True, True), (False, True), (False, True), (False, True)]

    def read(*_given: Any, of_job: bool | None, **_options: Any) -> Any:
        is_job, over = found[len(reads)]
        reads.append((clock.now, of_job))
        ledger = SimpleNamespace(is_job=is_job)
        snapshot = SimpleNamespace(is_job=is_job, ledger=ledger, now=clock.now)
        return SimpleNamespace(plan=SimpleNamespace(wake_at=None), snapshot=snapshot, over=over)

    def wait(_mark: int, seconds: float) -> bool:
        # The end of the job is the only change.
        clock.now += seconds
        return len(reads) == 1

    stand_in = SimpleNamespace(
        monotonic=lambda: clock.now,
        now=lambda: clock.now,
        processor_seconds=lambda: 0.0,
        sleep=lambda _seconds: None,
        seconds_until=lambda at, *_known: float("inf") if at is None else 0.0,
    )
    monkeypatch.setattr(follow, "runtime", stand_in)
    monkeypatch.setattr(follow, "read_fleet", read)
    monkeypatch.setattr(
        follow,
        "progress_update",
        lambda view, _at: SimpleNamespace(
            hosts={}, view=view, progress=SimpleNamespace(over=view.over, done=view.over)
        ),
    )
    monkeypatch.setattr(follow, "next_need_at", lambda *_given: None)
    watch: Any = SimpleNamespace(mark=lambda: 1, wait=wait)
    store: Any = None
    updates = follow._followed(store, watch, None, 15, until_hosts_finish=False, endless=True)
    while len(reads) < len(found):
        next(updates)
    assert reads == [(0.0, None), (5.0, True), (5.0, None), (35.0, None), (65.0, None)]
