# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts, asks and stops the driver of a run: the process that plans and records for the hosts that Ansible upgrades."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_socket import is_fed
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push import daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.feeder import feed
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.ipc import SOCKET, call
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.lost_hosts import require_watch
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import PushRun, task_groups_from

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "state": {"type": "str", "choices": ["prepared", "started", "settled", "stopped"], "required": True},
    "driver": {"type": "path"},
    "version": {"type": "str"},
    "phase": {"type": "str", "choices": ["upgrade", "after"], "default": "upgrade"},
    "fleet": {"type": "dict", "default": {}},
    "composition": {"type": "dict", "default": {}},
    "ways": {"type": "dict", "default": {}},
    "origins": {"type": "dict", "default": {}},
    "providers": {"type": "dict", "default": {}},
    "scope": {"type": "list", "elements": "str", "default": []},
    "plays": {"type": "list", "elements": "list", "default": []},
    "retry_failed": {"type": "bool", "default": False},
    "wait_timeout": {"type": "float", "default": 14400.0},
}

# Seconds that one question takes at most, so that lines are shown in time.
_ASK_FOR = 10


class ActionModule(ActionBase):
    """The action behind the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do what the state says."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(_OPTIONS)
        act = {"prepared": self._prepare, "started": self._start, "settled": self._settle, "stopped": self._stop}
        try:
            return {**result, "changed": False, **act[options["state"]](options)}
        except UpgradeError as error:
            return {**result, **error.as_result()}

    def _prepare(self, _options: dict[str, Any]) -> dict[str, Any]:
        require_watch()
        return {"driver": daemon.make_folder(os.getppid())}

    def _start(self, options: dict[str, Any]) -> dict[str, Any]:
        run = PushRun(
            settings=read_settings(options.get, os.environ),
            folder=_needed(options, "driver"),
            version=_needed(options, "version"),
            phase=options["phase"],
            fleet=options["fleet"],
            units=task_groups_from(_needed(options, "composition")),
            scope=tuple(options["scope"]),
            plays=tuple(tuple(hosts) for hosts in options["plays"]),
            ways=options["ways"],
            origins=options["origins"],
            providers=options["providers"],
            retry_failed=options["retry_failed"],
            patience=options["wait_timeout"],
            forks=int(context.CLIARGS.get("forks") or 1),
        )
        daemon.start(run, os.getppid())
        feed(os.getppid(), lambda: run.settings, run.fleet, run.version)
        return {"driver": run.folder}

    def _settle(self, options: dict[str, Any]) -> dict[str, Any]:
        folder = _needed(options, "driver")
        deadline = time.monotonic() + options["wait_timeout"]
        while True:
            left = deadline - time.monotonic()
            answer = call(folder, do="settle", hosts=options["scope"], seconds=max(0.1, min(_ASK_FOR, left)))
            for line in () if is_fed(os.getppid()) else answer["lines"]:
                self._display.display(f"{time.strftime('%H:%M:%S')} {line}")
            if answer["done"]:
                return {"done": True, "partial": [], "obstacles": []}
            if not answer["can_move"] or left <= 0:
                return self._unsettled(answer, timed_out=answer["can_move"])

    def _unsettled(self, answer: dict[str, Any], *, timed_out: bool) -> dict[str, Any]:
        found = {"done": False, "partial": answer["partial"], "obstacles": answer["obstacles"]}
        if answer["partial"] and answer["partial"] == answer["unfinished"]:
            return found
        why = "The time to wait is up" if timed_out else "Nothing can move any more"
        message = f"{why}. {answer['count']}. " + " | ".join(answer["obstacles"])
        error = UpgradeError("timeout" if timed_out else "stuck", message, obstacles=answer["obstacles"])
        return {**found, **error.as_result()}

    def _stop(self, options: dict[str, Any]) -> dict[str, Any]:
        folder = _needed(options, "driver")
        if (Path(folder) / SOCKET).exists():
            daemon.stop(folder)
        return {"driver": folder}


def _needed(options: dict[str, Any], name: str) -> Any:
    value = options[name]
    if not value:
        raise UpgradeError("missing_option", f"{name} is not given, and state: {options['state']} needs it.")
    return value
