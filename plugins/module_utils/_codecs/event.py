# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode and encode entries of the history. All fields of a decoded entry have valid values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._common.clock import is_time
from .._common.names import is_valid_target
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._fleet.ledger import MOST_EPOCH
from .values import decode_data, sanitize_all

# In characters. Consul takes half a megabyte per transaction, and gates are written in the same one.
_MOST_IN_EVENT = 20_000
# The fields of an entry that are text.
_TEXTS = ("who", "by", "reason", "commit", "from", "stage")


def encode_event(event: Mapping[str, Any]) -> str:
    """Return an entry of the history as it is stored. Long texts are truncated, except those of the rules."""
    count = sum(len(event[name]) for name in ("hosts", "roles") if isinstance(event.get(name), Mapping))
    most = max(100, min(2000, _MOST_IN_EVENT // max(1, count)))
    return json.dumps(
        {name: value if name == "instructions" else _truncated(value, most) for name, value in event.items()},
        sort_keys=True,
    )


def decode_event(epoch: int, value: bytes) -> dict[str, Any] | None:
    """Return an entry of the history, None if it can't be read or lacks ``what``, ``at`` or ``version``.

    Other fields are left out if they do not have the form that planners write.

    :param epoch: the epoch in the entry's key.
    """
    try:
        found = sanitize_all(decode_data(value))
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    what, at, version = found.get("what"), found.get("at"), found.get("version")
    if not (isinstance(what, str) and what and is_time(at) and is_valid_target(version)):
        return None
    event: dict[str, Any] = {**found, "epoch": epoch}
    for name in _TEXTS:
        if name in event and not isinstance(event[name], str):
            del event[name]
    for name in ("hosts", "roles", "instructions", "changed"):
        if name in event and not isinstance(event[name], dict):
            del event[name]
    for name in ("keys", "held", "at_work"):
        if name in event and not _are_texts(event[name]):
            del event[name]
    if "hosts" in event:
        event["hosts"] = {host: _text(why) for host, why in event["hosts"].items()}
    if "roles" in event:
        event["roles"] = {role: _of_role(one) for role, one in event["roles"].items()}
    return event


def _of_role(value: Any) -> dict[str, Any]:
    """Return an entry's value for a role: ``hosts``, their number, and ``reason``."""
    found = dict(value) if isinstance(value, dict) else {"reason": value}
    hosts = found.get("hosts", 0)
    if not isinstance(hosts, int) or isinstance(hosts, bool) or not 0 <= hosts <= MOST_EPOCH:
        del found["hosts"]
    return {**found, "reason": _text(found["reason"])} if "reason" in found else found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else sanitize(truncated_repr(value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _truncated(value: Any, most: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _truncated(one, most) for name, one in value.items()}
    return truncate_middle(value, most) if isinstance(value, str) else value
