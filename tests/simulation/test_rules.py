# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of a night are those of its own day, whichever day the tests run on."""

from __future__ import annotations

import importlib.util
import sys
import time

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.windows import outside_hours, parse_windows
from fire import rules

from .stand_ins import BEGIN

_DAY, _HOUR = 86_400, 3_600


@pytest.mark.parametrize("day", range(7))
def test_a_closed_window_stays_closed_in_a_night(day: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: BEGIN + day * _DAY)
    # What is worked out at the import would be of the day of the import.
    spec = importlib.util.spec_from_file_location("fire.rules_of_a_day", str(rules.__file__))
    assert spec is not None
    assert spec.loader is not None
    of_day = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, of_day)
    spec.loader.exec_module(of_day)
    kind = next(one for one in of_day.kinds(BEGIN) if one.name == "changes")
    windows = [parse_windows(one.instructions["windows"]) for one in kind.rules if "windows" in one.instructions]
    assert windows
    # A night lasts some minutes, and clocks are hours off.
    assert all(outside_hours(one, (), BEGIN + hour * _HOUR) for one in windows for hour in range(-3, 4))
