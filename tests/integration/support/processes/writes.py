# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens around a write: something else comes before it, or it is the last thing that its process does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

Write: TypeAlias = Callable[[Sequence[Any]], Any]


def around_writes(store: Store, act: Callable[[Write, Sequence[Any]], Any]) -> None:
    """Let a function stand around all that a store writes from now on.

    :param act: gets what writes, and the operations of a transaction; returns what Consul answered.
    """
    write = store.client.write
    pytest.MonkeyPatch().setattr(store.client, "write", lambda operations: act(write, operations))


def die_at_write(store: Store, at: int, *, after: bool) -> None:
    """Let this process be killed by SIGKILL right before or after the transaction with this number.

    After it also where it was refused, as the first one is while Consul still has the lock of a run that was killed.
    """
    count = 0

    def deadly(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        if count == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return write(operations)
        finally:
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    around_writes(store, deadly)
