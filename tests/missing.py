# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts that a machine may not have: their tests are skipped there, but never where all of them have to run."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest
from lab.lab import obstacle


def missing(what: str) -> NoReturn:
    """Skip a test for want of something; with ``CI=true`` that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, and under CI nothing is skipped")
    pytest.skip(what)


def needs_lab() -> None:
    """Skip a test where there can be no lab."""
    if reason := obstacle():
        missing(reason)
