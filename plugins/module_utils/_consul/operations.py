# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations of a transaction, and what they change, for those who want to see it first."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .._common.sanitize import sanitize
from .client import Operation


@dataclass(frozen=True, slots=True)
class Change:
    """A key before and after; None where it is not there."""

    key: str
    before: str | None
    after: str | None


def put(key: str, value: str, flags: int = 0) -> Operation:
    """Set a key, whatever it holds.

    :param flags: a number beside the value, which those who read the value alone don't see.
    """
    return {"KV": {"Verb": "set", "Key": key, "Value": _encoded(value), **({"Flags": flags} if flags else {})}}


def compare_and_put(key: str, value: str, index: int) -> Operation:
    """Set a key if it is as it was read: ``index`` is its ModifyIndex, 0 for a key that was not there."""
    return {"KV": {"Verb": "cas", "Key": key, "Value": _encoded(value), "Index": index}}


def compare(key: str, index: int) -> Operation:
    """Fail the transaction unless the key is as it was read; index 0 is a key that was not there."""
    if not index:
        return {"KV": {"Verb": "check-not-exists", "Key": key}}
    return {"KV": {"Verb": "check-index", "Key": key, "Index": index}}


def read_along(key: str) -> Operation:
    """Return a key along with a write, if it is there, as it is in the moment of that write: whoever may read it may ask that."""
    return {"KV": {"Verb": "get-tree", "Key": key}}


def lock(key: str, value: str, session: str) -> Operation:
    """Lock a key by a session and set it, unless another session has it."""
    return {"KV": {"Verb": "lock", "Key": key, "Value": _encoded(value), "Session": session}}


def unlock(key: str, value: str, session: str) -> Operation:
    """Set a key that a session has locked, and let go of it: it is kept when the session ends."""
    return {"KV": {"Verb": "unlock", "Key": key, "Value": _encoded(value), "Session": session}}


def check_lock(key: str, session: str) -> Operation:
    """Fail the transaction unless a session has the key locked."""
    return {"KV": {"Verb": "check-session", "Key": key, "Session": session}}


def remove(key: str) -> Operation:
    """Delete a key; one that is not there is none the worse."""
    return {"KV": {"Verb": "delete", "Key": key}}


def remove_tree(prefix: str) -> Operation:
    """Delete all keys below a prefix."""
    return {"KV": {"Verb": "delete-tree", "Key": prefix}}


def _encoded(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def net_changes(changes: Iterable[Change]) -> list[Change]:
    """Return the changes from the first state of each key to its last, without those that change nothing."""
    first: dict[str, str | None] = {}
    last: dict[str, str | None] = {}
    for change in changes:
        first.setdefault(change.key, change.before)
        last[change.key] = change.after
    return [Change(key, first[key], last[key]) for key in sorted(first) if first[key] != last[key]]


def as_diff(changes: Iterable[Change]) -> Mapping[str, str]:
    """Return what Ansible's diff mode shows: a line for each key, before and after."""
    found = list(changes)

    def side(values: Iterable[tuple[str, str | None]]) -> str:
        return "".join(f"{sanitize(f'{key} = {value}')}\n" for key, value in values if value is not None)

    return {
        "before_header": "Consul before",
        "after_header": "Consul after",
        "before": side((change.key, change.before) for change in found),
        "after": side((change.key, change.after) for change in found),
    }
