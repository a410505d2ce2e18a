# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a rollout report. The module reads it from Consul, and the files are written here."""

from __future__ import annotations

from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common.text_file import read_text, write_atomically
from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_rollout_report import SPEC, act
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.module_action import ModuleAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.task_result import task_result
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.report_files import report_files


class ActionModule(ModuleAction):
    """The action behind the module of the same name."""

    MODULE = "convoy.upgrade.consul_upgrade_rollout_report"
    SPEC = SPEC
    ACT = act

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module, and write its report."""
        read = super().run(tmp, task_vars)
        if "report" not in read:
            return read
        result = {name: value for name, value in read.items() if name not in ("report", "folder")}
        return task_result(result, lambda: self._write(report_files(read["report"], read["folder"])))

    def _write(self, files: dict[str, str]) -> dict[str, Any]:
        before = {path: read_text(path, "folder") for path in files}
        if not self._task.check_mode:
            for path, text in files.items():
                if text != before[path]:
                    write_atomically(path, text, "folder")
        data = next(path for path in files if path.endswith(".json"))
        diff = {"before_header": data, "after_header": data, "before": before[data], "after": files[data]}
        return {"changed": files != before, "files": list(files), "diff": diff}
