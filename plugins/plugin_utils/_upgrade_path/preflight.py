# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of which points hosts are asked the checks before an upgrade: those that are still before them.

A point stays on the way of a host that is beyond it and has not reported since; but its check may ask for what it has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...module_utils._fleet.checkpoints import checkpoint_name
from .._services.steps import STEPS


def preflight_checkpoints(
    ways: Mapping[str, Sequence[str]],
    plan: Mapping[str, Any],
    composition: Mapping[str, Any],
    providers: Collection[str],
) -> dict[str, list[str]]:
    """Return host -> the points on its way without those that are behind it, or of a provider behind that.

    :param ways: host -> points such as ``nginx@2.4``.
    :param plan: a result of ``consul_upgrade_plan``.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param providers: the services that are providers. What a host's record says of them does not count, as they may have gone
        elsewhere since.
    """
    units = {role: _units(what) for role, what in composition["roles"].items()}
    finished = {unit for told in (plan.get("providers") or {}).values() for unit in told.get("done", ())}
    found = {}
    for host, way in ways.items():
        view = plan["hosts"][host]
        mine = set(view.get("done", ()))
        recorded = units[view["role"]]
        found[host] = [
            point
            for point in way
            # One that has nothing but a check is recorded nowhere.
            if point not in recorded
            or not recorded[point] <= (finished if point.partition("@")[0] in providers else mine)
        ]
    return found


def _units(role: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return point -> the units that are recorded of it; the step validate is not."""
    found: dict[str, set[str]] = {}
    for unit in role.get("units", ()):
        if unit["point"] and unit["step"] != STEPS[0]:
            found.setdefault(checkpoint_name(unit["service"], unit["point"]), set()).add(unit["name"])
    return found
