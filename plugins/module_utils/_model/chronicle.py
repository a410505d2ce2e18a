# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout from its beginning to its end, made from the history and the hosts' records: what a report shows.

What nobody wrote down is not guessed. A record tells of the last move of its host only; of rollouts before that the history knows when
hosts were let through, and not when they were done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from .errors import UpgradeError
from .fleet import FAILED, RETRIED, STARTED, UPGRADED, Record, Report
from .instructions import parse
from .limits import limits_by_role
from .names import in_order, plural
from .order import resolve

BEGINS = ("begin", "adopt")
_ENDS = ("complete", "converge")
# What a host is doing, in the order in which it comes to it.
WAITS, OPEN, WORKS, BROKE, DONE = PHASES = ("waits", "let through", "at work", "failed", "upgraded")
_PHASE_OF = {
    "open": OPEN,
    "retry": WAITS,
    RETRIED: WAITS,
    STARTED: WORKS,
    FAILED: BROKE,
    UPGRADED: DONE,
    "publish": DONE,
}
_UNKNOWN = "unknown"


def chronicle(
    events: Sequence[Mapping[str, Any]],
    members: Mapping[str, str],
    records: Mapping[str, Record],
    reports: Mapping[str, Report],
    now: int,
    *,
    is_current: bool,
) -> dict[str, Any]:
    """Return a rollout as plain data. Takes time linear in hosts and entries, but for sorting.

    :param events: its entries of the history, the oldest first; the first one began it.
    :param members: host -> role of the fleet; of a former rollout, those that it let through are taken.
    :param now: unix seconds, where a rollout that is not over ends in the report.
    :param is_current: whether it is the one in the ledger.
    """
    first, last = events[0], events[-1]
    version, begun = str(first.get("version", "")), _at(first)
    over = next((event["what"] for event in reversed(events) if event.get("what") in (*_ENDS, "abort")), "")
    end = now if is_current and over not in _ENDS else _at(last)
    opened, put_back = _openings(events, members), _put_back(events)
    names = in_order({*opened, *members} if is_current else opened)
    hosts = []
    for host in names:
        record = records.get(host)
        record = record if record is not None and record.version == version else None
        times = _times(opened.get(host, ()), put_back.get(host, ()), record, reports.get(host), version, begun)
        role = members.get(host, _UNKNOWN)
        hosts.append(_host(host, role, times, record if is_current or times else None, begun, max(begun, end)))
    counts: dict[str, int] = {}
    for one in hosts:
        counts[one["role"]] = counts.get(one["role"], 0) + 1
    rules: Mapping[str, Any] = next(
        (event["instructions"] for event in reversed(events) if isinstance(event.get("instructions"), Mapping)), {}
    )
    return {
        "version": version,
        "previous_version": str(first.get("from") or ""),
        "state": "running" if is_current and not over else over or "left",
        "begun": begun,
        "end": max(begun, end),
        "rules": rules,
        "hosts": hosts,
        "words": [_word(event) for event in events if event.get("what") not in ("publish", "health")],
        "concurrency": {"fleet": _concurrency(hosts), **{role: _concurrency(hosts, role) for role in in_order(counts)}},
        "caps": _caps(rules, counts),
        "durations": {role: _durations(hosts, role) for role in in_order(counts)},
        "steps": _steps(hosts),
    }


def _at(event: Mapping[str, Any]) -> int:
    at = event.get("at")
    return int(at) if isinstance(at, (int, float)) else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _openings(events: Iterable[Mapping[str, Any]], members: Mapping[str, str]) -> dict[str, list[int]]:
    by_role: dict[str, list[str]] = {}
    for host, role in members.items():
        by_role.setdefault(role, []).append(host)
    found: dict[str, list[int]] = {}
    for event in events:
        if event.get("what") == "open":
            whole = [host for role in _mapping(event.get("roles")) for host in by_role.get(role, ())]
            for host in (*_mapping(event.get("hosts")), *whole):
                found.setdefault(host, []).append(_at(event))
    return found


