# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as text: the rules, the waves as a table, and the hosts that are in no wave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils._common.names import listing, plural
from ...module_utils._host_states.states import UPGRADED, UPGRADING
from ...module_utils._planner.explanations import LIMIT
from ...module_utils._rule_checks.sources import leaves
from .status_text import headline, reason_lines, rollout_lines, table_lines

_MOST_WAVES = 12
_MOST_HOSTS = 8


def plan_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the rules of a plan, its waves as a table, and the hosts that it does not expect to admit.

    :param result: a result of ``consul_upgrade_plan``.
    """
    waves = result["waves"]
    lines = [
        f"Plan: {headline(result)[len('Rollout ') :]}",
        *_replaced(result.get("replaces") or {}),
        *_rules(result["instructions"], result.get("sources") or {}),
        *rollout_lines(result),
    ]
    lines += _table(result) if waves else ["No host is left to admit."]
    expected = {host for wave in waves for host in wave}
    others = {
        host: view
        for host, view in result["hosts"].items()
        if host not in expected and view["state"] not in (UPGRADED, UPGRADING)
    }
    outside = [host for host, view in others.items() if view.get("cause") == LIMIT]
    others = {host: view for host, view in others.items() if view.get("cause") != LIMIT}
    if outside:
        lines += ["", f"Not in this run, because of its limit: {listing(outside, 5)}."]
    if others:
        lines += ["", "Blocked, and needs an operator:", *reason_lines(others)[1:]]
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
    return [f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in leaves(rules)]


def _table(result: Mapping[str, Any]) -> list[str]:
    waves: Sequence[Sequence[str]] = result["waves"]
    seconds: Sequence[float] = result["wave_seconds"]
    is_known = any(seconds)
    rows = [["wave", "hosts", *(["begins", "takes"] if is_known else []), "who"]]
    begins = 0.0
    for number, (wave, takes) in enumerate(zip(waves[:_MOST_WAVES], seconds, strict=False), 1):
        times = [f"+{duration_in_words(begins)}", duration_in_words(takes)] if is_known else []
        begins += takes
        rows.append(["now" if number == 1 else str(number), str(len(wave)), *times, _who(wave, result)])
    lines = ["", *table_lines(rows, left=(len(rows[0]) - 1,))]
    if len(waves) > _MOST_WAVES:
        left = sum(len(wave) for wave in waves[_MOST_WAVES:])
        lines.append(f"and {plural(len(waves) - _MOST_WAVES, 'wave')} more with {plural(left, 'host')}")
    if is_known:
        lines.append(
            f"About {duration_in_words(sum(seconds))} in all, if each host takes as long as its role did last time."
        )
    return lines


def _who(wave: Sequence[str], result: Mapping[str, Any]) -> str:
    blocker = result.get("blocker")
    return listing(wave, _MOST_HOSTS) or f"none: {blocker['reason'] if blocker else 'every slot is in use'}"


def duration_in_words(seconds: float) -> str:
    """Return how long something takes in at most two units: ``45s``, ``12m 30s``, ``3h 5m``, ``2d 4h``."""
    left = max(0, round(seconds))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or "0s"
