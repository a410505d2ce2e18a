# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules from several sources: where two of them disagree, and which source each rule in force comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The names of the sources of rules that are not among the instructions of a call.
LEDGER, ADDED_ORDER = "the ledger", "upgrade_roles"


@dataclass(frozen=True, slots=True)
class RuleSource:
    """Rules from one source.

    :param name: the name of the source, such as ``instructions`` or a file.
    :param rules: the rules as they are stored, and keys with empty values.
    :param is_default: whether it is the default file, which applies when a rollout begins, and beside rules of the call.
    """

    name: str
    rules: Mapping[str, Any]
    is_default: bool = False


def of_call(sources: Sequence[RuleSource]) -> tuple[RuleSource, ...]:
    """Return the sources that a call names itself, without the default file."""
    return tuple(one for one in sources if not one.is_default)


def leaves(rules: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield key and value of each rule; the key is as in messages, such as ``rolling_rules.roles.compute``."""
    for name, value in sorted(rules.items()):
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, key)
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            yield from ((f"{key}[{at}]", one) for at, one in enumerate(value))
        else:
            yield key, value


def disagreements(one: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield key and both values of each rule that both sources have with different values."""
    for name in sorted({*one} & {*other}):
        key, value, other_value = f"{above}.{name}" if above else str(name), one[name], other[name]
        if isinstance(value, Mapping) and isinstance(other_value, Mapping):
            yield from disagreements(value, other_value, key)
        elif value != other_value:
            yield key, value, other_value


def origins(
    in_force: Mapping[str, Any], sources: Sequence[RuleSource], more_order: Mapping[str, Any]
) -> dict[str, str]:
    """Return key -> the name of the source of each rule in force.

    :param sources: the source with the highest precedence last. A rule that none of them has is from the ledger.
    :param more_order: the ``role_order`` that was added, as it is stored.
    """
    given = [(one.name, dict(leaves(one.rules))) for one in sources]
    given.append((ADDED_ORDER, dict(leaves(more_order))))
    found = {}
    for key, value in leaves(in_force):
        whole = [name for name, rules in given if key in rules and rules[key] == value]
        parts = [name for name, rules in given if isinstance(value, list) and _is_part(rules.get(key), value)]
        found[key] = whole[-1] if whole else " and ".join(parts) or LEDGER
    return found


def _is_part(some: Any, value: list[Any]) -> bool:
    return isinstance(some, list) and bool(some) and all(one in value for one in some)
