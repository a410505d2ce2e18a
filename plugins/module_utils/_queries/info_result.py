# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a fleet as the result of `consul_upgrade_info`, which the page has too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .._codecs.values import sanitize_all
from .._observe.summary import (
    fleet_summary,
    forecast_summary,
    holds_summary,
    hosts_as_result,
    listed,
    more,
    releases_summary,
    rollout_summary,
)
from .._planner.plan import blocked_hosts
from .fleet_info import FleetView


def info_result(view: FleetView, name: str | None = None, requested: Sequence[str] = ()) -> dict[str, Any]:
    """Return the result of the module.

    :param name: the host to explain.
    :param requested: the hosts to return.
    """
    plan, ledger, holds = view.plan, view.snapshot.ledger, [*view.snapshot.holds.every()]
    result: dict[str, Any] = {
        "changed": False,
        "version": plan.version or "",
        "previous_version": (ledger.previous_version if ledger else None) or "",
        "epoch": ledger.epoch if ledger else 0,
        "index": view.snapshot.index,
        "complete": plan.complete,
        **fleet_summary(plan.hosts),
        "forecast": forecast_summary(plan),
        **hosts_as_result(plan, plan.hosts, requested),
        "can_move": plan.can_move,
        **rollout_summary(view.snapshot, plan, requested),
        "carried_by": [*view.snapshot.carriers],
        "providers": {name: one.plain() for name, one in view.snapshot.providers.items()},
        "releases": releases_summary(view.snapshot.records, plan.hosts),
        "holds": holds_summary(listed(holds, requested), plan.hosts, view.snapshot.former_role),
        "more_holds": more(holds, requested),
        "blockers": blocked_hosts(plan, plan.hosts),
        "ledger": sanitize_all(asdict(ledger)) if ledger else {},
        "history": view.history,
    }
    if name is not None and view.details is not None:
        result["host"] = {"name": name, **asdict(plan.hosts[name]), **view.details}
    return result
