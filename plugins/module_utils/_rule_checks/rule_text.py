# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rule of the instructions as a line of text: ``rolling_rules.roles.compute: 10%``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"\[(\d+)\]")


def rule_line(instructions: Mapping[str, Any], key: str) -> str:
    """Return ``key: value`` for a key of the instructions, empty if they do not have it.

    :param key: as in messages: parts with dots between them, ``[0]`` for the first of a list. A part that is a name may contain
        dots.
    """
    found = _find(instructions, key)
    return "" if found is None else f"{key}: {_text(found[0])}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _find(data: object, key: str) -> tuple[Any] | None:
    """Return the value of a key in a tuple, because it may be None; None if there is no such key."""
    if not key:
        return (data,)
    number = _NUMBER.match(key)
    if number:
        at = int(number[1])
        if isinstance(data, Sequence) and not isinstance(data, str) and at < len(data):
            return _find(data[at], key[number.end() :].removeprefix("."))
        return None
    if not isinstance(data, Mapping):
        return None
    for name, below in data.items():
        rest = key[len(name) :] if isinstance(name, str) and key.startswith(name) else None
        if rest is not None and (not rest or rest[0] in ".["):
            found = _find(below, rest.removeprefix("."))
            if found is not None:
                return found
    return None
