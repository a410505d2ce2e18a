# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A push run: its hosts, their task groups and the versions that they come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils._common.names import is_job
from ...module_utils._consul.settings import Settings
from ...module_utils._fleet.checkpoints import checkpoint_name

UPGRADE, POST_UPGRADE_PHASE = "upgrade", "post_upgrade"
_POST_UPGRADE_STEP = "post_upgrade"


@dataclass(frozen=True, slots=True)
class RunTaskGroup:
    """A task group of the composition, without its tasks.

    :param once: whether one host runs it for all hosts.
    :param checkpoint: the checkpoint that it belongs to, such as ``nginx@2.4``; empty if every host runs it.
    :param provider: whether its service is a provider.
    """

    name: str
    step: str
    service: str
    once: bool
    checkpoint: str = ""
    provider: bool = False


@dataclass(frozen=True, slots=True)
class PushRun:
    """What the push service of a run works with.

    :param phase: ``upgrade``, or ``after`` for the post-upgrade tasks.
    :param fleet: host -> role, of the whole fleet.
    :param task_groups: role -> its task groups, for the roles that have services. Hosts of other roles upgrade themselves.
    :param hosts: the hosts of this run, in the order of the plan.
    :param checkpoints: host -> the checkpoints on its upgrade path, such as ``nginx@2.4``.
    :param origins: host -> the version that it comes from.
    :param providers: provider -> the version that it comes from.
    :param retry_failed: whether failed hosts are retried.
    :param wait_timeout: seconds that a host waits to be admitted.
    :param plays: the hosts of each play of the run; empty for one play with all of them.
    :param last: hosts that go after the other hosts of their roles.
    :param forks: Ansible's forks: how many hosts ask to be admitted at the same time.
    :param command: the name of the tasks if the run is a job; empty for an upgrade. ``version`` is the target of the job then.
    :param pull_roles: the roles of pull hosts that have post-upgrade tasks.
    :param services: role -> the ID of the tasks of services that its hosts must have, for roles whose hosts run them themselves.
    :param on_host: whether this is a run on a pull host, which is admitted already and runs its own task groups.
    :param limit: host patterns of what planner services may admit if the rollout is handed over to them; None for all hosts.
    :param excluded: host patterns that exclude the hosts which the run leaves out. Planner services may not admit them either.
    """

    settings: Settings
    version: str
    phase: str
    fleet: Mapping[str, str]
    task_groups: Mapping[str, tuple[RunTaskGroup, ...]]
    hosts: tuple[str, ...]
    retry_failed: bool = False
    wait_timeout: float = 14400.0
    forks: int = 1
    checkpoints: Mapping[str, Collection[str]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    providers: Mapping[str, str] = field(default_factory=dict)
    plays: tuple[tuple[str, ...], ...] = ()
    last: frozenset[str] = frozenset()
    command: str = ""
    pull_roles: frozenset[str] = frozenset()
    services: Mapping[str, str] = field(default_factory=dict)
    on_host: bool = False
    limit: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()

    @property
    def needs_ansible(self) -> bool:
        """Return whether Ansible upgrades hosts of the fleet or runs the tasks of a job, which planner services can't do."""
        return bool(self.task_groups) or self.is_job

    @property
    def is_job(self) -> bool:
        """Return whether the run is a job."""
        return is_job(self.version)

    def is_pushed(self, role: str) -> bool:
        """Return whether Ansible upgrades the hosts of a role; other hosts upgrade themselves."""
        return role in self.task_groups

    def task_groups_of(self, host: str) -> tuple[RunTaskGroup, ...]:
        """Return a host's task groups in this phase, without those of checkpoints that are not on its upgrade path."""
        is_post_upgrade, checkpoints = self.phase == POST_UPGRADE_PHASE, self.checkpoints.get(host, ())
        return tuple(
            one
            for one in self._role_task_groups(host)
            if (one.step == _POST_UPGRADE_STEP) == is_post_upgrade
            and (not one.checkpoint or one.checkpoint in checkpoints)
        )

    def providers_of(self, host: str) -> tuple[str, ...]:
        """Return the providers that a host upgrades in this phase, also those without a task group on its upgrade path."""
        if self.phase == POST_UPGRADE_PHASE:
            return ()
        return tuple(dict.fromkeys(one.service for one in self._role_task_groups(host) if one.provider))

    def leaves_out(self, host: str, task_group: str) -> bool:
        """Return whether a task group of the host's role belongs to a checkpoint, and so may not be on the host's upgrade path."""
        return any(one.name == task_group and one.checkpoint for one in self._role_task_groups(host))

    @property
    def roles_with_post_upgrade(self) -> frozenset[str]:
        """Return the roles that have post-upgrade tasks, those of pull hosts too."""
        return self.pull_roles.union(
            role for role, groups in self.task_groups.items() if any(one.step == _POST_UPGRADE_STEP for one in groups)
        )

    def _role_task_groups(self, host: str) -> tuple[RunTaskGroup, ...]:
        return self.task_groups.get(self.fleet.get(host, ""), ())


def task_groups_from(composition: Mapping[str, Any]) -> dict[str, tuple[RunTaskGroup, ...]]:
    """Return role -> task groups from a composition as data, for the roles that Ansible upgrades.

    The step ``validate`` is left out, because it is not recorded.
    """
    return {role: task_groups_of_role(role_data) for role, role_data in composition["roles"].items()}


def task_groups_of_role(role_data: Mapping[str, Any]) -> tuple[RunTaskGroup, ...]:
    """Return the task groups of a role of a composition as data, without the step ``validate``."""
    return tuple(_task_group(one) for one in role_data["task_groups"] if one["step"] != "validate")


def _task_group(data: Mapping[str, Any]) -> RunTaskGroup:
    checkpoint = checkpoint_name(data["service"], data["checkpoint"]) if data.get("checkpoint") else ""
    return RunTaskGroup(
        data["name"], data["step"], data["service"], bool(data["once"]), checkpoint, bool(data.get("provider"))
    )
