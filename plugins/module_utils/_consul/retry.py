# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Retry on conflict: read, plan and write again because somebody else wrote in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .._common.errors import UpgradeError
from .errors import Conflict

T = TypeVar("T")

# Of a key that hardly anybody else writes; and of the ledger, which all planners and operators do.
TRIES, TRIES_OF_LEDGER = 10, 200


def retry_on_conflict(act: Callable[[], T], changed: Callable[[], str], hint: str = "", tries: int = TRIES) -> T:
    """Return what ``act`` returns, calling it again as long as it raises :class:`Conflict`.

    :param act: reads and writes; whatever else it raises ends the tries.
    :param changed: returns what kept changing, for the message.
    :param hint: what the operator can do, or look at.
    :raises UpgradeError: ``busy`` after the last try.
    """
    for _try in range(tries):
        try:
            return act()
        except Conflict:
            continue
    raise UpgradeError("busy", f"{changed()} changed under each of {tries} tries.{hint and f' {hint}'}")
