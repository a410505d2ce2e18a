# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of a run in which Ansible upgrades hosts, as the playbooks have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from written_services import Roles

from .playbook import HERE, Task

_CALLBACKS = (HERE / "callback", HERE.parents[1] / "playbooks/callback_plugins")
# What lets Ansible find the callback that the driver needs.
WATCHED = {"ANSIBLE_CALLBACK_PLUGINS": ":".join(map(str, _CALLBACKS))}


def composed(roles: Roles, *services: str, role: str = "web") -> list[Task]:
    """Return a task that composes one role of services."""
    options = {
        "upgrade_roles": {role: {"services": list(services)}},
        "folder": str(roles.folder.parent / "composed"),
        "roles_path": [str(roles.folder)],
    }
    return [{"convoy.upgrade.compose_upgrade_tasks": options, "register": "composed"}]


def driver(**options: Any) -> Task:
    """Return a task of the run's driver."""
    return {"convoy.upgrade.push_daemon": {"driver": "{{ run.driver }}", **options}}


def prepared() -> Task:
    """Return the task that has to come first."""
    return {"convoy.upgrade.push_daemon": {"state": "prepared"}, "register": "run"}


def started(fleet: Mapping[str, str], scope: Sequence[str], **options: Any) -> Task:
    """Return a task that starts the driver for version v2 of what was composed."""
    given = {"version": "v2", "fleet": dict(fleet), "composition": "{{ composed }}", "scope": list(scope), **options}
    return driver(state="started", **given)


def stopped() -> Task:
    """Return the task that has to come last."""
    return driver(state="stopped")


def turn(state: str, **options: Any) -> Task:
    """Return a task of a host's turn."""
    return {"convoy.upgrade.push_host": {"driver": "{{ run.driver }}", "state": state, **options}}


def step(unit: str, **options: Any) -> Task:
    """Return a task of a host's unit."""
    return {"convoy.upgrade.push_step": {"driver": "{{ run.driver }}", "unit": unit, **options}}
