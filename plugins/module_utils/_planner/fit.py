# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules that do not fit a fleet: every mistake at once. A planner stops at the first one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._common.errors import UpgradeError
from .._rule_checks.mistakes import RuleMistake, mistake_in
from .._rule_checks.stage_hosts import refuse_empty_stage, stage_without_followers
from .._rules.instructions import Instructions
from .._rules.role_order import resolve
from .._rules.unknown_names import not_declared
from .slots import refuse_uncapped
from .stage_progress import stage_of_hosts


def check_fit(
    raw: Mapping[str, Any],
    rules: Instructions,
    members: Mapping[str, str],
    more_order: Mapping[str, Any] | None = None,
) -> tuple[list[RuleMistake], tuple[str, ...]]:
    """Return the mistakes because of which a planner would refuse the rules for this fleet, and the warnings that it would print.

    :param raw: the rules as given, to locate mistakes.
    :param rules: the same rules, parsed, with the role order of services.
    :param members: host -> role, in natural order.
    :param more_order: the role order of services.
    """
    by_role: dict[str, list[str]] = {}
    for host, role in members.items():
        by_role.setdefault(role, []).append(host)
    try:
        order = resolve(rules, by_role, members)
    except UpgradeError as error:
        return [mistake_in(raw, error)], ()
    unknown = not_declared(order.unknown, more_order)
    found = [mistake_in(raw, UpgradeError("unknown_names", one.text, key=one.key)) for one in unknown]
    try:
        refuse_uncapped(rules, order)
    except UpgradeError as error:
        found.append(mistake_in(raw, error))
    for at in range(len(rules.stages)):
        try:
            refuse_empty_stage(rules.stages[: at + 1], order, by_role, rules.optional_names, first=at)
        except UpgradeError as error:
            if all(one.key != error.details["key"] for one in unknown):
                found.append(mistake_in(raw, error))
    after = stage_without_followers(rules.stages, stage_of_hosts(rules.stages, order, by_role)) if rules.stages else ()
    return found, after
