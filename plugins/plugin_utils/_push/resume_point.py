# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a host resumes: the task groups that it has finished, and whether it is still at the start of its upgrade path."""

from __future__ import annotations

from ...module_utils._fleet.checkpoints import is_checkpoint_group
from ...module_utils._fleet.fleet import HostRecord
from ...module_utils._planner.plan import HostView
from .._services.steps import DRAIN, MAY_STOP, REPLACEMENT
from .run import AFTER, PushRun

# If an upgrade was interrupted in one of these steps and no service was stopped before, it is not known whether any is. A service without tasks of
# the step stop runs until it is upgraded.
_BEFORE_REPLACEMENT = (MAY_STOP, DRAIN, "stop", "upgrade")


def finished_groups(run: PushRun, host: str, record: HostRecord | None) -> dict[str, None]:
    """Return the task groups that a host has finished and does not run again, in the order in which it finished them.

    - Task groups of checkpoints count if their checkpoint is on the host's upgrade path in this run, which a rollback changes.
    - Other task groups count only for the version of the record.
    - Task groups of providers never count. The provider's own key has its progress, as its version may have changed since.
    - ``may_stop`` and ``drain`` don't count if the upgrade was interrupted before the first service was stopped or upgraded, as what they checked
      may have changed since.
    """
    if record is None or not record.readable:
        return {}
    is_same_version = record.version == run.version
    if not is_same_version and run.phase == AFTER:
        return {}
    task_groups = {one.name: one for one in run.task_groups_of(host)}

    def counts(name: str) -> bool:
        task_group = task_groups.get(name)
        if task_group is not None and task_group.provider:
            return False
        if is_checkpoint_group(name):
            return task_group is not None
        return is_same_version

    done = dict.fromkeys(filter(counts, record.done))
    step_of = {name: one.step for name, one in task_groups.items()}
    if record.step in _BEFORE_REPLACEMENT and not any(step_of.get(name) in REPLACEMENT for name in record.done):
        done = {name: None for name in done if step_of.get(name) not in (MAY_STOP, DRAIN)}
    return done


def interrupted_at(run: PushRun, host: str, view: HostView) -> str:
    """Return the host's version if its upgrade path in this run no longer begins there; empty if it does.

    A run computes all upgrade paths before it begins. Before a host is admitted, another run may have brought it to another version.

    :param view: the host, read after this run acquired its lease, so that no other run upgrades it.
    """
    origin = run.origins.get(host)
    if run.phase == AFTER or not origin:
        return ""
    known = [version for version in (view.version, view.origin, view.begun) if version]
    return "" if origin in known or not known else known[0]
