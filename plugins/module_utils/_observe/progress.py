# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a rollout: a row for each role, the hosts in flight, what blocks it, and the time left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._common.names import is_job
from .._fleet.fleet import LOST_AFTER, POST_FAILED, POST_OPEN, POST_STARTED, HostRecord, Snapshot
from .._fleet.ledger import ABORTED, COMPLETE
from .._host_states.state_names import BROKEN, FAILED, LOST, UPGRADED, UPGRADING, state_text
from .._planner.blocker_codes import BUDGET
from .._planner.blockers import NO_MORE_HOSTS
from .._planner.plan import HostView, Plan
from .operator_needs import OperatorNeed, operator_needs
from .stages import StageSummary, stage_summaries
from .time_left import admitted_at, seconds_left

# More hosts in flight are only counted. A terminal has fewer rows.
MOST_FLIGHTS = 100


@dataclass(frozen=True, slots=True)
class RoleProgress:
    """Number of hosts of a role: done, upgrading, failed or lost, and waiting (including held hosts)."""

    role: str
    hosts: int
    done: int
    upgrading: int
    failed: int
    waiting: int


@dataclass(frozen=True, slots=True)
class HostProgress:
    """A host in flight.

    :param service, step: where it is; empty if it has not reported that.
    :param doing: a short text for a host that has reported neither.
    :param since: when it was admitted (unix seconds); None if unknown.
    """

    host: str
    role: str
    service: str
    step: str
    doing: str
    since: float | None


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """The progress of a rollout in plain values, which can be sent as JSON.

    :param came_from: the previous version; empty if unknown.
    :param state: the state of the ledger; empty if no rollout has begun.
    :param bars: a row for each role.
    :param flights: the hosts in flight, the longest first.
    :param more: number of hosts in flight that are not in ``flights``.
    :param notes: sentences on the whole rollout: the stage, and what blocks it.
    :param left: seconds that the rest may take; None if unknown.
    :param judged_by: number of finished hosts from which ``left`` is estimated.
    :param at: when it was read (unix seconds).
    :param over: whether the rollout is over.
    :param done: whether it is complete. Post-upgrade tasks may follow.
    :param stages: its stages; empty without stages.
    :param needs: what it needs from an operator, the most important first.
    """

    version: str
    came_from: str
    state: str
    bars: tuple[RoleProgress, ...]
    flights: tuple[HostProgress, ...]
    more: int
    notes: tuple[str, ...]
    left: float | None
    judged_by: int
    at: float
    over: bool
    done: bool
    stages: tuple[StageSummary, ...] = ()
    needs: tuple[OperatorNeed, ...] = ()

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> RolloutProgress:
        """Return it from what :func:`dataclasses.asdict` returned."""
        bars = tuple(RoleProgress(**one) for one in data["bars"])
        flights = tuple(HostProgress(**one) for one in data["flights"])
        parts = {"bars": bars, "flights": flights, "notes": tuple(data["notes"])}
        parts["stages"] = tuple(StageSummary(**one) for one in data["stages"])
        parts["needs"] = tuple(map(OperatorNeed.from_plain, data["needs"]))
        return RolloutProgress(**{**data, **parts})


def watched_hosts(snapshot: Snapshot, plan: Plan) -> dict[str, HostView]:
    """Return host -> view for progress: hosts that run their post-upgrade tasks count as upgrading again."""
    lost = {host: one.lost_after for host, one in plan.fleet.hosts.items()} if plan.fleet is not None else {}
    return {
        host: _watched(view, snapshot.records.get(host), plan.version, lost.get(host, ""))
        for host, view in plan.hosts.items()
    }


def _watched(view: HostView, record: HostRecord | None, version: str | None, lost: str) -> HostView:
    if view.state != UPGRADED or record is None or not record.readable or record.version != version:
        return view
    if lost:
        return replace(view, state=LOST, reason=f"{LOST} after the upgrade{record.where()}: {lost}")
    if record.post in (POST_OPEN, POST_STARTED):
        return replace(view, state=UPGRADING, reason=f"runs its post-upgrade tasks{record.where()}")
    if record.post == POST_FAILED:
        error = (record.error or "no error was given").removeprefix(LOST_AFTER)
        state = LOST if record.is_lost else FAILED
        return replace(view, state=state, reason=f"{state} after the upgrade{record.where()}: {error}")
    return view


