# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts on times, hosts and the end of a rollout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import (
    HostProgress,
    RoleProgress,
    RolloutProgress,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.wording import (
    about_minutes,
    elapsed,
    ending,
    headline,
    where,
)

FOUND = RolloutProgress(
    "2", "1", "running", (RoleProgress("web", 4, 1, 1, 0, 2),), (), 0, (), None, 0, 0.0, False, False
)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "less than a minute"),
        (59.9, "less than a minute"),
        (60, "about 1 min"),
        (100, "about 2 min"),
        (99 * 60, "about 99 min"),
        (7500, "about 2 h 5 min"),
    ],
)
def test_the_remaining_time_is_rounded(seconds: float, expected: str) -> None:
    assert about_minutes(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0:00"), (-5, "0:00"), (65.9, "1:05"), (3599, "59:59"), (7265, "2:01:05")]
)
def test_the_duration_of_a_host(seconds: float, expected: str) -> None:
    assert elapsed(seconds) == expected


def test_where_a_host_is() -> None:
    flight = HostProgress("web1", "web", "nginx", "stop", "upgrading", None)

    assert where(flight) == "nginx, step stop"
    assert where(replace(flight, step="")) == "nginx"
    assert where(replace(flight, service="")) == "step stop"
    assert where(replace(flight, service="", step="")) == "upgrading"


@pytest.mark.parametrize(
    ("found", "left", "expected"),
    [
        (FOUND, None, "2 from 1: 1 of 4 hosts upgraded"),
        (FOUND, 240, "2 from 1: 1 of 4 hosts upgraded, about 4 min left"),
        (replace(FOUND, came_from=""), None, "2: 1 of 4 hosts upgraded"),
        (replace(FOUND, state="paused"), 240, "2 from 1: 1 of 4 hosts upgraded, paused"),
        (replace(FOUND, state="complete", done=True), None, "2 from 1: 1 of 4 hosts upgraded, complete"),
        (replace(FOUND, version=""), None, "No rollout has begun: current_version is not set."),
    ],
)
def test_the_headline(found: RolloutProgress, left: float | None, expected: str) -> None:
    assert headline(found, left) == expected


def test_the_end_of_a_rollout() -> None:
    flight = HostProgress("web1", "web", "", "", "admitted", None)

    assert ending(replace(FOUND, state="complete")) == "The rollout to 2 is complete."
    assert ending(replace(FOUND, state="aborted")) == "The rollout to 2 was aborted."
    assert "1 host that had begun continues" in ending(replace(FOUND, state="aborted", flights=(flight,)))
    assert "no rollout has begun" in ending(replace(FOUND, state=""))
