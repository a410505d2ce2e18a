# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create ACL policies and tokens from the control node, and write the token to a file on its host without showing it."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import sanitize, truncate_middle
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS, changed
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import (
    KINDS,
    NODE,
    GrantedToken,
    TokenKind,
    grant,
    revoke,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "kind": {"type": "str", "choices": list(KINDS), "required": True},
    "name": {"type": "str", "default": ""},
    "publishes_health": {"type": "bool", "default": False},
    "runs_services": {"type": "bool", "default": False},
    "token_file": {"type": "path"},
    "token_file_owner": {"type": "str"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    TRANSFERS_FILES = True
    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Create or remove the policy, the token and the file with the token."""
        name = options["name"]
        if options["kind"] == NODE and not name:
            name = str(task_vars.get("inventory_hostname"))
        dry = bool(self._task.check_mode)
        store = Store(read_settings(options.get, os.environ))
        part = TokenKind(options["kind"], name, options["publishes_health"], options["runs_services"])
        granted = (grant if options["state"] == "present" else revoke)(store, part, dry=dry)
        facts = {"policy": granted.policy, "accessor_id": granted.accessor, **changed(granted.changes)}
        if not options["token_file"]:
            return facts
        try:
            file = self._file(options, granted, task_vars)
        except AnsibleConnectionFailure as error:
            raise AnsibleConnectionFailure(_lost(options, granted, str(error)).as_text()) from None
        except (AnsibleError, OSError) as error:
            file = {"failed": True, "msg": str(error)}
        if file.get("failed"):
            lost = _lost(options, granted, _reason(file))
            return {**facts, **lost.as_result()}
        facts["changed"] = facts["changed"] or bool(file.get("changed"))
        return {**facts, "token_file": options["token_file"]}

    def _file(self, options: dict[str, Any], granted: GrantedToken, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Write or remove the file; return its result without the diff and other texts that could show the token."""
        path = options["token_file"]
        task = self._task.copy()
        # The token must not be shown at any verbosity.
        task.no_log = True
        if options["state"] == "absent" or not granted.secret:
            if options["state"] != "absent":
                return {"changed": True}
            found: dict[str, Any] = self._execute_module(
                module_name="ansible.builtin.file", module_args={"path": path, "state": "absent"}, task_vars=task_vars
            )
            return found
        task.args = {"content": f"{granted.secret}\n", "dest": path, "mode": "0600"}
        if options["token_file_owner"]:
            task.args["owner"] = options["token_file_owner"]
        copy = self._shared_loader_obj.action_loader.get(
            "ansible.builtin.copy",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        copied: dict[str, Any] = copy.run(task_vars=task_vars)
        return {name: copied.get(name) for name in ("changed", "failed", "msg", "exception") if name in copied}


def _lost(options: dict[str, Any], granted: GrantedToken, why: str) -> UpgradeError:
    """Return the error for a file that could not be written or removed."""
    path = options["token_file"]
    if granted.secret:
        why = why.replace(granted.secret, "********")
    why = truncate_middle(sanitize(why)).rstrip(". ")
    if options["state"] == "absent":
        return UpgradeError(
            "unwritten_token",
            f"The token of {granted.policy} is deleted from Consul, but its file {path} could not be removed: {why}. Remove it.",
            path=path,
            policy=granted.policy,
        )
    return UpgradeError(
        "unwritten_token",
        f"Consul has the token of {granted.policy} (accessor {granted.accessor}), but it could not be written to {path}: "
        f"{why}. Fix that and run this task again: it writes the secret of the same token.",
        path=path,
        policy=granted.policy,
    )


def _reason(result: dict[str, Any]) -> str:
    """Return why a module failed. For unexpected errors, ansible-core returns a chain of errors or a traceback instead of a message."""
    found, error = [str(result["msg"])] if result.get("msg") else [], result.get("exception")
    if isinstance(error, str):
        found += error.strip().splitlines()[-1:]
    event = getattr(error, "event", None)
    while event is not None:
        found.append(str(event.msg))
        event = getattr(event.chain, "event", None)
    return ": ".join(one.rstrip(". ") for one in dict.fromkeys(found)) or "no reason was given"
