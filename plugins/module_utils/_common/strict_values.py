# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Strict parsing of what operators write: every error names the key, the value and what is valid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import UpgradeError
from .names import did_you_mean
from .sanitize import truncated_repr, truncated_text

_DURATION = re.compile(r"([0-9]{1,12})\s*([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 3650 * 86400


def invalid_value(key: str, value: object, why: str) -> UpgradeError:
    """Return the error for a value that is not valid.

    :param why: the end of a sentence that begins with the value, without its full stop.
    """
    return UpgradeError(
        "bad_instructions",
        f"instructions: {truncated_text(key)}: {truncated_repr(value)} {why}.",
        key=key,
        value=truncated_text(value),
    )


def refuse_unknown_keys(raw: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
    """Raise an error for the first unknown key.

    :param prefix: what precedes the keys, such as ``rolling_rules.``.
    :raises UpgradeError: ``bad_instructions``, which also suggests the closest known key.
    """
    for key in raw:
        if key not in known:
            names = ", ".join(prefix + name for name in known)
            raise UpgradeError(
                "bad_instructions",
                f"instructions: {prefix}{truncated_text(key)}: unknown key{did_you_mean(truncated_text(key), known) or '.'} Known are: {names}.",
                key=f"{prefix}{key}",
                value=truncated_text(raw[key]),
            )


def parse_mapping(value: object, key: str) -> Mapping[str, Any]:
    """Return the mapping if all its names are text; empty for None.

    :raises UpgradeError: ``bad_instructions``.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise invalid_value(key, value, "is not a mapping of names to values")
    for name in value:
        if not isinstance(name, str) or not name:
            raise invalid_value(key, name, "is not a name; put it in quotes")
    return value


def parse_texts(value: object, key: str) -> tuple[str, ...]:
    """Return a text or a list of texts as a tuple without duplicates.

    :raises UpgradeError: ``bad_instructions``.
    """
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not found or not all(isinstance(t, str) and t for t in found):
        raise invalid_value(key, value, "is neither a text nor a list of texts")
    return tuple(dict.fromkeys(found))


def parse_boolean(value: object, key: str) -> bool:
    """Return a boolean.

    :raises UpgradeError: ``bad_instructions``.
    """
    if not isinstance(value, bool):
        raise invalid_value(key, value, "is neither true nor false")
    return value


def parse_number_text(value: object) -> str:
    """Return a text or a whole number as text; empty for any other value."""
    if isinstance(value, str):
        return value.strip()
    return truncated_text(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def parse_duration(value: object, key: str) -> int:
    """Return a duration in seconds, from a number of seconds or a text such as ``90s``, ``15m``, ``2h`` or ``1d``.

    :raises UpgradeError: ``bad_instructions``.
    """
    found = _DURATION.fullmatch(parse_number_text(value))
    if not found:
        raise invalid_value(
            key, value, "is not a duration: give whole seconds, or a number with s, m, h or d, such as 15m"
        )
    seconds = int(found[1]) * _UNITS[found[2]]
    if seconds > _LONGEST:
        raise invalid_value(key, value, "is longer than ten years; give a shorter time")
    return seconds
