# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entries of the history, from what stands in Consul and back. Whoever reads them after this meets valid values alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._common.clock import is_time
from .._common.names import is_valid_version
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._fleet.ledger import MOST_EPOCH
from .codec import decode_data, sanitize_all

# In characters. Consul takes no more than half a megabyte, beside what the gates in the same transaction take.
_MOST_IN_EVENT = 20_000
# What an entry says in a text, if it does.
_TEXTS = ("who", "by", "reason", "commit", "from", "stage")


def encode_event(event: Mapping[str, Any]) -> str:
    """Return an entry of the history as it is stored: the rules as they are, and reasons cut so that all have room."""
    told = sum(len(event[name]) for name in ("hosts", "roles") if isinstance(event.get(name), Mapping))
    most = max(100, min(2000, _MOST_IN_EVENT // max(1, told)))
    return json.dumps(
        {name: value if name == "instructions" else _cut(value, most) for name, value in event.items()}, sort_keys=True
    )


def decode_event(epoch: int, value: bytes) -> dict[str, Any] | None:
    """Return an entry of the history, None for one that can't be read: it has to say what was done, when, and for which version.

    What else it has is left out where it has another form than what planners write.

    :param epoch: that its key has.
    """
    try:
        found = sanitize_all(decode_data(value))
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    what, at, version = found.get("what"), found.get("at"), found.get("version")
    if not (isinstance(what, str) and what and is_time(at) and is_valid_version(version)):
        return None
    event: dict[str, Any] = {**found, "epoch": epoch}
    for name in _TEXTS:
        if name in event and not isinstance(event[name], str):
            del event[name]
    for name in ("hosts", "roles", "instructions", "changed"):
        if name in event and not isinstance(event[name], dict):
            del event[name]
    for name in ("keys", "held"):
        if name in event and not _are_texts(event[name]):
            del event[name]
    if "hosts" in event:
        event["hosts"] = {host: _text(why) for host, why in event["hosts"].items()}
    if "roles" in event:
        event["roles"] = {role: _of_role(one) for role, one in event["roles"].items()}
    return event


def _of_role(value: Any) -> dict[str, Any]:
    """Return what an entry says of a role: how many of its hosts, and why."""
    found = dict(value) if isinstance(value, dict) else {"reason": value}
    hosts = found.get("hosts", 0)
    if not isinstance(hosts, int) or isinstance(hosts, bool) or not 0 <= hosts <= MOST_EPOCH:
        del found["hosts"]
    return {**found, "reason": _text(found["reason"])} if "reason" in found else found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else sanitize(truncated_repr(value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(one, most) for name, one in value.items()}
    return truncate_middle(value, most) if isinstance(value, str) else value
