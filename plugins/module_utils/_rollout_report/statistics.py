# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The statistics of a report: how many hosts were down, and how long hosts and steps took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from .host import BROKE, DONE, DOWN, OPEN, WAITS, WORKS


def concurrency(hosts: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Return pairs of a time (unix seconds) and the number of hosts that were down from then on: admitted and not upgraded.

    :param hosts: what :func:`~.host.host_report` returns for each host.
    """
    steps: dict[int, int] = {}
    for one in hosts:
        for phase, start, end, *_step in one["phases"]:
            if phase in DOWN:
                steps[start] = steps.get(start, 0) + 1
                steps[end] = steps.get(end, 0) - 1
    found, down = [], 0
    for at in sorted(steps):
        down += steps[at]
        found.append([at, down])
    return found


def durations(hosts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how long upgraded hosts were down (seconds): their number, median and longest. Hosts with an unknown end are left out."""
    return _summed(
        [
            sum(end - start for phase, start, end, *_step in one["phases"] if phase in DOWN)
            for one in hosts
            if one["phase"] == DONE
            and one["end_known"]
            and any(phase in (OPEN, WORKS) for phase, *_rest in one["phases"])
        ]
    )


def step_durations(hosts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each role, service and step how long it took the hosts that finished it (seconds).

    Each also has the number of hosts that failed in it, and that are in it now. Steps are in the order in which they first began.
    """
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for one in hosts:
        phases: Sequence[Sequence[Any]] = one["phases"]
        following = [phase for phase, *_rest in phases[1:]] + [""]
        for (phase, start, end, service, step), then in zip(phases, following, strict=True):
            if phase != WORKS or not (service or step):
                continue
            of_step = found.setdefault((one["role"], service, step), {"first": start, "took": [], "failed": 0, "at": 0})
            of_step["first"] = min(of_step["first"], start)
            if not then:
                of_step["at"] += 1
            elif then == BROKE:
                of_step["failed"] += 1
            elif then != WAITS:
                of_step["took"].append(end - start)
    in_turn = sorted(found.items(), key=lambda one: (one[0][0], one[1]["first"], one[0]))
    return [
        {"role": role, "service": service, "step": step, **_summed(of["took"]), "failed": of["failed"], "at": of["at"]}
        for (role, service, step), of in in_turn
    ]


def _summed(taken: Sequence[int]) -> dict[str, int]:
    return {
        "hosts": len(taken),
        "median": int(median(taken)) if taken else 0,
        "longest": max(taken, default=0),
    }
