# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cases of a test that are more of the same: `make test` runs the first ones, `make test-all` all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases for ``pytest.mark.parametrize``, those after the first ``count`` marked ``thorough``.

    :param cases: a value each, or a tuple with one for each name.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.thorough] if at >= count else []
        )
        for at, case in enumerate(cases)
    ]
