# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all actions that run on the controller share: their options, and a failure in place of an exception."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from ansible.plugins.action import ActionBase

from ...module_utils._common.errors import UpgradeError


class ControllerAction(ActionBase):
    """An action without a module and without a connection to the host.

    :cvar OPTIONS: the argument spec.
    """

    TRANSFERS_FILES = False
    _requires_connection = False

    OPTIONS: ClassVar[Mapping[str, Mapping[str, Any]]]

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check the options, and return the result of :meth:`act` or its failure."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(self.OPTIONS)
        try:
            return {**result, "changed": False, **self.act(options, task_vars or {})}
        except UpgradeError as error:
            return {**result, **error.as_result()}

    @abstractmethod
    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Do the work, and return its part of the result.

        :param options: the checked options.
        :param task_vars: the variables of the task.
        :raises UpgradeError: which becomes the failure of the task.
        """
