# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which answers of planner services a handover waits for, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout import handover
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

Answers = Mapping[str, "str | None"]
Wait = Callable[..., tuple[tuple[str, ...], float]]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Wait for services whose answers change after so many seconds; return who carries the rollout, and when that was known."""
    now = [0.0]

    def run(*changes: tuple[float, Answers]) -> tuple[tuple[str, ...], float]:
        now[0] = 0.0

        class Changes:
            def __init__(self, *_arguments: Any) -> None:
                pass

            def mark(self) -> int:
                return 0

            def wait(self, _mark: int, seconds: float) -> bool:
                later = [at for at, _answers in changes if at > now[0]]
                now[0] = min([now[0] + seconds, *later])
                return bool(later)

            def close(self) -> None:
                pass

        def answers(_store: Store, _handover: str) -> Answers:
            return [found for at, found in changes if at <= now[0]][-1]

        monkeypatch.setattr(handover, "Watch", Changes)
        monkeypatch.setattr(handover, "_answers", answers)
        found = handover.wait_for_planner(Store(Settings()), "h1", 30)
        return found, now[0]

    monkeypatch.setattr(handover.runtime, "monotonic", lambda: now[0])
    return run


def test_the_others_have_a_moment_after_the_first_one_has_answered(wait: Wait) -> None:
    assert wait((0, {"one": "", "two": ""})) == (("one", "two"), 0)
    assert wait((0, {"one": "", "two": None}), (1, {"one": "", "two": ""})) == (("one", "two"), 1)
    assert wait((0, {"one": "", "two": None})) == (("one",), 2)
    assert wait((0, {"one": None}), (5, {"one": ""})) == (("one",), 5)


def test_if_the_first_one_ends_or_refuses_the_others_have_the_whole_time(wait: Wait) -> None:
    silent, gone = {"one": "", "two": None}, {"one": "too few hosts", "two": None}
    assert wait((0, silent), (1, gone), (9, {**gone, "two": ""})) == (("two",), 9)
    assert wait((0, silent), (1, {"two": None}), (9, {"two": ""})) == (("two",), 9)
    with pytest.raises(UpgradeError, match="They refuse it: one: too few hosts"):
        wait((0, silent), (1, gone))