def rollout_progress(snapshot: Snapshot, plan: Plan, hosts: Mapping[str, HostView], soak: int = 0) -> RolloutProgress:
    """Return the progress of a rollout. Takes time linear in hosts, except for sorting the hosts in flight.

    :param hosts: what :func:`watched_hosts` returns.
    :param soak: ``health.soak`` of the rules (seconds).
    """
    ledger = snapshot.ledger
    moving = {host: admitted_at(snapshot, host, view.role) for host, view in hosts.items() if view.state == UPGRADING}
    # The time left is that of the upgrade.
    moving = {host: since if plan.hosts[host].state == UPGRADING else None for host, since in moving.items()}
    left, judged_by = seconds_left(snapshot, plan, soak, moving)
    order = sorted(moving, key=lambda host: (moving[host] is None, moving[host] or 0.0))
    at_work = any(plan.hosts[host].state == UPGRADED for host in moving)
    is_current = ledger is not None and ledger.version == snapshot.current_version
    done = is_current and ledger is not None and ledger.state == COMPLETE and not at_work
    everywhere = snapshot.gates.everywhere
    # A job is over once every host has run it. Its gates are never opened.
    is_open = snapshot.is_job or everywhere is None or (everywhere.text or "").strip().lower() == "true"
    return RolloutProgress(
        version=plan.version or "",
        came_from=(ledger.previous_version if ledger is not None else None) or "",
        state=ledger.state if ledger is not None else "",
        bars=_bars(hosts),
        flights=tuple(
            _flight(host, hosts[host], snapshot.records.get(host), moving[host]) for host in order[:MOST_FLIGHTS]
        ),
        more=max(0, len(order) - MOST_FLIGHTS),
        notes=tuple(_notes(plan, moves=bool(moving))),
        left=left if ledger is not None and ledger.state not in (COMPLETE, ABORTED) else None,
        judged_by=judged_by,
        at=snapshot.now,
        over=plan.version is None or ledger is None or (ledger.state == ABORTED and is_current) or (done and is_open),
        done=done,
        stages=stage_summaries(snapshot, plan),
        needs=operator_needs(snapshot, plan),
    )


def _bars(hosts: Mapping[str, HostView]) -> tuple[RoleProgress, ...]:
    # Roles appear in the order of their first host. Hosts are in natural order.
    counts: dict[str, dict[str, int]] = {}
    for view in hosts.values():
        if view.outside:
            continue
        what = "failed" if view.state in BROKEN else view.state if view.state in (UPGRADED, UPGRADING) else "waiting"
        of_role = counts.setdefault(view.role, {})
        of_role[what] = of_role.get(what, 0) + 1
    return tuple(
        RoleProgress(
            role,
            sum(found.values()),
            found.get(UPGRADED, 0),
            found.get(UPGRADING, 0),
            found.get("failed", 0),
            found.get("waiting", 0),
        )
        for role, found in counts.items()
    )


def _flight(host: str, view: HostView, record: HostRecord | None, since: float | None) -> HostProgress:
    has_reported = record is not None and record.readable and (view.started or record.post is not None)
    service = (record.service if record is not None and has_reported else None) or ""
    step = (record.step if record is not None and has_reported else None) or ""
    if view.soaking:
        return HostProgress(host, view.role, "", "", view.reason, since)
    at_work = state_text(UPGRADING, of_job=record is not None and is_job(record.version))
    doing = at_work if has_reported else "admitted"
    return HostProgress(host, view.role, service, step, doing, since)


def _notes(plan: Plan, *, moves: bool) -> list[str]:
    notes = []
    if plan.stage:
        notes.append(f"Stage {plan.stage}" + ("; it waits for approval" if plan.needs_approval else ""))
    if plan.blocker is not None:
        # The note begins with the same words.
        reason = plan.blocker.reason.removeprefix(NO_MORE_HOSTS) if plan.blocker.code == BUDGET else plan.blocker.reason
        notes.append(f"No host is admitted{'; hosts in flight finish' if moves else ''}: {reason}")
    return notes


def segments(row: RoleProgress, width: int) -> tuple[int, int, int, int]:
    """Return how many of ``width`` cells are done, upgrading, failed and waiting. Each count above 0 gets at least one cell.

    :param width: 4 or more.
    """
    counts = (row.done, row.upgrading, row.failed, row.waiting)
    total = sum(counts)
    if not total:
        return 0, 0, 0, width
    cells = [max(1, count * width // total) if count else 0 for count in counts]
    # The largest part takes the rounding difference.
    cells[max(range(4), key=lambda at: cells[at])] += width - sum(cells)
    return cells[0], cells[1], cells[2], cells[3]
