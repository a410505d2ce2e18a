# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a fleet as metrics for dashboards and alerts.

Times are unix seconds and not ages, so that the same state gives the same text: ``time() - x`` is the age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._fleet.fleet import Snapshot
from .._host_states.state_names import BROKEN, STATES, UPGRADING
from .._planner.blocker_codes import ABORT, BUDGET, EXPIRED, HOURS, PAUSE
from .._planner.plan import HostView, Plan
from .openmetrics import Gauge

_PREFIX = "convoy_upgrade_"
_STOPS = (PAUSE, ABORT, EXPIRED, BUDGET, HOURS)


@dataclass(slots=True)
class AdmissionCounts:
    """The admissions of a rollout, from its history.

    :param hosts: host -> when its own gate was last opened (unix seconds).
    :param roles: role -> how many of its hosts the role's gate admitted, and when (unix seconds).
    """

    hosts: dict[str, int] = field(default_factory=dict)
    roles: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an entry of the history, the newest first. Entries of other kinds are ignored."""
        if event.get("what") != "open":
            return
        at = event.get("at")
        when = int(at) if isinstance(at, (int, float)) else 0
        for host in _mapping(event.get("hosts")):
            self.hosts.setdefault(host, when)
        for role, opened in _mapping(event.get("roles")).items():
            count = _mapping(opened).get("hosts")
            self.roles.setdefault(role, (count if isinstance(count, int) else 0, when))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def fleet_gauges(snapshot: Snapshot, plan: Plan, admissions: AdmissionCounts, warnings: int) -> list[Gauge]:
    """Return all metrics of a fleet. Takes time linear in hosts.

    :param admissions: those of the current rollout.
    :param warnings: the number of warnings.
    """
    return [*_rollout(snapshot, plan, warnings), *_admissions(plan, admissions), *_hosts(snapshot, plan, admissions)]


def _rollout(snapshot: Snapshot, plan: Plan, warnings: int) -> Iterable[Gauge]:
    ledger = snapshot.ledger
    about = {
        "version": plan.version or "",
        "previous_version": (ledger.previous_version if ledger else None) or "",
        "state": ledger.state if ledger else "none",
    }
    stopped = plan.blocker.code if plan.blocker else ""
    yield _one("rollout_info", "The rollout in the ledger; its state is none where there is no ledger.", 1, about)
    if ledger is not None:
        yield _one("rollout_begun_timestamp_seconds", "When the rollout began.", ledger.since)
        yield _one("planner_writes", "Writes of planners so far, the epoch of the ledger.", ledger.epoch)
        entries = ledger.epoch + 1 - ledger.history_from
        yield _one(
            "history_entries", "Entries of the history. Those of rollouts that are not kept are removed.", entries
        )
    yield _one("complete", "Whether every host is upgraded.", plan.complete)
    yield _one(
        "can_move",
        "Whether the rollout can still go on: hosts are upgrading, or only time, an approval or a command is missing.",
        plan.can_move,
    )
    yield _one("needs_approval", "Whether a stage is done and needs an approval.", plan.needs_approval)
    yield Gauge(
        f"{_PREFIX}stopped",
        "What blocks the whole rollout now.",
        [({"reason": code}, float(code == stopped)) for code in _STOPS],
    )
    yield _one("warnings", "Warnings that ansible-playbook convoy.upgrade.status prints.", warnings)


def _admissions(plan: Plan, admissions: AdmissionCounts) -> Iterable[Gauge]:
    counts = dict.fromkeys((view.role for view in plan.hosts.values()), 0)
    for host in admissions.hosts:
        if host in plan.hosts:
            counts[plan.hosts[host].role] += 1
    for role, (hosts, _at) in admissions.roles.items():
        if role in counts:
            counts[role] += hosts
    times = [*admissions.hosts.values(), *(at for _hosts, at in admissions.roles.values())]
    yield Gauge(
        f"{_PREFIX}admitted_hosts",
        "Hosts that this rollout has admitted so far.",
        [({"role": role}, count) for role, count in counts.items()],
    )
    if times:
        yield _one("last_admission_timestamp_seconds", "When this rollout last admitted a host.", max(times))


def _hosts(snapshot: Snapshot, plan: Plan, admissions: AdmissionCounts) -> Iterable[Gauge]:
    counts: dict[tuple[str, str], int] = {}
    oldest: dict[str, int] = {}
    broken = []
    for host, view in plan.hosts.items():
        if (view.role, STATES[0]) not in counts:
            counts |= {(view.role, state): 0 for state in STATES}
        if view.outside:
            continue
        counts[view.role, view.state] += 1
        at = _since(snapshot, admissions, host, view)
        if view.state == UPGRADING and at:
            oldest[view.role] = min(at, oldest.get(view.role, at))
        elif view.state in BROKEN:
            record = snapshot.records.get(host)
            where = {"service": (record and record.service) or "", "step": (record and record.step) or ""}
            broken.append(({"host": host, "role": view.role, "state": view.state, **where}, at))
    yield Gauge(
        f"{_PREFIX}hosts",
        "Hosts of a role in each state. While a job is under way, those that it is for.",
        [({"role": role, "state": state}, count) for (role, state), count in counts.items()],
    )
    yield Gauge(
        f"{_PREFIX}oldest_upgrading_timestamp_seconds",
        "Since when the host of a role that has been upgrading longest is upgrading.",
        [({"role": role}, at) for role, at in oldest.items()],
    )
    yield Gauge(
        f"{_PREFIX}failed_host_timestamp_seconds",
        "Hosts that failed or are lost, and when they last reported or were admitted; 0 if unknown.",
        broken,
    )


def _since(snapshot: Snapshot, admissions: AdmissionCounts, host: str, view: HostView) -> int:
    """Return when a host last reported in this rollout, else when it was admitted (unix seconds); 0 if unknown."""
    record = snapshot.records.get(host)
    is_current = record is not None and record.version == snapshot.current_version
    reported = record.times.get(record.state, 0) if record is not None and is_current else 0
    _count, by_role = admissions.roles.get(view.role, (0, 0))
    return reported or admissions.hosts.get(host, by_role)


def _one(name: str, text: str, value: float, labels: Mapping[str, str] | None = None) -> Gauge:
    return Gauge(f"{_PREFIX}{name}", text, [(labels or {}, float(value))])
