# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labs for these tests: each file takes one of its own, with the real software of its service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.guard import guarded
from lab.lab import Lab
from missing import needs_lab

from .steps import Steps

MakeSteps = Callable[..., Steps]


@pytest.fixture(scope="session", autouse=True)
def _possible() -> None:
    """Skip all of this where there can be no lab, but never where all tests have to run."""
    needs_lab()


@pytest.fixture(scope="module")
def make_steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSteps]:
    """Make a lab: host -> role, and the options of the lab; give what runs steps on it."""
    folder = tmp_path_factory.mktemp("steps")
    with guarded(Path(request.path).stem.replace("_", "-")) as lab:

        def make(roles: dict[str, str], **options: Any) -> Steps:
            lab.up(roles, **options)
            return Steps(lab, folder)

        yield make
    assert not Lab(lab.name).leftovers()
