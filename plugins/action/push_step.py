# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finish a host's current task group and begin the next one."""

from __future__ import annotations

from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import machine_id, machine_id_of
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.tag_selection import is_task_selected
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    BeginTaskGroup,
    FinishTaskGroup,
    RefuseStop,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.steps import MOST_PATIENCE, PATIENCE

_OPTIONS: dict[str, dict[str, Any]] = {
    "task_group": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["begun", "refused", "done"], "default": "begun"},
    "error": {"type": "str", "default": ""},
    "patience": {"type": "float", "default": float(PATIENCE)},
    "task_tags": {"type": "list", "elements": "list", "default": []},
}


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Ask the daemon; return whether the tasks of the task group run on this host.

        :raises UpgradeError: ``bad_options``, and what the daemon answers.
        """
        only, skip = task_vars.get("ansible_run_tags") or (), task_vars.get("ansible_skip_tags") or ()
        host, task_group = str(task_vars.get("inventory_hostname")), str(options["task_group"])
        if options["patience"] > MOST_PATIENCE:
            raise UpgradeError(
                "bad_options",
                f"upgrade_may_stop_timeout: {options['patience']:.0f} s are too long on {host}; the most is {MOST_PATIENCE}. {task_group} was not "
                "run: give a shorter time, and run the same command with -e retry_failed=true.",
            )
        if options["state"] == "done":
            ask(FinishTaskGroup(host, task_group))
            return {}
        if options["state"] == "refused":
            pause = ask(RefuseStop(host, task_group, options["error"], options["patience"]))
            self._display.display(f"{host}: {task_group} is tried again in {pause:.0f} s.")
            runtime.sleep(pause)
            return {}
        selected = [is_task_selected(tags, only, skip) for tags in options["task_tags"]] or [True]
        # Tasks with the tag never are not expected to run.
        expected = [one for one, tags in zip(selected, options["task_tags"], strict=False) if "never" not in tags]
        only_never = bool(options["task_tags"]) and not expected
        machine = machine_id_of(str((task_vars.get("ansible_facts") or {}).get("machine_id") or ""))
        start = ask(
            BeginTaskGroup(
                host,
                task_group,
                machine,
                chosen=any(selected),
                whole=all(expected),
                # With --skip-tags, the rest counts as the whole task group. With --tags, it does not.
                skipped=only_never or (set(only) <= {"all"} and bool(skip)),
                is_control_node=machine is not None and machine == machine_id(),
            )
        )
        return {"run": start.run, "why": start.why}
