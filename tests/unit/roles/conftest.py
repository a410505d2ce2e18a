# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all tests of roles share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def pipelining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run modules without a copy of each in a file."""
    monkeypatch.setenv("ANSIBLE_PIPELINING", "True")
