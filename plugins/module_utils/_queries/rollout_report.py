# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a whole rollout from Consul."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import did_you_mean, is_job
from .._fleet.fleet import Snapshot, find_members
from .._fleet.ledger import BEGINNINGS, Ledger
from .._rollout_report.rollout import at_of, rollout_report
from .._state.store import Store


def read_rollout_report(
    store: Store, version: str | None = None, fleet: Mapping[str, str] | None = None, role_pattern: str | None = None
) -> dict[str, Any]:
    """Return the report on a rollout as plain data. One or two requests for the fleet, and one for each 64 entries back to its beginning.

    The hosts' records are those of the last job and of the last rollout to a version, one of which came after the other.

    :param version: the target of the rollout; of several, the last one is used. None for that of the last entry of the history: a rollout to a version
        may go on after a job.
    :param fleet: host -> role.
    :raises UpgradeError: ``no_rollout``, and what :meth:`Store.snapshot` raises.
    """
    snapshot = store.snapshot()
    ledger = snapshot.ledger
    pattern = role_pattern or (ledger.role_pattern if ledger else None)
    members = find_members(fleet, snapshot, pattern).members
    events: list[dict[str, Any]] = []
    versions: list[str] = []
    until, newest = int(snapshot.now), None
    for event in store.history(ledger):
        found = str(event.get("version", ""))
        newest = found if newest is None else newest
        is_asked = found == (newest if version is None else version)
        if is_asked:
            events.append(event)
        if event.get("what") not in BEGINNINGS:
            continue
        if is_asked:
            events.reverse()
            is_last = all(is_job(one) != is_job(found) for one in versions)
            own = _snapshot_of(store, snapshot, found) if is_last else None
            source = own or snapshot
            job = own.ledger if own is not None and own.is_job else None
            if job is not None:
                members = {host: role for host, role in members.items() if job.is_for(host, role)}
            return rollout_report(
                events,
                members,
                source.records,
                source.reports,
                until,
                is_current=found == newest,
                is_whole=own is not None,
            )
        versions.append(found)
        if version not in (None, newest):
            until = at_of(event)
    if not versions:
        raise UpgradeError("no_rollout", f"{store.keys.history} has no rollout to report.{_removed(ledger)}")
    raise UpgradeError(
        "no_rollout",
        f"version: the history has no rollout to {version!r}{did_you_mean(version or '', versions) or '.'} "
        f"It has rollouts to {', '.join(dict.fromkeys(versions))}.{_removed(ledger)}",
    )


def _snapshot_of(store: Store, snapshot: Snapshot, target: str) -> Snapshot | None:
    """Return the snapshot with the records of a rollout: the last job, or the last rollout to a version. None if it is neither."""
    if is_job(target) == snapshot.is_job:
        return snapshot
    if not is_job(target):
        return snapshot.versions
    is_there = snapshot.job is not None and snapshot.job.version == target
    return store.snapshot(of_job=True) if is_there else None


def _removed(ledger: Ledger | None) -> str:
    """Return a sentence on entries of the history that are not kept; empty if there are none."""
    if ledger is None or ledger.history_from == 1:
        return ""
    return (
        f" Entries before epoch {ledger.history_from} were removed; history.keep_rollouts in the rules sets how many rollouts are "
        "kept."
    )
