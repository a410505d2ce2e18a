# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of a rollout while it runs: which events there are, which were told, and what each has to say."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._common.names import listing, plural
from .._common.sanitize import sanitize, truncate_middle
from .._fleet.fleet import Snapshot
from .._fleet.ledger import ABORTED, COMPLETE, Ledger, is_count
from .._host_states.states import BROKEN, STATES, UPGRADED, UPGRADING
from .._planner.plan import HostView, Plan

BEGIN, STAGE, PAUSE, RESUME = "begin", "stage", "pause", "resume"
FAILURE, WANTED, APPROVED, END = "failure", "approval_wanted", "approved", "end"
EVENTS = (BEGIN, STAGE, PAUSE, RESUME, FAILURE, WANTED, APPROVED, END)

# Of the hosts that failed, so many are told each with its error, and so many in the sentence; the others are counted.
MOST_FAILURES = 50
_MOST_IN_TEXT = 3
_MOST_ERROR = 1000

_BEGINS = ("begin", "adopt")
_ENDS = ("complete", "converge", "abort")


@dataclass(frozen=True, slots=True)
class SentNotifications:
    """What was told so far.

    :param epoch: the newest entry of the history that was.
    :param broken: the hosts that were told as failed or lost, until they are upgraded or put back.
    :param approval: the stage whose approval was asked for, empty where none is wanted.
    :param stage: the stage that was told last, empty where none was.
    :param ended: whether the end of the rollout at hand was told.
    """

    epoch: int = 0
    broken: tuple[str, ...] = ()
    approval: str = ""
    stage: str = ""
    ended: bool = False

    def plain(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {**asdict(self), "broken": list(self.broken)}

    def without(self, hosts: Container[str]) -> SentNotifications:
        """Return it as if these hosts had not been told as broken."""
        return replace(self, broken=tuple(host for host in self.broken if host not in hosts))

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> SentNotifications:
        """Return what was stored.

        :raises KeyError, ValueError, TypeError: if it is something else.
        """
        told = SentNotifications(data["epoch"], tuple(data["broken"]), data["approval"], data["stage"], data["ended"])
        texts = (*told.broken, told.approval, told.stage)
        if (
            not is_count(told.epoch)
            or not isinstance(told.ended, bool)
            or not all(isinstance(one, str) for one in texts)
        ):
            raise ValueError("it is not what was written")
        return told


@dataclass(frozen=True, slots=True)
class Notification:
    """An event to be told.

    :param at: when it happened (unix seconds).
    :param outcome: how the rollout ended: ``complete`` or ``aborted``; empty for other events.
    :param cause: what paused it or let it go on: ``word`` of an operator, or ``budget``; empty for other events.
    :param hosts: those that it is about.
    :param after: what was told once this is.
    """

    event: str
    at: float
    version: str
    after: SentNotifications
    by: str = ""
    reason: str = ""
    stage: str = ""
    outcome: str = ""
    cause: str = ""
    hosts: tuple[str, ...] = ()


def everything_sent(snapshot: Snapshot, plan: Plan, hosts: Mapping[str, HostView]) -> SentNotifications:
    """Return where nothing is left to tell: where the first run with a hook begins.

    :param hosts: what :func:`~.progress.watched` returns.
    """
    ledger = snapshot.ledger
    over = ledger is not None and ledger.state in (COMPLETE, ABORTED)
    return SentNotifications(
        ledger.epoch if ledger is not None else 0, _broken(hosts), _wanted(plan), plan.stage or "", over
    )


def caught_up(ledger: Ledger | None, entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return what of the untold entries a run that begins still tells, which are those of the rollout that is on its way.

    Of a rollout that began and ended without a hook, nothing is told.

    :param entries: those that were not told, the oldest first.
    """
    begun = [at for at, entry in enumerate(entries) if entry.get("what") in _BEGINS]
    if not begun:
        return entries
    over = ledger is not None and ledger.state in (COMPLETE, ABORTED)
    return [] if over else entries[begun[-1] :]


def pending_notifications(
    snapshot: Snapshot,
    plan: Plan,
    hosts: Mapping[str, HostView],
    entries: Sequence[Mapping[str, Any]],
    told: SentNotifications,
) -> tuple[list[Notification], SentNotifications]:
    """Return the events that are to be told now, in their order, and what was told after the last. Linear in hosts and entries.

    What an operator or a planner did is in the history. That a host failed or somebody's approval is wanted is not, so these
    are told where they are so and were not told.

    :param hosts: what :func:`~.progress.watched` returns.
    :param entries: of the history, the oldest first, after ``told.epoch``.
    """
    notifications: list[Notification] = []
    all_upgraded = all(view.state == UPGRADED for view in hosts.values())
    last_opening = max((int(entry["epoch"]) for entry in entries if entry.get("what") == "open"), default=0)
    for entry in entries:
        told = replace(_forgotten(told, entry), epoch=max(told.epoch, int(entry["epoch"])))
        notification = _of_entry(entry, told)
        if notification is not None:
            told = notification.after
            # A stage for what those before it have left may have no one.
            if notification.event != STAGE or not all_upgraded or told.epoch < last_opening:
                notifications.append(notification)
    at, version = snapshot.now, plan.version or ""
    broken = _broken(hosts)
    known = set(told.broken)
    updates = tuple(host for host in broken if host not in known)
    # One that begins again by itself is still the one that was told.
    kept = tuple(host for host in told.broken if host in hosts and hosts[host].state in (*BROKEN, UPGRADING))
    told = replace(told, broken=(*kept, *updates))
    if updates:
        notifications.append(Notification(FAILURE, at, version, told, hosts=updates))
    wanted = _wanted(plan)
    is_new = wanted not in ("", told.approval)
    told = replace(told, approval=wanted)
    if is_new:
        notifications.append(Notification(WANTED, at, version, told, stage=wanted))
    return notifications, told


def _forgotten(told: SentNotifications, entry: Mapping[str, Any]) -> SentNotifications:
    """Return what was told, without what an entry makes news again."""
    what = entry.get("what")
    if what in _BEGINS:
        return SentNotifications(told.epoch)
    if what in ("retry", "forget"):
        hosts = entry.get("hosts")
        return told.without(hosts) if isinstance(hosts, Mapping) else told
    return replace(told, ended=False) if what == "open" else told


def _of_entry(entry: Mapping[str, Any], told: SentNotifications) -> Notification | None:
    """Return the event that an entry of the history is, None where it is none."""
    what = entry.get("what")
    reason = str(entry.get("reason") or "")
    said = Notification(
        "", float(entry.get("at") or 0), str(entry.get("version") or ""), told, by=_who(entry), reason=reason
    )
    if what in _BEGINS:
        return replace(said, event=BEGIN)
    if what == "stage" and (stage := str(entry.get("stage") or "")) not in ("", told.stage):
        return replace(said, event=STAGE, stage=stage, reason="", after=replace(told, stage=stage))
    if what in ("pause", "resume"):
        return replace(said, event=PAUSE if what == "pause" else RESUME, cause="word")
    if what == "budget":
        return replace(said, event=PAUSE if entry.get("keys") else RESUME, cause="budget")
    if what == "approve":
        return replace(said, event=APPROVED, stage=str(entry.get("stage") or ""))
    if what in _ENDS and not told.ended:
        outcome = ABORTED if what == "abort" else COMPLETE
        return replace(said, event=END, outcome=outcome, after=replace(told, ended=True))
    return None


def _who(entry: Mapping[str, Any]) -> str:
    return str(entry.get("by") or entry.get("who") or "")


def _broken(hosts: Mapping[str, HostView]) -> tuple[str, ...]:
    return tuple(host for host, view in hosts.items() if view.state in BROKEN)


def _wanted(plan: Plan) -> str:
    return str(plan.stage or "") if plan.wants_approval else ""


def payload(
    notification: Notification, snapshot: Snapshot, plan: Plan, hosts: Mapping[str, HostView]
) -> dict[str, Any]:
    """Return what a hook gets, as plain data. Texts are one line each, and do nothing on a terminal.

    :param hosts: what :func:`~.progress.watched` returns; they are told as they are now, whenever the event was.
    """
    ledger = snapshot.ledger
    is_current = ledger is not None and ledger.version == notification.version
    counts: dict[str, dict[str, int]] = {}
    for view in hosts.values():
        of_role = counts.setdefault(view.role, dict.fromkeys(STATES, 0))
        of_role[view.state] += 1
    failures = [
        {
            "host": host,
            "role": hosts[host].role,
            "state": hosts[host].state,
            "error": truncate_middle(sanitize(hosts[host].reason), _MOST_ERROR),
        }
        for host in notification.hosts[:MOST_FAILURES]
    ]
    found = {
        "event": notification.event,
        "version": notification.version,
        "from_version": (ledger.previous_version if ledger is not None and is_current else None) or "",
        "rollback": bool(ledger is not None and is_current and ledger.rollback),
        "begun_at": _utc(ledger.since) if ledger is not None and is_current else "",
        "begun_by": ledger.who if ledger is not None and is_current else "",
        "epoch": notification.after.epoch,
        "at": _utc(notification.at),
        "by": notification.by,
        "reason": notification.reason,
        "stage": notification.stage or (plan.stage or "" if is_current else ""),
        "outcome": notification.outcome,
        "cause": notification.cause,
        "hosts": len(hosts),
        "upgraded": sum(of_role[UPGRADED] for of_role in counts.values()),
        "broken": sum(of_role[state] for of_role in counts.values() for state in BROKEN),
        "counts": counts,
        "failures": failures,
        "more_failures": len(notification.hosts) - len(failures),
    }
    found = {name: sanitize(value) if isinstance(value, str) else value for name, value in found.items()}
    return {**found, "text": _text(found), "next": _next(found)}


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _text(found: Mapping[str, Any]) -> str:
    """Return the sentence of an event."""
    event, version = found["event"], found["version"]
    of = f"The {'rollback' if found['rollback'] else 'rollout'} to {version}"
    why = f": {found['reason']}" if found["reason"] else ""
    by = f" by {found['by']}" if found["by"] else ""
    if event == BEGIN:
        came = f" from {found['from_version']}" if found["from_version"] else ""
        return f"{of}{came} was begun{by}, for {plural(found['hosts'], 'host')}."
    if event == STAGE:
        return f"{of}: stage {found['stage']} begins."
    if event == PAUSE:
        return f"{of} was paused{by}{why}." if found["cause"] == "word" else f"{of} opens nothing more{why}."
    if event == RESUME:
        return f"{of} goes on{by}{why}." if found["cause"] == "word" else f"{of} goes on{why}."
    if event == FAILURE:
        first = "; ".join(f"{one['host']} {one['error']}" for one in found["failures"][:_MOST_IN_TEXT])
        count = len(found["failures"]) + found["more_failures"]
        rest = f"; and {count - _MOST_IN_TEXT} more" if count > _MOST_IN_TEXT else ""
        return f"{of}: {plural(count, 'host')} failed or lost: {first}{rest}."
    if event == WANTED:
        return f"{of}: stage {found['stage']} is done, and waits for approval."
    if event == APPROVED:
        return f"{of}: stage {found['stage']} was approved{by}{why}."
    how = f"was aborted{by}{why}" if found["outcome"] == ABORTED else "is complete"
    return f"{of} {how}; {found['upgraded']} of {plural(found['hosts'], 'host')} upgraded."


def _next(found: Mapping[str, Any]) -> str:
    """Return what is to be done now, empty where that is nothing."""
    event = found["event"]
    if event == FAILURE:
        one = listing([failure["host"] for failure in found["failures"]])
        return f"Look at {one} with status.yml -e host=HOST, fix what is broken, and run retry.yml."
    if event == PAUSE:
        return (
            "Run resume.yml to let it go on, or abort.yml to end it."
            if found["cause"] == "word"
            else "Fix the hosts that failed, and run retry.yml; or give all rules again with a higher budget."
        )
    if event == WANTED:
        return f"Look at the hosts with status.yml, and run approve.yml -e stage={found['stage']}, or abort.yml."
    if event == END and found["outcome"] == ABORTED:
        return "Begin it again with upgrade.yml -e restart=true, or go back with rollback.yml."
    return "" if event == END else "Nothing: it goes on by itself. Watch it with status.yml -e follow=true."
