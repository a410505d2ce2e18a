# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of a fleet for `consul_upgrade_info`, and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from .._codecs.job import decode_outputs
from .._common.errors import UpgradeError
from .._common.names import did_you_mean, job_id
from .._common.sanitize import truncated_repr
from .._consul.client import MOST_OPERATIONS
from .._fleet.fleet import Membership, Snapshot, find_members
from .._fleet.ledger import BEGINNINGS, Ledger
from .._host_states.state_names import PENDING
from .._observe.explain import explain
from .._planner.plan import Plan
from .._planner.reconcile import make_plan
from .._rollout.host_health_notes import with_checks
from .._rollout_report.rollout import entries_of
from .._rules.instructions import Instructions, parse
from .._state.layout import refuse_to_plan
from .._state.store import Store

# How many older entries of the history the details of a host include. A hold may be older than the rollout.
MOST_EARLIER = 50
# Stands for the ID of the last job.
LAST_JOB = "last"


@dataclass(frozen=True, slots=True)
class FleetView:
    """The state of a fleet.

    :param history: entries, the newest first.
    :param details: for the requested host: its record, its explanation in sentences, the entries on it in the current rollout and shortly
        before that, and whether the history has or had older ones. None if no host was requested.
    :param membership: the hosts of the fleet, which save time in the next read; None if it was not kept.
    """

    snapshot: Snapshot
    plan: Plan
    history: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    membership: Membership | None = None


def read_fleet(
    store: Store,
    *,
    fleet: Mapping[str, str] | None = None,
    role_pattern: str | None = None,
    history: int = 0,
    name: str | None = None,
    of_job: bool | None = None,
    job: str | None = None,
    before: FleetView | None = None,
) -> FleetView:
    """Return the state of the fleet, what the next pass would admit, and entries of the history.

    :param fleet: host -> role.
    :param history: how many entries of the history to read; 0 costs no request.
    :param name: a host to explain.
    :param of_job: as for :meth:`Store.snapshot`.
    :param job: the ID of the last job, or :data:`LAST_JOB`, to show it also if it is complete. None shows it only while it is under way.
    :param before: an earlier view of this process, which saves time.
    :raises UpgradeError: ``unknown_host``, ``unknown_job``, or what :meth:`Store.snapshot` raises.
    """
    snapshot = store.snapshot(of_job=of_job)
    if job is not None:
        _refuse_other_job(job, snapshot.ledger if snapshot.is_job else snapshot.job)
    if job is not None and snapshot.job is not None:
        snapshot = store.snapshot(of_job=True)
    store = store.of(snapshot)
    ledger = snapshot.ledger
    pattern = role_pattern or (ledger.role_pattern if ledger else None)
    membership = find_members(fleet, snapshot, pattern, before.membership if before is not None else None)
    members = membership.members
    plan, warnings = _plan(store, snapshot, members, before.plan if before is not None else None)
    if job == LAST_JOB and not snapshot.is_job:
        warnings.append(
            "job: no job is stored, so this is the rollout to a version. A hold, or another command after a job, removes it."
        )
    refusals = [error.message for error in snapshot.gates.unreadable(snapshot.current_version)]
    refusals += _on_layout(store, snapshot)
    warnings += refusals
    if name is not None and name not in members:
        raise UpgradeError(
            "unknown_host",
            f"name: {name!r} is unknown: it is neither in fleet nor in a report{did_you_mean(name, members) or '.'}",
        )
    events = list(islice(store.history(ledger, min(history, MOST_OPERATIONS)), history)) if history else []
    details = None
    if name is not None:
        record = snapshot.records.get(name)
        found, has_older = _current(store, ledger)
        details = {
            "record": record.plain() if record else None,
            "explanation": explain(
                name, plan, snapshot, entries_of(found, ledger) if ledger is not None else found, refusals
            ),
            "events": [event for event in found if _touches(event, name, members[name])],
            "older_events": has_older,
            "jobs": _outputs(store, name) if name in snapshot.job_hosts else [],
        }
    return FleetView(snapshot, plan, events, details, (*warnings, *plan.warnings, *plan.missing), membership)


def _refuse_other_job(job: str, last: Ledger | None) -> None:
    """Refuse a job that is not the last one.

    :raises UpgradeError: ``unknown_job``.
    """
    if job == LAST_JOB or (last is not None and job_id(last.version) == job):
        return
    which = f"is not the last job, which is {job_id(last.version)}" if last is not None else "is no job of this rollout"
    raise UpgradeError(
        "unknown_job",
        f"job: {truncated_repr(job)} {which}. Only the job that came last is shown, until a rollout to a version begins. What hosts have "
        "printed in their last three jobs is in ansible-playbook convoy.upgrade.status -e host=NAME.",
    )


def _outputs(store: Store, host: str) -> list[dict[str, Any]]:
    """Return the outputs of a host's last jobs, the newest first."""
    entry = store.client.get(store.keys.job_output(host))
    return decode_outputs(entry.value) if entry is not None else []


def _on_layout(store: Store, snapshot: Snapshot) -> list[str]:
    """Return why planners are refused because of the layout of the keys or its migration; empty if they are not."""
    try:
        refuse_to_plan(store.keys, snapshot)
    except UpgradeError as error:
        return [error.message]
    return []


def _touches(event: Mapping[str, Any], host: str, role: str) -> bool:
    hosts, roles = event.get("hosts"), event.get("roles")
    if not isinstance(hosts, dict) and not isinstance(roles, dict):
        return True
    return (isinstance(hosts, dict) and host in hosts) or (isinstance(roles, dict) and role in roles)


def _plan(store: Store, snapshot: Snapshot, members: Mapping[str, str], before: Plan | None) -> tuple[Plan, list[str]]:
    """Return the plan and warnings. If the rules can't be applied, the plan admits no host."""
    try:
        rules = parse(snapshot.ledger.instructions if snapshot.ledger is not None else {})
    except UpgradeError as error:
        return _no_plan(store, snapshot, members, error)
    seen = with_checks(store, snapshot, rules)
    try:
        return make_plan(seen, members, rules, before=before), []
    except UpgradeError as error:
        return _no_plan(store, snapshot, members, error)


def _no_plan(
    store: Store, snapshot: Snapshot, members: Mapping[str, str], error: UpgradeError
) -> tuple[Plan, list[str]]:
    plan = make_plan(snapshot, members, Instructions())
    reason = "the rules can't be applied, so no host is admitted"
    hosts = {host: replace(view, reason=reason) if view.state == PENDING else view for host, view in plan.hosts.items()}
    warning = f"The rules in {store.keys.ledger} can't be applied, so no host is admitted: {error.message}"
    return replace(plan, hosts=hosts, admissions=(), role_gates=(), host_gates=(), waves=(), wave_seconds=()), [warning]


def _current(store: Store, ledger: Ledger | None) -> tuple[list[dict[str, Any]], bool]:
    """Return the entries of the current rollout and some older ones, and whether there are or were more."""
    events: list[dict[str, Any]] = []
    earlier = None
    for event in store.history(ledger):
        if earlier == MOST_EARLIER:
            return events, True
        events.append(event)
        if earlier is not None:
            earlier += 1
        elif event.get("what") in BEGINNINGS:
            earlier = 0
    return events, ledger is not None and ledger.history_from > 1
