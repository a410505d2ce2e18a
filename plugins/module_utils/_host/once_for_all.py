# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host does for all: a key per version and unit, locked by the run that is at it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from .._common.errors import UpgradeError
from .._common.sanitize import sanitize, truncate_middle
from .._consul.client import KVEntry
from .._consul.errors import Conflict
from .._consul.operations import compare, lock, unlock
from .._state.codec import decode_data
from .._state.store import Store, current_user

RUNNING, DONE, FAILED = "running", "done", "failed"


@dataclass(frozen=True, slots=True)
class RunOnceState:
    """Where a unit that runs once is.

    :param host: the host that is at it, or was.
    :param index: the key's ModifyIndex.
    """

    state: str
    host: str
    error: str = ""
    index: int = 0


def read_state(store: Store, version: str, unit: str) -> RunOnceState | None:
    """Return where a unit is; None where no host has begun it, or the run that was at it is gone."""
    entry = store.client.get(store.keys.once(version, unit))
    return None if entry is None else decode(entry, unit)


def decode(entry: KVEntry, unit: str) -> RunOnceState:
    """Return what a unit's key says."""
    try:
        data = decode_data(entry.value)
        state, host, error = (
            truncate_middle(sanitize(str(text))) for text in (data["state"], data["host"], data.get("error", ""))
        )
        return RunOnceState(state, host, error, entry.modify_index)
    except (ValueError, TypeError, KeyError):
        why = f"{entry.key} can't be read; delete it if no host has done {unit}, or write state and host into it"
        return RunOnceState(FAILED, "unknown", why, entry.modify_index)


def begin_once(store: Store, session: str, version: str, unit: str, host: str, index: int) -> bool:
    """Let a host begin a unit for all; return whether it may, which is not so where another one was faster.

    :param index: the key's ModifyIndex when it was looked at, 0 where it was not there: a session could lock it twice.
    """
    key = store.keys.once(version, unit)
    try:
        store.client.write([compare(key, index), lock(key, value(RUNNING, host), session)])
    except Conflict:
        return False
    return True


def end_once(store: Store, session: str, version: str, unit: str, host: str, error: str | None = None) -> None:
    """Say that a host has done a unit for all, or with an error that it could not."""
    state = DONE if error is None else FAILED
    try:
        store.client.write([unlock(store.keys.once(version, unit), value(state, host, error or ""), session)])
    except Conflict as conflict:
        found = read_state(store, version, unit)
        if found is None or (found.state, found.host) != (state, host):
            raise UpgradeError(
                "once_gone",
                f"{unit} is {state} on {host}, and that can't be recorded in {store.keys.once(version, unit)}, as this run's "
                "session with Consul was lost meanwhile. Run the same command again; the unit is run once more then.",
            ) from conflict


def value(state: str, host: str, error: str = "") -> str:
    """Return what a unit's key holds."""
    facts = {
        "state": state,
        "host": host,
        "by": current_user(),
        "at": int(time.time()),
        **({"error": error} if error else {}),
    }
    return json.dumps(facts, sort_keys=True)
