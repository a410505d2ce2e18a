# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions with a module of the same name, which they call in this process if possible."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from ansible import constants
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from ...module_utils._common.errors import UpgradeError
from ...module_utils._module import ModuleCall, connected
from ...module_utils._state.store import Store
from .controller_action import ROLES, fleet_options
from .task_result import task_result

# auto, auto_silent and the like: Ansible looks for a Python.
_AUTO = "auto"
_LOCALHOST = "localhost"
# How much of a module's errors a message shows (characters).
_MOST_OUTPUT = 500


class ModuleAction(ActionBase):
    """An action that calls the module of the same name.

    If the module would run on this machine, under the same Python and as the same user, it is called in this process: to pack, start and import
    a module takes more processor time than a planner pass.

    :cvar MODULE: the module's full name.
    :cvar SPEC: its argument spec.
    :cvar REQUIRED_IF: its conditions for required options.
    :cvar ACT: its function that does the work.
    """

    MODULE: ClassVar[str]
    SPEC: ClassVar[Mapping[str, Mapping[str, Any]]]
    REQUIRED_IF: ClassVar[list[tuple[str, Any, tuple[str, ...]]]] = []
    ACT: ClassVar[Callable[[ModuleCall, Store], dict[str, Any]]]

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the module; return its result, or the failure of the options."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        found = task_result(result, lambda: self.call(self.given(task_vars), task_vars))
        self.show(found)
        return found

    def show(self, found: Mapping[str, Any]) -> None:
        """Print a result as text if the task asks for it and has succeeded."""
        if boolean(self._task.args.get("show") or False, strict=False) and not found.get("failed"):
            for line in self.text(found):
                self._display.display(line)

    def text(self, found: Mapping[str, Any]) -> list[str]:  # noqa: ARG002  of those with the option show
        """Return a result as lines."""
        return []

    def given(self, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Return the options of the task, with the fleet of the inventory in place of its roles.

        :raises UpgradeError: what :func:`fleet_options` raises.
        """
        options = dict(self._task.args)
        if options.get(ROLES) is None or "fleet" not in self.SPEC:
            return options
        found = fleet_options(options, task_vars or {}, self.SPEC)
        return {name: value for name, value in {**options, **found}.items() if name != ROLES}

    def call(self, options: Mapping[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Call the module; return its result.

        :raises UpgradeError: ``unreadable_result``.
        """
        params = self.checked_here(options, task_vars)
        if params is not None:
            return self.as_module_result(self._call_here(params), params)
        found: dict[str, Any] = self._execute_module(
            module_name=self.MODULE,
            module_args=dict(options),
            task_vars=task_vars,
            wrap_async=bool(self._task.async_val) and not self._connection.has_native_async,
        )
        # What Ansible returns in place of a result that is no JSON.
        if "module_stdout" in found:
            raise _unreadable(self.MODULE, found, is_dry=bool(self._task.check_mode))
        return found

    def checked_here(self, options: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the checked options if the module can be called in this process; None otherwise, or if they are wrong.

        The module itself then says what is wrong.
        """
        if not self._runs_here(task_vars or {}):
            return None
        plain = json.loads(json.dumps(options, default=_plain))
        checked = ArgumentSpecValidator(dict(self.SPEC), required_if=self.REQUIRED_IF).validate(plain)
        params: Mapping[str, Any] = checked.validated_parameters
        return None if checked.error_messages else params

    def as_module_result(self, result: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result as a module would return it: plain data, without secrets."""
        secrets = [params[name] for name, spec in self.SPEC.items() if spec.get("no_log") and params.get(name)]
        return dict(remove_values(json.loads(json.dumps(result)), secrets))

    @contextlib.contextmanager
    def in_base_folder(self) -> Iterator[None]:
        """Work in the folder in which Ansible runs modules on this machine, so that relative paths mean the same."""
        # As a file, because the folder may have been deleted meanwhile.
        started_in = os.open(".", os.O_RDONLY)
        try:
            os.chdir(self._loader.get_basedir())
            yield
        finally:
            os.fchdir(started_in)
            os.close(started_in)

    def _call_here(self, params: Mapping[str, Any]) -> dict[str, Any]:
        call = _LocalCall(params, check_mode=bool(self._task.check_mode), diff=bool(self._task.diff))
        with self.in_base_folder():
            result = task_result({}, lambda: connected(params, lambda store: type(self).ACT(call, store)))
        return {**result, **({"warnings": call.warnings} if call.warnings else {})}

    def _runs_here(self, task_vars: Mapping[str, Any]) -> bool:
        task = self._task
        if self._connection.transport != "local" or self._play_context.become or task.async_val:
            return False
        variables: Mapping[str, Any] | None = task_vars
        if task.delegate_to:
            # Ansible passes the variables of the host that it delegates to among those of the task.
            delegated = task_vars.get("ansible_delegated_vars") or {}
            variables = delegated.get(_LOCALHOST) if task.delegate_to == _LOCALHOST else None
        if variables is None:
            return False
        # Variables of the environment are for the process of the module.
        return not any(task.environment or ()) and self._interpreter(variables) in (sys.executable, _AUTO)

    def _interpreter(self, task_vars: Mapping[str, Any]) -> str:
        """Return the Python that is set for modules; ``auto`` if Ansible would look for one.

        On this machine it might find one without the libraries that are beside Ansible.
        """
        given = self._templar.template(task_vars.get("ansible_python_interpreter") or "")
        requested = str(given or constants.config.get_config_value("INTERPRETER_PYTHON"))
        return _AUTO if requested.startswith(_AUTO) else requested


def _unreadable(module: str, found: Mapping[str, Any], *, is_dry: bool) -> UpgradeError:
    """Return the failure for a module that ended without a result, or whose result was cut off."""
    output = str(found.get("module_stdout") or "").lstrip()
    errors = str(found.get("module_stderr") or "").strip()
    name = module.rpartition(".")[2]
    what = (
        f"its result is cut off or damaged after {len(output):,} characters"
        if output.startswith("{")
        else "it ended without a result"
    )
    written = "Nothing was written." if is_dry else "What it had written until then obeys the rules."
    reason = errors or ("" if output.startswith("{") else output.rstrip())
    return UpgradeError(
        "unreadable_result",
        f"{name}: {what} (exit code {found.get('rc')}){': ' + reason[-_MOST_OUTPUT:] if reason else '.'} {written} If memory or disk ran out, or the "
        "connection broke, remedy that on the machine where the planner runs; then run the same command again.",
        rc=found.get("rc"),
    )


class _LocalCall:
    """A call of a module in this process."""

    def __init__(self, params: Mapping[str, Any], *, check_mode: bool, diff: bool) -> None:
        self.params, self.check_mode, self._diff = params, check_mode, diff
        self.warnings: list[str] = []

    def warn(self, warning: str) -> None:
        """Add a warning to the result."""
        self.warnings.append(warning)


def _plain(value: object) -> str:
    """Return an option as modules get it, if JSON has no such type: dates as ISO 8601, and decrypted values."""
    return value.isoformat() if isinstance(value, datetime.date) else str(value)
