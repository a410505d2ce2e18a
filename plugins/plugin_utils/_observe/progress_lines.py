# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a rollout as text: a line for each change, and a running count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WAITING = ("pending", "held")
_STUCK = ("failed", "lost")
_DONE = "upgraded"


class PassProgress:
    """Turns the results of successive passes into lines."""

    def __init__(self) -> None:
        """Start without a result."""
        self._states: dict[str, str] = {}

    def lines(self, result: Mapping[str, Any]) -> list[str]:
        """Return a line for each host whose state has changed since the last result, and the count after them.

        Upgraded hosts come first, because their slots became free for the others. For the first result, there are only lines for hosts
        that are upgrading, failed or lost.
        """
        hosts: Mapping[str, Mapping[str, Any]] = result["hosts"]
        ended, others = [], []
        for host, view in hosts.items():
            before, after = self._states.get(host), view["state"]
            if before == after or (before is None and after in (*_WAITING, _DONE)):
                continue
            change = f"{host} {before} -> {after}" if before else f"{host} is {after}"
            if after == _DONE:
                ended.append(change)
            else:
                others.append(f"{change}: {view['reason']}")
        self._states = {host: view["state"] for host, view in hosts.items()}
        return [*ended, *others, running_count(result)] if ended or others else []


def running_count(result: Mapping[str, Any]) -> str:
    """Return the running count: the upgraded hosts of each role, and the number of other hosts by state."""
    total: dict[str, int] = {}
    done: dict[str, int] = {}
    states: dict[str, int] = {}
    for view in result["hosts"].values():
        role, state = view["role"], view["state"]
        total[role] = total.get(role, 0) + 1
        done[role] = done.get(role, 0) + (state == _DONE)
        states[state] = states.get(state, 0) + 1
    roles = ", ".join(f"{role} {done[role]}/{total[role]}" for role in total)
    stuck = sum(states.get(state, 0) for state in _STUCK)
    waiting = sum(states.get(state, 0) for state in _WAITING)
    counts = [f"{states.get('upgrading', 0)} upgrading", f"{waiting} waiting"] + ([f"{stuck} failed"] if stuck else [])
    return f"-- {result['version']}: {roles or 'no hosts'}; {', '.join(counts)}"
