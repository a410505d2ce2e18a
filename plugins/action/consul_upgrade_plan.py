# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for a rollout: call the module for one pass after another, and show the changes.

A module prints nothing before it ends. So each call waits for a change with blocking queries, makes one pass and returns. The module
runs on the host of the task, so Consul must be reachable from there, but not from the controller.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import Code, UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings, read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.admission import MOST_SLOW, SlowTries
from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_plan import REQUIRED_IF, SPEC, act
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import is_started
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.progress_lines import PassProgress, running_count
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import FollowProgress, IsShown
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.controller_action import ModuleAction

# If nothing changes, the running count is shown this often (seconds).
_SHOW_EVERY = 30
_LONGEST_PAUSE = 15
_DEFAULT_TIMEOUT = 14400

# Options of the first call only. Then the ledger has the rules, and later calls must not undo an operator's commands.
_FIRST_ONLY = ("instructions", "instructions_file", "role_order", "restart", "replace", "rollback")


class ActionModule(ModuleAction):
    """The action behind the module of the same name."""

    MODULE = "convoy.upgrade.consul_upgrade_plan"
    SPEC = SPEC
    REQUIRED_IF = REQUIRED_IF
    ACT = act

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Make one pass, or with ``wait`` passes until the end of the rollout."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        options = dict(self._task.args)
        begun = runtime.monotonic()
        # The module gets all options, so that its errors name the options.
        first = self._call(options, task_vars)
        wait = not first.get("failed") and boolean(options.pop("wait", None) or False)
        if not wait or self._task.check_mode:
            return {**result, **first}
        timeout = options.get("wait_timeout")
        deadline = begun + float(_DEFAULT_TIMEOUT if timeout is None else timeout)
        return {**result, **self._wait_for_rollout(options, first, deadline, task_vars)}

    def _wait_for_rollout(
        self, options: dict[str, Any], first: dict[str, Any], deadline: float, task_vars: dict[str, Any] | None
    ) -> dict[str, Any]:
        progress = PassProgress()
        total = Total(first)
        latest = first
        options = {name: value for name, value in options.items() if name not in _FIRST_ONLY}
        options["version"] = first["version"]
        if not first["done"] and self._connection.transport == "local":
            # The view follows from here, so only where the task itself asks Consul from here too.
            _show_progress(options, first)
        lines = progress.lines(first)
        shown = self._show([] if _is_shown() else lines, runtime.monotonic())
        pause = 1.0
        while True:
            if latest["done"]:
                return total.ended(latest)
            if not latest["can_move"]:
                blocker = latest["blocker"]
                why = (
                    f"{blocker['reason'][0].upper()}{blocker['reason'][1:]}"
                    if blocker
                    else "No host can continue without an operator"
                )
                return total.failed(latest, blocker.get("code", "stuck"), why)
            left = deadline - runtime.monotonic()
            if left <= 0:
                return total.failed(
                    latest, "timeout", "The wait timeout has passed, and the rollout continues without this call"
                )
            longest = min(left, _SHOW_EVERY, latest["wake_at"] - runtime.now() + 1 if latest["wake_at"] else left)
            options |= {name: latest[name] for name in ("epoch", "commit")}
            options |= {"since": latest["index"], "wait_timeout": max(1, int(longest))}
            found = self._call(options, task_vars)
            if found.get("failed"):
                if found.get("failure", {}).get("code") != "unreachable" or deadline - runtime.monotonic() <= pause:
                    return total.broken(found)
                self._show(
                    [f"{found['msg']} No host is admitted until it is back; the next try is in {pause:.0f} s."], 0
                )
                runtime.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            pause = 1.0
            latest = found
            total.add(latest)
            lines = progress.lines(latest)
            if _is_shown():
                shown = runtime.monotonic()
                continue
            if not lines and runtime.monotonic() - shown >= _SHOW_EVERY:
                lines = [running_count(latest)]
            shown = self._show(lines, shown)

    def _call(self, options: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Call the module, and call it again if it was too slow, as it can't print that before it ends."""
        tries: SlowTries | None = None
        while True:
            found = self.call(options, task_vars)
            failure = found.get("failure") or {}
            if failure.get("code") != "too_slow":
                return found
            (seconds,), limit = failure["details"]["seconds"], failure["details"]["limit"]
            tries = tries or SlowTries(limit, MOST_SLOW)
            try:
                tries.add(seconds)
            except UpgradeError as error:
                return {**found, **error.as_result()}
            self._show(
                [
                    f"Reading the fleet and planning took {seconds:.1f} s, but at most {limit:g} s are allowed. Trying again."
                ],
                0,
            )
            # The change that it waited for has already happened.
            options = {**options, "wait_timeout": 1}

    def _show(self, lines: list[str], shown: float) -> float:
        for line in lines:
            self._display.display(f"{time.strftime('%H:%M:%S')} {line}")
        return runtime.monotonic() if lines else shown


class Total:
    """The sum of what all passes of a wait did."""

    def __init__(self, first: dict[str, Any]) -> None:
        """Begin with the first pass."""
        self._changed = False
        self._transitions: list[Any] = []
        self._diffs: list[Any] = []
        self._warnings: dict[str, None] = {}
        self._forecast = {name: first[name] for name in ("waves", "wave_seconds", "replaces", "sources")}
        self.add(first)

    def add(self, result: dict[str, Any]) -> None:
        """Add a pass."""
        self._changed |= bool(result["changed"])
        self._transitions += result["transitions"]
        if result["changed"]:
            self._diffs.append(result["diff"])
        self._warnings |= dict.fromkeys(result.get("warnings") or ())

    def ended(self, latest: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a wait that succeeded."""
        return {**latest, **self._sum(), **self._forecast}

    def failed(self, latest: dict[str, Any], code: Code, why: str) -> dict[str, Any]:
        """Return the result of a wait that stopped before."""
        blockers = latest["blockers"]
        message = f"{why}. {running_count(latest)[3:]}. " + " | ".join(blockers)
        return {**self.ended(latest), **UpgradeError(code, message, blockers=blockers).as_result()}

    def broken(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a wait whose last pass failed."""
        return {**result, **self._sum()}

    def _sum(self) -> dict[str, Any]:
        return {
            "changed": self._changed,
            "transitions": self._transitions,
            "diff": self._diffs,
            "warnings": list(self._warnings),
        }


def _is_shown() -> bool:
    """Return whether the live view shows the rollout, so that no line is needed."""
    try:
        return is_started() and ask(IsShown())
    except UpgradeError:
        return False


def _show_progress(options: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Show the rollout in the live view of this run from now on, if it has one."""
    if not is_started():
        return
    hosts = {host: {name: view[name] for name in ("role", "state", "reason")} for host, view in first["hosts"].items()}
    shown = {"version": first["version"], "hosts": hosts}
    # Without a view, the rollout is shown as lines.
    with contextlib.suppress(UpgradeError):
        ask(FollowProgress(_settings_from(options), options.get("fleet"), first["version"], shown))


def _settings_from(options: Mapping[str, Any]) -> Settings:
    """Return the connection settings of a task's options.

    :raises UpgradeError: ``bad_connection``.
    """
    given = {name: options[name] for name in CONNECTION_OPTIONS if name in options}
    checked = ArgumentSpecValidator(CONNECTION_OPTIONS).validate(given)
    if checked.error_messages:
        raise UpgradeError("bad_connection", "; ".join(checked.error_messages))
    return read_settings(checked.validated_parameters.get, os.environ)
