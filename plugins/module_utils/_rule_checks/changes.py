# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of a rollout's rules: keys that new instructions leave out, and what changed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import listing
from .._common.sanitize import truncate_middle
from .._rules.instructions import KEYS, ROLLBACK_ORDER, name_of

# The longest text of all rules in a message, and of one key's rules in an entry of the history (characters).
_MOST_RULES = 2000
_MOST_OF_A_KEY = 500
_EMPTY = {
    **dict.fromkeys(("stages", "windows", "freezes", "optional_names", "health.consul_checks"), "[]"),
    **dict.fromkeys(("rolling_rules.global", "rolling_rules.fleet", "health.soak", "health.progress_deadline"), "null"),
    **dict.fromkeys(("failure_rules.global", "failure_rules.fleet"), "null"),
    "rolling_rules.complete_sets": "false",
    ROLLBACK_ORDER: '""',
}
# Keys with rules of their own, each of which is given again or removed by itself.
WITH_RULES = ("rolling_rules", "failure_rules", "health")


def named_in(given: Mapping[str, Any]) -> set[str]:
    """Return the stored names of the keys that instructions have, also with empty values, but without nulls."""
    return {name_of(key) for key, value in given.items() if value is not None}


def refuse_left_out(
    stored: Mapping[str, Any], given: Mapping[str, Any], version: str, key: str, more: Collection[str] = ()
) -> None:
    """Raise an error if new instructions leave out rules of a rollout that has not ended, also single caps and budgets.

    :param stored: the current rules.
    :param given: the new instructions.
    :param version: the target of the rollout.
    :param key: the Consul key of the ledger.
    :param more: further keys that count as given.
    :raises UpgradeError: ``rules_left_out``; its details have the keys in ``missing`` and the current rules in ``instructions``.
    """
    named = named_in(given) | {*more}
    current = [name_of(name) for name, value in stored.items() if value and name in KEYS]
    missing = [name for name in current if name not in named]
    for name in WITH_RULES:
        missing += _left_out(stored.get(name), given.get(name), name)
    if not missing:
        return
    empty = ", ".join(f"{name}: {_EMPTY.get(name, '{}')}" for name in missing)
    raise UpgradeError(
        "rules_left_out",
        f"instructions: {listing(missing, len(KEYS))} {'is' if len(missing) == 1 else 'are'} missing, but the rollout to "
        f"{version} has {'it' if len(missing) == 1 else 'them'} in {key}. Instructions replace all rules of the rollout, so "
        f"nothing is changed. Give all rules again; the current ones are {truncate_middle(_text(stored), _MOST_RULES)}. "
        f"To remove the missing ones, give empty values: {empty}.",
        missing=missing,
        instructions=dict(stored),
    )


def _left_out(stored: object, given: object, place: str) -> list[str]:
    """Return the names below a key that new instructions leave out. An empty mapping removes them all."""
    if not (isinstance(stored, Mapping) and isinstance(given, Mapping) and given):
        return []
    # A cap of 0 is stored too.
    return [f"{place}.{name}" for name in stored if name not in given]


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the keys whose rules changed, each with ``before`` and ``after`` as JSON; empty for a key without rules."""
    return {
        name: {"before": _of_key(before, name), "after": _of_key(after, name)}
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }


def _of_key(rules: Mapping[str, Any], name: str) -> str:
    return truncate_middle(_text(rules[name]), _MOST_OF_A_KEY) if name in rules else ""


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
