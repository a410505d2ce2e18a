# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``history`` of the instructions: how many rollouts the history keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .._common.strict_values import invalid_value, parse_mapping, parse_number_text, refuse_unknown_keys

DEFAULT_KEPT = 50
# A run or a notifier that is late by one rollout still finds the entries that it has not read.
LEAST_KEPT = 2
# The ledger has a number for each.
MOST_KEPT = 1000

_NUMBER = re.compile("[0-9]{1,12}")
_KEYS = ("keep_rollouts",)


@dataclass(frozen=True, slots=True)
class HistoryRules:
    """What the history keeps.

    :param keep_rollouts: how many rollouts have entries in the history, the current one included.
    """

    keep_rollouts: int = DEFAULT_KEPT

    def plain(self) -> dict[str, int]:
        """Return the rules as they are stored."""
        return {"keep_rollouts": self.keep_rollouts} if self.keep_rollouts != DEFAULT_KEPT else {}


def parse_history_rules(value: object) -> HistoryRules:
    """Return the parsed ``history`` of the instructions.

    :raises UpgradeError: ``bad_instructions``.
    """
    raw = parse_mapping(value, "history")
    refuse_unknown_keys(raw, _KEYS, "history.")
    given = raw.get("keep_rollouts")
    return HistoryRules() if given is None else HistoryRules(_number(given))


def _number(value: object) -> int:
    text = parse_number_text(value)
    if not _NUMBER.fullmatch(text) or not LEAST_KEPT <= int(text) <= MOST_KEPT:
        raise invalid_value(
            "history.keep_rollouts",
            value,
            f"is not a number of rollouts from {LEAST_KEPT} (the current one and the one before) to {MOST_KEPT}",
        )
    return int(text)
