# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until a host is admitted, and report how its upgrade ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    Admit,
    AdmitWave,
    BeginFailure,
    EndHost,
    FailHost,
    HostAdmission,
    ReportValidation,
    Validation,
)

_OPTIONS: dict[str, dict[str, Any]] = {
    "state": {"type": "str", "choices": ["valid", "invalid", "begun", "ended", "failing", "failed"], "required": True},
    "hosts": {"type": "list", "elements": "str"},
    "unreachable": {"type": "list", "elements": "str", "default": []},
    "goes_last": {"type": "bool", "default": False},
    "puppet_disabled": {"type": "str"},
    "error": {"type": "str"},
}


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Ask the daemon of the run."""
        host = str(task_vars.get("inventory_hostname"))
        self._play_hosts = [str(one) for one in task_vars.get("ansible_play_hosts_all") or ()]
        act = {
            "valid": self._report_valid,
            "invalid": self._report_invalid,
            "begun": self._begin,
            "ended": self._end,
            "failing": self._begin_failure,
            "failed": self._fail,
        }
        return act[options["state"]](host, options)

    def _report_valid(self, host: str, options: dict[str, Any]) -> dict[str, Any]:
        found = Validation(goes_last=options["goes_last"], puppet_disabled=options["puppet_disabled"])
        ask(ReportValidation(host, found))
        return {}

    def _report_invalid(self, host: str, options: dict[str, Any]) -> dict[str, Any]:
        error = _error(options)
        ask(ReportValidation(host, Validation(error)))
        return {"error": error}

    def _begin(self, host: str, options: dict[str, Any]) -> dict[str, Any]:
        if options["hosts"] is None:
            admission = ask(Admit(host))
            self._show({host: admission})
            return _plain(admission)
        hosts, unreachable = (tuple(map(str, options[name])) for name in ("hosts", "unreachable"))
        others = tuple(one for one in self._play_hosts if one not in hosts)
        admissions = ask(AdmitWave(hosts, unreachable, others))
        self._show(admissions)
        return {"hosts": {name: _plain(one) for name, one in admissions.items()}}

    def _end(self, host: str, _options: dict[str, Any]) -> dict[str, Any]:
        return {"state": ask(EndHost(host))}

    def _begin_failure(self, host: str, options: dict[str, Any]) -> dict[str, Any]:
        error = _error(options)
        return {"error": error, "drained": list(ask(BeginFailure(host, error)))}

    def _fail(self, host: str, options: dict[str, Any]) -> dict[str, Any]:
        error = _error(options)
        service, step = ask(FailHost(host, error))
        return {"error": error, "service": service, "step": step}

    def _show(self, admissions: Mapping[str, HostAdmission]) -> None:
        for host, one in admissions.items():
            if not (one.admitted or one.state == "upgraded"):
                self._display.display(f"{host} is not admitted ({one.state}): {one.reason}")


def _error(options: dict[str, Any]) -> str:
    return str(options["error"] or "it failed without a message")


def _plain(one: HostAdmission) -> dict[str, Any]:
    found = {"go": one.admitted, "state": one.state, "reason": one.reason}
    return {**found, "done": list(one.done)} if one.admitted else found
