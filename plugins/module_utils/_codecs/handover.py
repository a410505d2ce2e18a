# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Handovers of rollouts to planner services, and the answers of these."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from .._common.clock import is_time
from .._common.names import is_valid_target
from .._fleet.ledger import Handover, PlannerAnswer
from .values import decode_data, sanitize_all


def decode_handover(value: bytes) -> Handover:
    """Return a handover.

    :raises ValueError: if it can't be read, or has a field that this release does not know and that may forbid an admission. Its text is
        the end of a sentence.
    """
    data: Any = sanitize_all(decode_data(value))
    if not isinstance(data, dict):
        raise ValueError("it is not a mapping of names to values")
    known = [one.name for one in fields(Handover)]
    odd = sorted(set(data) ^ set(known))
    if odd:
        raise ValueError(f"it {'has the unknown field' if odd[0] in data else 'lacks the field'} {odd[0]}")
    limit = data["limit"]
    fits = (
        isinstance(data["version"], str)
        and is_valid_target(data["version"])
        and is_time(data["since"])
        and is_time(data["at"])
        and isinstance(data["id"], str)
        and isinstance(data["by"], str)
        and (limit is None or (isinstance(limit, list) and bool(limit) and all(isinstance(one, str) for one in limit)))
    )
    if not fits:
        raise ValueError("it has a field with an unknown value")
    return Handover(**{**data, "limit": None if limit is None else tuple(limit)})


def id_of(value: bytes) -> str:
    """Return the ID of a handover that can't be read otherwise; empty if it has none."""
    try:
        data: Any = sanitize_all(decode_data(value))
    except ValueError:
        return ""
    return str(data.get("id") or "") if isinstance(data, dict) else ""


def encode_handover(handover: Handover) -> str:
    """Return a handover as it is stored."""
    return json.dumps(asdict(handover), sort_keys=True)


def decode_answer(value: bytes) -> PlannerAnswer | None:
    """Return the answer in the key of a planner service; None if it has none."""
    try:
        data: Any = sanitize_all(decode_data(value))
    except ValueError:
        return None
    if not isinstance(data, dict) or not data.get("handover"):
        return None
    return PlannerAnswer(str(data["handover"]), str(data.get("refusal") or ""))
