# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's turn: it waits here until it may go, and says here how it ended."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.ipc import call

_OPTIONS: dict[str, dict[str, Any]] = {
    "driver": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["begun", "ended", "failed"], "required": True},
    "hosts": {"type": "list", "elements": "str"},
    "error": {"type": "str"},
}


class ActionModule(ActionBase):
    """The action behind the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Tell the driver, and bring back what it says."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(_OPTIONS)
        host = str((task_vars or {}).get("inventory_hostname"))
        act = {"begun": self._begin, "ended": self._end, "failed": self._fail}
        try:
            return {**result, "changed": False, **act[options["state"]](host, options)}
        except UpgradeError as error:
            return {**result, **error.as_result()}

    def _begin(self, host: str, options: dict[str, Any]) -> dict[str, Any]:
        if options["hosts"] is None:
            answer = call(options["driver"], do="admit", host=host)
            self._say({host: answer})
            return answer
        hosts: dict[str, dict[str, Any]] = call(options["driver"], do="wave", hosts=options["hosts"])["hosts"]
        self._say(hosts)
        return {"hosts": hosts}

    def _end(self, host: str, options: dict[str, Any]) -> dict[str, Any]:
        return call(options["driver"], do="end", host=host)

    def _fail(self, host: str, options: dict[str, Any]) -> dict[str, Any]:
        error = options["error"] or "it failed without a word"
        call(options["driver"], do="fail", host=host, error=error)
        return {"error": error}

    def _say(self, hosts: dict[str, dict[str, Any]]) -> None:
        for host, answer in hosts.items():
            if not answer["go"] and answer["state"] != "upgraded":
                self._display.display(f"{host} does not go ({answer['state']}): {answer['reason']}")
