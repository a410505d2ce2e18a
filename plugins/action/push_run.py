# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare a push run, start it, wait for it and stop it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible import context
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import is_started, require_watch
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import FollowProgress
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    GetHostsThatGaveWay,
    GetRun,
    GetValidation,
    KeepRun,
    Settle,
    Settlement,
    StartPush,
    StopPush,
    Validation,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import (
    POST_UPGRADE,
    RunRequest,
    check_moves,
    prepare_run,
    with_post_upgrade,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import AFTER, UPGRADE, PushRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.partial_tags import early_lines, hosts_outside_tags
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import CONTROL, DATA, FIRST, resumed_lines
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.routes import HOST_VARIABLE

_STATES = ("checked", "prepared", "validated", "started", "asked_again", "settled", "finished", "stopped")
_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "state": {"type": "str", "choices": list(_STATES), "required": True},
    "version": {"type": "str"},
    "fleet": {"type": "dict", "default": {}},
    "plan": {"type": "dict"},
    "composition": {"type": "dict"},
    "upgrade_roles": {"type": "dict", "default": {}},
    "part": {"type": "str", "choices": ["all", "controlplane", "dataplane", "role", "after"], "default": "all"},
    "role": {"type": "str", "default": ""},
    "limit": {"type": "list", "elements": "str", "default": []},
    "provider_versions": {"type": "dict", "default": {}},
    "retry_failed": {"type": "bool", "default": False},
    "play": {"type": "str", "choices": [FIRST, CONTROL, DATA, POST_UPGRADE]},
    "wait_timeout": {"type": "float", "default": 14400.0},
}

