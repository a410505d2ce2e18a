# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run an action as a part of another one, on the same host and with the same variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

_COLLECTION = "convoy.upgrade."


class ActionFailed(Exception):
    """An action that failed.

    :param result: its result.
    """

    def __init__(self, result: Mapping[str, Any]) -> None:
        """Keep the result."""
        super().__init__(str(result.get("msg")))
        self.result = dict(result)


def run_action(
    caller: ActionBase, name: str, args: Mapping[str, Any], task_vars: dict[str, Any], *, check: bool | None = None
) -> dict[str, Any]:
    """Return the result of an action of this collection.

    :param check: whether it runs in check mode; None for as its caller does.
    :raises ActionFailed: if it failed.
    """
    task = caller._task.copy()
    task.args = dict(args)
    if check is not None:
        task.check_mode = check
    action = caller._shared_loader_obj.action_loader.get(
        _COLLECTION + name,
        task=task,
        connection=caller._connection,
        play_context=caller._play_context,
        loader=caller._loader,
        templar=caller._templar,
        shared_loader_obj=caller._shared_loader_obj,
    )
    result: dict[str, Any] = action.run(task_vars=task_vars)
    if result.get("failed"):
        raise ActionFailed(result)
    return result
