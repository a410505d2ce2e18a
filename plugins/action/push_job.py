# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Begin or continue a job whose tasks Ansible runs: check the tasks, make and show the plan, and keep the run in the daemon."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job, decode_job
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import is_job, job_id, listing
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.host_patterns import select_hosts
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import ALL
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.job_request import new_id
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import (
    ControllerAction,
    with_groups_of_job,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.other_action import ActionFailed, run_action
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.inventory_roles import fleet_of, pushed_roles
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import require_watch
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import KeepRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import PreparedRun, prepare_job
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import forks_lines
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.role_finder import RoleFinder, operators_roles
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.task_file import refuse_job_tasks
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.other_rollout import when_free

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "tasks": {"type": "str", "default": ""},
    "job": {"type": "dict"},
    "version": {"type": "str", "default": ""},
    "upgrade_roles": {"type": "dict", "default": {}},
    "roles_path": {"type": "list", "elements": "path", "default": []},
    "instructions": {"type": "dict", "default": {}},
    "instructions_file": {"type": "str"},
    "once": {"type": "bool", "default": False},
    "wait": {"type": "bool", "default": True},
    "wait_for_other": {"type": "bool", "default": False},
    "wait_timeout": {"type": "float", "default": 14400.0},
}
_FILES = (".yml", ".yaml")
_MAIN = ("main.yml", "main.yaml")
# Of the name of a job.
_LONGEST = 64
# What the plays of a job need of its run.
_RETURNED = ("pushes", "version", "dataplane", "resumed", "plays", "task_timeout")
# What a run with tasks can't do, and why.
_REFUSED = {
    "once": (
        True,
        "once=true",
        "one pass admits hosts and does not wait for them, but Ansible runs the tasks of a job and waits for its hosts",
    ),
    "wait": (False, "wait=false", "planner services run no Ansible tasks"),
}


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Begin or continue the job; without tasks, only return an ID for the job."""
        if not options["tasks"]:
            _refuse_hosts_without_agent(options, task_vars.get("groups") or {})
            return {"pushes": False, **_with_id(options["job"])}
        self._vars = task_vars
        for name, (value, given, why) in _REFUSED.items():
            if options[name] is value:
                raise UpgradeError(
                    "bad_options", f"run_tasks and {given} can't be combined: {why}. Nothing was done.", without=[name]
                )
        tasks = self._found(options["tasks"], options["roles_path"])
        try:
            return self._begin(options, tasks)
        except ActionFailed as failed:
            return failed.result

    def _begin(self, options: Mapping[str, Any], tasks: Mapping[str, str]) -> dict[str, Any]:
        if options["job"] is None and not options["version"]:
            raise UpgradeError(
                "missing_option",
                "Neither job nor version is given. Give job to begin a job, or version to continue one.",
            )
        asked = {**options["job"], "by_ansible": True} if options["job"] is not None else None
        if asked is not None and asked.get("run"):
            raise UpgradeError(
                "bad_options",
                "run and run_tasks can't be combined: a job is named after its tasks. Nothing was done: leave run out.",
                without=["run"],
            )
        if asked is not None:
            asked["run"] = _command_name(options["tasks"])
        request: dict[str, Any] = {"version": options["version"]} if asked is None else {"job": asked}
        rules = {"instructions": options["instructions"]} if options["instructions"] else {}
        if options["instructions_file"] is not None:
            rules["instructions_file"] = options["instructions_file"]

        def attempt() -> dict[str, Any]:
            return self._plan(options, {**request, **rules, "hosts": [ALL], "show": True}, check=True)

        deadline = runtime.monotonic() + options["wait_timeout"]
        waits = options["wait_for_other"] and not self._task.check_mode
        plan = when_free(attempt, deadline, self._display.display) if waits else attempt()
        target = str(plan["version"])
        if not is_job(target):
            raise UpgradeError(
                "unknown_job",
                f"{target} is a version and no job. Nothing was done. Look at it with ansible-playbook convoy.upgrade.status.",
            )
        job = _planned(asked, target) if asked is not None else self._stored(options, target)
        run = prepare_job(job, plan)
        self._refuse_unknown_hosts(run)
        if self._task.check_mode:
            return _result(run, tasks)
        require_watch()
        # Before the job begins. Otherwise, if there is no space for the daemon, the job would be under way without a run.
        ensure_daemon()
        ask(KeepRun(run, is_new=True))
        if asked is not None:
            request = {"job": {**asked, "id": job.id}}
        # Another one may have begun since the plan.
        again = {"wait_for_other": options["wait_for_other"], "wait_timeout": int(options["wait_timeout"])}
        begun = self._plan(options, {**request, **rules, **again, "limit": []}, check=False)
        for line in forks_lines(plan, run.scope, self.forks):
            self._display.display(line)
        return {**_result(run, tasks), "changed": begun["changed"], "diff": begun["diff"]}

    def _plan(self, options: Mapping[str, Any], args: Mapping[str, Any], *, check: bool) -> dict[str, Any]:
        connection = {one: options[one] for one in ACTION_CONNECTION_OPTIONS if options[one] not in (None, "")}
        args = {**connection, "upgrade_roles": options["upgrade_roles"], **args}
        return run_action(self, "consul_upgrade_plan", args, self._vars, check=check)

    def _found(self, tasks: str, roles_path: list[str]) -> dict[str, str]:
        """Return the file or the role with the tasks, as ``file`` or ``role``; the other one is empty.

        :raises UpgradeError: ``bad_tasks``.
        """
        if not tasks.endswith(_FILES):
            finder = RoleFinder([*roles_path, *operators_roles(self._vars)])
            folder = finder(tasks)
            if folder is None:
                raise _bad_tasks(
                    tasks,
                    f"there is no such role in {listing(finder.places, 5)}, and the name of a file ends with .yml",
                )
            for name in _MAIN:
                _refuse_unfit(tasks, Path(folder, "tasks", name))
            # Ansible does not search the roles of roles_path, and reads a role of a collection by its name.
            return {"file": "", "role": tasks if tasks.count(".") > 1 else str(folder)}
        path = Path(os.environ.get("PWD") or ".", tasks).expanduser().absolute()
        if not path.is_file():
            raise _bad_tasks(tasks, f"{path} is no file")
        try:
            found = self._loader.load_from_file(str(path))
        except AnsibleError as error:
            raise _bad_tasks(tasks, " ".join(str(error).split())) from error
        if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
            raise _bad_tasks(tasks, f"{path} is not a list of tasks")
        if any("hosts" in one for one in found):
            raise _bad_tasks(tasks, f"{path} is a playbook. Give a file with its tasks")
        _refuse_unfit(tasks, path)
        return {"file": str(path), "role": ""}

    def _stored(self, options: Mapping[str, Any], target: str) -> Job:
        """Return the job of a target as it is stored.

        :raises UpgradeError: ``unknown_job``, ``bad_options``, and what the client raises.
        """
        store = Store(read_settings(options.get, os.environ))
        entry = store.client.get(store.keys.job(job_id(target)))
        job = decode_job(entry.value) if entry is not None else None
        if job is None or job.target != target:
            raise UpgradeError(
                "unknown_job",
                f"{store.keys.job(job_id(target))} is missing or can't be read, so it is unknown what should run. Nothing was done. Begin a new job.",
            )
        if not job.by_ansible:
            raise UpgradeError(
                "bad_options",
                f"run_tasks: the nodes themselves run the job {job.id}, as it was begun without tasks. Nothing was done: leave run_tasks out.",
                without=["run_tasks"],
            )
        if job.command != _command_name(options["tasks"]):
            raise UpgradeError(
                "bad_tasks",
                f"run_tasks: the job {job.id} runs the tasks {job.command}, and {options['tasks']} are others, so hosts would count as done without "
                "them. Nothing was done. Continue with the same file or role, or begin another job without job.",
            )
        return job

    def _refuse_unknown_hosts(self, run: PreparedRun) -> None:
        """Refuse a job for hosts that Ansible does not know.

        :raises UpgradeError: ``bad_job``.
        """
        known = self._vars.get("hostvars") or {}
        unknown = [host for host in run.scope.pushed_hosts if host not in known]
        if unknown:
            raise UpgradeError(
                "bad_job",
                f"{listing(unknown, 5)} {'is' if len(unknown) == 1 else 'are'} not in the inventory, so Ansible can't run the tasks there. Nothing "
                "was done. Add them, or name the hosts of the job with only.",
                hosts=unknown,
            )


def _refuse_hosts_without_agent(options: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> None:
    """Refuse a command of the nodes for hosts that Ansible upgrades. They have no agent, so each would hold a slot until it is lost.

    :param groups: Ansible's.
    :raises UpgradeError: ``bad_job``, and what :func:`fleet_of` raises.
    """
    pushed = pushed_roles(options["upgrade_roles"])
    if not pushed or not options["job"]:
        return
    fleet = fleet_of(options["upgrade_roles"], groups)
    only = options["job"].get("only")
    patterns = with_groups_of_job([str(one) for one in only or ()], groups, fleet)
    chosen = fleet.keys() if only is None else _known_hosts(patterns, fleet)
    without = [host for host in fleet if host in chosen and fleet[host] in pushed]
    if without:
        has = "has" if len(without) == 1 else "have"
        raise UpgradeError(
            "bad_job",
            f"run: the agent of each host runs this command, and {listing(without, 5)} {has} none, because Ansible upgrades the hosts of "
            f"{listing(pushed, 5)}. Nothing was done. Name other roles or hosts with only, or give tasks for Ansible (-e run_tasks=FILE) in place of run.",
            hosts=without,
            variables={"only": "NAME"},
        )


def _known_hosts(only: Sequence[str], fleet: Mapping[str, str]) -> AbstractSet[str]:
    """Return the hosts of the inventory that patterns select by the names that are known here.

    Only the planner knows the groups of the rules and hosts that are not in the inventory. It refuses other names.
    """

    def is_known(pattern: str) -> bool:
        try:
            select_hosts([pattern.lstrip("!&")], fleet, {})
        except UpgradeError:
            return False
        return True

    known = [one for one in only if is_known(one)]
    unknown = [one for one in only if one not in known]
    are_hosts_left = any(one[0] not in "!&" for one in known) or all(one[:1] in ("!", "&") for one in only)
    if not are_hosts_left or any(one[:1] in ("!", "&") for one in unknown):
        # A group of the rules selects, leaves out or narrows, and only the planner knows which hosts are left.
        return frozenset()
    try:
        return select_hosts(known, fleet, {})
    except UpgradeError:
        # Together, they select none.
        return frozenset()


def _with_id(asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an ID for a job that the nodes run, so that the command which continues an interrupted run can name it."""
    try:
        return {"job": {"id": new_id(str(asked["run"]))}} if asked and asked.get("run") else {}
    except UpgradeError:
        # The planner refuses the name.
        return {}


