# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data of a rollout report, from the history and the records of hosts."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .._common.clock import LATEST
from .._common.errors import UpgradeError
from .._common.names import in_order, is_job, listing
from .._common.sanitize import truncate_middle
from .._fleet.fleet import STARTED, UPGRADED, HostRecord, VersionReport
from .._fleet.former_rollouts import rollout_within
from .._fleet.ledger import BEGINNINGS, Ledger
from .._planner.slots import AppliedCap, caps_by_role
from .._rules.instructions import parse
from .._rules.role_order import resolve
from .host import host_report
from .statistics import concurrency, durations, step_durations

ENDS = ("complete", "converge")
_OVER = (*ENDS, "abort")
# The role of a host that is no member any more. No role can have this name.
UNKNOWN_ROLE = "n/a"
# How many hosts an entry of the history names.
_MOST_NAMED = 8
_LONGEST_COMMAND = 300


def entries_of(events: Iterable[dict[str, Any]], ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the entries of the rollout of a ledger, the newest first. A job that came after a rollout to a version is left out.

    :param events: the history, the newest first. It is read back to the beginning of the rollout.
    """
    for event in events:
        if not ledger.is_job and is_job(event.get("version")):
            continue
        yield event
        if event.get("what") in BEGINNINGS:
            return


def end_of(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the entry with which a rollout ended; None while it runs, as again after a complete one has admitted a host that joined.

    :param events: its entries of the history, the oldest first. Others may follow the end, such as holds.
    """
    last = next((event for event in reversed(events) if event.get("what") in (*_OVER, "open")), None)
    return last if last is not None and last["what"] in _OVER else None


def rollout_report(
    events: Sequence[Mapping[str, Any]],
    members: Mapping[str, str],
    records: Mapping[str, HostRecord],
    reports: Mapping[str, VersionReport],
    until: int,
    *,
    is_current: bool,
    is_whole: bool = True,
) -> dict[str, Any]:
    """Return the report on a rollout as plain data. Takes time linear in hosts and entries, except for sorting.

    :param events: its entries of the history, the oldest first, beginning with the one that began it.
    :param members: host -> role of the fleet.
    :param until: the end of a rollout without an end of its own: now, or the beginning of the next one (unix seconds).
    :param is_current: whether it is the last rollout of the history.
    :param is_whole: whether fleet, records and reports belong to this rollout. If not, its hosts are those that it admitted.
    """
    first, last = events[0], end_of(events)
    version, begun = str(first.get("version", "")), at_of(first)
    over = str(last["what"]) if last is not None else ""
    own = [one for one in (_move(record, version) for record in records.values()) if one is not None]
    end = max(begun, at_of(last) if last is not None and over in ENDS else until)
    if last is not None and over == "abort" and is_whole and not any(one.state == STARTED for one in own):
        # No host is at work any more.
        end = max(begun, at_of(last), *(at for one in own for at in one.times.values() if at <= until))
    opened, put_back, published = _openings(events), _put_back(events), _published(events)
    of_roles = _role_openings(events)
    closed = _closings(events)
    at_last = next((at_of(event) for event in events if event.get("what") in ENDS), None)
    hosts = []
    by_role_gate = (host for host, role in members.items() if role in of_roles)
    for host in in_order({*opened, *members} if is_whole else {*opened, *by_role_gate}):
        record, report = records.get(host), reports.get(host)
        role = members.get(host, UNKNOWN_ROLE)
        record = _move(record, version) if is_whole else _former_rollout(record, version, begun, end)
        report = report if report is not None and report.version == version else None
        hosts.append(
            host_report(
                host,
                role,
                sorted((*opened.get(host, ()), *_by_role_gate(of_roles.get(role, ()), host, record, report))),
                closed.get(host, ()),
                put_back.get(host, ()),
                record,
                report,
                begun,
                end,
                published.get(host),
                None if is_whole else at_last,
            )
        )
    by_role: dict[str, list[dict[str, Any]]] = {}
    for one in hosts:
        by_role.setdefault(one["role"], []).append(one)
    counts = {role: len(by_role[role]) for role in in_order(by_role)}
    rules: Mapping[str, Any] = next(
        (event["instructions"] for event in reversed(events) if isinstance(event.get("instructions"), Mapping)), {}
    )
    caps = _caps(rules, counts)
    return {
        "version": version,
        "previous_version": str(first.get("from") or ""),
        "state": over or ("running" if is_current else "left"),
        "begun": begun,
        "end": end,
        "whole": is_whole,
        "rules": rules,
        "hosts": hosts,
        "commands": [_entry(event) for event in events if event.get("what") not in ("publish", "health")],
        "concurrency": {
            part: concurrency(one for role in roles for one in by_role[role])
            for part, roles in _parts(caps, counts).items()
        },
        "caps": {cap.what: cap.slots for each in caps.values() for cap in each if not cap.is_missing},
        "durations": {role: durations(by_role[role]) for role in counts},
        "steps": step_durations(hosts),
        "stages": _stages(events, end),
    }


def _stages(events: Iterable[Mapping[str, Any]], end: int) -> list[dict[str, Any]]:
    """Return the stages of a rollout with their times (unix seconds): a stage ends when the next one begins."""
    begun: dict[str, int] = {}
    for event in events:
        if event.get("what") == "stage" and event.get("stage"):
            begun.setdefault(str(event["stage"]), at_of(event))
    ends = [*begun.values(), end][1:]
    return [{"name": name, "begun": at, "end": max(at, to)} for (name, at), to in zip(begun.items(), ends, strict=True)]


def _move(record: HostRecord | None, version: str) -> HostRecord | None:
    return record if record is not None and record.version == version else None


def _former_rollout(record: HostRecord | None, version: str, begun: int, end: int) -> HostRecord | None:
    return rollout_within(record, version, begun, end) if record is not None else None


def at_of(event: Mapping[str, Any]) -> int:
    """Return when an entry of the history was written (unix seconds); 0 if it has no valid time."""
    at = event.get("at")
    return int(at) if isinstance(at, (int, float)) and 0 <= at < LATEST else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _openings(events: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return host -> when its own gate was opened (unix seconds)."""
    found: dict[str, list[int]] = {}
    for event in events:
        if event.get("what") == "open":
            for host in _mapping(event.get("hosts")):
                found.setdefault(host, []).append(at_of(event))
    return found


def _role_openings(events: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, Container[str]]]]:
    """Return role -> when its gate was opened and admitted hosts (unix seconds), and which hosts had gates of their own opened with it.

    An entry of the history does not name the hosts that the gate of their role admits.
    """
    found: dict[str, list[tuple[int, Container[str]]]] = {}
    for event in events:
        if event.get("what") == "open":
            for role, opening in _mapping(event.get("roles")).items():
                if _mapping(opening).get("hosts") != 0:
                    found.setdefault(role, []).append((at_of(event), _mapping(event.get("hosts"))))
    return found


def _by_role_gate(
    openings: Iterable[tuple[int, Container[str]]], host: str, record: HostRecord | None, report: VersionReport | None
) -> Iterator[int]:
    """Yield when the gate of its role admitted a host (unix seconds): not if it had upgraded before."""
    ends = (
        record.times.get(UPGRADED) if record is not None and record.state == UPGRADED else None,
        report.at if report is not None else None,
    )
    for at, named in openings:
        if host not in named and not any(end and end < at for end in ends):
            yield at


def _closings(events: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return host -> when an abort closed its gate, because it had not started (unix seconds)."""
    found: dict[str, list[int]] = {}
    for event in events:
        if event.get("what") == "close":
            for host in _mapping(event.get("hosts")):
                found.setdefault(host, []).append(at_of(event))
    return found


def _put_back(events: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("what") == "retry":
            by = str(event.get("by") or event.get("who") or "")
            for host, reason in _mapping(event.get("hosts")).items():
                found.setdefault(host, []).append({"at": at_of(event), "by": by, "reason": str(reason)})
    return found


def _published(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in events:
        if event.get("what") == "publish":
            for host, version in _mapping(event.get("hosts")).items():
                if version == event.get("version"):
                    found.setdefault(host, at_of(event))
    return found


def _entry(event: Mapping[str, Any]) -> dict[str, Any]:
    hosts, roles = _mapping(event.get("hosts")), _mapping(event.get("roles"))
    parts = [listing(in_order(hosts), _MOST_NAMED)] * bool(hosts) + [f"role {role}" for role in roles]
    stage = event.get("stage")
    # Hosts that are admitted together usually have the same reason.
    same = {str(reason) for reason in hosts.values()} if event.get("what") == "open" else set()
    reason = same.pop() if len(same) == 1 else str(event.get("reason") or "")
    text = [str(stage)] * bool(stage) + [", ".join(parts)] * bool(parts) + [_what_runs(event), reason]
    return {
        "at": at_of(event),
        "epoch": event.get("epoch", 0),
        "who": str(event.get("by") or event.get("who") or ""),
        "what": str(event.get("what", "")),
        "text": ": ".join(filter(None, text)),
    }


def _what_runs(event: Mapping[str, Any]) -> str:
    """Return what a job that begins runs, and where; empty for other entries."""
    if event.get("what") != "begin" or not event.get("command"):
        return ""
    args, only = event.get("args"), event.get("only")
    command = f"{event['command']} {json.dumps(args, ensure_ascii=False)}" if args else str(event["command"])
    parts = [truncate_middle(command, _LONGEST_COMMAND)]
    parts += [f"only {listing(list(map(str, only)), _MOST_NAMED)}"] if isinstance(only, list) and only else []
    return ", ".join([*parts, *(["signed"] if event.get("signed") else [])])


def _caps(rules: Mapping[str, Any], counts: Mapping[str, int]) -> Mapping[str, Sequence[AppliedCap]]:
    """Return role -> its caps; empty for rules that can't be applied."""
    try:
        parsed = parse(rules)
        return caps_by_role(parsed, resolve(parsed, counts), counts)
    except UpgradeError:
        return {}


def _parts(caps: Mapping[str, Sequence[AppliedCap]], counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Return part -> its roles, for every part of a fleet that can have a cap: the fleet, groups with a cap, each role."""
    found: dict[str, list[str]] = {"the fleet": list(counts)}
    for role in counts:
        for cap in caps.get(role, ()):
            if cap.what.startswith("group "):
                found.setdefault(cap.what, []).append(role)
        found[f"role {role}"] = [role]
    return found
