# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lock a node for this run: pass the run's identity to the module."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import start_ticks
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import current_user


class ActionModule(ActionBase):
    """The action behind the module of the same name."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with the identity of this run."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        # This is one of Ansible's workers. Its parent is ansible-playbook, which lasts as long as the run.
        process = os.getppid()
        who = current_user()
        options = {
            "who": f"the run of {who} (process {process})",
            **self._task.args,
            "run": f"{who} {process} {start_ticks(process)}",
            "process": process if self._connection.transport.rpartition(".")[2] == "local" else None,
        }
        result.update(self._execute_module("convoy.upgrade.node_lock", module_args=options, task_vars=task_vars or {}))
        return result
