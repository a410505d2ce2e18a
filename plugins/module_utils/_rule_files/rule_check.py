# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks instructions without Consul and reports every mistake at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common.errors import UpgradeError
from .._fleet.fleet import roles_of_hosts
from .._planner.fit import check_fit
from .._rule_checks.mistakes import RuleMistake, mistake_in, mistakes_of
from .._rules.instructions import merge, parse, with_order
from .rule_input import DEFAULT_FILES, default_file, read_file, sources_of
from .rule_lines import RuleLines


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The result of a check.

    :param mistakes: in the order of their lines, each with ``key``, ``message``, ``file`` (empty for inline rules) and ``line`` (0 if unknown).
    :param warnings: the warnings that planners would print for this fleet.
    :param rules: the rules in their stored form; empty if there is a mistake.
    """

    mistakes: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    rules: dict[str, Any]


def check_rules(
    inline: Mapping[str, Any] | None,
    path: str | None,
    fleet: Mapping[str, str] | None = None,
    more_order: Mapping[str, Any] | None = None,
) -> RuleCheck:
    """Return all mistakes in instructions.

    Whether they fit the fleet is checked only if they have no other mistake.

    :param inline: rules that override those of the file, key by key.
    :param path: a JSON or YAML file; None for the default file, if it exists; empty for no file.
    :param fleet: host -> role; None or empty to skip the check against a fleet.
    :param more_order: role order that is added to the rules.
    :raises UpgradeError: ``no_instructions`` if there are no rules; ``bad_name`` for the fleet.
    """
    try:
        file = default_file() if path is None else path
    except UpgradeError as error:
        return RuleCheck(
            ({"key": str(error.details.get("key", "")), "message": error.message, "file": "", "line": 0},), (), {}
        )
    if inline is None and not file:
        raise UpgradeError(
            "no_instructions",
            f"Neither instructions nor instructions_file is given, and there is no {' and no '.join(DEFAULT_FILES)}: nothing was checked. "
            "Give the file with -e instructions_file=FILE, or an inventory that sets instructions.",
        )
    members = roles_of_hosts(fleet or {}, (), None)
    try:
        from_file = read_file(file) if file else {}
    except UpgradeError as error:
        return RuleCheck(({"key": "", "message": error.message, "file": file, "line": 0},), (), {})
    try:
        given = merge(from_file, inline or {})
    except UpgradeError as error:
        return RuleCheck(({"key": "", "message": error.message, "file": "", "line": 0},), (), {})
    rules: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    found = mistakes_of(given)
    if not found:
        try:
            sources_of(inline, path)
            rules = with_order(given, more_order or {})
            found, warnings = check_fit(given, parse(rules), members, more_order) if members else ([], ())
        except UpgradeError as error:
            found = [mistake_in(given, error)]
    if not found:
        return RuleCheck((), warnings, rules)
    lines = RuleLines(Path(file).read_text(encoding="utf-8")) if file else None
    placed = (_placed(one, inline or {}, file, lines) for one in found)
    return RuleCheck(tuple(sorted(placed, key=lambda one: (one["file"], one["line"]))), warnings, {})


def _placed(mistake: RuleMistake, inline: Mapping[str, Any], file: str, lines: RuleLines | None) -> dict[str, Any]:
    plain = {"key": mistake.key, "message": mistake.message, "file": "", "line": 0}
    if lines is None or (mistake.path and _has(inline, mistake.path)):
        return plain
    return {**plain, "file": file, "line": lines.of(mistake.path)}


def _has(inline: Any, path: tuple[Any, ...]) -> bool:
    for step in path:
        # Lists are not merged, so everything in a list comes from the same source.
        if not isinstance(inline, Mapping):
            return True
        if step not in inline:
            return False
        inline = inline[step]
    return True
