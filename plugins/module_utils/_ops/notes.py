# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pass writes down beside its openings: reports it publishes for hosts, their health, budgets, the stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from .._model.brakes import BUDGET
from .._model.fleet import Snapshot
from .._model.instructions import Instructions
from .._model.ledger import Ledger
from .._model.plan import Plan
from .._model.states import reported_version
from .._store.client import Operation
from .._store.codec import encode_mark
from .._store.keys import Keys
from .._store.ledger_writer import MOST_GATES, LedgerWriter
from .._store.old_keys import OldKeys
from .._store.operations import Change, compare, put, remove
from .._store.store import Store

T = TypeVar("T")


def with_checks(store: Store, snapshot: Snapshot, rules: Instructions) -> Snapshot:
    """Return the snapshot with the checks that the rules ask for: one request, and none where they ask for none.

    :raises UpgradeError: what :meth:`ConsulClient.read` raises.
    """
    names = rules.health.consul_checks
    return replace(snapshot, checks=store.client.statuses(names)) if names else snapshot


def note(writer: LedgerWriter, snapshot: Snapshot, plan: Plan, ledger: Ledger) -> None:
    """Write down what is new: a planner write for each 61 hosts, a third as many where a report is published.

    :param ledger: with the stage and the spent budgets as the plan has them.
    :raises Conflict: if somebody else wrote.
    """
    keys = writer.store.keys
    for hosts in _pieces(_unpublished(snapshot, plan), MOST_GATES // 3):
        operations, changes = _publications(keys, snapshot, hosts)
        writer.write(ledger, {"what": "publish", "hosts": dict(hosts)}, operations, changes)
    for marks in _pieces(plan.marks, MOST_GATES):
        changes = []
        for host, mark in marks.items():
            before = snapshot.marks.get(host)
            changes.append(Change(keys.mark(host), encode_mark(before) if before else None, encode_mark(mark)))
        event = {"what": "health", "hosts": {host: _words(plan, host) for host in marks}}
        writer.write(ledger, event, [put(one.key, one.after or "") for one in changes], changes)
    if writer.ledger is not None and ledger.stopped != writer.ledger.stopped:
        writer.write(ledger, _budgets(plan))
    if writer.ledger is not None and ledger.stage != writer.ledger.stage:
        stage = dict(ledger.stage)
        reason = "all of its hosts are upgraded" if "done_at" in stage else "its turn has come"
        writer.write(ledger, {"what": "stage", "stage": plan.stage, "reason": reason})


def _budgets(plan: Plan) -> dict[str, object]:
    """Return what the history tells of budgets of failure that are spent now, or not any more."""
    if not plan.stopped:
        return {"what": "budget", "reason": "no budget of failure is spent any more"}
    everywhere = plan.brake.reason if plan.brake is not None and plan.brake.code == BUDGET else ""
    reasons = [everywhere, *(spent.reason() for spent in plan.spent.values())]
    return {"what": "budget", "keys": list(plan.stopped), "reason": "; ".join(dict.fromkeys(filter(None, reasons)))}


def _unpublished(snapshot: Snapshot, plan: Plan) -> dict[str, str]:
    """Return host -> version, for hosts that said it in their own record alone."""
    found = {}
    for host, record in snapshot.records.items():
        report = snapshot.reports.get(host)
        version = reported_version(snapshot, host)
        said_there = version is not None and version == record.version
        if host in plan.hosts and said_there and (report is None or report.version != version):
            found[host] = record.version
    return found


def _publications(keys: Keys, snapshot: Snapshot, hosts: Mapping[str, str]) -> tuple[list[Operation], list[Change]]:
    operations: list[Operation] = []
    changes: list[Change] = []
    for host, version in hosts.items():
        record, report = snapshot.records[host], snapshot.reports.get(host)
        at = str(record.times.get(record.state, int(snapshot.now)))
        # As long as the host has not said anything else meanwhile.
        operations += [compare(keys.record(host), record.index), put(keys.report(version, host), at)]
        changes.append(Change(keys.report(version, host), None, at))
        if report is not None:
            # One in the old place counts as long as it is later by its clock than what is published now.
            place = OldKeys(keys.prefix) if report.is_old else keys
            old = place.report(report.version, host)
            operations.append(remove(old))
            changes.append(Change(old, "" if report.at is None else f"{report.at:.0f}", None))
    return operations, changes


def _words(plan: Plan, host: str) -> str:
    view = plan.hosts[host]
    return view.reason if view.state != "upgraded" else "is well"


def _pieces(found: Mapping[str, T], most: int) -> Sequence[dict[str, T]]:
    items = iter(found.items())
    pieces = []
    while piece := dict(islice(items, most)):
        pieces.append(piece)
    return pieces
