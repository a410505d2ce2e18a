# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real cluster of three servers for all of these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from lab.guard import guarded
from lab.lab import Lab
from missing import needs_lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    needs_lab()
    # Of several processes, each has one of its own.
    with guarded("-".join(filter(None, ["fire", os.environ.get("PYTEST_XDIST_WORKER")]))) as found:
        found.up({}, servers=3)
        yield found
