# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find all mistakes of instructions, although the parser stops at the first one.

Only the parser decides what is a mistake. What it refuses is removed, or replaced by a valid value, and the rest is parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._common.errors import UpgradeError
from .._rules.instructions import ORDER_KEYS, parse

Path = tuple[Any, ...]

# The deepest nesting of valid rules.
_DEPTH = 4
_INDEX = re.compile(r"\[(\d+)\]\.?")
# Valid items that replace invalid ones, so that the other items of the list keep their indexes.
_ITEMS: dict[str, dict[str, Any]] = {
    "stages": {"hosts": 1},
    "windows": {"from": "00:00", "to": "00:00"},
    "freezes": {"from": "1970-01-01", "to": "2999-01-01"},
}


@dataclass(frozen=True, slots=True)
class RuleMistake:
    """One mistake.

    :param key: the key, such as ``stages[0].hosts``; empty if the mistake is not about a key.
    :param message: the message of the parser's error.
    :param path: the key as names and indexes from the top, as far as the instructions have it.
    """

    key: str
    message: str
    path: Path = ()


def mistakes_of(raw: Mapping[str, Any]) -> list[RuleMistake]:
    """Return all mistakes of instructions, in the order in which the parser finds them; empty for valid ones.

    The instructions are parsed once for each mistake.
    """
    left = _copied(raw, _DEPTH)
    found: list[RuleMistake] = []
    while True:
        try:
            parse(left)
        except UpgradeError as error:
            mistake = mistake_in(left, error)
            found.append(mistake)
            if not _fix(left, mistake.path, _find(left, mistake.key)[1], error):
                return found
        else:
            return found


def mistake_in(raw: Mapping[str, Any], error: UpgradeError) -> RuleMistake:
    """Return the mistake that an error of the parser describes."""
    key = str(error.details.get("key") or error.details.get("where", "").removeprefix("instructions: "))
    return RuleMistake(key, error.message, _find(raw, key)[0])


def _copied(value: Any, depth: int) -> Any:
    if depth and isinstance(value, Mapping):
        return {key: _copied(below, depth - 1) for key, below in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [_copied(below, depth - 1) for below in value]
    return value


def _find(node: Any, key: str) -> tuple[Path, str]:
    """Return the path of a key, and the rest of the key that does not exist. Names may contain dots and brackets."""
    if isinstance(node, Mapping):
        for name in sorted(node, key=lambda name: len(str(name)), reverse=True):
            rest = key.removeprefix(str(name))
            if len(rest) < len(key) and (not rest or rest[0] in ".["):
                path, missing = _find(node[name], rest.removeprefix("."))
                return (name, *path), missing
        alias = next((name for name in ORDER_KEYS[1:] if name in node), None)
        if alias is not None and key.startswith(ORDER_KEYS[0]):
            return _find(node, alias + key.removeprefix(ORDER_KEYS[0]))
    found = _INDEX.match(key) if isinstance(node, list) else None
    if found and int(found[1]) < len(node):
        path, missing = _find(node[int(found[1])], key[found.end() :])
        return (int(found[1]), *path), missing
    return (), key


def _fix(left: dict[str, Any], path: Path, missing: str, error: UpgradeError) -> bool:
    """Remove or replace what the parser refused; return whether anything changed."""
    if "cycle" in error.details:
        return _without_edge(left, *error.details["cycle"][:2])
    if not path:
        return False
    top, is_item = path[0], len(path) > 1 and path[0] in _ITEMS
    if is_item and (len(path) == 2 or path[-1] in ("name", *_ITEMS[top])):
        return _stand_in(left[top], top, path[1], missing or (path[2] if len(path) > 2 else ""))
    if missing:
        return False
    parent = left
    for step in path[:-1]:
        parent = parent[step]
    if top in ORDER_KEYS and len(path) == 2:
        # If the two names of this rule disagree, both are wrong.
        for name in ORDER_KEYS:
            if isinstance(left.get(name), dict):
                left[name].pop(path[1], None)
    elif not _part_of(parent[path[-1]], error):
        del parent[path[-1]]
    return True


def _stand_in(items: list[Any], top: str, at: int, field: str) -> bool:
    """Replace a required field, otherwise the whole item, by a valid one; return whether anything changed."""
    good = {**_ITEMS[top], "name": f"unnamed stage {at}"} if top == "stages" else _ITEMS[top]
    item = items[at]
    if isinstance(item, dict) and field in good and item.get(field) != good[field]:
        item[field] = good[field]
        return True
    changed: bool = item != good
    items[at] = dict(good)
    return changed


def _part_of(node: Any, error: UpgradeError) -> bool:
    """Remove the part of a value that was refused, if only a part was; return whether anything was removed."""
    if isinstance(node, dict):
        nameless = [name for name in node if not isinstance(name, str) or not name]
        for name in nameless:
            del node[name]
        return bool(nameless)
    refused = error.details.get("value")
    if isinstance(node, list) and len(node) > 1 and isinstance(refused, str) and refused in node:
        node.remove(refused)
        return True
    return False


def _without_edge(left: dict[str, Any], name: str, first: str) -> bool:
    """Remove ``first`` from those that ``name`` waits for; return whether it was there."""
    done = False
    for key in ORDER_KEYS:
        order = left.get(key)
        if isinstance(order, dict) and name in order:
            firsts = [order[name]] if isinstance(order[name], str) else order[name]
            order[name] = [one for one in firsts if one != first]
            done = done or len(order[name]) < len(firsts)
            if not order[name]:
                del order[name]
    return done
