# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live view of a rollout, in place of a line for each task and host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout
type: stdout
short_description: Show the progress of a rollout instead of a line for each task
version_added: 0.1.0
description:
  - On a terminal, it draws a bar for each role, the remaining time, and the upgrading hosts with their service, step and duration. Events
    scroll above.
  - Without a terminal or the Python library C(rich), and with E(NO_COLOR) or V(TERM=dumb), it prints lines.
  - Failed tasks are shown in full, unless they have C(ignore_errors). Other tasks show nothing, except output of M(ansible.builtin.debug) and
    M(convoy.upgrade.show), differences with C(--diff), and a line for each task with C(-v).
  - The playbooks of this collection draw from the first admission to the end of the rollout. C(convoy.upgrade.status) with C(-e follow=true) draws a
    rollout that runs elsewhere. All other playbooks only print lines.
  - A separate process reads the state from Consul and writes nothing. If it fails, the rollout continues and is shown as lines.
author: The convoy.upgrade authors (@convoy-upgrade)
requirements:
  - The Python library C(rich), for the drawing.
  - Set as stdout callback in the configuration, such as with E(ANSIBLE_STDOUT_CALLBACK).
"""

EXAMPLES = r"""
# In ansible.cfg:
#
# [defaults]
# stdout_callback = convoy.upgrade.rollout
"""

import atexit
import contextlib
import re
import sys
from typing import Any

from ansible import constants as C
from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import sanitize
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client import address
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import connect
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.debug_output import debug_lines
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.failed_task import failure_lines
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view import RunView
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import AttachView
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.command import AnsibleCommand

_COLOUR = re.compile(r"(\033\[[0-9;]*m)")
_DEBUG = ("ansible.builtin.debug", "ansible.legacy.debug", "debug")


class CallbackModule(CallbackBase):
    """Stdout callback that shows the live view of a rollout."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "convoy.upgrade.rollout"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create the view."""
        super().__init__(*args, **kwargs)
        self._view = RunView(self._display, sys.stdout)
        self._items: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Start the view of a playbook."""
        # Each of several playbooks has its own view.
        command = AnsibleCommand(tuple(sys.argv), str(getattr(playbook, "_file_name", "")))
        self._view = RunView(self._display, sys.stdout, command.other)
        if self._view.hint:
            self._display.warning(self._view.hint)
        if context.CLIARGS.get("step"):
            # --step asks before each task, and a drawing would erase the question.
            self._view.draw_nothing()
        address.announce()
        try:
            ensure_daemon()
            connection = connect()
            connection.send(AttachView())
        except (OSError, UpgradeError) as error:
            self._display.warning(f"The live view can't start, so the rollout is shown as lines: {error}.")
            return
        self._view.open(connection)
        atexit.register(self._view.close)

    def v2_playbook_on_vars_prompt(self, *_what: Any, **_how: Any) -> None:
        """Stop drawing while Ansible asks a question."""
        self._view.hold()

    def v2_playbook_on_play_start(self, play: Any) -> None:  # noqa: ARG002  what Ansible gives
        """Draw again after the questions of the play."""
        self._view.go_on()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Close the view, and print the failed and unreachable hosts."""
        self._view.close()
        if not stats.processed:
            self._display.warning("No host was matched, so nothing was done: look at -i and --limit.")
        for what, found in (("failed", stats.failures), ("not reached", stats.dark)):
            if found:
                self._view.say(f"{what}: {', '.join(map(sanitize, sorted(found)))}", C.COLOR_ERROR)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Store the result of an item."""
        self._keep(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Store the result of a failed item. The end of the loop decides whether the task failed."""
        self._keep(result, failed=True)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Print a failed task with its output."""
        if ignore_errors:
            self._whole(result)
        else:
            self._show(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Print why a host is unreachable."""
        self._show(result, unreachable=True)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Print the output of debug tasks, and with ``-v`` a line for each other task."""
        host, task, found = self._whole(result)
        self._handle_warnings(found)
        if task.action in _DEBUG and not found.get("skipped"):
            lines = "\n".join(debug_lines(found)).splitlines()
            self._say([f"{sanitize(host)}: {sanitize(line)}" for line in lines])
        elif self._display.verbosity:
            word = "changed" if found.get("changed") else "ok"
            self._view.say(sanitize(f"{word}: {host}: {task.get_name()}"))

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Print skipped tasks with ``-v``."""
        host, task, _found = self._whole(result)
        if self._display.verbosity:
            self._view.say(sanitize(f"skipped: {host}: {task.get_name()}"))

    def v2_on_file_diff(self, result: Any) -> None:
        """Print the differences of a task with ``--diff``."""
        _host, task, found = _parts(result)
        each = found["results"] if task.loop and "results" in found else [found]
        for one in each:
            if one.get("diff") and one.get("changed"):
                self._say([_coloured(line) for line in self._get_diff(one["diff"]).splitlines()])

    def _keep(self, result: Any, *, failed: bool = False) -> None:
        host, task, found = _parts(result)
        self._items.setdefault((host, task._uuid), []).append({**found, "failed": failed})

    def _whole(self, result: Any) -> tuple[str, Any, dict[str, Any]]:
        """Return host, task and result. The result of a loop has its items, with whether each failed, and without skipped ones."""
        host, task, found = _parts(result)
        items = self._items.pop((host, task._uuid), None)
        # ansible-core 2.20 and later remove ``failed`` from the items of the last result.
        return host, task, found if items is None else {**found, "results": items}

    def _show(self, result: Any, *, unreachable: bool = False) -> None:
        host, task, found = self._whole(result)
        self._handle_warnings(found)
        path = ""
        with contextlib.suppress(AttributeError):
            path = task.get_path() or ""
        self._say(
            failure_lines(host, task.name or task.get_name(), path, found, unreachable=unreachable), C.COLOR_ERROR
        )

    def _say(self, lines: list[str], color: str | None = None) -> None:
        """Print lines together, because each print redraws the view."""
        if lines:
            self._view.say("\n".join(lines), color)


def _coloured(line: str) -> str:
    """Return a line of a difference with its colours and without all other control characters."""
    return "".join(part if at % 2 else sanitize(part) for at, part in enumerate(_COLOUR.split(line)))


def _parts(result: Any) -> tuple[str, Any, dict[str, Any]]:
    """Return the host's name, the task and the result. ansible-core 2.19 and later deprecate the attributes of 2.18."""
    if hasattr(result, "result"):
        return result.host.get_name(), result.task, result.result
    return result._host.get_name(), result._task, result._result
