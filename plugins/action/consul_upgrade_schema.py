# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrate the keys from the controller, which finds the steps by their file names."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS, changed
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.migrator import Migrator

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "to": {"type": "int"},
    "remove_legacy": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """The action behind the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Migrate the keys, or in check mode return what that would change."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(_OPTIONS)
        dry = bool(self._task.check_mode)
        try:
            store = Store(read_settings(options.get, os.environ))
            outcome = Migrator(store, target=options["to"], remove_legacy=options["remove_legacy"]).run(dry=dry)
        except UpgradeError as error:
            return {**result, **error.as_result()}
        return {**result, **outcome.plain(dry=dry), **changed(outcome.net_changes())}
