# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a host is in its task groups: in this run, by what earlier runs have finished, and whether it is still at the start of its upgrade path."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ...module_utils._fleet.checkpoints import is_checkpoint_group
from ...module_utils._fleet.fleet import FAILED, RETRIED, HostRecord
from ...module_utils._fleet.step_trail import StepStart
from ...module_utils._planner.plan import HostView
from .._services.steps import DRAIN, MAY_STOP, REPLACEMENT, stops_to_repeat
from .run import POST_UPGRADE_PHASE, PushRun

# If an upgrade was interrupted in one of these steps and no service was stopped before, it is not known whether any is. A service without tasks of
# the step stop runs until it is upgraded.
_BEFORE_REPLACEMENT = (MAY_STOP, DRAIN, "stop", "upgrade")
_BEFORE_STOP = frozenset(("prepare", MAY_STOP, DRAIN))


@dataclass(slots=True)
class HostRun:
    """Where an admitted host is in its task groups.

    :param record: the host's record as it was last read or written, None if there is none.
    :param index: the record's ModifyIndex, 0 if there is none.
    :param sent: the record that this run wrote last, also if the answer to that was lost; empty if it wrote none.
    :param done: the task groups that it has finished, in this run or an earlier one.
    :param repeated: those of them that it runs again, see :func:`stops_to_repeat`.
    :param current: the task group that it runs.
    :param counts_as_done: whether the current task group is done when the next one begins. If tags select only a part of it, it is not.
    :param running_once: the task group that it runs for all hosts now.
    :param left_to_others: task groups that another host runs, and that this one still has to wait for.
    :param refusals: task group -> when it first refused the stop of its service (monotonic seconds), and how often it did.
    :param in_wave: whether it runs each task at the same time as the other hosts of its wave.
    :param timed_out: whether a task of the current task group took too long, so that it may still run.
    :param failure: why it fails, while its drained services are undrained.
    :param is_left_drained: whether they are not, because Consul could not be reached.
    :param machine: the ID of its machine, once it is known.
    :param begun_on: the ID of the machine on which an earlier run began an upgrade and did not end it; None if there is none or it is not known.
    :param is_other_machine: whether it is refused because it is another machine than the one that began.
    :param was_midway: whether it had begun an upgrade to another version and not ended it, so that it counts as one whose services may be stopped.
    """

    host: str
    record: HostRecord | None = None
    index: int = 0
    sent: bytes = b""
    done: dict[str, None] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    current: str | None = None
    step: str | None = None
    service: str | None = None
    counts_as_done: bool = True
    running_once: str | None = None
    left_to_others: list[str] = field(default_factory=list)
    refusals: dict[str, tuple[float, int]] = field(default_factory=dict)
    in_wave: bool = False
    timed_out: bool = False
    failure: str | None = None
    is_left_drained: bool = False
    was_midway: bool = False
    machine: str | None = None
    begun_on: str | None = None
    is_other_machine: bool = False

    @property
    def begun_steps(self) -> tuple[StepStart, ...]:
        """The steps that it has begun in this upgrade, in any run."""
        return self.record.trail_since_upgraded if self.record is not None else ()

    @property
    def stopping_step(self) -> str:
        """The first of these that stops or replaces services; empty for none."""
        return next((start.step for start in self.begun_steps if start.step in REPLACEMENT), "")


def finished_groups(run: PushRun, host: str, record: HostRecord | None) -> dict[str, None]:
    """Return the task groups that a host has finished, in the order in which it finished them. It runs only :func:`repeated_stops` again.

    - Task groups of checkpoints count if their checkpoint is on the host's upgrade path in this run, which a rollback changes.
    - Other task groups count only for the version of the record.
    - Task groups of providers never count. The provider's own key has its progress, as its version may have changed since.
    - ``may_stop`` and ``drain`` don't count if the upgrade was interrupted before the first service was stopped or upgraded, as what they checked
      may have changed since.
    - ``prepare`` does not count if the host failed before any of its services began to stop, as an operator may have corrected what it read.
    """
    if record is None or not record.readable:
        return {}
    is_same_version = record.version == run.version
    if not is_same_version and run.phase == POST_UPGRADE_PHASE:
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
    # The end of a try has no step.
    begun = {step for step in (record.step, *(start.step for start in record.trail_since_upgraded)) if step}
    if record.state in (FAILED, RETRIED) and begun and begun <= _BEFORE_STOP:
        done = {name: None for name in done if is_checkpoint_group(name) or step_of.get(name) not in _BEFORE_STOP}
    return done


def repeated_stops(run: PushRun, host: str, done: Collection[str]) -> set[str]:
    """Return the finished task groups that a host runs again. They stay finished, as what comes before them is not run again."""
    groups = run.task_groups_of(host)
    return stops_to_repeat(
        [(one.name, one.step, one.checkpoint or one.service) for one in groups if not one.once], done
    )


def interrupted_at(run: PushRun, host: str, view: HostView) -> str:
    """Return the host's version if its upgrade path in this run no longer begins there; empty if it does.

    A run computes all upgrade paths before it begins. Before a host is admitted, another run may have brought it to another version.

    :param view: the host, read after this run acquired its lease, so that no other run upgrades it.
    """
    origin = run.origins.get(host)
    if run.phase == POST_UPGRADE_PHASE or not origin:
        return ""
    known = [version for version in (view.version, view.origin, view.begun) if version]
    return "" if origin in known or not known else known[0]
