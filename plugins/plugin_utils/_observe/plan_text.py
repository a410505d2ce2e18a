# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as text: the rules, the waves as a table, and the hosts that are in no wave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...module_utils._common.durations import duration_in_words
from ...module_utils._common.names import listing, plural
from ...module_utils._host_states.state_names import PENDING
from ...module_utils._rule_checks.rule_text import value_text
from ...module_utils._rule_checks.sources import leaves
from .status_text import headline, reason_lines, rollout_lines, some_hosts, table_lines


def plan_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the rules of a plan, its waves as a table, and the hosts that it does not expect to admit.

    :param result: a result of ``consul_upgrade_plan``.
    """
    waves = result["forecast"]["waves"]
    lines = [
        f"Plan: {headline(result).removeprefix('Rollout ')}",
        *_replaced(result.get("replaces") or {}),
        *_rules(result["instructions"], result.get("sources") or {}),
        *rollout_lines(result),
    ]
    lines += _table(result) if waves else ["No host is left to admit."]
    outside, reasons = result["blocked"]["outside"], result["blocked"]["reasons"]
    if outside["count"]:
        lines += ["", f"Not in this run, because of its limit: {some_hosts(outside, 5)}."]
    if reasons:
        lines += ["", "Blocked, and needs an operator:", *reason_lines(reasons)[1:]]
    return lines


def _replaced(rollout: Mapping[str, Any]) -> list[str]:
    if not rollout:
        return []
    return [
        f"It replaces the rollout to {rollout['version']}, which {rollout['who']} began and which is {rollout['state']}. Its stages, "
        "approvals and failure budgets end with it."
    ]


def _rules(rules: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    if not rules:
        return ["Rules: none"]
    keys = [key for key, _value in leaves(rules)]
    return [
        "Rules:",
        *(
            f"  {line}" + (f" (from {sources[key]})" if key in sources else "")
            for key, line in zip(keys, rule_lines(rules), strict=True)
        ),
    ]


def rule_lines(rules: Mapping[str, Any]) -> list[str]:
    """Return instructions as lines, one for each key that messages name: ``rolling_rules.roles.compute: 10%``."""
    return [f"{key}: {value_text(key, value)}" for key, value in leaves(rules)]


def _table(result: Mapping[str, Any]) -> list[str]:
    forecast = result["forecast"]
    is_known = bool(forecast["seconds"])
    rows = [["wave", "hosts", *(["begins", "takes"] if is_known else []), "who"]]
    begins = 0.0
    for number, wave in enumerate(forecast["waves"], 1):
        times = [f"+{duration_in_words(begins)}", duration_in_words(wave["seconds"])] if is_known else []
        begins += wave["seconds"]
        rows.append(["now" if number == 1 else str(number), str(wave["count"]), *times, _who(wave, result)])
    lines = ["", *table_lines(rows, left=(len(rows[0]) - 1,))]
    if forecast["more_waves"]:
        more_waves, more_hosts = plural(forecast["more_waves"], "wave"), plural(forecast["more_hosts"], "host")
        lines.append(f"and {more_waves} more with {more_hosts}")
    if is_known:
        lines.append(
            f"About {duration_in_words(forecast['seconds'])} in all{_besides(result)}, if each host takes as long as its role did "
            "last time."
        )
    return lines


def _besides(result: Mapping[str, Any]) -> str:
    """Return which waiting times the forecast does not have; empty if there are none."""
    rules = result["instructions"]
    # In a rollback, stages neither soak nor need approval.
    stages = () if result.get("rollback_order") else rules.get("stages") or ()
    waits = [
        *(["soak"] if any(one.get("soak") for one in stages) else []),
        *(["approval"] if any(one.get("approve") for one in stages) else []),
    ]
    hours = [f"closed {key}" if key == "windows" else key for key in ("windows", "freezes") if rules.get(key)]
    parts = [*([f"{' and '.join(waits)} of stages"] if waits else []), *hours]
    return f", besides {listing(parts)}" if parts else ""


def _who(wave: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    if wave["count"]:
        return some_hosts(wave)
    blocker = result.get("blocker")
    # The first reason is that of the first stage, for which all others wait.
    waits = (one["reason"] for one in result["reasons"] if one["state"] == PENDING)
    return f"none: {blocker['reason'] if blocker else next(waits, 'every slot is in use')}"
