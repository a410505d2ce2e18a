# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a task may take, with all items of its loop, and when it took too long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push import play_hosts
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.play_hosts import time_left, took_too_long


class Clock(runtime.Runtime):
    """A clock that only the test moves."""

    seconds = 1234.567

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(play_hosts, "_BEGAN", {})
    found = Clock()
    before = runtime.use(found)
    yield found
    runtime.use(before)


def test_all_items_of_a_loop_have_the_time_of_one_task(clock: Clock) -> None:
    assert time_left("8") == 8
    clock.seconds += 5
    assert time_left(8) == 3
    clock.seconds += 5
    # Without a limit, an item that hangs would hang the run.
    assert time_left(8) == 1
    assert time_left(0) == 0


def test_each_task_has_a_process_of_its_own_and_its_time_begins_there(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_left(8)
    clock.seconds += 5
    monkeypatch.setattr(os, "getpid", lambda: 7)
    assert time_left(8) == 8


TIMED_OUT = {"failed": True, "timedout": {"period": 3}}


@pytest.mark.parametrize(
    ("result", "seconds", "limit", "expected"),
    [
        (TIMED_OUT, 8.2, 8, True),
        ({"failed": True, "results": [{"rc": 0}, TIMED_OUT]}, 8.2, 8, True),
        # A time limit of the service's own.
        (TIMED_OUT, 5.0, 8, False),
        (TIMED_OUT, 900.0, 0, False),
        ({"failed": True, "rc": 1}, 9.0, 8, False),
        ({"failed": True, "results": [{"failed": True}]}, 9.0, 8, False),
        ({"failed": True, "results": "none"}, 9.0, 8, False),
    ],
)
def test_a_task_took_too_long_if_its_limit_ended_it(
    result: dict[str, Any], seconds: float, limit: int, *, expected: bool
) -> None:
    assert took_too_long(result, seconds, limit) is expected
