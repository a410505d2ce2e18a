# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts that a machine may not have: their tests are skipped there, but never where all of them have to run."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from lab.lab import blocker

STRICT = "CONVOY_TEST_STRICT"


def is_strict() -> bool:
    """Return whether a part that this machine lacks is a failure."""
    return os.environ.get(STRICT) == "1"


def missing(what: str) -> NoReturn:
    """Skip a test that needs something this machine lacks; with ``CONVOY_TEST_STRICT=1`` that is a failure."""
    if is_strict():
        pytest.fail(f"{what} ({STRICT}=1 does not allow to skip this test)")
    pytest.skip(what)


def give_away(path: Path, user: int = 65534) -> None:
    """Give a file to another user; skip the test where this process may not do that."""
    try:
        os.chown(path, user, -1)
    except PermissionError:
        missing("Only root can give files to other users.")


def needs_lab() -> None:
    """Skip a test where there can be no lab."""
    if reason := _lab_blocker():
        missing(reason)


_lab_blocker = cache(blocker)
