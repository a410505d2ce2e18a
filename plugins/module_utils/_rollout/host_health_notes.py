# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pass writes besides admissions: reports that it publishes for hosts, health marks, exhausted budgets, the stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from .._codecs.record import decode_record
from .._codecs.values import encode_health_mark, health_mark_flags
from .._common.names import listing
from .._common.sanitize import option
from .._consul.client import Operation
from .._consul.operations import Change, compare, put, remove
from .._fleet.fleet import UPGRADED, HostRecord, Snapshot
from .._fleet.health_marks import HealthMark
from .._fleet.ledger import Ledger
from .._host_states.states import reported_version
from .._planner.blocker_codes import BUDGET
from .._planner.plan import Plan
from .._rules.instructions import Instructions
from .._state.keys import Keys
from .._state.ledger_writer import MOST_GATES, LedgerWriter
from .._state.legacy_keys import LegacyKeys
from .._state.store import Store
from .host_writes import HostWrite, left_out_warning, write_hosts

T = TypeVar("T")

# How many reports of one host planners publish in one rollout, each with another version than the one before.
MOST_PUBLICATIONS = 5
# In one rollout, this many restarts of a host's soak and recoveries are written at once, and later ones at most once in this time (seconds).
_FREE_MARKS = 20
_LEAST_BETWEEN_MARKS = 600
# The same for notes that a failure budget recovered or that a stage is done again: a host whose record changes all the time causes these too.
_FREE_RECOVERIES = 20
_LEAST_BETWEEN_RECOVERIES = 600


def with_checks(store: Store, snapshot: Snapshot, rules: Instructions) -> Snapshot:
    """Return the snapshot with the Consul checks that the rules require. One request, or none if the rules require no check.

    :raises UpgradeError: what :meth:`ConsulClient.read` raises.
    """
    names = rules.health.consul_checks
    return replace(snapshot, checks=store.client.statuses(names)) if names else snapshot


def ledger_to_write(before: Ledger | None, ledger: Ledger, now: int) -> Ledger:
    """Return the ledger that a pass writes. Where many recoveries were noted in this rollout, a further one waits.

    Each of them adds an entry to the history. What stops a rollout is noted at once: an exhausted budget, or a stage that is not done any more.
    No admission waits, because plans depend on the states of hosts; but a stage soaks from the moment at which it is noted as done.

    :param before: the ledger as it is.
    :param ledger: the ledger with the stage and the exhausted budgets of the plan.
    :param now: unix seconds.
    """
    if before is None or (before.version, before.since) != (ledger.version, ledger.since):
        return ledger
    is_same_stage = before.stage.get("number", 0) == ledger.stage.get("number", 0)
    is_done = is_same_stage and "done_at" in ledger.stage and "done_at" not in before.stage
    # The first time is no recovery. An operator who retries hosts often must not wait for it.
    is_done = is_done and "again" in before.stage
    if not is_done and set(before.stopped) <= set(ledger.stopped):
        return ledger
    if ledger.recoveries < _FREE_RECOVERIES or not 0 <= now - ledger.recovered_at < _LEAST_BETWEEN_RECOVERIES:
        return replace(ledger, recoveries=ledger.recoveries + 1, recovered_at=now)
    stopped = tuple(dict.fromkeys((*before.stopped, *ledger.stopped)))
    return replace(ledger, stopped=stopped, stage=before.stage if is_done else ledger.stage)


def noted_at(ledger: Ledger) -> float:
    """Return when a recovery is noted that waits (unix seconds)."""
    return float(ledger.recovered_at + _LEAST_BETWEEN_RECOVERIES)


def write_health(writer: LedgerWriter, snapshot: Snapshot, plan: Plan, ledger: Ledger) -> list[str]:
    """Write new reports, health marks, exhausted budgets and the stage. One planner write for each 60 marks, or for 20 reports.

    :param ledger: the ledger with the stage and the exhausted budgets of the plan.
    :returns: warnings that name the hosts whose reports were not published.
    :raises Conflict: if another process wrote the ledger or ``current_version``.
    """
    keys = writer.store.keys
    old = writer.ledger or ledger
    if ledger.stopped != old.stopped:
        writer.write(replace(ledger, stage=old.stage), _budgets(plan))
    # A stage is noted as done after what shows that, because an operator may approve it at once. That one is not done any more comes first.
    is_forward = _position(ledger) > _position(old)
    if ledger.stage != old.stage and not is_forward:
        writer.write(ledger, _stage(plan, ledger))
    # Each write has the whole ledger.
    during = replace(ledger, stage=old.stage) if is_forward else ledger
    warnings = _publish(writer, snapshot, plan, during)
    due = {host: mark for host, mark in plan.marks.items() if _is_due(snapshot.marks.get(host), mark, writer.clock)}
    for marks in _pieces(due, MOST_GATES):
        changes = []
        for host, mark in marks.items():
            before = snapshot.marks.get(host)
            changes.append(
                Change(keys.mark(host), encode_health_mark(before) if before else None, encode_health_mark(mark))
            )
        event = {"what": "health", "hosts": {host: _words(plan, host) for host in marks}}
        operations = [
            put(keys.mark(host), encode_health_mark(mark), health_mark_flags(snapshot.marks.get(host), writer.clock))
            for host, mark in marks.items()
        ]
        writer.write(during, event, operations, changes)
    if is_forward:
        writer.write(ledger, _stage(plan, ledger))
    return warnings


def _position(ledger: Ledger) -> tuple[int, bool]:
    """Return how far the stages of a rollout are: the number of the current one, and whether it is done."""
    return ledger.stage.get("number", 0), "done_at" in ledger.stage


