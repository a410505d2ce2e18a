# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checkpoints whose checks run on a host before its upgrade: those that it has not finished.

A finished checkpoint stays on the upgrade path until the host reports a version. Its check could fail on what it has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...module_utils._fleet.checkpoints import checkpoint_name
from .._services.steps import STEPS


def preflight_checkpoints(
    checkpoints: Mapping[str, Sequence[str]],
    plan: Mapping[str, Any],
    composition: Mapping[str, Any],
    providers: Collection[str],
) -> dict[str, list[str]]:
    """Return host -> the checkpoints on its upgrade path without those that the host, or the provider, has finished.

    :param checkpoints: host -> checkpoints such as ``nginx@2.4``.
    :param plan: a result of ``consul_upgrade_plan``.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param providers: the services that are providers. Their progress is in their own keys. A host's record does not count, because
        the version of the provider may have changed since.
    """
    task_groups = {role: _task_groups(data) for role, data in composition["roles"].items()}
    of_providers = {one for data in (plan.get("providers") or {}).values() for one in data.get("done", ())}
    ahead = {}
    for host, path in checkpoints.items():
        view = plan["hosts"][host]
        of_host = set(view.get("done", ()))
        recorded = task_groups[view["role"]]
        ahead[host] = [
            checkpoint
            for checkpoint in path
            # A checkpoint that has only checks is not recorded.
            if checkpoint not in recorded
            or not recorded[checkpoint] <= (of_providers if checkpoint.partition("@")[0] in providers else of_host)
        ]
    return ahead


def _task_groups(role: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return checkpoint -> its recorded task groups. Those of the step ``validate`` are not recorded."""
    found: dict[str, set[str]] = {}
    for one in role.get("task_groups", ()):
        if one["checkpoint"] and one["step"] != STEPS[0]:
            found.setdefault(checkpoint_name(one["service"], one["checkpoint"]), set()).add(one["name"])
    return found
