# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Raw keys to typed values and back, in one place.

Old fleets hold odd keys: folder placeholders, empty values, bytes that are no text. None of them stops a
reader here. What can't be read is counted the safe way (a hold holds, a record has failed) or, for a gate,
kept as it is, so that whoever needs it tells which key it was. Texts for people are made printable here, so
that no one's words act on the terminal that shows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from .._common.clock import LATEST, is_time
from .._common.errors import UpgradeError
from .._common.names import is_valid_version
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._fleet.health_marks import Approval, HealthMark
from .._fleet.holds import Hold
from .._fleet.ledger import Ledger

# What this collection writes is nested five levels deep.
_DEEPEST = 40
# No time and no count is above that.
MOST = 2**53
_LEDGER_LISTS = ("broken", "stopped", "post_upgrade")
# Who approved where the approval does not say it, and words that approve nothing.
SOMEBODY = "somebody"
_NO = ("", "no", "false", "0", "null", "none")
_LEDGER_FIELDS = [one.name for one in fields(Ledger)]


def text_of(value: bytes) -> str | None:
    """Return the bytes as text, None where they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def decode_data(value: bytes) -> Any:
    """Return the JSON in a value.

    :raises ValueError: where it is none, or is nested so deeply that whoever goes through it could stumble.
    """
    try:
        data = json.loads(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if value.count(b"[") + value.count(b"{") > _DEEPEST:
        level = [data]
        for _depth in range(_DEEPEST):
            level = [below for one in level for below in _below(one)]
        if level:
            raise ValueError("it is nested too deeply")
    return data


def _below(data: Any) -> Iterable[Any]:
    if isinstance(data, dict):
        return data.values()
    return data if isinstance(data, list) else ()


def bare_text(value: bytes) -> str | None:
    """Return a text without the white space that old tools left around it; None for an empty one, and for bytes that are none."""
    return (text_of(value) or "").strip() or None


def decode_version(key: str, value: bytes) -> str | None:
    """Return a version without the white space that old tools left around it; None for an empty one.

    :raises UpgradeError: ``unreadable_version``: what a fleet should run that no one can name is never taken for nothing.
    """
    text, bare = text_of(value), bare_text(value)
    if text is not None and (bare is None or is_valid_version(bare)):
        return bare
    raise UpgradeError(
        "unreadable_version",
        f"{key} holds {truncated_repr(value if text is None else text)}, which is no version, so it is unknown what the fleet should run, "
        f"and nothing is admitted. Write the version that it should run, such as 2.0 (consul kv put {key} 2.0).",
        key=key,
    )


def version_in_key(text: str) -> str:
    """Return the version in a host's key as it is shown and compared: one that can't be one is in quotes, and is no other's."""
    return text if is_valid_version(text) else truncated_repr(text)


def decode_ledger(key: str, value: bytes) -> Ledger:
    """Return the ledger.

    :raises UpgradeError: ``unreadable_ledger``.
    """
    try:
        data = decode_data(value)
        if not isinstance(data, dict):
            raise ValueError("it is no mapping of names to values")
        missing = [name for name in ("epoch", "version") if name not in data]
        if missing:
            raise ValueError(f"it has no {' and no '.join(missing)}")
        return Ledger(**{name: _plain(name, data[name]) for name in _LEDGER_FIELDS if name in data})
    except (ValueError, TypeError) as error:
        raise UpgradeError(
            "unreadable_ledger",
            f"The ledger {key} can't be read ({error}), so the rules are unknown and no host is admitted. "
            f"Restore it from a backup, or delete {key} to let the next consul_upgrade_plan begin a new one.",
            key=key,
        ) from error


def _plain(name: str, value: Any) -> Any:
    # A pattern may match what can't be printed.
    found = value if name == "role_pattern" else sanitize_all(value)
    return tuple(found) if name in _LEDGER_LISTS and isinstance(found, list) else found


def sanitize_all(data: Any) -> Any:
    """Return plain data with all of its texts printable, names too."""
    if isinstance(data, dict):
        return {sanitize_all(name): sanitize_all(value) for name, value in data.items()}
    if isinstance(data, list):
        return [sanitize_all(value) for value in data]
    return sanitize(data) if isinstance(data, str) else data


def encode_ledger(ledger: Ledger) -> str:
    """Return the ledger as it is stored."""
    data = {
        name: value
        for name, value in asdict(ledger).items()
        if value is not None and value is not False and value not in ({}, ()) and (name, value) != ("commit", "")
    }
    return json.dumps(data, sort_keys=True)


def decode_hold(key: str, value: bytes) -> Hold:
    """Return a hold; one that can't be read holds all the same."""
    try:
        data = decode_data(value)
        given = {name: _said(data[name]) for name in ("reason", "by", "at") if data.get(name) not in (None, "")}
        return Hold(key, **given)
    except (ValueError, TypeError, AttributeError):
        text = (text_of(value) or "").strip()
        return Hold(key, reason=truncate_middle(text)) if text and text.isprintable() else Hold(key)


def encode_hold(hold: Hold) -> str:
    """Return a hold as it is stored."""
    facts = {"reason": hold.reason, "by": hold.by, "at": hold.at}
    return json.dumps({name: value for name, value in facts.items() if value}, sort_keys=True)


def decode_health_mark(value: bytes) -> HealthMark | None:
    """Return what planners have seen of a host's health; what can't be read is seen again."""
    try:
        data = decode_data(value)
        since, reported = (
            None if data.get(name) is None else decode_time(data[name]) for name in ("since", "reported")
        )
        upgraded, lost = data.get("upgraded") is True, data.get("lost") is True
        return HealthMark(str(data["version"]), since, upgraded, reported, lost)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def encode_health_mark(mark: HealthMark) -> str:
    """Return a mark as it is stored."""
    return json.dumps(mark.plain(), sort_keys=True)


def health_mark_flags(before: HealthMark | None, now: int) -> int:
    """Return the number that stands beside a mark: when it was written, and how many times so far."""
    return now << 8 | min(255, (before.written if before is not None else 0) + 1)


def decode_approval(value: bytes) -> Approval | None:
    """Return somebody's approval. Any words are one, as written by hand, but for a no; what can't be read is none."""
    text = (text_of(value) or "").strip(" \t\r\n\"'")
    if not text.startswith(("{", "[")):
        return Approval(SOMEBODY, 0, truncate_middle(text)) if text.isprintable() and text.lower() not in _NO else None
    try:
        data = decode_data(value)
        by, at, reason = data.get("by") or SOMEBODY, data.get("at"), data.get("reason") or ""
    except (ValueError, AttributeError):
        return None
    return Approval(_said(by), at if is_time(at) else 0, _said(reason))


def encode_approval(word: Mapping[str, object]) -> str:
    """Return somebody's approval as it is stored."""
    return json.dumps(dict(word), sort_keys=True)


def _said(value: object) -> str:
    return truncate_middle(sanitize(str(value)))


def decode_time(value: Any) -> int:
    """Return a unix time in seconds.

    :raises ValueError, TypeError, OverflowError: where it is none, or none that a clock could show.
    """
    at = int(value)
    if not 0 <= at < LATEST:
        raise ValueError(f"{truncated_repr(value)} is no unix time")
    return at
