# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Retry on conflict: read, compute and write again after another process wrote in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .._common.errors import UpgradeError
from .errors import Conflict

T = TypeVar("T")

# The ledger has more tries than other keys, as all planners and operators write it.
TRIES, TRIES_OF_LEDGER = 10, 200


def retry_on_conflict(act: Callable[[], T], changed: Callable[[], str], hint: str = "", tries: int = TRIES) -> T:
    """Call ``act`` until it raises no :class:`Conflict`, and return its result.

    :param act: reads and writes. Any other exception passes through.
    :param changed: names the key that kept changing, for the message.
    :param hint: a sentence at the end of the message: what the operator can do.
    :raises UpgradeError: ``busy`` after the last try.
    """
    for _try in range(tries):
        try:
            return act()
        except Conflict:
            continue
    raise UpgradeError("busy", f"{changed()} changed during each of {tries} tries.{hint and f' {hint}'}")
