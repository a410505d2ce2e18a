# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of a run in which Ansible upgrades hosts, as the playbooks have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from written_services import Roles

from .playbook import HERE, Task, plan

_CALLBACKS = (HERE / "callback", HERE.parents[1] / "playbooks/callback_plugins")
# What lets Ansible find the callback that the push daemon needs.
WATCHED = {"ANSIBLE_CALLBACK_PLUGINS": ":".join(map(str, _CALLBACKS))}


def composed(roles: Roles, *services: str, role: str = "web") -> list[Task]:
    """Return a task that composes one role of services."""
    options = {
        "upgrade_roles": {role: {"services": list(services)}},
        "folder": str(roles.folder.parent / "composed"),
        "roles_path": [str(roles.folder)],
        "for_run": True,
    }
    return [{"convoy.upgrade.compose_upgrade_tasks": options, "register": "composed"}]


def push_run(**options: Any) -> Task:
    """Return a task of the run."""
    return {"convoy.upgrade.push_run": options}


def prepared(fleet: Mapping[str, str], limit: Sequence[str] = (), version: str = "v2", **options: Any) -> list[Task]:
    """Return tasks that prepare a run of what was composed, for all hosts or some."""
    given = {
        "version": version,
        "fleet": dict(fleet),
        "plan": "{{ planned }}",
        "composition": "{{ composed }}",
        "upgrade_roles": {"web": {"plane": "dataplane"}},
        "limit": list(limit),
        **options,
    }
    planned = {**plan(version=version, fleet=dict(fleet)), "check_mode": True, "register": "planned"}
    return [planned, {**push_run(state="prepared", **given), "register": "upgrade_run"}]


def started(
    fleet: Mapping[str, str], limit: Sequence[str] = (), version: str = "v2", wait_timeout: int = 60, **options: Any
) -> list[Task]:
    """Return tasks that prepare a run and start it."""
    return [*prepared(fleet, limit, version, **options), push_run(state="started", wait_timeout=wait_timeout)]


def stopped() -> Task:
    """Return the task that has to come last."""
    return push_run(state="stopped")


def turn(state: str, **options: Any) -> Task:
    """Return a task of a host's turn."""
    return {"convoy.upgrade.push_host": {"state": state, **options}}


def step(task_group: str, **options: Any) -> Task:
    """Return a task of a host's task group."""
    return {"convoy.upgrade.push_step": {"task_group": task_group, **options}}
