# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode the values of Consul keys to typed values, and encode them again.

Old fleets have odd keys: folder placeholders, empty values, bytes that are not text. They do not stop a reader. A value
that can't be read gets its safe meaning: a hold holds, a record has failed. A gate keeps its value, so that the error can
name it later. A bad version or ledger is an error. Texts are sanitized, because they are printed on terminals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from .._common.clock import LATEST, is_time
from .._common.errors import UpgradeError
from .._common.names import is_valid_version
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._fleet.health_marks import Approval, HealthMark
from .._fleet.holds import Hold
from .._fleet.ledger import Ledger

# This collection writes at most five levels.
_DEEPEST = 40
# All times and counts are below this.
MOST = 2**53
# Fields that are left out with these values.
_LEDGER_DEFAULTS = (("commit", ""), ("history_from", 1), ("expires", 0), ("recoveries", 0), ("recovered_at", 0))
# Holds ``done_at_behind`` of the stage, because an older release writes the stage again as soon as that has a field that it does not know.
_STAGE_BEHIND = "stage_behind"
_LEDGER_LISTS = ("broken", "stopped", "post_upgrade", "rollouts")
# The name for an approval without one, and the values that do not approve.
UNKNOWN_OPERATOR = "an unknown operator"
_NO = ("", "no", "false", "0", "null", "none")
_LEDGER_FIELDS = [one.name for one in fields(Ledger)]
# The flags of current_version in a rollback in which hosts replace their services in the reversed order. Nodes may not read the ledger.
REVERSED_FLAGS = 1


def text_of(value: bytes) -> str | None:
    """Return the bytes as text, None if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def decode_data(value: bytes) -> Any:
    """Return the parsed JSON of a value.

    :raises ValueError: if it is not JSON, or is nested too deeply to be walked recursively.
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
    """Return the text without white space around it, which old tools left; None if nothing is left or it is not UTF-8."""
    return (text_of(value) or "").strip() or None


def decode_version(key: str, value: bytes) -> str | None:
    """Return the version without white space around it, which old tools left; None if nothing is left.

    :raises UpgradeError: ``unreadable_version`` for any other value, because it must not count as no version.
    """
    text, bare = text_of(value), bare_text(value)
    if text is not None and (bare is None or is_valid_version(bare)):
        return bare
    raise UpgradeError(
        "unreadable_version",
        f"{key} holds {truncated_repr(value if text is None else text)}, which is not a version, so it is unknown what the fleet should run, "
        f"and nothing is admitted. Write the version that it should run, such as 2.0 (consul kv put {key} 2.0).",
        key=key,
    )


def version_in_key(text: str) -> str:
    """Return the version that is part of a host's key. An invalid one gets quotes, so that it equals no valid version."""
    return text if is_valid_version(text) else truncated_repr(text)


def decode_ledger(key: str, value: bytes) -> Ledger:
    """Return the ledger.

    :raises UpgradeError: ``unreadable_ledger``.
    """
    try:
        data = decode_data(value)
        if not isinstance(data, dict):
            raise ValueError("it is not a mapping of names to values")
        missing = [name for name in ("epoch", "version") if name not in data]
        if missing:
            raise ValueError(f"it has no {' and no '.join(missing)}")
        return _ledger_from(data)
    except (ValueError, TypeError) as error:
        raise UpgradeError(
            "unreadable_ledger",
            f"The ledger {key} can't be read ({error}), so the rules are unknown and no host is admitted. "
            f"Restore it from a backup, or delete {key} so that the next consul_upgrade_plan begins a new one.",
            key=key,
        ) from error


def ledger_of_versions(ledger: Ledger) -> Ledger | None:
    """Return the ledger as rollouts to versions see it: that of the last one, at the epoch of the job that came after it.

    None if there was none before the job.

    :raises ValueError, TypeError: if it can't be read.
    """
    if not ledger.is_job:
        return ledger
    if not ledger.before:
        return None
    return replace(
        _ledger_from(ledger.before),
        epoch=ledger.epoch,
        commit=ledger.commit,
        rollouts=ledger.rollouts,
        history_from=ledger.history_from,
    )


