# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of the composer. Each message begins with file and line."""

from __future__ import annotations

from ...module_utils._common.errors import UpgradeError


def refusal(where: str, why: str) -> UpgradeError:
    """Return the error ``bad_service``.

    :param where: file and line, or ``upgrade_roles.<role>``.
    :param why: sentences that say what is wrong and what to do.
    """
    return UpgradeError("bad_service", f"{where}: {why}", where=where)
