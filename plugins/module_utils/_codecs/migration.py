# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode and encode the keys on the layout itself: its version and its migration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._common.errors import UpgradeError
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._fleet.migration import KEPT, RUNNING, STATES, Migration
from .values import MOST, decode_data, decode_time


def decode_migration(value: bytes) -> Migration:
    """Return the progress of a migration; a value that can't be read counts as a migration under way."""
    try:
        data = decode_data(value)
        state, by = data["state"], data.get("by", "unknown")
        origin, target, done, total = (_count(data.get(name, 0)) for name in ("from", "to", "done", "of"))
        since = decode_time(data.get("since", 0))
        if state not in STATES:
            raise ValueError(f"state {truncated_repr(state)}")
        phase, by = (truncate_middle(sanitize(str(text))) for text in (data.get("phase", ""), by))
        return Migration(state, origin, target, phase, done, total, by, since)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Migration(RUNNING, readable=False)


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < MOST:
        raise ValueError(f"{truncated_repr(value)} is not a count")
    return value


def encode_migration(migration: Migration, holder: Mapping[str, object] | None = None) -> str:
    """Return a migration as it is stored. A finished one has no progress and no holder, so that its value is always the same.

    :param holder: the fields of the run that migrates.
    """
    data: dict[str, object] = {"state": migration.state, "from": migration.origin, "to": migration.target}
    if migration.state != KEPT:
        data |= {"phase": migration.phase, "done": migration.done, "of": migration.total, **(holder or {})}
    return json.dumps(data, sort_keys=True)


def release_number(release: str) -> int:
    """Return a release as a number for the flags of the layout's version: ``1.2.3`` is 1002003."""
    major, minor, patch = (int(part) for part in release.split("."))
    return (major * 1000 + minor) * 1000 + patch


def release_of(number: int) -> str:
    """Return the release that :func:`release_number` made a number of, empty for 0."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}" if number else ""


def decode_schema(key: str, value: bytes) -> int:
    """Return the version of the layout.

    :raises UpgradeError: ``unreadable_schema``.
    """
    try:
        return int(value)
    except ValueError as error:
        raise UpgradeError(
            "unreadable_schema",
            f"{key} holds {truncated_repr(value)}, which is not a version of the layout. Restore it from a backup, or delete it.",
            key=key,
        ) from error