# How long one message to the daemon waits for a change (seconds).
_LONGEST_WAIT = 10


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Do what the option ``state`` asks for."""
        self._hostvars: Mapping[str, Any] = task_vars.get("hostvars") or {}
        self._tags: Sequence[str] = task_vars.get("ansible_run_tags") or ()
        self._skipped_tags: Sequence[str] = task_vars.get("ansible_skip_tags") or ()
        act: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "checked": self._check,
            "prepared": self._prepare,
            "validated": self._validate,
            "started": self._start,
            "asked_again": self._ask_again,
            "settled": self._settle,
            "finished": self._finish,
            "stopped": self._stop,
        }
        return act[options["state"]](options)

    def _check(self, options: dict[str, Any]) -> dict[str, Any]:
        check_moves(self._request(options))
        return {}

    def _prepare(self, options: dict[str, Any]) -> dict[str, Any]:
        require_watch()
        folder = _needed(options, "composition").get("run_folder") or ""
        request = self._request(options)
        run = prepare_run(request, folder)
        early = hosts_outside_tags(
            request.plan, request.composition, run.scope.pushed_hosts, run.routes.ahead, self._tags, self._skipped_tags
        )
        run = replace(run, scope=run.scope.without(early)) if early else run
        ensure_daemon()
        ask(KeepRun(run))
        for line in (*run.routes.lines, *run.left_out, *resumed_lines(request.plan, run.scope), *early_lines(early)):
            self._display.display(line)
        return run.as_result()

    def _validate(self, _options: dict[str, Any]) -> dict[str, Any]:
        hosts = ask(GetRun()).scope.validate
        reported = ask(GetValidation())
        # Ansible drops an unreachable host from the play, so it has reported nothing.
        silent = Validation("it can't be reached (see above).")
        errors = {host: error for host in hosts if (error := reported.get(host, silent).error)}
        if errors:
            why = [
                error.strip() if error.startswith(f"{host}:") else f"{host}: {error.strip()}"
                for host, error in errors.items()
            ]
            raise UpgradeError(
                "not_upgradable",
                f"Nothing was touched: {len(errors)} of {len(hosts)} hosts can't be upgraded. {' | '.join(why)} Fix that, hold these "
                "hosts, or leave them out with upgrade_limit; then run the same command again.",
                hosts=errors,
            )
        return {}

    def _start(self, options: dict[str, Any]) -> dict[str, Any]:
        """Admit hosts from now on. In check mode no host is admitted."""
        if self._task.check_mode:
            return ask(GetRun()).as_result()
        last = {host for host, validation in ask(GetValidation()).items() if validation.goes_last}
        run = ask(GetRun())
        run = replace(run, scope=run.scope.with_last(last, run.fleet))
        ask(KeepRun(run))
        plays = tuple(run.scope.plays[play] for play in (FIRST, CONTROL, DATA))
        hosts = tuple(host for play in plays for host in play)
        self._push(options, UPGRADE, hosts, plays, frozenset(last))
        return run.as_result()

    def _finish(self, options: dict[str, Any]) -> dict[str, Any]:
        """Start the tasks after the upgrade, once every host is upgraded. In check mode nothing follows."""
        run = ask(GetRun())
        if self._task.check_mode:
            return run.as_result()
        ask(StopPush())
        plan, composition = _needed(options, "plan"), _needed(options, "composition")
        run = with_post_upgrade(run, plan, composition, options["upgrade_roles"])
        ask(KeepRun(run))
        if run.post_upgrade:
            self._push(options, AFTER, tuple(run.post_upgrade))
        return run.as_result()

    def _push(
        self,
        options: dict[str, Any],
        phase: str,
        hosts: tuple[str, ...],
        plays: tuple[tuple[str, ...], ...] = (),
        last: frozenset[str] = frozenset(),
    ) -> None:
        run = ask(GetRun())
        push = PushRun(
            settings=read_settings(options.get, os.environ),
            version=run.version,
            phase=phase,
            fleet=run.fleet,
            task_groups=run.task_groups,
            hosts=hosts,
            plays=plays,
            last=last,
            checkpoints=run.routes.checkpoints,
            origins=run.routes.origins,
            providers=run.routes.providers,
            retry_failed=run.retry_failed,
            wait_timeout=options["wait_timeout"],
            forks=int(context.CLIARGS.get("forks") or 1),
        )
        ask(StartPush(push))
        ask(FollowProgress(push.settings, push.fleet, push.version))

    def _ask_again(self, _options: dict[str, Any]) -> dict[str, Any]:
        return {"gave_way": list(ask(GetHostsThatGaveWay()))}

    def _settle(self, options: dict[str, Any]) -> dict[str, Any]:
        hosts = ask(GetRun()).hosts_of(_needed(options, "play"))
        deadline = runtime.monotonic() + options["wait_timeout"]
        while hosts:
            left = deadline - runtime.monotonic()
            settlement = ask(Settle(hosts, max(0.1, min(_LONGEST_WAIT, left))))
            for line in settlement.lines:
                self._display.display(f"{time.strftime('%H:%M:%S')} {line}")
            if settlement.done:
                break
            if not settlement.can_move or left <= 0:
                return _unsettled(settlement)
        return {"done": True, "partial": {}, "blockers": []}

    def _stop(self, _options: dict[str, Any]) -> dict[str, Any]:
        if is_started():
            ask(StopPush())
        return {}

    def _request(self, options: dict[str, Any]) -> RunRequest:
        if "hosts" not in _needed(options, "plan"):
            raise UpgradeError(
                "missing_option",
                "plan has no hosts, so it is not a result of consul_upgrade_plan that succeeded. Pass on such a result.",
            )
        return RunRequest(
            version=_needed(options, "version"),
            fleet=options["fleet"],
            plan=_needed(options, "plan"),
            composition=_needed(options, "composition"),
            upgrade_roles=options["upgrade_roles"],
            part=options["part"],
            role=options["role"],
            limit=tuple(options["limit"]),
            retry_failed=options["retry_failed"],
            declared=self._declared,
            providers=options["provider_versions"],
        )

    def _declared(self, host: str) -> object:
        return self._hostvars[host].get(HOST_VARIABLE) if host in self._hostvars else None


def _unsettled(settlement: Settlement) -> dict[str, Any]:
    blockers = list(settlement.reasons)
    result = {
        "done": False,
        "partial": {host: list(steps) for host, steps in settlement.partial.items()},
        "blockers": blockers,
    }
    if settlement.partial and settlement.only_tags_wait:
        return result
    why = "The wait timeout has passed" if settlement.can_move else "No host can continue without an operator"
    message = f"{why}. {settlement.count}. " + " | ".join(blockers)
    error = UpgradeError("timeout" if settlement.can_move else "stuck", message, blockers=blockers)
    return {**result, **error.as_result()}


def _needed(options: dict[str, Any], name: str) -> Any:
    value = options[name]
    if not value:
        raise UpgradeError("missing_option", f"state: {options['state']} requires the option {name}.")
    return value