def before_job(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as a job keeps it in ``before``."""
    if ledger.is_job:
        return dict(ledger.before)
    kept = replace(ledger, commit="", rollouts=(), history_from=1)
    found: dict[str, Any] = json.loads(encode_ledger(kept))
    return found


def _ledger_from(data: Mapping[str, Any]) -> Ledger:
    """Return the ledger from parsed data."""
    fields = {name: _plain(name, data[name]) for name in _LEDGER_FIELDS if name in data}
    stage = fields.get("stage")
    if isinstance(stage, dict) and "done_at" in stage and _STAGE_BEHIND in data:
        fields["stage"] = {**stage, "done_at_behind": data[_STAGE_BEHIND]}
    return Ledger(**fields)


def _plain(name: str, value: Any) -> Any:
    # A pattern may need characters that can't be printed.
    found = value if name == "role_pattern" else sanitize_all(value)
    if name == "targets" and isinstance(found, dict):
        return {one: tuple(texts) if isinstance(texts, list) else texts for one, texts in found.items()}
    return tuple(found) if name in _LEDGER_LISTS and isinstance(found, list) else found


def sanitize_all(data: Any) -> Any:
    """Return plain data with all texts sanitized, those of names included."""
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
        if value is not None and value is not False and value not in ({}, ()) and (name, value) not in _LEDGER_DEFAULTS
    }
    if "done_at_behind" in ledger.stage:
        data["stage"] = {name: value for name, value in ledger.stage.items() if name != "done_at_behind"}
        data[_STAGE_BEHIND] = ledger.stage["done_at_behind"]
    return json.dumps(data, sort_keys=True)


def decode_hold(key: str, value: bytes) -> Hold:
    """Return a hold; a value that can't be read is a hold without reason and name."""
    try:
        data = decode_data(value)
        given = {name: _short_text(data[name]) for name in ("reason", "by", "at") if data.get(name) not in (None, "")}
        return Hold(key, **given, allow_unknown=data.get("allow_unknown") is True)
    except (ValueError, TypeError, AttributeError):
        text = (text_of(value) or "").strip()
        return Hold(key, reason=truncate_middle(text)) if text and text.isprintable() else Hold(key)


def encode_hold(hold: Hold) -> str:
    """Return a hold as it is stored."""
    facts = {"reason": hold.reason, "by": hold.by, "at": hold.at, "allow_unknown": hold.allow_unknown}
    return json.dumps({name: value for name, value in facts.items() if value}, sort_keys=True)


def decode_health_mark(value: bytes) -> HealthMark | None:
    """Return the health mark of a host; None if it can't be read, so that planners begin a new one."""
    try:
        data = decode_data(value)
        since, reported, behind = (
            None if data.get(name) is None else decode_time(data[name])
            for name in ("since", "reported", "since_behind")
        )
        upgraded, lost = data.get("upgraded") is True, data.get("lost") is True
        return HealthMark(str(data["version"]), since, upgraded, reported, lost, behind)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def encode_health_mark(mark: HealthMark) -> str:
    """Return a health mark as it is stored."""
    return json.dumps(mark.plain(), sort_keys=True)


def health_mark_flags(before: HealthMark | None, now: int) -> int:
    """Return the flags of a health mark's key: when it is written (unix seconds), and in the low byte how many times so far."""
    return now << 8 | min(255, (before.written if before is not None else 0) + 1)


def decode_approval(value: bytes) -> Approval | None:
    """Return an approval, None if the value does not approve or can't be read.

    Any text approves, so that an operator can write one by hand, except words such as ``no`` and ``false``. JSON approves if it has ``by``
    or ``at``, which :func:`encode_approval` always writes.
    """
    text = (text_of(value) or "").strip(" \t\r\n\"'")
    if not text.startswith(("{", "[")):
        return (
            Approval(UNKNOWN_OPERATOR, 0, truncate_middle(text))
            if text.isprintable() and text.lower() not in _NO
            else None
        )
    try:
        data = decode_data(value)
        by, given_at, reason = data.get("by"), data.get("at"), data.get("reason") or ""
    except (ValueError, AttributeError):
        return None
    at = given_at if is_time(given_at) else 0
    return Approval(_short_text(by or UNKNOWN_OPERATOR), at, _short_text(reason)) if by or at else None


def encode_approval(approval: Mapping[str, object]) -> str:
    """Return an approval as it is stored.

    :param approval: ``by``, ``at`` (unix seconds) and ``reason``.
    """
    return json.dumps(dict(approval), sort_keys=True)


def _short_text(value: object) -> str:
    return truncate_middle(sanitize(str(value)))


def is_count(value: object) -> bool:
    """Return whether a value is a whole number from 0 on that is small enough for arithmetic, such as a count of attempts."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def decode_time(value: Any) -> int:
    """Return a unix time in seconds.

    :raises ValueError, TypeError, OverflowError: if it is not a number, or out of range.
    """
    at = int(value)
    if not 0 <= at < LATEST:
        raise ValueError(f"{truncated_repr(value)} is not a unix time")
    return at
