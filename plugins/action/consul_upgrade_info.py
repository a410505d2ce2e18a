# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the module of the same name, in this process if possible, and let the live view show what it has read."""

from __future__ import annotations

import contextlib
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_info import SPEC, act
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import is_started
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import WaitUntilShown
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.controller_action import ModuleAction

# How long the task waits until the view shows what it has read (seconds).
_LONGEST_WAIT = 3.0


class ActionModule(ModuleAction):
    """The action behind the module of the same name."""

    _supports_async = True

    MODULE = "convoy.upgrade.consul_upgrade_info"
    SPEC = SPEC
    ACT = act

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the state of the fleet."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        found = self.call(self._task.args, task_vars)
        if is_started():
            # A table that follows is not newer than the lines of the view above it, and a run does not end before its view.
            with contextlib.suppress(UpgradeError):
                ask(WaitUntilShown(int(found.get("index") or 0), _LONGEST_WAIT))
        return {**result, **found}
