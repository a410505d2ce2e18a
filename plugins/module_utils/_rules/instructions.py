# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instructions: the rules of a rollout, parsed strictly, merged, and stored in one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.errors import UpgradeError
from .._common.patterns import compiled
from .._common.sanitize import truncated_repr, truncated_text
from .._common.strict_values import invalid_value, parse_boolean, parse_mapping, parse_texts, refuse_unknown_keys
from .caps import Cap, parse_cap
from .failure_rules import FailureRules, parse_failure_rules
from .health_rules import HealthRules, parse_health_rules
from .history_rules import HistoryRules, parse_history_rules
from .stages import Stage, parse_stages
from .windows import Freeze, Window, parse_freezes, parse_windows

# python-jiocloud had both names for this rule at different times, so operators' files have either.
ORDER_KEYS = ("role_order", "role_dependencies")
ROLLBACK_ORDER = "rollback_order"
REVERSED, FORWARD = "reversed", "forward"
KEYS = (
    *("rolling_rules", "group_mappings", *ORDER_KEYS, ROLLBACK_ORDER),
    *("failure_rules", "health", "stages", "windows", "freezes", "history", "optional_names"),
)
_ROLLING_KEYS = ("global", "roles", "fleet", "complete_sets")


@dataclass(frozen=True, slots=True)
class Instructions:
    """The rules of a rollout.

    :param default_cap: the cap of each role or group that has none of its own; None if the rules do not set one.
    :param caps: role or group -> its own cap.
    :param fleet_cap: the cap over all hosts, in addition to the others.
    :param complete_sets: whether the next hosts are admitted only when none is upgrading.
    :param order: role or group -> the roles or groups that must be completely upgraded first.
    :param groups: group -> regular expressions for role names, matched at the start of the name.
    :param failures: the failure budgets.
    :param health: what hosts have to fulfill in addition to their reports.
    :param stages: parts of the fleet that are upgraded one after the other; empty for the whole fleet at once.
    :param windows: when hosts may be admitted; empty for always.
    :param freezes: when no host may be admitted.
    :param history: what the history keeps.
    :param optional_names: roles, groups and hosts that the rules may name even if the fleet has none of them.
    :param forward_rollback: whether a rollback keeps the order of roles and stages instead of reversing it.
    """

    default_cap: Cap | None = None
    caps: Mapping[str, Cap] = field(default_factory=dict)
    fleet_cap: Cap | None = None
    complete_sets: bool = False
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failures: FailureRules = field(default_factory=FailureRules)
    health: HealthRules = field(default_factory=HealthRules)
    stages: tuple[Stage, ...] = ()
    windows: tuple[Window, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    history: HistoryRules = field(default_factory=HistoryRules)
    optional_names: tuple[str, ...] = ()
    forward_rollback: bool = False

    def plain(self) -> dict[str, Any]:
        """Return the rules in the form in which they are stored and compared."""
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
        more = {
            ROLLBACK_ORDER: FORWARD if self.forward_rollback else "",
            "failure_rules": self.failures.plain(),
            "health": self.health.plain(),
            "stages": [one.plain() for one in self.stages],
            "windows": [one.plain() for one in self.windows],
            "freezes": [one.plain() for one in self.freezes],
            "history": self.history.plain(),
            "optional_names": list(self.optional_names),
        }
        return plain | {name: value for name, value in more.items() if value}


def name_of(key: str) -> str:
    """Return the stored name of a key of the instructions."""
    return ORDER_KEYS[0] if key in ORDER_KEYS else key


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` updated with ``over``; mappings that both have are merged recursively.

    :raises UpgradeError: ``bad_instructions`` if ``over`` is no mapping.
    """
    _refuse_no_mapping(over)
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def with_order(rules: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules with further ``role_order`` added. Nothing in them is replaced.

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
    """Return the parsed instructions.

    :raises UpgradeError: ``bad_instructions``, with the key and the value.
    """
    _refuse_no_mapping(raw)
    refuse_unknown_keys(raw, KEYS, "")
    rolling = parse_mapping(raw.get("rolling_rules"), "rolling_rules")
    refuse_unknown_keys(rolling, _ROLLING_KEYS, "rolling_rules.")
    roles = parse_mapping(rolling.get("roles"), "rolling_rules.roles")
    return Instructions(
        default_cap=_optional_cap(rolling, "global", may_be_unlimited=True),
        caps={
            name: parse_cap(value, f"rolling_rules.roles.{name}", may_be_unlimited=True)
            for name, value in roles.items()
        },
        fleet_cap=_optional_cap(rolling, "fleet"),
        complete_sets=parse_boolean(rolling.get("complete_sets", False), "rolling_rules.complete_sets"),
        order=_order(raw),
        groups=_groups(parse_mapping(raw.get("group_mappings"), "group_mappings")),
        failures=parse_failure_rules(raw.get("failure_rules")),
        health=parse_health_rules(raw.get("health")),
        stages=parse_stages(raw.get("stages")),
        windows=parse_windows(raw.get("windows")),
        freezes=parse_freezes(raw.get("freezes")),
        history=parse_history_rules(raw.get("history")),
        optional_names=parse_texts(raw["optional_names"], "optional_names")
        if raw.get("optional_names") not in (None, [])
        else (),
        forward_rollback=_forward_rollback(raw.get(ROLLBACK_ORDER)),
    )


def _refuse_no_mapping(raw: object) -> None:
    if not isinstance(raw, Mapping):
        # Older releases of Ansible make text of rules with a date, because their templates can't return one.
        raise UpgradeError(
            "bad_instructions",
            f"instructions: {truncated_repr(raw)} is not a mapping of names to values. If it looks like one, put its dates and times in quotes.",
            key="",
            value=truncated_text(raw),
        )


def _forward_rollback(value: object) -> bool:
    if value not in (None, "", REVERSED, FORWARD):
        raise invalid_value(ROLLBACK_ORDER, value, f"is neither {REVERSED} nor {FORWARD}")
    return value == FORWARD


def _optional_cap(rolling: Mapping[str, Any], name: str, *, may_be_unlimited: bool = False) -> Cap | None:
    if rolling.get(name) is None:
        return None
    return parse_cap(rolling[name], f"rolling_rules.{name}", may_be_unlimited=may_be_unlimited)


def _order(raw: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    found = {
        key: {name: parse_texts(first, f"{key}.{name}") for name, first in parse_mapping(raw[key], key).items()}
        for key in ORDER_KEYS
        if raw.get(key) is not None
    }
    if len(found) == 2:
        by_name, by_old_name = (found[key] for key in ORDER_KEYS)
        for name in sorted({*by_name, *by_old_name}):
            if set(by_name.get(name, ())) != set(by_old_name.get(name, ())):
                raise invalid_value(
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
            f"instructions: role_order: a cycle, so none of these can begin: {' waits for '.join(cycle)}.",
            key="role_order",
            cycle=cycle,
        )
    return order


def _groups(raw: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    groups = {}
    for name, value in raw.items():
        groups[name] = parse_texts(value, f"group_mappings.{name}")
        for pattern in groups[name]:
            try:
                compiled(pattern)
            except ValueError as error:
                raise invalid_value(
                    f"group_mappings.{name}", pattern, f"is not a valid regular expression: {error}"
                ) from error
    return groups


def find_cycle(order: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names along a cycle, with the first one again at the end; empty if there is no cycle.

    The time is linear in names and edges. It does not recurse, so a long chain does not reach Python's limit.
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
