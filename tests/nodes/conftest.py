# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labs for these tests: each file takes one of its own, as nodes keep what was done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.guard import guarded
from lab.lab import Lab
from missing import needs_lab

from .fleet import Fleet

MakeFleet = Callable[..., Fleet]


@pytest.fixture(scope="session", autouse=True)
def _possible() -> None:
    """Skip all of this where there can be no lab, but never where all tests have to run."""
    needs_lab()


@pytest.fixture(scope="module")
def make_fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeFleet]:
    """Make a fleet: host -> role, and the options of the lab. The one before it is taken down."""
    folder = tmp_path_factory.mktemp("fleet")
    with guarded(Path(request.path).stem) as lab:
        count = 0

        def make(roles: dict[str, str], **options: Any) -> Fleet:
            nonlocal count
            count += 1
            lab.up(roles, **options)
            return Fleet(lab, folder / str(count))

        yield make
    assert not Lab(lab.name).leftovers()