def _put_back(events: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        if event.get("what") == "retry":
            for host in _mapping(event.get("hosts")):
                found.setdefault(host, []).append(_at(event))
    return found


def _times(
    opened: Sequence[int],
    put_back: Sequence[int],
    record: Record | None,
    report: Report | None,
    version: str,
    begun: int,
) -> list[tuple[int, str]]:
    """Return when the host came to which phase, in the order of time."""
    found = [*((at, OPEN) for at in opened), *((at, WAITS) for at in put_back)]
    if record is not None:
        found += [(at, _PHASE_OF[state]) for state, at in record.times.items() if state in _PHASE_OF and at >= begun]
    if (
        report is not None
        and report.version == version
        and report.at is not None
        and not any(p == DONE for _at, p in found)
    ):
        # It stands there since before the rollout began, or tells by that alone that it is done.
        found.append((max(int(report.at), begun), DONE))
    return sorted(found, key=lambda one: (one[0], PHASES.index(one[1])))


def _host(
    host: str, role: str, times: Sequence[tuple[int, str]], record: Record | None, begun: int, end: int
) -> dict[str, Any]:
    phases: list[list[Any]] = []
    at, phase = begun, WAITS
    for then, following in times:
        if then > at:
            phases.append([phase, at, min(then, end)])
        at, phase = max(at, then), following
    if end > at or not phases:
        phases.append([phase, at, max(at, end)])
    return {
        "host": host,
        "role": role,
        "phase": phase,
        "phases": phases,
        "attempt": record.attempt if record else 0,
        "service": (record.service if record else "") or "",
        "step": (record.step if record else "") or "",
        "error": (record.error if record else "") or "",
    }


def _word(event: Mapping[str, Any]) -> dict[str, Any]:
    hosts, roles = _mapping(event.get("hosts")), _mapping(event.get("roles"))
    parts = [plural(len(hosts), "host")] * bool(hosts) + [f"role {role}" for role in roles]
    stage = event.get("stage")
    text = [str(stage)] * bool(stage) + [", ".join(parts)] * bool(parts) + [str(event.get("reason") or "")]
    return {
        "at": _at(event),
        "epoch": event.get("epoch", 0),
        "who": str(event.get("by") or event.get("who") or ""),
        "what": str(event.get("what", "")),
        "text": ": ".join(filter(None, text)),
    }


def _concurrency(hosts: Iterable[Mapping[str, Any]], role: str | None = None) -> list[list[int]]:
    """Return at which time how many hosts were down: let through and not upgraded."""
    steps: dict[int, int] = {}
    for one in hosts:
        if role is not None and one["role"] != role:
            continue
        for phase, start, end in one["phases"]:
            if phase in (OPEN, WORKS, BROKE):
                steps[start] = steps.get(start, 0) + 1
                steps[end] = steps.get(end, 0) - 1
    found, down = [], 0
    for at in sorted(steps):
        down += steps[at]
        found.append([at, down])
    return found


def _caps(rules: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, int]:
    """Return role, group or ``the fleet`` -> how many may be down; nothing for rules that can't be obeyed."""
    try:
        parsed = parse(rules)
        limits = limits_by_role(parsed, resolve(parsed, counts), counts)
    except UpgradeError:
        return {}
    return {limit.what: limit.slots for each in limits.values() for limit in each}


def _durations(hosts: Iterable[Mapping[str, Any]], role: str) -> dict[str, Any]:
    """Return in seconds how long hosts of a role that are upgraded were down, and the share of it that they worked."""
    taken = []
    for one in hosts:
        if one["role"] == role and one["phase"] == DONE:
            seconds = sum(end - start for phase, start, end in one["phases"] if phase in (OPEN, WORKS, BROKE))
            if any(phase in (OPEN, WORKS) for phase, _start, _end in one["phases"]):
                taken.append(seconds)
    taken.sort()
    if not taken:
        return {"hosts": 0, "median": 0, "longest": 0}
    return {"hosts": len(taken), "median": int(median(taken)), "longest": taken[-1]}


def _steps(hosts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how many hosts are at, or failed at, each step of each role's services."""
    found: dict[tuple[str, str, str, str], int] = {}
    for one in hosts:
        if one["phase"] in (WORKS, BROKE) and (one["service"] or one["step"]):
            key = (one["role"], one["service"], one["step"], one["phase"])
            found[key] = found.get(key, 0) + 1
    return [
        {"role": role, "service": service, "step": step, "phase": phase, "hosts": count}
        for (role, service, step, phase), count in sorted(found.items())
    ]
