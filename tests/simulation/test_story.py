# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A failing night of any kind is printed in at most 40 lines, and made smaller only as long as it shows the same fault."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType

import pytest

from . import job_night, night
from .post_upgrade import night as post_upgrade_night
from .shrink import shrink
from .story import MOST_LINES, NightResult, kind_of, story

_STACK = 'at index 7: planner1 ended with KeyError("web1")\n' + '\n  File "plan.py", line 3, in plan\n' * 50


def _without_an_end(monkeypatch: pytest.MonkeyPatch, module: ModuleType, ends: type, end: str) -> NightResult:
    """Return what a short night comes to whose end nothing notices."""
    monkeypatch.setattr(module, "_FAULTS", 2.0)
    monkeypatch.setattr(module, "_SECONDS", 1.0)
    monkeypatch.setattr(ends, end, lambda *_given: None)
    found: NightResult = module.run(4)
    return found


def _check(result: NightResult, option: str) -> None:
    text = story(result)
    assert len(text.splitlines()) == MOST_LINES
    assert all(map(str.strip, text.splitlines()))
    assert text.splitlines()[-1] == f"Next: .venv/bin/python tests/simulation {option} 4"
    assert "  upgrade/ledger: " in text
    assert text.splitlines()[-2].strip().startswith(result.log[-1].strip()[:100])
    assert len(story(result, whole=True).splitlines()) > 2 * MOST_LINES


def test_the_story_of_a_rollout_has_40_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night, "_WITH_NOTIFIERS", 0.0)
    _check(_without_an_end(monkeypatch, night, night.Night, "_note_end"), "--seed")


def test_the_story_of_a_night_of_jobs_has_40_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    _check(_without_an_end(monkeypatch, job_night, job_night._Night, "_is_over"), "--job-seed")


def test_the_story_of_a_night_of_post_upgrade_tasks_has_40_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _without_an_end(monkeypatch, post_upgrade_night, post_upgrade_night._Night, "_is_over")
    _check(result, "--post-upgrade-seed")


def test_violations_stacks_and_keys_leave_room_for_the_log() -> None:
    result = night.Result(
        4, "roles", [_STACK] * 9, log=[f"{n} s" for n in range(100)], stuck="upgrade/ledger: {}\n\n" * 99
    )
    lines = story(result, ("kill",)).splitlines()
    assert len(lines) == MOST_LINES
    assert lines[1:3] == ['  at index 7: planner1 ended with KeyError("web1")', "  (42 lines are left out)"]
    assert "  and 4 more" in lines
    assert lines[-3:] == ["  98 s", "  99 s", "Next: .venv/bin/python tests/simulation --seed 4 --without kill"]


def test_only_what_can_differ_is_left_out_of_the_kind_of_a_violation() -> None:
    cap = "at index {}: {} of ('{}',) are down, 2 may be: ['web1'], of them new ['web{}'] ({} times)"
    assert kind_of(cap.format(12, 3, "web", 1, 2)) == kind_of(cap.format(7, 4, "web", 2, 3))
    assert kind_of(cap.format(12, 3, "web", 1, 2)) != kind_of(cap.format(12, 3, "compute", 1, 2))
    assert kind_of(_STACK) != kind_of(_STACK.replace("in plan", "in admit"))


def test_what_shows_another_fault_is_not_left_out() -> None:
    found = {
        "restore": "web1 is down",
        "kill": "web2 is down",
        "lead": "compute1 is down",
        "lose": "web3 is down",
        "cut": "",
    }

    def run(seed: int, without: Collection[str]) -> NightResult:
        last = list(without)[-1]
        by = "planner2: open" if last == "lose" else "planner1: retry" if last == "restore" else "planner1: open"
        return night.Result(seed, "", [found[last]] if found[last] else [], shown_by=by)

    fake = ModuleType("fake")
    vars(fake).update(PARTS=tuple(found), run=run)
    whole = night.Result(4, "", ["web4 is down"], shown_by="planner3: open")
    assert shrink(whole, fake)[1] == ("kill", "lose")
