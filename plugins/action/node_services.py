# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of services on pull hosts: what a host needs of them, its upgrade path, and the start of its tasks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import decode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.values import REVERSED_FLAGS, bare_text
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import limit_to
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    STARTED,
    UPGRADED,
    HostRecord,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._host.leases import check_session
from ansible_collections.convoy.upgrade.plugins.module_utils._host.post_upgrade_report import (
    report_post_upgrade_failure,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._host.provider import read_provider
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.service_variables import HOST, inventory_of
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.folder import read_composition, refuse_untrusted
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.inventory_roles import fleet_of
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.task_order import IS_REVERSED, reversed_role
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import require_watch
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import StartPush
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import (
    POST_UPGRADE_PHASE,
    UPGRADE,
    PushRun,
    task_groups_of_role,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.allowed_upgrades import forbidden_upgrades
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.routes import (
    HOST_VARIABLE,
    PROVIDER_VARIABLE,
    declared_versions,
    routes_of,
)

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "state": {"type": "str", "choices": ["delivered", "prepared", "begun", "begun_post_upgrade"], "required": True},
    "folder": {"type": "path", "required": True},
    "upgrade_roles": {"type": "dict", "default": {}},
    "host": {"type": "str", "default": ""},
    "role": {"type": "str", "default": ""},
    "version": {"type": "str", "default": ""},
    "version_before": {"type": "str", "default": ""},
    "prepared": {"type": "dict", "default": {}},
}


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Do what the option ``state`` asks for."""
        self._host = str(task_vars.get("inventory_hostname"))
        if options["state"] == "delivered":
            return self._deliver(options, task_vars)
        if str(getattr(self._connection, "transport", "local")) not in ("local", "ansible.builtin.local"):
            raise UpgradeError(
                "not_on_host",
                f"{self._host} has tasks of services, which run only in an agent run on the host itself. Run there: convoy-node run.",
            )
        store = Store(read_settings(options.get, os.environ))
        if options["state"] == "prepared":
            return self._prepare(store, options, task_vars)
        if options["state"] == "begun":
            return self._begin(options, UPGRADE, options["prepared"])
        entry = store.client.get(store.keys.record(self._host))
        record = decode_record(entry.key, entry.value) if entry is not None else None
        if record is None or not record.may_run_post_upgrade(options["version"]):
            return {"go": False}
        try:
            return self._begin(options, POST_UPGRADE_PHASE, {})
        except UpgradeError as error:
            # Puppet and the validations of this run came since it asked for its gate, and so may a hold.
            if error.code == "not_admitted":
                return {"go": False}
            # The daemon writes failures only once the tasks have begun. The record of a host with a lease belongs to the run that has it.
            if error.code != "leased" and not self._task.check_mode:
                with contextlib.suppress(UpgradeError):
                    report_post_upgrade_failure(store, self._host, options["version"], error.as_text())
            raise

    def _deliver(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a host needs: the folder of its role, and its variables."""
        roles = options["upgrade_roles"]
        role = fleet_of(roles, task_vars.get("groups") or {}).get(self._host, "") if roles else ""
        what = roles.get(role) or {}
        if not (what.get("pull") and what.get("services")):
            return {"role": "", "inventory": "", "tasks_id": ""}
        data = read_composition(Path(options["folder"]))["pull_roles"][role]
        folder = Path(options["folder"]) / role / "services"
        name = options["host"] or self._host
        inventory = inventory_of(name, folder, data["services"], task_vars, self._templar)
        return {"role": role, "inventory": inventory, "tasks_id": data["tasks_id"]}

    def _prepare(self, store: Store, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Check that the services may go to the version, and return the upgrade path of the host. Nothing is written."""
        folder, role, version = Path(options["folder"]).resolve(), options["role"], options["version"]
        data = _role_data(folder, role)
        if task_vars.get(HOST) != self._host:
            raise UpgradeError(
                "no_services",
                f"{self._host} lacks the variables of its services: /etc/convoy/services.yml is missing or is that of another host "
                f"({HOST} is {task_vars.get(HOST)!r}). Enroll the host again (ansible-playbook convoy.upgrade.enroll {limit_to([self._host])}).",
            )
        composition = {"roles": {role: data}}
        entry = store.client.get(store.keys.record(self._host))
        record = decode_record(entry.key, entry.value) if entry is not None else None
        declared = declared_versions({self._host: task_vars.get(HOST_VARIABLE)})
        plan = {
            "hosts": {self._host: _view(record, role, options["version_before"])},
            "providers": {
                name: read_provider(store, version, name).provider.plain()
                for name, path in data["paths"].items()
                if path["provider"]
            },
        }
        providers = task_vars.get(PROVIDER_VARIABLE) or {}
        forbidden = forbidden_upgrades(plan, composition, version, declared, providers)
        if forbidden.reasons:
            raise UpgradeError(
                "forbidden_upgrade",
                f"Nothing was touched: {self._host} may not go to {version}. {' '.join(forbidden.reasons)} Go to another version first, hold this "
                "host (ansible-playbook convoy.upgrade.hold), or allow this upgrade in upgrade_roles or in meta/upgrade.yml of these services.",
                hosts=[self._host],
            )
        if not self._task.check_mode:
            check_session(store, self._host)
        routes = routes_of(plan, [self._host], composition, version, declared, providers)
        return {
            "version": version,
            "tasks_id": data["tasks_id"],
            "resumes": _resumes(record, version),
            "tasks_folder": f"{folder}/{role}",
            IS_REVERSED: _goes_back(store, version) and IS_REVERSED in reversed_role(data),
            "version_before": routes.origins[self._host],
            "checkpoints": list(routes.checkpoints.get(self._host, ())),
            "validate": list(routes.ahead.get(self._host, ())),
            "providers": dict(routes.providers),
        }

    def _begin(self, options: Mapping[str, Any], phase: str, prepared: Mapping[str, Any]) -> dict[str, Any]:
        """Let the daemon of this run record the task groups of the host from now on."""
        folder, role = Path(options["folder"]).resolve(), options["role"]
        data = _role_data(folder, role)
        groups = task_groups_of_role(reversed_role(data) if prepared.get(IS_REVERSED) else data)
        if self._task.check_mode:
            return {"go": False}
        require_watch()
        ensure_daemon()
        run = PushRun(
            settings=read_settings(options.get, os.environ),
            version=options["version"],
            phase=phase,
            fleet={self._host: role},
            task_groups={role: groups},
            hosts=(self._host,),
            checkpoints={self._host: tuple(prepared.get("checkpoints", ()))},
            origins={self._host: prepared.get("version_before", "")},
            providers=dict(prepared.get("providers", {})),
            on_host=True,
        )
        ask(StartPush(run))
        return {"changed": True, "go": True, "version": options["version"], "tasks_folder": f"{folder}/{role}"}


def _role_data(folder: Path, role: str) -> Mapping[str, Any]:
    """Return a role of the composition in a folder.

    :raises UpgradeError: ``bad_folder``, ``untrusted_services``, ``no_services``.
    """
    composition = read_composition(folder)
    refuse_untrusted(folder)
    found: Mapping[str, Any] | None = composition.get("pull_roles", {}).get(role)
    if found is None:
        raise UpgradeError(
            "no_services",
            f"{folder} has no tasks for the role {role!r} with pull: true. Correct puppet_gate_role or puppet_gate_services, or enroll the host again.",
        )
    return found


def _goes_back(store: Store, version: str) -> bool:
    """Return whether the fleet is rolled back to the version in the reversed order."""
    entry = store.client.get(store.keys.current_version)
    return entry is not None and bare_text(entry.value) == version and entry.flags == REVERSED_FLAGS


def _resumes(record: HostRecord | None, version: str) -> bool:
    """Return whether the host has started this upgrade before. Its services may be down then, and the next steps bring them up."""
    if record is None or not record.readable or record.version != version or record.state == UPGRADED:
        return False
    return STARTED in record.times


def _view(record: HostRecord | None, role: str, before: str) -> dict[str, Any]:
    """Return a host as a plan has it: where it comes from, and what it has begun.

    :param before: the version in the host's version file; empty during an upgrade.
    """
    view: dict[str, Any] = {
        "role": role,
        "held": False,
        "holds_itself": False,
        "version": before or None,
        "origin": None,
        "begun": None,
        "done": [],
    }
    if record is None or not record.readable:
        return view
    # If an upgrade ended before its first task, only the last upgrade that came to its end tells where the host comes from.
    ended = (one.version for one in reversed((*record.former, record)) if one.state == UPGRADED)
    return {
        **view,
        "version": before or record.origin or next(ended, record.reported),
        "origin": record.origin,
        "begun": record.version if record.state in (STARTED, FAILED) else None,
        "done": list(record.done),
    }
