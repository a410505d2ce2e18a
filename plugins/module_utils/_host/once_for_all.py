# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Task groups that one host runs for all: a key for each version and task group, locked by the run that works on it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .._codecs.values import decode_data
from .._common import runtime
from .._common.errors import UpgradeError
from .._common.sanitize import sanitize, truncate_middle
from .._consul.client import KVEntry
from .._consul.errors import Conflict
from .._consul.operations import check_lock, compare, compare_and_put, lock, unlock
from .._state.store import Store, current_user

RUNNING, DONE, FAILED = "running", "done", "failed"


@dataclass(frozen=True, slots=True)
class RunOnceState:
    """The state of a task group that runs once for all hosts.

    :param state: ``running``, ``done`` or ``failed``.
    :param host: the host that runs it, or ran it last.
    :param index: the key's ModifyIndex.
    """

    state: str
    host: str
    error: str = ""
    index: int = 0


def read_state(store: Store, version: str, task_group: str) -> RunOnceState | None:
    """Return the state of a task group; None if no host has begun it, or the run that began it is gone."""
    entry = store.client.get(store.keys.once(version, task_group))
    return None if entry is None else decode(entry, task_group)


def decode(entry: KVEntry, task_group: str) -> RunOnceState:
    """Return the state that a task group's key holds; one that can't be read counts as failed."""
    try:
        data = decode_data(entry.value)
        state, host, error = (
            truncate_middle(sanitize(str(text))) for text in (data["state"], data["host"], data.get("error", ""))
        )
        return RunOnceState(state, host, error, entry.modify_index)
    except (ValueError, TypeError, KeyError):
        why = f"{entry.key} can't be read; delete it if no host has done {task_group}, or write state and host into it"
        return RunOnceState(FAILED, "unknown", why, entry.modify_index)


def begin_once(store: Store, session: str, version: str, task_group: str, host: str, index: int) -> bool:
    """Begin a task group for all hosts; return False if another host has begun it first.

    :param index: the key's ModifyIndex when it was read, 0 if it did not exist. A session can lock a key that it has already
        locked, so the index is compared too.
    """
    key = store.keys.once(version, task_group)
    try:
        store.client.write([compare(key, index), lock(key, value(RUNNING, host), session)])
    except Conflict:
        return False
    return True


def is_locked(store: Store, session: str, version: str, task_group: str, index: int) -> bool:
    """Return whether a session holds the lock of a task group's key, and the key is unchanged since it was read.

    :param index: the key's ModifyIndex when it was read.
    """
    key = store.keys.once(version, task_group)
    try:
        store.client.confirm(compare(key, index), check_lock(key, session))
    except Conflict:
        return False
    return True


def end_once(store: Store, session: str, version: str, task_group: str, host: str, error: str | None = None) -> None:
    """Record that a host has finished a task group for all hosts, or why it failed.

    If the run lost its session, and the key with it, the key is written again unless another host has begun meanwhile.

    :raises UpgradeError: ``once_gone`` if another host has.
    :raises Conflict: if another process wrote in between; retry.
    """
    key, state = store.keys.once(version, task_group), DONE if error is None else FAILED
    result = value(state, host, error or "")
    try:
        store.client.write([unlock(key, result, session)])
    except Conflict as conflict:
        found = read_state(store, version, task_group)
        if found is None:
            store.client.write([compare_and_put(key, result, 0)])
        elif (found.state, found.host) != (state, host):
            raise UpgradeError(
                "once_gone",
                f"{task_group} is {state} on {host}, but that can't be recorded in {key}, because this run lost its Consul session and "
                f"{found.host} began it too. Run the same command again; it runs {task_group} once more.",
            ) from conflict


def value(state: str, host: str, error: str = "") -> str:
    """Return the value of a task group's key."""
    facts = {
        "state": state,
        "host": host,
        "by": current_user(),
        "at": int(runtime.now()),
        **({"error": error} if error else {}),
    }
    return json.dumps(facts, sort_keys=True)
