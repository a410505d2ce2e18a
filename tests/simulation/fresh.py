# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Seeds that no test has had before."""

from __future__ import annotations

import os
import random
from typing import Any

from thorough import quick


def fresh(count: int, most: int) -> list[Any]:
    """Return fresh seeds in a row, of which `make test` has the first ``count``, and `make test-all` all."""
    # Processes that share the nights have to agree on them.
    first = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(2000, 10**6)
    return quick(count, range(first, first + most))
