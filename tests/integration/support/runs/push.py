# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of a run in which Ansible upgrades hosts, as the playbooks have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from integration.support.runs.playbook import HERE, Task
from written_services import Roles

_CALLBACKS = (HERE / "callback", HERE.parents[1] / "playbooks/callback_plugins")
# What lets Ansible find the callback that the push daemon needs.
WATCHED = {"ANSIBLE_CALLBACK_PLUGINS": ":".join(map(str, _CALLBACKS))}


def push_run(**options: Any) -> Task:
    """Return a task of the run."""
    return {"convoy.upgrade.push_run": options}


def in_groups(fleet: Mapping[str, str]) -> Task:
    """Return a task that adds hosts to the inventory, each in the group of its role."""
    added = {"name": "{{ item.key }}", "groups": ["{{ item.value }}"]}
    return {"ansible.builtin.add_host": added, "loop": [{"key": host, "value": role} for host, role in fleet.items()]}


def prepared(
    roles: Roles,
    fleet: Mapping[str, str],
    limit: Sequence[str] = (),
    version: str = "v2",
    services: Sequence[str] = ("nginx",),
    **options: Any,
) -> list[Task]:
    """Return tasks that prepare a run of these services, for all hosts or some."""
    given = {
        "version": version,
        "upgrade_roles": {"web": {"plane": "dataplane", "services": list(services)}},
        "folder": str(roles.folder.parent / "composed"),
        "roles_path": [str(roles.folder)],
        "limit": list(limit),
        **options,
    }
    return [in_groups(fleet), {"convoy.upgrade.prepare_run": given, "register": "upgrade_run"}]


def started(
    roles: Roles,
    fleet: Mapping[str, str],
    limit: Sequence[str] = (),
    version: str = "v2",
    wait_timeout: int = 60,
    **options: Any,
) -> list[Task]:
    """Return tasks that prepare a run and start it."""
    return [*prepared(roles, fleet, limit, version, **options), push_run(state="started", wait_timeout=wait_timeout)]


def without_services(
    roles: Roles, fleet: Mapping[str, str], version: str, connection: Mapping[str, Any] | None = None
) -> list[Task]:
    """Return tasks that prepare a push run in which hosts upgrade themselves. Another host has a service, and is not in the run."""
    roles.simple("nginx", "stop")
    options = {
        "version": version,
        "upgrade_roles": {"web": {"plane": "dataplane"}, "db": {"plane": "dataplane", "services": ["nginx"]}},
        "folder": str(roles.folder.parent / "composed"),
        "roles_path": [str(roles.folder)],
        "limit": [*fleet],
        **(connection or {}),
    }
    return [in_groups({**fleet, "localhost": "db"}), {"convoy.upgrade.prepare_run": options}]


def stopped() -> Task:
    """Return the task that has to come last."""
    return push_run(state="stopped")


def host_task(state: str, **options: Any) -> Task:
    """Return a task of push_host."""
    return {"convoy.upgrade.push_host": {"state": state, **options}}


def step(task_group: str, **options: Any) -> Task:
    """Return a task of push_step."""
    return {"convoy.upgrade.push_step": {"task_group": task_group, **options}}
