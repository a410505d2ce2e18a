# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instructions are looked at as a whole, before anybody means to use them: no Consul, and every mistake."""

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
    """What there is to say of instructions.

    :param mistakes: in the order of their lines, each with ``key``, ``message``, and ``file`` and ``line`` where it stands in one (else empty and 0).
    :param warnings: what planners would warn of in this fleet.
    :param rules: the form in which they are stored; empty where there is a mistake.
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
    """Return all that is wrong with instructions.

    Whether they fit the fleet is looked at once they can be read.

    :param inline: laid on the file, key by key.
    :param path: a JSON or YAML file; None for the default one, where it exists.
    :param fleet: host -> role; None or empty where it is not known.
    :param more_order: order that is added to theirs.
    :raises UpgradeError: ``no_instructions`` where there is nothing to look at; ``bad_name`` for the fleet.
    """
    try:
        file = path or default_file()
    except UpgradeError as error:
        return RuleCheck(
            ({"key": str(error.details.get("key", "")), "message": error.message, "file": "", "line": 0},), (), {}
        )
    if inline is None and not file:
        raise UpgradeError(
            "no_instructions",
            f"Neither instructions nor instructions_file is given, and there is no {' and no '.join(DEFAULT_FILES)}: nothing was checked. "
            "Name the file with -e instructions_file=FILE, or give the inventory that has them.",
        )
    members = roles_of_hosts(fleet or {}, (), None)
    try:
        from_file = read_file(file) if file else {}
    except UpgradeError as error:
        return RuleCheck(({"key": "", "message": error.message, "file": file, "line": 0},), (), {})
    given = merge(from_file, inline or {})
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
        # What is below a list comes from where the list does.
        if not isinstance(inline, Mapping):
            return True
        if step not in inline:
            return False
        inline = inline[step]
    return True
