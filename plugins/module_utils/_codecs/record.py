# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode and encode host records. All texts of a decoded record are sanitized and truncated, whatever the host wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import check_version
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._fleet.checkpoints import MOST_DONE
from .._fleet.failures import MOST_ERROR, Failure, newest_failures
from .._fleet.fleet import FAILED, POST_STATES, RECORD_STATES, HostRecord
from .._fleet.former_rollouts import FIELDS, newest_rollouts
from .._fleet.step_trail import StepStart, newest_steps
from .values import decode_data, decode_time, is_count

# In characters. Planners write many records in one transaction, and Consul takes half a megabyte.
_LONGEST_ERROR = 4200
LONGEST_NAME = 255
_MOST_TIMES = 20
_MOST_UNITS = 2500
# In bytes. The size of a record as planners write it, and the size up to which a host's value can't exceed that.
_MOST_RECORD = 100_000
_SMALL_RECORD = 25_000
_TEXTS = (
    "service",
    "step",
    "error",
    "reported",
    "origin",
    "held",
    "machine",
    "other_machine",
    "release",
    "role",
    "services",
    "next_step",
    "former_role",
)


def decode_record(key: str, value: bytes, index: int = 0) -> HostRecord:
    """Return a host's record; one that can't be read counts as failed, so that the host keeps its slot.

    Long texts are truncated, but names and lists that are too long make the record unreadable.

    :param index: the key's ModifyIndex in Consul; 0 if it does not matter.
    """
    try:
        record = _record(decode_data(value), index)
        if len(value) > _SMALL_RECORD and (size := len(encode_record(record))) > _MOST_RECORD:
            raise ValueError(f"it would take {size} bytes, and at most {_MOST_RECORD} are allowed")
        return record
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        return unreadable_record(key, error, index)


def unreadable_record(key: str, error: Exception, index: int = 0) -> HostRecord:
    """Return the record for a value that can't be read: failed, with the reason."""
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return HostRecord(
        version="",
        state=FAILED,
        error=f"the record {key} can't be read ({reason}); let the host report again, or delete the key",
        readable=False,
        index=index,
    )


def _record(data: Any, index: int = 0) -> HostRecord:
    texts = {name: _optional_text(data.get(name)) for name in _TEXTS}
    version, state, attempt = data["version"], data["state"], data.get("attempt", 1)
    if not _is_version(version) or state not in RECORD_STATES or not is_count(attempt):
        raise ValueError(
            f"version {truncated_repr(version)}, state {truncated_repr(state)}, attempt {truncated_repr(attempt)}"
        )
    return HostRecord(
        version,
        state,
        _truncated(texts["service"], LONGEST_NAME),
        _truncated(texts["step"], LONGEST_NAME),
        attempt,
        _truncated(texts["error"], _LONGEST_ERROR),
        _times(data.get("times")),
        _name(texts["reported"]),
        _units(data.get("done")),
        _post(data.get("post")),
        _name(texts["origin"]),
        _trail(data.get("trail")),
        _former(data.get("former")),
        _truncated(texts["held"], LONGEST_NAME),
        decode_failures(data.get("failures")),
        _truncated(texts["machine"], LONGEST_NAME),
        _truncated(texts["other_machine"], LONGEST_NAME),
        _truncated(texts["release"], LONGEST_NAME),
        _truncated(texts["role"], LONGEST_NAME),
        _truncated(texts["services"], LONGEST_NAME),
        _truncated(texts["next_step"], LONGEST_NAME),
        _truncated(texts["former_role"], LONGEST_NAME),
        index=index,
    )


def encode_record(record: HostRecord) -> str:
    """Return a host's record as it is stored."""
    return json.dumps(record.slim(), sort_keys=True)


def _truncated(text: str | None, most: int) -> str | None:
    return None if text is None else truncate_middle(sanitize(text), most)


def _name(text: str | None) -> str | None:
    if text is not None and len(text) > LONGEST_NAME:
        raise ValueError(f"{truncated_repr(text)} is too long for a name")
    return None if text is None else sanitize(text)


def _optional_text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{truncated_repr(value)} is not a text")
    return value


def _units(value: object) -> tuple[str, ...]:
    if value is not None and not (isinstance(value, list) and all(isinstance(unit, str) for unit in value)):
        raise ValueError(f"done {truncated_repr(value)}")
    if sum(map(len, value or ())) > MOST_DONE:
        raise ValueError(f"done has more than {MOST_DONE} characters")
    if len(value or ()) > _MOST_UNITS:
        raise ValueError(f"done has {len(value or ())} entries, and at most {_MOST_UNITS} are allowed")
    return tuple(map(sanitize, value or ()))


def _post(value: object) -> str | None:
    if value is not None and value not in POST_STATES:
        raise ValueError(f"post {truncated_repr(value)}")
    return str(value) if value is not None else None


def _times(value: object) -> Mapping[str, int]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MOST_TIMES or any(len(name) > LONGEST_NAME for name in value):
        raise ValueError(f"times {truncated_repr(value)}")
    return {sanitize(name): decode_time(at) for name, at in value.items()}


def _trail(value: object) -> tuple[StepStart, ...]:
    """Return the steps that a host went through. Entries that can't be read are left out, because no plan depends on them."""
    found = []
    for one in value if isinstance(value, list) else ():
        try:
            at, service, step = one
            texts = (sanitize(_optional_text(text) or "") for text in (service, step))
            found.append(StepStart(decode_time(at), *texts))
        except (ValueError, TypeError, OverflowError):
            continue
    return newest_steps(found)


def decode_failures(value: object) -> tuple[Failure, ...]:
    """Return a host's failures. Entries that can't be read are left out: the record's state and its time say whether the host failed."""
    found = []
    for one in value if isinstance(value, list) else ():
        try:
            at, attempt, service, step, error, total = one
            if not (is_count(attempt) and is_count(total)):
                continue
            service, step = (
                truncate_middle(sanitize(_optional_text(text) or ""), LONGEST_NAME) for text in (service, step)
            )
            text = sanitize(_optional_text(error) or "")[-MOST_ERROR:]
            found.append(Failure(decode_time(at), attempt, service, step, text, max(1, total)))
        except (ValueError, TypeError, OverflowError):
            continue
    return newest_failures(found)


def _former(value: object) -> tuple[HostRecord, ...]:
    """Return a host's former rollouts. Entries that can't be read are left out.

    No admission depends on them, but a push run learns from them that services of the host may be stopped.
    """
    found = []
    for one in value if isinstance(value, list) else ():
        try:
            found.append(_record({name: one[name] for name in FIELDS if name in one}))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            continue
    return newest_rollouts(found)


def _is_version(value: object) -> bool:
    # Planners publish it as part of a key.
    try:
        return bool(check_version(value, "version"))
    except UpgradeError:
        return False
