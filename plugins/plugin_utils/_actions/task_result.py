# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A failure in place of an exception, for all actions. Modules have theirs in ``module_utils/_result.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...module_utils._common.errors import UpgradeError


def task_result(before: Mapping[str, Any], act: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Call ``act``, and return its result, or the failure of the :class:`UpgradeError` that it raises.

    :param before: return values that the result and the failure have too, unless ``act`` returns others.
    """
    start = {"changed": False, **before}
    try:
        return {**start, **act()}
    except UpgradeError as error:
        return {**start, **error.as_result()}
