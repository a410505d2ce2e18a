# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The trail of the steps that a host went through."""

from __future__ import annotations

import json

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import (
    StepStart,
    extended_trail,
    newest_steps,
)


def test_a_step_begins_once_and_ends_once() -> None:
    trail: tuple[StepStart, ...] = ()
    for at, (service, step) in enumerate(
        [("nova", "stop"), ("nova", "stop"), ("db", "stop"), (None, None), (None, None)]
    ):
        trail = extended_trail(trail, at, service, step)
    assert trail == (StepStart(0, "nova", "stop"), StepStart(2, "db", "stop"), StepStart(3))


def test_a_host_without_steps_has_none() -> None:
    assert extended_trail((), 5) == ()


def test_of_many_steps_the_last_ones_are_kept() -> None:
    trail: tuple[StepStart, ...] = ()
    for at in range(2000):
        trail = extended_trail(trail, at, "\u00e4" * 20, f"step{at}")
    assert trail[-1].at == 1999
    assert 3500 < len(json.dumps(trail)) <= 4000
    assert newest_steps(trail) == trail
