# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How hypothesis works here: the same examples on every run of the CI, new ones at a desk, and fewer of them in `make test`. And time zones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from missing import is_strict


def pytest_configure(config: pytest.Config) -> None:
    """Set the number of examples."""
    examples = 50 if "not thorough" in config.option.markexpr else 200
    settings.register_profile("convoy", max_examples=examples, deadline=None, derandomize=is_strict())
    settings.load_profile("convoy")


@pytest.fixture()
def live_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return what sets the time zone for a test, such as ``Europe/Berlin``."""

    def change(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()
