# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start the notifier of a run in its daemon, which calls the operator's hook for each event of the rollout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import context
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS, FLEET_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.notifications import EVENTS
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.notifications import (
    RolloutView,
    initial_state,
    new_notifications,
    read_rollout,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import require_watch
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.hook import Hook
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.messages import StartNotifier
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.messenger import Messenger, read_targets
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.settings_file import load_settings

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "hook": {"type": "path", "required": True},
    "hook_timeout": {"type": "float", "default": 60.0},
    **FLEET_OPTIONS,
    "expects": {"type": "list", "elements": "str", "choices": list(EVENTS), "default": list(EVENTS)},
    "retry_failed": {"type": "bool", "default": False},
}


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002  of all actions
        """Start the notifier, or in check mode print which events it would send."""
        require_watch()
        hook = self._hook(options)
        settings = read_settings(options.get, os.environ)
        if self._task.check_mode:
            store = Store(settings)
            return self._preview(store, read_rollout(store, options["fleet"] or {}), hook, options["expects"])
        ensure_daemon()
        ask(StartNotifier(settings, hook, options["fleet"] or {}, options["retry_failed"]))
        return {"notifications": []}

    def _preview(
        self, store: Store, rollout: RolloutView, hook: Hook | Messenger, expects: list[str]
    ) -> dict[str, Any]:
        found = new_notifications(store, rollout, initial_state(store, rollout, dry=True))[0]
        texts = [rollout.payload(notification)["text"] for notification in found]
        lines = [f"{hook.file} would be called with the events {', '.join(expects)}, but is not called in check mode."]
        for line in [*lines, *(f"It would get the event: {text}" for text in texts)]:
            self._display.display(line)
        return {"notifications": texts}

    def _hook(self, options: dict[str, Any]) -> Hook | Messenger:
        """Return what is called with each event: tasks, or targets of messages.

        :raises UpgradeError: ``bad_hook`` if it can't be called, ``missing_library``.
        """
        file = str(Path.cwd() / options["hook"])
        try:
            tasks = load_settings(self._loader, file)
            targets = tuple(read_targets(tasks)) if isinstance(tasks, dict) else ()
        except ValueError as error:
            raise _bad_hook(file, str(error)) from error
        if isinstance(tasks, dict):
            return Messenger(file, targets, str(tasks.get("page", "")), options["hook_timeout"])
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            raise _bad_hook(file, "it is neither a list of tasks nor settings with targets")
        given = context.CLIARGS
        if given.get("ask_vault_pass") or any("@prompt" in one for one in given.get("vault_ids") or ()):
            raise UpgradeError(
                "bad_hook",
                f"upgrade_notify: {file} is called in separate runs, which can't ask for a vault password. Nothing was "
                "done: give the password in a file or a script (--vault-password-file).",
            )
        arguments = [word for one in given.get("inventory") or () for word in ("-i", one)]
        arguments += [word for one in given.get("extra_vars") or () for word in ("-e", one)]
        arguments += [word for one in given.get("vault_ids") or () for word in ("--vault-id", one)]
        arguments += [
            word for one in given.get("vault_password_files") or () for word in ("--vault-password-file", one)
        ]
        return Hook(file, tuple(arguments), str(Path.cwd()), options["hook_timeout"])


def _bad_hook(file: str, why: str) -> UpgradeError:
    return UpgradeError(
        "bad_hook",
        f"upgrade_notify: {file}: {why}. Nothing was done: give a file with tasks or targets, or leave upgrade_notify out.",
        file=file,
    )