def _planned(asked: Mapping[str, Any], target: str) -> Job:
    """Return the job that is about to begin. Only what the tasks need is known."""
    return Job(job_id(target), str(asked["run"]), 0, asked.get("args") or {}, by_ansible=True)


def _command_name(tasks: str) -> str:
    """Return the name of the command for a file or role with tasks, such as ``restart-nova`` for ``tasks/restart-nova.yml``."""
    name = Path(tasks).stem if tasks.endswith(_FILES) else tasks.rpartition(".")[2]
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:_LONGEST]


def _result(run: PreparedRun, tasks: Mapping[str, str]) -> dict[str, Any]:
    job = run.job
    facts = {"id": job.id, "run": job.command, "args": dict(job.args)} if job is not None else {}
    found = run.as_result()
    return {**{name: found[name] for name in _RETURNED}, "job": {**facts, **tasks}}


def _refuse_unfit(tasks: str, path: Path) -> None:
    """Refuse a file with tasks that would end the run or leave hosts without a report.

    :raises UpgradeError: ``bad_tasks``.
    """
    try:
        refuse_job_tasks(path)
    except UpgradeError as error:
        raise _bad_tasks(tasks, error.message.rstrip(".")) from error


def _bad_tasks(tasks: str, why: str) -> UpgradeError:
    return UpgradeError("bad_tasks", f"run_tasks: {tasks} can't be used: {why}. Nothing was done.")
