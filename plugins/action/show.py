# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print text for the operator without Ansible's formatting."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import sanitize


class ActionModule(ActionBase):
    """The action behind the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the lines."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(
            {"lines": {"type": "list", "elements": "str", "required": True}}
        )
        lines = [sanitize(line) for line in options["lines"]]
        for line in lines:
            self._display.display(line)
        return {**result, "changed": False, "lines": lines}
