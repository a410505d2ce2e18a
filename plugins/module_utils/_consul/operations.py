# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations of a transaction, and the changes that diff mode shows for them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .._common.sanitize import sanitize
from .client import Operation


@dataclass(frozen=True, slots=True)
class Change:
    """The value of a key before and after a write; None where the key does not exist."""

    key: str
    before: str | None
    after: str | None


def put(key: str, value: str, flags: int = 0) -> Operation:
    """Return the operation that sets a key unconditionally.

    :param flags: a number that Consul stores beside the value.
    """
    return {"KV": {"Verb": "set", "Key": key, "Value": _encoded(value), **({"Flags": flags} if flags else {})}}


def compare_and_put(key: str, value: str, index: int, flags: int = 0) -> Operation:
    """Return the operation that sets a key if its ModifyIndex is ``index``; 0 is for a key that does not exist."""
    more = {"Flags": flags} if flags else {}
    return {"KV": {"Verb": "cas", "Key": key, "Value": _encoded(value), "Index": index, **more}}


def compare_and_remove(key: str, index: int) -> Operation:
    """Return the operation that deletes a key if its ModifyIndex is ``index``; 0 is for a key that does not exist, which must stay so."""
    return {"KV": {"Verb": "delete-cas", "Key": key, "Index": index}} if index else compare(key, 0)


def compare(key: str, index: int) -> Operation:
    """Return the operation that fails the transaction unless a key's ModifyIndex is ``index``; 0 is for no such key."""
    if not index:
        return {"KV": {"Verb": "check-not-exists", "Key": key}}
    return {"KV": {"Verb": "check-index", "Key": key, "Index": index}}


def read_along(key: str) -> Operation:
    """Return the operation that reads a key, if it exists, in the same moment as the writes of the transaction.

    It needs only read permission, unlike :func:`compare` on a key that does not exist.
    """
    return {"KV": {"Verb": "get-tree", "Key": key}}


def lock(key: str, value: str, session: str) -> Operation:
    """Return the operation that locks and sets a key, and fails the transaction if another session has the lock."""
    return {"KV": {"Verb": "lock", "Key": key, "Value": _encoded(value), "Session": session}}


def unlock(key: str, value: str, session: str) -> Operation:
    """Return the operation that sets and unlocks a key, so that it outlives the session that has the lock."""
    return {"KV": {"Verb": "unlock", "Key": key, "Value": _encoded(value), "Session": session}}


def check_lock(key: str, session: str) -> Operation:
    """Return the operation that fails the transaction unless a session has locked the key."""
    return {"KV": {"Verb": "check-session", "Key": key, "Session": session}}


def remove(key: str) -> Operation:
    """Return the operation that deletes a key. A key that does not exist is no error."""
    return {"KV": {"Verb": "delete", "Key": key}}


def remove_tree(prefix: str) -> Operation:
    """Return the operation that deletes all keys below a prefix."""
    return {"KV": {"Verb": "delete-tree", "Key": prefix}}


def _encoded(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def net_changes(changes: Iterable[Change]) -> list[Change]:
    """Return one change per key, from its first value to its last, in the order of keys; keys that end as they began are left out."""
    first: dict[str, str | None] = {}
    last: dict[str, str | None] = {}
    for change in changes:
        first.setdefault(change.key, change.before)
        last[change.key] = change.after
    return [Change(key, first[key], last[key]) for key in sorted(first) if first[key] != last[key]]


def as_diff(changes: Iterable[Change], most: int | None = None) -> Mapping[str, str]:
    """Return the ``diff`` of a result for Ansible's diff mode: a line ``key = value`` for each key, before and after.

    :param most: how many keys it has at most; None for all.
    """
    found = list(changes)[:most]

    def side(values: Iterable[tuple[str, str | None]]) -> str:
        return "".join(f"{sanitize(f'{key} = {value}')}\n" for key, value in values if value is not None)

    return {
        "before_header": "Consul before",
        "after_header": "Consul after",
        "before": side((change.key, change.before) for change in found),
        "after": side((change.key, change.after) for change in found),
    }
