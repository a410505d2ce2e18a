# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instructions: the rules of a rollout, read strictly, merged, and written back in one form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .caps import Cap, parse_cap
from .errors import UpgradeError
from .names import nearest

# `role_dependencies` is what python-jiocloud called `role_order` later on; both are found in operators' files.
_ORDER_KEYS = ("role_order", "role_dependencies")
_KEYS = ("rolling_rules", "group_mappings", *_ORDER_KEYS)
_LATER = ("failure_rules", "health")
_ROLLING_KEYS = ("global", "roles", "fleet", "complete_sets")


@dataclass(frozen=True, slots=True)
class Instructions:
    """The rules of a rollout.

    :param default_cap: of every role or group that has none of its own; None for no cap.
    :param caps: role or group -> its own cap.
    :param fleet_cap: over all hosts, on top of the others.
    :param complete_sets: open the next hosts only when none is upgrading.
    :param order: role or group -> the roles or groups that must be wholly upgraded first.
    :param groups: group -> regexes over role names, matched at their start.
    """

    default_cap: Cap | None = None
    caps: Mapping[str, Cap] = field(default_factory=dict)
    fleet_cap: Cap | None = None
    complete_sets: bool = False
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the one form in which rules are stored and compared."""
        rolling: dict[str, Any] = {}
        if self.default_cap is not None:
            rolling["global"] = self.default_cap.plain()
        if self.caps:
            rolling["roles"] = {name: cap.plain() for name, cap in sorted(self.caps.items())}
        if self.fleet_cap is not None:
            rolling["fleet"] = self.fleet_cap.plain()
        if self.complete_sets:
            rolling["complete_sets"] = True
        plain: dict[str, Any] = {"rolling_rules": rolling} if rolling else {}
        if self.order:
            plain["role_order"] = {name: list(first) for name, first in sorted(self.order.items())}
        if self.groups:
            plain["group_mappings"] = {name: list(found) for name, found in sorted(self.groups.items())}
        return plain


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``over`` laid on it key by key: where both have a mapping, its keys are merged too."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def with_order(rules: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules with further ``role_order`` added: nothing that they say is replaced.

    :raises UpgradeError: ``bad_instructions``.
    """
    parsed = parse(rules)
    added = _order({"role_order": more})
    order = {name: list(first) for name, first in parsed.order.items()}
    for name, first in added.items():
        known = order.setdefault(name, [])
        known.extend(one for one in first if one not in known)
    return {**parsed.plain(), "role_order": order} if order else parsed.plain()


def parse(raw: Mapping[str, Any]) -> Instructions:
    """Return the rules that plain data means.

    :raises UpgradeError: ``bad_instructions``, naming the key and the value.
    """
    _only(raw, _KEYS, "")
    rolling = _mapping(raw.get("rolling_rules"), "rolling_rules")
    _only(rolling, _ROLLING_KEYS, "rolling_rules.")
    roles = _mapping(rolling.get("roles"), "rolling_rules.roles")
    complete_sets = rolling.get("complete_sets", False)
    if not isinstance(complete_sets, bool):
        raise _refused("rolling_rules.complete_sets", complete_sets, "is neither true nor false")
    return Instructions(
        default_cap=_optional_cap(rolling, "global"),
        caps={name: parse_cap(value, f"rolling_rules.roles.{name}") for name, value in roles.items()},
        fleet_cap=_optional_cap(rolling, "fleet"),
        complete_sets=complete_sets,
        order=_order(raw),
        groups=_groups(_mapping(raw.get("group_mappings"), "group_mappings")),
    )


def _refused(key: str, value: object, why: str) -> UpgradeError:
    return UpgradeError("bad_instructions", f"instructions: {key}: {value!r} {why}.", key=key, value=str(value))


def _only(raw: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
    for key in raw:
        if key in known:
            continue
        if not prefix and key in _LATER:
            raise _refused(key, raw[key], f"can't be obeyed: {key} is not yet supported, so leave it out")
        names = ", ".join(prefix + name for name in known)
        raise UpgradeError(
            "bad_instructions",
            f"instructions: {prefix}{key}: unknown key{nearest(str(key), known) or '.'} Known are: {names}.",
            key=f"{prefix}{key}",
            value=str(raw[key]),
        )


def _mapping(value: object, key: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refused(key, value, "is not a mapping of names to values")
    for name in value:
        if not isinstance(name, str) or not name:
            raise _refused(key, name, "is not a name; put it in quotes")
    return value


def _optional_cap(rolling: Mapping[str, Any], name: str) -> Cap | None:
    return parse_cap(rolling[name], f"rolling_rules.{name}") if rolling.get(name) is not None else None


def _texts(value: object, key: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise _refused(key, value, "is neither a text nor a list of texts")
    return tuple(dict.fromkeys(texts))


def _order(raw: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    found = {
        key: {name: _texts(first, f"{key}.{name}") for name, first in _mapping(raw[key], key).items()}
        for key in _ORDER_KEYS
        if raw.get(key) is not None
    }
    if len(found) == 2:
        by_name, by_old_name = (found[key] for key in _ORDER_KEYS)
        for name in sorted({*by_name, *by_old_name}):
            if set(by_name.get(name, ())) != set(by_old_name.get(name, ())):
                raise _refused(
                    f"role_order.{name}",
                    list(by_name.get(name, ())),
                    f"disagrees with role_dependencies.{name}, which is {list(by_old_name.get(name, ()))!r}; "
                    "the two are names of one rule, so keep one of them",
                )
    order = next(iter(found.values()), {})
    cycle = find_cycle(order)
    if cycle:
        raise UpgradeError(
            "bad_instructions",
            f"instructions: role_order: a cycle, in which none could ever begin: {' waits for '.join(cycle)}.",
            key="role_order",
            cycle=cycle,
        )
    return order


def _groups(raw: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    groups = {}
    for name, value in raw.items():
        groups[name] = _texts(value, f"group_mappings.{name}")
        for pattern in groups[name]:
            try:
                re.compile(pattern)
            except re.error as error:
                raise _refused(f"group_mappings.{name}", pattern, f"is no regular expression: {error}") from error
    return groups


def find_cycle(order: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names along a cycle, the first one again at the end, or nothing where there is none.

    Takes time linear in names and edges, and no recursion, so that a long chain is no danger.
    """
    done: set[str] = set()
    for start in sorted(order):
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                on_path.discard(name)
                done.add(name)
            elif name in on_path:
                return [*path[path.index(name) :], name]
            elif name not in done:
                path.append(name)
                on_path.add(name)
                stack.append((name, True))
                stack.extend((first, False) for first in sorted(order.get(name, ()), reverse=True))
    return []
