# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the module of the same name, in this process if possible, and let the live view show what it has read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import is_job
from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_info import SPEC, act
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.module_action import ModuleAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.task_result import task_result
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import is_started
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.status_text import host_lines, status_lines
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import WaitUntilShown

# How long the task waits until the view shows what it has read (seconds).
_LONGEST_WAIT = 3.0


class ActionModule(ModuleAction):
    """The action behind the module of the same name."""

    _supports_async = True

    MODULE = "convoy.upgrade.consul_upgrade_info"
    SPEC = SPEC
    ACT = act

    def text(self, found: Mapping[str, Any]) -> list[str]:
        """Return the lines for people."""
        return host_lines(found["host"], of_job=is_job(found["version"])) if "host" in found else status_lines(found)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the state of the fleet."""
        result: dict[str, Any] = ActionBase.run(self, tmp, task_vars)

        def act() -> dict[str, Any]:
            found = self.call(self.given(task_vars), task_vars)
            if is_started():
                # A table that follows is not newer than the lines of the view above it, and a run does not end before its view.
                with contextlib.suppress(UpgradeError):
                    ask(WaitUntilShown(int(found.get("index") or 0), _LONGEST_WAIT))
            return found

        found = task_result(result, act)
        # A table comes after the lines of the view above it.
        self.show(found)
        return found
