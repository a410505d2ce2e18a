# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rule of the instructions as a line of text: ``rolling_rules.roles.compute: 10%``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._common.durations import duration_as_rule

_STAGE = re.compile(r"stages\[\d+\]")
_DURATION = re.compile(r"health\.(soak|progress_deadline)|stages\[\d+\]\.soak")
_NUMBER = re.compile(r"\[(\d+)\]")


def rule_line(instructions: Mapping[str, Any], key: str) -> str:
    """Return ``key: value`` for a key of the instructions, empty if they do not have it.

    :param key: as in messages: parts with dots between them, ``[0]`` for the first of a list. A part that is a name may contain
        dots.
    """
    found = _find(instructions, key)
    return "" if found is None else f"{key}: {value_text(key, found[0])}"


def value_text(key: str, value: object) -> str:
    """Return the value of a rule as text: a stage as a sentence, durations as in rules (``10m``), other values as JSON.

    :param key: as for :func:`rule_line`.
    """
    if isinstance(value, str):
        return value
    if _STAGE.fullmatch(key) and isinstance(value, Mapping):
        return _stage_text(value)
    if _DURATION.fullmatch(key) and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return duration_as_rule(value)
    return json.dumps(value, sort_keys=True)


def _stage_text(stage: Mapping[str, Any]) -> str:
    """Return ``canary, 1 of each role, soaks 10m, needs an approval``."""
    roles, hosts, soak = stage.get("roles"), stage.get("hosts"), stage.get("soak")
    of = f"of {', '.join(map(str, roles))}" if isinstance(roles, list) and roles else "of each role"
    if isinstance(hosts, list):
        who = ", ".join(map(str, hosts))
    elif hosts is not None:
        who = f"{hosts} {of}"
    else:
        who = f"all {of}" if roles else "all that are left"
    parts = [str(stage.get("name", "")), who]
    if isinstance(soak, int) and soak > 0:
        parts.append(f"soaks {duration_as_rule(soak)}")
    if stage.get("approve"):
        parts.append("needs an approval")
    return ", ".join(filter(None, parts))


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
