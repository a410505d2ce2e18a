# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shapes of Consul's answers. An answer of another shape is not from Consul but, say, from a proxy."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

# A predicate on parsed JSON.
Shape = Callable[[Any], bool]


def names_below(prefix: str) -> Shape:
    """Return a predicate for a list of keys below a prefix. An empty list does not fit: Consul answers 404 instead."""

    def fits(found: Any) -> bool:
        if not isinstance(found, list) or not found:
            return False
        try:
            return all(map(str.startswith, found, repeat(prefix)))
        except TypeError:
            # Not all of it is text.
            return False

    return fits


def with_texts(*names: str) -> Shape:
    """Return a predicate for a mapping with text under each of these names."""
    return lambda found: isinstance(found, dict) and all(isinstance(found.get(name), str) for name in names)


def list_of(shape: Shape) -> Shape:
    """Return a predicate for a list of values of a shape; null fits, as Consul sends it for some empty lists."""
    return lambda found: found is None or (isinstance(found, list) and all(map(shape, found)))


def mapping_of(shape: Shape) -> Shape:
    """Return a predicate for a mapping whose values have a shape."""
    return lambda found: isinstance(found, dict) and all(map(shape, found.values()))


def is_entry(found: Any) -> bool:
    """Return whether the answer is a key with its value and its indexes."""
    if not isinstance(found, dict) or not isinstance(found.get("Key"), str):
        return False
    value, flags, session = found.get("Value"), found.get("Flags"), found.get("Session")
    if session is not None and not isinstance(session, str):
        return False
    return (
        _is_index(found.get("ModifyIndex")) and (value is None or _is_base64(value)) and (not flags or _is_index(flags))
    )


def are_results(found: Any) -> bool:
    """Return whether the answer is the result of a transaction that was applied."""
    if not isinstance(found, dict) or "Results" not in found:
        return False
    is_each = list_of(lambda one: isinstance(one, dict) and ("KV" not in one or is_entry(one["KV"])))
    return not found.get("Errors") and is_each(found["Results"])


def are_errors(operations: int) -> Shape:
    """Return a predicate for the errors of a refused transaction with so many operations."""

    def fits(found: Any) -> bool:
        errors = found.get("Errors") if isinstance(found, dict) else None
        return isinstance(errors, list) and bool(errors) and all(map(is_error, errors))

    def is_error(one: Any) -> bool:
        at = one.get("OpIndex", 0) if isinstance(one, dict) else None
        return isinstance(at, int) and 0 <= at < operations and isinstance(one.get("What"), str)

    return fits


def are_written(operations: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> bool:
    """Return whether the results of a transaction have all keys that it had to set or to compare."""
    verbs = ("set", "cas", "lock", "unlock", "check-index", "check-session")
    requested = {one["KV"]["Key"] for one in operations if one["KV"]["Verb"] in verbs}
    return requested <= {one["Key"] for one in results}


def are_asked_for(operations: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> bool:
    """Return whether the results of a read have no key that it did not ask for. Consul leaves out those that the token may not read."""
    trees = tuple(one["KV"]["Key"] for one in operations if one["KV"]["Verb"] == "get-tree")
    single = {one["KV"]["Key"] for one in operations if one["KV"]["Verb"] == "get"}
    return all(one["Key"].startswith(trees) or one["Key"] in single for one in results)


def _is_index(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**64


def _is_base64(found: Any) -> bool:
    try:
        return isinstance(found, str) and base64.b64decode(found, validate=True) is not None
    except ValueError:
        return False
