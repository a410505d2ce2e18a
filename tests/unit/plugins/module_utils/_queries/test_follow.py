# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often a rollout is read that changes all the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._queries import follow


@pytest.mark.parametrize(
    ("seconds", "of_processor", "pause"),
    [(0.02, 0.02, 0.48), (0.5, 0.5, 4.5), (0.5, 0.01, 0.5)],
    ids=["small fleet", "large fleet", "small fleet on a busy machine"],
)
def test_reads_take_a_tenth_of_the_processor_and_half_of_the_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, of_processor: float, pause: float
) -> None:
    clock = SimpleNamespace(now=0.0, busy=0.0)
    slept: list[float] = []

    def read(*_given: Any, **_options: Any) -> Any:
        clock.now += seconds
        clock.busy += of_processor
        return SimpleNamespace(plan=SimpleNamespace(wake_at=None), snapshot=SimpleNamespace(is_job=False))

    update = SimpleNamespace(hosts={}, progress=SimpleNamespace(over=False, done=False))
    stand_in = SimpleNamespace(
        monotonic=lambda: clock.now, processor_seconds=lambda: clock.busy, now=lambda: clock.now, sleep=slept.append
    )
    monkeypatch.setattr(follow, "runtime", stand_in)
    monkeypatch.setattr(follow, "read_fleet", read)
    monkeypatch.setattr(follow, "progress_update", lambda _view: update)
    watch: Any = SimpleNamespace(mark=lambda: 1, wait=lambda _mark, _seconds: True)
    store: Any = None
    updates = follow._followed(store, watch, None, patience=15)
    next(updates)
    next(updates)
    assert slept == [pytest.approx(pause)]
