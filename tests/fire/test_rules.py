# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules by which no host may be admitted apply on every day."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.windows import outside_hours, parse_windows

from .rules import closed_window

DAY = 86_400
# A Monday, at midnight UTC.
MONDAY = 1_795_392_000


@pytest.mark.parametrize("day", range(7))
@pytest.mark.parametrize("hour", [0, 12, 23.99])
def test_the_window_of_a_run_is_never_open_while_it_lasts(day: int, hour: float) -> None:
    now = MONDAY + day * DAY + hour * 3600
    windows = parse_windows([closed_window(now)])
    for later in range(-4, 24):
        assert outside_hours(windows, (), now + later * 3600) is not None
    assert any(outside_hours(windows, (), now + days * DAY) is None for days in range(7))
