# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrate the keys from the control node, which finds the steps by their file names."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS, changed
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.migrator import Migrator

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "to": {"type": "int"},
    "remove_legacy": {"type": "bool", "default": False},
}


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002  of all actions
        """Migrate the keys, or in check mode return what that would change."""
        dry = bool(self._task.check_mode)
        store = Store(read_settings(options.get, os.environ))
        outcome = Migrator(store, target=options["to"], remove_legacy=options["remove_legacy"]).run(dry=dry)
        return {**outcome.plain(dry=dry), **changed(outcome.net_changes())}
