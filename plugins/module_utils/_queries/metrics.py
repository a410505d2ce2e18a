# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics of a fleet, for node_exporter's textfile collector."""

from __future__ import annotations

from .._observe.metrics import AdmissionCounts, fleet_gauges
from .._observe.openmetrics import gauges_as_text
from .._rollout_report.rollout import entries_of
from .._state.store import Store
from .fleet_info import FleetView


def metrics_text(store: Store, view: FleetView) -> str:
    """Return the metrics of a fleet as text. One request for each 64 entries of the current rollout's history.

    :raises UpgradeError: what :meth:`Store.history` raises.
    """
    admissions = AdmissionCounts()
    ledger = view.snapshot.ledger
    for event in entries_of(store.history(ledger), ledger) if ledger is not None else ():
        admissions.add(event)
    return gauges_as_text(fleet_gauges(view.snapshot, view.plan, admissions, len(view.warnings)))
