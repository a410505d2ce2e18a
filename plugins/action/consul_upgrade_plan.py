# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a pass; or, with ``wait``, passes until the end of the rollout, with a line for each change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings, read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassResult
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import HandedOver
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.job_request import new_id
from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_plan import (
    REQUIRED_IF,
    SPEC,
    act,
    as_request,
    as_result,
    hand_over_first,
    read_sources,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.module_action import ModuleAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.task_result import task_result
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import is_started
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.plan_text import plan_lines
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.progress_lines import FleetStates
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import FollowProgress, IsShown
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.wording import with_time
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.other_rollout import when_free
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.passes import Passes, PassFailed, PatientPasses
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.passes_by_module import PassesByModule
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.passes_here import PassesHere
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.wait import RolloutWait

_DEFAULT_TIMEOUT = 14400


class ActionModule(ModuleAction):
    """The action behind the module of the same name."""

    MODULE = "convoy.upgrade.consul_upgrade_plan"
    SPEC = SPEC
    REQUIRED_IF = REQUIRED_IF
    ACT = act

    def text(self, found: Mapping[str, Any]) -> list[str]:
        """Return the lines for people."""
        return plan_lines(found)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Make one pass, or with ``wait`` passes until the end of the rollout."""
        result: dict[str, Any] = ActionBase.run(self, tmp, task_vars)
        return task_result(result, lambda: self._plan(task_vars))

    def _plan(self, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Return the result of one pass, or with ``wait`` of the wait."""
        began = runtime.monotonic()
        options = _with_job_id(self.given(task_vars))
        wait = options.pop("wait", None)
        hands_over = boolean(options.get("hand_over") or False, strict=False)
        if not boolean(wait or False, strict=False) or self._task.check_mode or hands_over:
            # The module gets all options, so that its errors name the options.
            return self._make_one(options if wait is None else {**options, "wait": wait}, task_vars)
        params = self.checked_here(options, task_vars)
        deadline = began + _seconds(options.get("wait_timeout"))

        def attempt() -> dict[str, Any]:
            passes = self._passes(options, params, task_vars)
            try:
                wait_for = RolloutWait(passes, self._say, _is_shown, lambda *first: self._follow(options, *first))
                return wait_for.until(deadline)
            finally:
                passes.close()

        waits = boolean(options.get("wait_for_other") or False, strict=False)
        waited = when_free(attempt, deadline, lambda line: self._say([line])) if waits else attempt()
        return waited if params is None else self.as_module_result(waited, params)

    def _make_one(self, options: Mapping[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Make one pass."""

        def attempt() -> dict[str, Any]:
            found = self.call(options, task_vars)
            if found.get("failed"):
                raise PassFailed(found)
            return found

        def make() -> dict[str, Any]:
            try:
                made: dict[str, Any] = PatientPasses(lambda line: self._say([line])).make(attempt)
            except PassFailed as failed:
                return failed.result
            return made

        waits = boolean(options.get("wait_for_other") or False, strict=False) and not self._task.check_mode
        deadline = runtime.monotonic() + _seconds(options.get("wait_timeout"))
        made = when_free(make, deadline, lambda line: self._say([line])) if waits else make()
        if not made.get("failed"):
            self.show(made)
        return made

    def _passes(
        self, options: dict[str, Any], params: Mapping[str, Any] | None, task_vars: dict[str, Any] | None
    ) -> Passes:
        """Return passes in this process, or by the module if it has to run elsewhere.

        :raises UpgradeError: ``bad_connection``, and what :func:`read_sources` raises.
        """
        if params is None:
            return PassesByModule(
                lambda given: self.call(given, task_vars),
                options,
                lambda line: self._say([line]),
                with_diff=bool(self._task.diff),
            )
        with self.in_base_folder():
            sources = read_sources(params)
            settings = read_settings(params.get, os.environ)

        def as_asked(outcome: PassResult, handover: HandedOver) -> dict[str, Any]:
            return as_result(outcome, params["hosts"], sources, params["role_order"], handover)

        return PassesHere(
            settings,
            lambda store: as_request(store, params, sources),
            as_asked,
            lambda line: self._say([line]),
            lambda store, outcome: hand_over_first(store, outcome, params),
            with_diff=bool(self._task.diff),
        )

    def _follow(self, options: Mapping[str, Any], lines: list[str], states: FleetStates) -> None:
        """Show the rollout in the live view of this run from now on, if it has one and asks Consul from here too."""
        if self._connection.transport != "local" or not is_started():
            return
        # Without a view, the rollout is shown as lines.
        with contextlib.suppress(UpgradeError):
            settings = _settings_from(options)
            ask(FollowProgress(settings, options.get("fleet"), states.version, tuple(lines), states.states))

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self._display.display(with_time(line, runtime.now()))


def _with_job_id(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with an ID for the job that they ask for, so that a pass that is made again begins no second job.

    :raises UpgradeError: ``bad_job``.
    """
    job = options.get("job")
    if not isinstance(job, Mapping) or job.get("id") or not job.get("run"):
        return options
    return {**options, "job": {**job, "id": new_id(str(job["run"]))}}


def _seconds(timeout: Any) -> float:
    """Return the wait timeout. The module says what is wrong with one that is no number."""
    try:
        return float(_DEFAULT_TIMEOUT if timeout is None else timeout)
    except (TypeError, ValueError):
        return _DEFAULT_TIMEOUT


def _is_shown() -> bool:
    """Return whether the live view shows the rollout, so that no line is needed."""
    try:
        return is_started() and ask(IsShown())
    except UpgradeError:
        return False


def _settings_from(options: Mapping[str, Any]) -> Settings:
    """Return the connection settings of a task's options.

    :raises UpgradeError: ``bad_connection``.
    """
    given = {name: options[name] for name in CONNECTION_OPTIONS if name in options}
    checked = ArgumentSpecValidator(CONNECTION_OPTIONS).validate(given)
    if checked.error_messages:
        raise UpgradeError("bad_connection", "; ".join(checked.error_messages))
    return read_settings(checked.validated_parameters.get, os.environ)
