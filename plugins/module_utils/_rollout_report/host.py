# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host's way through a rollout, as the report shows it: what it did from when to when.

What no one wrote down is not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .._fleet.failures import Failure
from .._fleet.fleet import FAILED, RETRIED, STARTED, UPGRADED, HostRecord, VersionReport

# What a host is doing, in the order in which it comes to it.
WAITS, OPEN, WORKS, BROKE, DONE = PHASES = ("waits", "let through", "at work", "failed", "upgraded")
# In these it may be down.
DOWN = (OPEN, WORKS, BROKE)
_PHASE_OF = {RETRIED: WAITS, STARTED: WORKS, FAILED: BROKE, UPGRADED: DONE}


class Phase(NamedTuple):
    """What a host does from ``start`` to ``end`` (unix seconds), and at which step it works."""

    phase: str
    start: int
    end: int
    service: str = ""
    step: str = ""


class _Turn(NamedTuple):
    at: int
    phase: str
    service: str = ""
    step: str = ""


def host_report(
    host: str,
    role: str,
    opened: Sequence[int],
    put_back: Sequence[Mapping[str, Any]],
    record: HostRecord | None,
    report: VersionReport | None,
    begun: int,
    end: int,
    published: int | None = None,
    at_last: int | None = None,
) -> dict[str, Any]:
    """Return a host's part of the chronicle as plain data.

    :param opened: when it was admitted (unix seconds), and ``put_back`` the retries: ``at``, ``by`` and ``reason`` of each.
    :param record: its record of this rollout, ``report`` what it reported, None where it is of another or not known.
    :param begun: when the rollout began, and ``end`` where it ends in the report (unix seconds).
    :param published: when planners published that it is upgraded.
    :param at_last: when every host was upgraded. Of one whose end no one wrote down it is the latest time that it can have been.
    """
    said = list(_turns(record)) if record is not None else []
    now = _PHASE_OF[record.state] if record is not None else None
    turns = sorted(
        (*(_Turn(one["at"], WAITS) for one in put_back), *(_Turn(at, OPEN) for at in opened), *said),
        # Within a second, what its record says last comes last.
        key=lambda one: (one.at, one.phase == now, PHASES.index(one.phase), bool(one.service or one.step)),
    )
    if report is not None and not any(one.phase == DONE for one in turns):
        # It stands there since before the rollout began, or tells by that alone that it is done.
        turns.append(_Turn(int(report.at or begun), DONE))
    is_shown = any(one.phase == DONE for one in turns)
    for at, tells in ((published, True), (at_last, False)):
        if at is not None and record is None and not any(one.phase == DONE for one in turns):
            turns.append(_Turn(at, DONE))
            is_shown = tells
    last = {one.phase: min(max(one.at, begun), end) for one in turns}
    phases = _phases([one._replace(at=min(max(one.at, begun), end)) for one in turns], begun, end)
    is_known = is_shown or phases[-1].phase != DONE
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
    """Return the failures that a record has, the last one also where it was written by a release that kept no others."""
    found, at = list(record.failures), record.times.get(FAILED)
    has_failed = record.state == FAILED
    if (at is not None or has_failed) and not any(one.at == (at or 0) for one in found):
        where = (record.service or "", record.step or "", record.error or "") if has_failed else ()
        found.append(Failure(at or 0, record.attempt if has_failed else 0, *where))
    elif has_failed:
        # All of the error that the host failed with last.
        found[-1] = found[-1]._replace(error=record.error or found[-1].error)
    return sorted(found)


def incidents(one: Mapping[str, Any]) -> list[tuple[int, str, str, str]]:
    """Return the failures and retries of a host in their order: when, what, where and by whom, and why.

    :param one: what :func:`host_report` returns.
    """
    failed = [
        (each["at"], "failed", " ".join(filter(None, (each["service"], each["step"]))), each["error"])
        for each in one["failures"]
    ]
    retried = [
        (each["at"], "retried", f"by {each['by']}" if each["by"] else "", each["reason"]) for each in one["retries"]
    ]
    return sorted([*failed, *retried])


def _turns(record: HostRecord) -> Iterator[_Turn]:
    """Yield what a record says of its host."""
    for state, at in record.times.items():
        if state in _PHASE_OF:
            yield _Turn(at, _PHASE_OF[state])
    failed = {one.at for one in record.failures}
    for at in failed - {record.times.get(FAILED)}:
        yield _Turn(at, BROKE)
    known = {*record.times.values(), *failed}
    for one in record.trail:
        if one.service or one.step:
            yield _Turn(one.at, WORKS, one.service, one.step)
        elif one.at not in known:
            # Tags left the rest for later, or it failed and was tried again: of each state the last time is written down alone.
            yield _Turn(one.at, OPEN)


def _phases(turns: Sequence[_Turn], begun: int, end: int) -> list[Phase]:
    found: list[Phase] = []
    now = _Turn(begun, WAITS)
    for one in turns:
        # A step counts that took no whole second.
        if one.at > now.at or now.service or now.step:
            found.append(Phase(now.phase, now.at, one.at, now.service, now.step))
        now = one
    if end > now.at or not found or found[-1].phase != now.phase:
        found.append(Phase(now.phase, now.at, max(now.at, end), now.service, now.step))
    return found
