# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of jobs share: a fleet whose rollout is complete, in a Consul in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from job_fleet import complete_fleet
from memory_consul import MemoryConsul


@pytest.fixture
def consul() -> Iterator[MemoryConsul]:
    with complete_fleet().in_place() as found:
        yield found


@pytest.fixture
def store(consul: MemoryConsul) -> Store:
    return consul.store()
