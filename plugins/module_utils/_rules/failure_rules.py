# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``failure_rules`` of the instructions: the failure budgets, that is, how many failed or lost hosts stop a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.strict_values import invalid_value, parse_mapping, refuse_unknown_keys
from .caps import Cap, parse_cap

_KEYS = ("global", "roles", "fleet")


@dataclass(frozen=True, slots=True)
class FailureRules:
    """The failure budgets: the number of failed or lost hosts at which no further host is admitted.

    :param default: the budget of each role or group that has none of its own; None for no such budget.
    :param own: role or group -> its own budget.
    :param fleet: the budget of all hosts together; None for no such budget.
    """

    default: Cap | None = None
    own: Mapping[str, Cap] = field(default_factory=dict)
    fleet: Cap | None = None

    def plain(self) -> dict[str, Any]:
        """Return the rules as they are stored."""
        plain: dict[str, Any] = {}
        if self.default is not None:
            plain["global"] = self.default.plain()
        if self.own:
            plain["roles"] = {name: cap.plain() for name, cap in sorted(self.own.items())}
        if self.fleet is not None:
            plain["fleet"] = self.fleet.plain()
        return plain


def parse_failure_rules(value: object) -> FailureRules:
    """Return the parsed ``failure_rules`` of the instructions.

    :raises UpgradeError: ``bad_instructions``.
    """
    raw = parse_mapping(value, "failure_rules")
    refuse_unknown_keys(raw, _KEYS, "failure_rules.")
    roles = parse_mapping(raw.get("roles"), "failure_rules.roles")
    return FailureRules(
        _number(raw.get("global"), "failure_rules.global"),
        {name: found for name, one in roles.items() if (found := _number(one, f"failure_rules.roles.{name}"))},
        _number(raw.get("fleet"), "failure_rules.fleet"),
    )


def _number(value: object, key: str) -> Cap | None:
    if value is None:
        return None
    cap = parse_cap(value, key)
    if not cap.amount:
        raise invalid_value(key, value, "would stop a rollout before it begins; 1 stops it at the first failure")
    return cap
