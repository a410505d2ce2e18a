# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How hypothesis works here, the same examples on every run of the CI, new ones at a desk; and which failures are met."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from met_failures import Met
from missing import is_strict

settings.register_profile("desk", max_examples=120, deadline=None)
settings.register_profile("ci", max_examples=120, deadline=None, derandomize=True)
settings.load_profile("ci" if is_strict() else "desk")


@pytest.fixture(scope="session", autouse=True)
def _met_failures() -> Iterator[None]:
    """See to it that each failure which a test has met is found in docs/messages.md by its text."""
    met = Met()
    with met.noting():
        yield
    strangers = met.strangers()
    assert not strangers, "\n".join(strangers)
