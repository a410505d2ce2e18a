# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Consul for these tests, wiped before each, and an operator's folder with services of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from devkit.agent import Agent
from devkit.wipe import wipe

from .site import Site


@pytest.fixture(scope="session")
def agent() -> Iterator[Agent]:
    with Agent() as running:
        yield running


@pytest.fixture
def site(agent: Agent, tmp_path: Path) -> Site:
    wipe(agent.kv)
    return Site(tmp_path, agent)
