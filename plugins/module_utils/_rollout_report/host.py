# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The phases of one host in a rollout, for the report.

Times that are not stored are not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .._fleet.failures import Failure
from .._fleet.fleet import FAILED, REPORTED_LOST, RETRIED, STARTED, UPGRADED, HostRecord, VersionReport

# The phases of a host, in their order.
WAITS, OPEN, WORKS, BROKE, DONE = PHASES = ("waiting", "admitted", "upgrading", "failed", "upgraded")
# The phases in which a host may be down.
DOWN = (OPEN, WORKS, BROKE)
# A host whose job is lost is as much out of order as one on which it failed.
_PHASE_OF = {RETRIED: WAITS, STARTED: WORKS, FAILED: BROKE, REPORTED_LOST: BROKE, UPGRADED: DONE}


class Phase(NamedTuple):
    """A phase of a host from ``start`` to ``end`` (unix seconds), with the service and step of an upgrade."""

    phase: str
    start: int
    end: int
    service: str = ""
    step: str = ""


class _Change(NamedTuple):
    at: int
    phase: str
    service: str = ""
    step: str = ""


def host_report(
    host: str,
    role: str,
    opened: Sequence[int],
    closed: Sequence[int],
    put_back: Sequence[Mapping[str, Any]],
    record: HostRecord | None,
    report: VersionReport | None,
    begun: int,
    end: int,
    published: int | None = None,
    at_last: int | None = None,
) -> dict[str, Any]:
    """Return a host's part of the report as plain data.

    :param opened: when it was admitted (unix seconds).
    :param closed: when its admission ended before it had started.
    :param put_back: its retries: ``at``, ``by`` and ``reason`` of each.
    :param record: its record of this rollout; None if there is none.
    :param report: its report of this rollout's version; None if there is none.
    :param begun: when the rollout began (unix seconds).
    :param end: where it ends in the report (unix seconds).
    :param published: when planners published that it is upgraded.
    :param at_last: when every host was upgraded: the latest possible end of a host whose end is not stored.
    """
    recorded = list(_changes(record)) if record is not None else []
    now = _PHASE_OF[record.state] if record is not None else None
    ended = record.times.get(UPGRADED) if now == DONE and record is not None else None
    changes = sorted(
        (
            *(_Change(at, WAITS) for at in (*closed, *(one["at"] for one in put_back))),
            # A planner may open the gate of a host again just when the host ends.
            *(_Change(at, OPEN) for at in opened if not ended or at <= ended),
            *recorded,
        ),
        # Within a second, an admission comes before its end, and the current state of the record last. What the record has from before the rollout
        # counts from its beginning.
        key=lambda one: (
            min(max(one.at, begun), end),
            one.phase == now,
            one.phase == WAITS and one.at in closed,
            PHASES.index(one.phase),
            bool(one.service or one.step),
        ),
    )
    if report is not None and not any(one.phase == DONE for one in changes):
        # The report is older than the rollout, or it is all that is stored of the host's end.
        changes.append(_Change(int(report.at or begun), DONE))
    is_exact = any(one.phase == DONE for one in changes)
    for at, exact in ((published, True), (at_last, False)):
        if at is not None and record is None and not any(one.phase == DONE for one in changes):
            changes.append(_Change(at, DONE))
            is_exact = exact
    last = {one.phase: min(max(one.at, begun), end) for one in changes}
    phases = _phases([one._replace(at=min(max(one.at, begun), end)) for one in changes], begun, end)
    is_known = is_exact or phases[-1].phase != DONE
    return {
        "host": host,
        "role": role,
        "phase": phases[-1].phase,
        "end_known": is_known,
        "phases": [list(one) for one in phases],
        "attempt": record.attempt if record else 0,
        "service": (record.service if record else "") or "",
        "step": (record.step if record else "") or "",
        "error": (record.error if record else "") or "",
        "admitted": [at for at in opened if at],
        "began": last.get(WORKS),
        "ended": last.get(phases[-1].phase) if phases[-1].phase in (BROKE, DONE) and is_known else None,
        "failures": [one._asdict() for one in _failures(record)] if record is not None else [],
        "retries": list(put_back),
    }


def _failures(record: HostRecord) -> list[Failure]:
    """Return the failures of a record, including the last one of a record from a release that did not store failures."""
    has_failed = record.state in (FAILED, REPORTED_LOST)
    found, at = list(record.failures), record.times.get(record.state if has_failed else FAILED)
    if (at is not None or has_failed) and not any(one.at == (at or 0) for one in found):
        where = (record.service or "", record.step or "", record.error or "") if has_failed else ()
        found.append(Failure(at or 0, record.attempt if has_failed else 0, *where))
    elif has_failed:
        # The record may have more of the last error than the failure.
        found[-1] = found[-1]._replace(error=record.error or found[-1].error)
    return sorted(found)


def incidents(one: Mapping[str, Any]) -> list[tuple[int, str, str, str]]:
    """Return the failures and retries of a host in their order: when, what, where and by whom, and why.

    :param one: what :func:`host_report` returns.
    """
    failed = [
        (each["at"], _failed(each["total"]), " ".join(filter(None, (each["service"], each["step"]))), each["error"])
        for each in one["failures"]
    ]
    retried = [
        (each["at"], "retried", f"by {each['by']}" if each["by"] else "", each["reason"]) for each in one["retries"]
    ]
    return sorted([*failed, *retried])


def _failed(count: int) -> str:
    return "failed" if count == 1 else f"failed, and {count - 1} times before"


def _changes(record: HostRecord) -> Iterator[_Change]:
    """Yield the changes of phase that a record contains."""
    for state, at in record.times.items():
        if state in _PHASE_OF:
            yield _Change(at, _PHASE_OF[state])
    failed = {one.at for one in record.failures}
    for at in failed - {record.times.get(FAILED)}:
        yield _Change(at, BROKE)
    known = {*record.times.values(), *failed}
    for one in record.trail:
        if one.service or one.step:
            yield _Change(one.at, WORKS, one.service, one.step)
        elif one.at not in known:
            # Tags left the rest to a later run, or the host failed and was retried: the record has only the last time of each state.
            yield _Change(one.at, OPEN)


def _phases(changes: Sequence[_Change], begun: int, end: int) -> list[Phase]:
    found: list[Phase] = []
    now = _Change(begun, WAITS)
    for one in changes:
        # A step counts even if it took less than a second.
        if one.at > now.at or now.service or now.step:
            found.append(Phase(now.phase, now.at, one.at, now.service, now.step))
        now = one
    if end > now.at or not found or found[-1].phase != now.phase:
        found.append(Phase(now.phase, now.at, max(now.at, end), now.service, now.step))
    return found
