# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the module of the same name, in this process if possible."""

from __future__ import annotations

from typing import Any

from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_info import SPEC, act
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.controller_action import ModuleAction


class ActionModule(ModuleAction):
    """The action behind the module of the same name."""

    _supports_async = True

    MODULE = "convoy.upgrade.consul_upgrade_info"
    SPEC = SPEC
    ACT = act

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the state of the fleet."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        return {**result, **self.call(self._task.args, task_vars)}
