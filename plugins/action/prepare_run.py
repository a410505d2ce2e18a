# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare a run of an upgrade: check the variables, compose the tasks, make and show the plan, and decide what each host will do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible import context
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import listing
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.host_patterns import with_inventory_groups
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import ALL
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import REVERSED
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.other_action import ActionFailed, run_action
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.inventory_roles import (
    check_roles,
    fleet_of,
    pushed_roles,
    roles_of_plane,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.task_order import composition_of_rollback
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import require_watch
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.status_text import composition_lines
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import KeepRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import (
    PreparedRun,
    RunRequest,
    check_allowed,
    check_services,
    prepare_run,
    services_of,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.partial_tags import (
    OutsideTags,
    hosts_outside_tags,
    refuse_tags_of_pull,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import (
    forks_lines,
    resumed_lines,
    roles_with_post_upgrade,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.planes import PLANES
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.routes import HOST_VARIABLE
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.other_rollout import when_free

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "state": {"type": "str", "choices": ["prepared", "checked"], "default": "prepared"},
    "version": {"type": "str", "default": ""},
    "upgrade_roles": {"type": "dict", "default": {}},
    "restart": {"type": "bool", "default": False},
    "by": {"type": "str", "default": ""},
    "replace": {"type": "str", "default": ""},
    "rollback": {"type": "bool", "default": False},
    "rollback_order": {"type": "str", "choices": ["reversed", "forward"]},
    "once": {"type": "bool", "default": False},
    "wait": {"type": "bool", "default": True},
    "wait_for_other": {"type": "bool", "default": False},
    "wait_timeout": {"type": "float", "default": 14400.0},
    "instructions": {"type": "dict", "default": {}},
    "instructions_file": {"type": "str"},
    "limit": {"type": "list", "elements": "str", "default": []},
    "part": {"type": "str", "choices": ["all", "controlplane", "dataplane", "role", "post_upgrade"], "default": "all"},
    "role": {"type": "str", "default": ""},
    "folder": {"type": "path", "required": True},
    "composed": {"type": "str", "default": ""},
    "roles_path": {"type": "list", "elements": "path", "default": []},
    "provider_versions": {"type": "dict", "default": {}},
    "retry_failed": {"type": "bool", "default": False},
}
_PLAN = ("restart", "rollback", "replace", "instructions", "limit")


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Prepare the run, or only check whether the upgrade is allowed."""
        self._vars = task_vars
        roles = options["upgrade_roles"]
        check_roles(roles)
        has_services = any((what or {}).get("services") for what in roles.values())
        _refuse_variables(task_vars, options, pushes=bool(pushed_roles(roles)))
        if not pushed_roles(roles):
            refuse_tags_of_pull(
                task_vars.get("ansible_run_tags") or (), context.CLIARGS.get("args") or (), self._task.tags
            )
        try:
            if options["state"] == "checked":
                return self._check(options, has_services=has_services)
            return self._prepare(options, has_services=has_services)
        except ActionFailed as failed:
            _refuse_limit(failed.result.get("failure") or {})
            return failed.result
        except UpgradeError as error:
            _refuse_limit({"code": error.code, "message": error.message, "details": error.details})
            raise

    def _prepare(self, options: Mapping[str, Any], *, has_services: bool) -> dict[str, Any]:
        if not options["version"]:
            raise UpgradeError("missing_option", "version is not given. Add -e version=X.")
        composition = self._compose(options, for_run=True) if has_services else {}
        more = {name: options[name] for name in _PLAN if options[name]}
        if options["instructions_file"] is not None:
            more["instructions_file"] = options["instructions_file"]
        more |= _of_services(composition)
        plan = self._planned({"version": options["version"], "show": True, **more}, options)
        if not plan["roles"]:
            raise UpgradeError(
                "no_hosts",
                "There is no host to upgrade: none has reported to Consul, and no role in upgrade_roles is a group with hosts in the inventory. "
                "Check upgrade_consul_kv_prefix, and give the inventory with -i.",
            )
        if not has_services:
            return {"pushes": False, "rollout": _rollout(options, {})}
        if plan["rollback_order"]:
            composition = composition_of_rollback(composition, is_reversed=plan["rollback_order"] == REVERSED)
        if self._task.check_mode:
            self._say(composition_lines(composition))
        elif plan["rollback_order"] == REVERSED:
            # Only a folder that an older release composed has them.
            self._say(composition.get("kept_order", ()))
        request = self._request(options, plan, composition)
        check_services(request)
        if options["once"] or not options["wait"]:
            # All hosts upgrade themselves, as once and wait=false are refused otherwise.
            check_allowed(request)
            return {"pushes": False, "rollout": _rollout(options, composition)}
        kept = self._keep(request)
        rollout = _rollout(options, composition)
        return {**kept, "rollout": rollout, "changed": composition["changed"], "diff": composition["diff"]}

    def _planned(self, args: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan, on request once no other job or rollout is under way."""

        def attempt() -> dict[str, Any]:
            return self._run_action("consul_upgrade_plan", args, options, check=True)

        if not options["wait_for_other"] or self._task.check_mode:
            return attempt()
        return when_free(attempt, runtime.monotonic() + options["wait_timeout"], lambda line: self._say([line]))

    def _prepared(self, request: RunRequest) -> tuple[PreparedRun, OutsideTags]:
        """Return a push run, and the hosts that are not in it because of its tags."""
        require_watch()
        run = prepare_run(request, str(request.composition.get("run_folder") or ""))
        tags: Sequence[str] = self._vars.get("ansible_run_tags") or ()
        skipped: Sequence[str] = self._vars.get("ansible_skip_tags") or ()
        outside = hosts_outside_tags(request.plan, request.composition, run.scope, run.routes.ahead, tags, skipped)
        run = replace(run, scope=outside.narrow(run.scope), is_whole=run.is_whole and set(tags) <= {"all"})
        return run, outside

    def _keep(self, request: RunRequest) -> dict[str, Any]:
        """Prepare a push run and keep it in the daemon; return what the playbooks need of it."""
        run, outside = self._prepared(request)
        ensure_daemon()
        ask(KeepRun(run, is_new=True))
        forks = forks_lines(request.plan, run.scope, self.forks)
        resumed = resumed_lines(request.plan, run.scope)
        self._say([*run.routes.lines, *run.left_out, *run.scope.waiting, *resumed, *outside.lines(), *forks])
        return run.as_result(str(self._vars.get("inventory_hostname")))

    def _check(self, options: Mapping[str, Any], *, has_services: bool) -> dict[str, Any]:
        """Refuse what would keep a run of a rollback from being prepared, before the rollback begins. Nothing is written."""
        if not (has_services or options["limit"]):
            return {"pushes": False}
        composition = self._compose(options, for_run=False) if has_services else {}
        given = {name: options[name] for name in ("version", "rollback_order") if options[name]}
        back = self._run_action("consul_upgrade_control", {"action": "rollback", **given}, options, check=True)
        # The rules of the rollback override those of the inventory.
        more = {"version": back["version"], "rollback": True, "instructions_file": ""}
        more |= {
            name: rules
            for name, rules in (("instructions", back["instructions"]), ("limit", options["limit"]))
            if rules
        }
        plan = self._run_action("consul_upgrade_plan", {**more, **_of_services(composition)}, options, check=True)
        if not has_services:
            return {"pushes": False}
        if plan["rollback_order"]:
            composition = composition_of_rollback(composition, is_reversed=plan["rollback_order"] == REVERSED)
        request = replace(self._request(options, plan, composition), version=back["version"])
        check_services(request)
        if options["once"] or not options["wait"]:
            check_allowed(request)
        else:
            self._prepared(request)
        return {"pushes": True}

    def _compose(self, options: Mapping[str, Any], *, for_run: bool) -> dict[str, Any]:
        args = {name: options[name] for name in ("upgrade_roles", "folder", "roles_path")}
        more = {"composed": options["composed"]} if options["composed"] else {}
        found = run_action(
            self,
            "compose_upgrade_tasks",
            {**args, **more, "for_run": for_run, "hosts": dict(self._vars.get("groups") or {})},
            self._vars,
            check=None if for_run else True,
        )
        if for_run and not options["composed"]:
            self._say(found["remarks"])
        return found

    def _run_action(
        self, name: str, args: Mapping[str, Any], options: Mapping[str, Any], *, check: bool
    ) -> dict[str, Any]:
        """Run another action on the host of this task, with the same connection to Consul and the same fleet."""
        connection = {one: options[one] for one in ACTION_CONNECTION_OPTIONS if options[one] not in (None, "")}
        return run_action(
            self, name, {**connection, "upgrade_roles": options["upgrade_roles"], **args}, self._vars, check=check
        )

    def _request(
        self, options: Mapping[str, Any], plan: Mapping[str, Any], composition: Mapping[str, Any]
    ) -> RunRequest:
        hostvars, groups = self._vars.get("hostvars") or {}, self._vars.get("groups") or {}
        fleet = fleet_of(options["upgrade_roles"], groups)
        return RunRequest(
            version=options["version"],
            fleet=fleet,
            plan=plan,
            composition=composition,
            upgrade_roles=options["upgrade_roles"],
            part=options["part"],
            role=options["role"],
            limit=tuple(with_inventory_groups(options["limit"], groups, fleet)),
            handed_over=tuple(with_inventory_groups(limit, groups, fleet)) if (limit := _limit(options)) else None,
            retry_failed=options["retry_failed"],
            declared=lambda host: hostvars[host].get(HOST_VARIABLE) if host in hostvars else None,
            providers=options["provider_versions"],
        )

    def _say(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._display.display(line)


def _refuse_limit(failure: Mapping[str, Any]) -> None:
    """Refuse a limit under the name that operators give it, if it is why an action failed.

    :raises UpgradeError: ``unknown_limit``.
    """
    if failure.get("code") == "unknown_limit":
        raise UpgradeError(
            "unknown_limit",
            f"upgrade_{failure['message']} Nothing was done: correct upgrade_limit, and run the same command again.",
            **failure.get("details", {}),
        ) from None


def _rollout(options: Mapping[str, Any], composition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``consul_upgrade_plan`` with which the run begins or continues the rollout, without those that have no value.

    :param composition: empty for a fleet without services.
    """
    found = {
        **{name: options[name] for name in ("version", "restart", "by", "rollback", "wait_for_other")},
        "replace": options["replace"] or None,
        "instructions": options["instructions"] or None,
        "instructions_file": options["instructions_file"],
        "limit": _limit(options) or None,
        "role_order": composition.get("role_order"),
        "services": services_of(composition) if composition else None,
        "roles_with_post_upgrade": sorted(roles_with_post_upgrade(composition)) if composition else None,
        "wait": options["wait"] and not options["once"],
        "hand_over": not options["wait"],
        "wait_timeout": int(options["wait_timeout"]),
    }
    # An empty instructions_file keeps the module from reading the default one.
    return {name: value for name, value in found.items() if value is not None}


def _of_services(composition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which ``consul_upgrade_plan`` plans for services.

    :param composition: empty for a fleet without services.
    """
    if not composition:
        return {}
    return {"role_order": composition["role_order"], "services": services_of(composition), "hosts": [ALL]}


def _limit(options: Mapping[str, Any]) -> list[str]:
    """Return the host patterns of the run, with those of its plane or role."""
    roles = options["upgrade_roles"]
    parts = {"role": [options["role"]], **{plane: roles_of_plane(roles, plane) for plane in PLANES}}
    limit = list(options["limit"])
    if options["part"] in parts:
        limit.append(f"&~({'|'.join(map(re.escape, parts[options['part']]))})$")
    return limit


def _refuse_variables(task_vars: Mapping[str, Any], options: Mapping[str, Any], *, pushes: bool) -> None:
    """Refuse versions that YAML has read as numbers, and a single pass or a handover where Ansible upgrades hosts.

    :raises UpgradeError: ``bad_version``, ``bad_options``.
    """
    # As they were given: options of tasks are text.
    for name in ("version", "replace"):
        value = task_vars.get(name)
        if value is not None and not isinstance(value, str):
            raise UpgradeError(
                "bad_version",
                f"{name}: {value} is not text but a number or the like, and YAML may have changed it (2.10 is read as 2.1). Put it in quotes.",
            )
    if not options["wait"] and pushes:
        raise UpgradeError(
            "bad_options",
            "wait: planner services run no Ansible tasks, but Ansible upgrades the roles that have services in upgrade_roles "
            f"({listing(pushed_roles(options['upgrade_roles']), 5)}). Nothing was done: leave -e wait=false out.",
            variables={},
            without=["wait"],
        )
    if not options["wait"] and options["once"]:
        raise UpgradeError(
            "bad_options",
            "once and wait=false can't be combined: once admits hosts a single time, and wait=false lets planner services admit all others. "
            "Nothing was done: leave one of them out.",
        )
    if options["once"] and pushes:
        raise UpgradeError(
            "bad_options",
            "once: one pass admits hosts and does not wait for them, but Ansible upgrades the roles that have services in upgrade_roles, and "
            "waits for their hosts. Nothing was done: leave -e once=true out.",
            without=["once"],
        )