def _stage(plan: Plan, ledger: Ledger) -> dict[str, object]:
    """Return the history entry for a change of the stage."""
    reason = "all of its hosts are upgraded" if "done_at" in ledger.stage else f"stage {plan.stage} began"
    return {"what": "stage", "stage": plan.stage, "reason": reason}


def _is_due(before: HealthMark | None, mark: HealthMark, now: int) -> bool:
    """Return whether to write a health mark now.

    Each write adds an entry to the history. A mark that only restarts the soak can wait: until it is written, each pass restarts the
    soak. So can one that says that the host is well again. A mark that says that a check fails, or that the host was upgraded, is written at once.
    """
    if before is None or mark.since is None or before.version != mark.version:
        return True
    is_well_again = before.lost and not mark.lost
    if (before.upgraded, before.lost) != (mark.upgraded, mark.lost) and not is_well_again:
        return True
    return before.written < _FREE_MARKS or not 0 <= now - before.written_at < _LEAST_BETWEEN_MARKS


def _publish(writer: LedgerWriter, snapshot: Snapshot, plan: Plan, ledger: Ledger) -> list[str]:
    """Publish reports that hosts wrote only to their own records; return warnings on hosts whose reports were not published."""
    keys, store = writer.store.keys, writer.store
    hosts = _unpublished(snapshot, plan)
    count = {host: _times_published(snapshot, host) for host in hosts}
    due = {host: version for host, version in hosts.items() if count[host] < MOST_PUBLICATIONS}

    def make(piece: Sequence[str], changed: Collection[str]) -> dict[str, HostWrite]:
        records = {host: snapshot.records[host] for host in piece}
        if changed:
            found = {entry.key: entry for entry in store.client.read([keys.record(host) for host in changed])}
            for host in changed:
                entry = found.get(keys.record(host))
                record = decode_record(entry.key, entry.value) if entry is not None else None
                if entry is None or record is None or (record.version, record.state) != (due[host], UPGRADED):
                    # The record has another version or state by now. The next pass reads it.
                    del records[host]
                else:
                    records[host] = replace(record, index=entry.modify_index)
        return {host: _publication(keys, snapshot, host, record, count[host] + 1) for host, record in records.items()}

    def write(piece: Sequence[str], operations: list[Operation], changes: list[Change]) -> None:
        writer.write(ledger, {"what": "publish", "hosts": {host: due[host] for host in piece}}, operations, changes)

    left_out = write_hosts(keys, due, MOST_GATES // 3, make, write)
    warnings = [left_out_warning(keys, left_out, "The report is not published yet")] if left_out else []
    if often := [host for host in hosts if host not in due]:
        warnings.append(
            f"No further report is published for {listing(often)} in this rollout: {MOST_PUBLICATIONS} were, each with another version. "
            f"Planners use {keys.records}<host> instead. Something on the host keeps changing it: stop its agent, and look at the host "
            f"with ansible-playbook convoy.upgrade.status {option('host', often[0])}."
        )
    return warnings


def _times_published(snapshot: Snapshot, host: str) -> int:
    """Return how many reports of a host planners have published in this rollout."""
    report = snapshot.reports.get(host)
    begun = snapshot.ledger.begun_index if snapshot.ledger is not None else None
    return report.published if report is not None and report.index > (begun or 0) else 0


def _budgets(plan: Plan) -> dict[str, object]:
    """Return the history entry for a change of the exhausted failure budgets."""
    if not plan.exhausted_keys:
        return {"what": "budget", "reason": "no failure budget is exhausted any more"}
    everywhere = plan.blocker.reason if plan.blocker is not None and plan.blocker.code == BUDGET else ""
    reasons = [everywhere, *(budget.reason() for budget in plan.exhausted.values())]
    return {
        "what": "budget",
        "keys": list(plan.exhausted_keys),
        "reason": "; ".join(dict.fromkeys(filter(None, reasons))),
    }


def _unpublished(snapshot: Snapshot, plan: Plan) -> dict[str, str]:
    """Return host -> version, for hosts that reported it only in their own record."""
    if snapshot.is_job:
        # What a host has reported of a job says nothing about its version.
        return {}
    found = {}
    for host, record in snapshot.records.items():
        report = snapshot.reports.get(host)
        version = reported_version(snapshot, host)
        is_recorded = version is not None and version == record.version
        if host in plan.hosts and is_recorded and (report is None or report.version != version):
            found[host] = record.version
    return found


def _publication(keys: Keys, snapshot: Snapshot, host: str, record: HostRecord, count: int) -> HostWrite:
    """Return the write that publishes a host's report. It fails if the record has changed since it was read.

    :param count: how many reports of this host were published in this rollout, including this one.
    """
    report = snapshot.reports.get(host)
    at = str(record.times.get(record.state, int(snapshot.now)))
    key = keys.report(record.version, host)
    operations = [compare(keys.record(host), record.index), put(key, at, count)]
    changes = [Change(key, None, at)]
    if report is not None:
        # A report in the legacy layout would win over this one if its time is later, so it is removed.
        place = LegacyKeys(keys.prefix) if report.is_legacy else keys
        old = report.key or place.report(report.version, host)
        operations.append(remove(old))
        changes.append(Change(old, "" if report.at is None else f"{report.at:.0f}", None))
    return HostWrite(operations, changes)


def _words(plan: Plan, host: str) -> str:
    view = plan.hosts[host]
    return view.reason if view.state != "upgraded" else "is healthy"


def _pieces(found: Mapping[str, T], most: int) -> Sequence[dict[str, T]]:
    items = iter(found.items())
    pieces = []
    while piece := dict(islice(items, most)):
        pieces.append(piece)
    return pieces
