# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the package sources of a version from Consul on the control node, and let the module write them on the host."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.version_sources import read_sources
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.task_result import task_result

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "version": {"type": "str"},
    "folder": {"type": "path"},
    "state_file": {"type": "path"},
}


class ActionModule(ActionBase):
    """The action behind the module of the same name."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with the files of the version."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(_OPTIONS, required_one_of=[("version", "folder")])
        # The module needs no connection to Consul.
        given = {name: options[name] for name in ("version", "folder", "state_file") if options[name] is not None}

        def act() -> dict[str, Any]:
            if options["folder"] is None:
                given["files"] = read_sources(Store(read_settings(options.get, os.environ)), options["version"])
            found: dict[str, Any] = self._execute_module(
                "convoy.upgrade.node_sources", module_args=given, task_vars=task_vars or {}
            )
            return found

        return task_result(result, act)
