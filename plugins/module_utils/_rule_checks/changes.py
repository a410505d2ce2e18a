# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the rules of a running rollout to other ones: what would be lost unsaid, and what changed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import listing
from .._common.sanitize import truncate_middle
from .._rules.instructions import KEYS, ROLLBACK_ORDER, name_of

# Of all rules in a sentence, and of one key's rules in an entry of the history (characters).
_MOST_RULES = 2000
_MOST_OF_A_KEY = 500
_EMPTY = {**dict.fromkeys(("stages", "windows", "freezes", "optional_names"), "[]"), ROLLBACK_ORDER: '""'}


def named_in(given: Mapping[str, Any]) -> set[str]:
    """Return the keys that instructions give, by their stored names: those that are empty on purpose too, but no null."""
    return {name_of(key) for key, value in given.items() if value is not None}


def refuse_left_out(stored: Mapping[str, Any], named: Collection[str], version: str, key: str) -> None:
    """Refuse instructions that would end rules of a running rollout without a word.

    :param stored: the rules that hold now.
    :param named: the keys that the new ones give.
    :param version: where the rollout goes.
    :param key: of the ledger.
    :raises UpgradeError: ``rules_left_out``, with the keys in ``missing`` and the rules that hold in ``instructions``.
    """
    held = [name_of(name) for name, value in stored.items() if value and name in KEYS]
    missing = [name for name in held if name not in named]
    if not missing:
        return
    empty = ", ".join(f"{name}: {_EMPTY.get(name, '{}')}" for name in missing)
    raise UpgradeError(
        "rules_left_out",
        f"instructions: {listing(missing, len(KEYS))} {'is' if len(missing) == 1 else 'are'} not given, and the rollout to "
        f"{version} has {'it' if len(missing) == 1 else 'them'} in {key}. Instructions take the place of all that hold, so "
        f"nothing is changed. Give all rules that are to hold from now on, on the ground of those that do: "
        f"{truncate_middle(_text(stored), _MOST_RULES)}. Or end what is not given on purpose, with an empty value: {empty}.",
        missing=missing,
        instructions=dict(stored),
    )


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the keys whose rules are others, with these ``before`` and ``after`` as JSON, empty where there were none."""
    return {
        name: {"before": _of_key(before, name), "after": _of_key(after, name)}
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }


def _of_key(rules: Mapping[str, Any], name: str) -> str:
    return truncate_middle(_text(rules[name]), _MOST_OF_A_KEY) if name in rules else ""


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
