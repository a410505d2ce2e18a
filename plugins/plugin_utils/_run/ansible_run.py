# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of ``ansible-playbook``, as the callback of every run sees it: what it may begin with, and how it ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible import context

from ...module_utils._common.errors import UpgradeError
from .closed_output import call_when_closed
from .command import AnsibleCommand
from .extra_vars import refuse_leftovers
from .known_variables import refuse_unknown_variables
from .limit import honours_limit, refuse_limit
from .next_step import NextStep, after_failure, next_to_admit

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
# Ansible's own for options that can't be used.
BAD_OPTIONS = 5
# No one reads at the end of these: a timer runs them again, or a run whose own end is told.
_UNATTENDED = ("node", "notification")


class PlaybookRun:
    """One of them.

    :param playbook: its file.
    :param say: prints a line where errors go.
    """

    def __init__(self, playbook: str, say: Callable[[str], None]) -> None:
        """Take note of the command."""
        self._command = AnsibleCommand(tuple(sys.argv), playbook)
        self._say = say
        self._is_over = self._is_well = self._pushes = False
        self._code = ""
        self._fixes: Mapping[str, str] = {}
        self._info: Mapping[str, Any] = {}

    def begin(self) -> None:
        """See to its end: that it has one when its output is closed, and that it says what comes next."""
        if self._command.name in _UNATTENDED:
            # What goes on does not depend on who reads its log.
            call_when_closed(lambda: None)
            return
        call_when_closed(self._end_unread)
        # After all else that is said, whatever ends it.
        atexit.register(self._say_next, os.getpid())

    def remember(self, result: Mapping[str, Any]) -> None:
        """Take note of what a task found out: why it failed, and where the fleet stands."""
        self._pushes = self._pushes or "driver" in result
        failure = result.get("failure")
        if isinstance(failure, Mapping) and isinstance(failure.get("code"), str):
            self._code = failure["code"]
            details = failure.get("details")
            self._fixes = (details.get("variables") or {}) if isinstance(details, Mapping) else {}
        if isinstance(result.get("hosts"), Mapping) and "can_move" in result:
            self._info = result

    def end(self, *, is_well: bool) -> None:
        """Take note that it came to its end by itself.

        :param is_well: whether nothing failed.
        """
        self._is_over, self._is_well = True, is_well

    def _say_next(self, process: int) -> None:
        if os.getpid() != process:
            return
        name = self._command.name
        if self._is_well:
            step = next_to_admit(name, self._info)
            if step is not None:
                self._say("Hosts can be admitted now. If no run is in progress, start one.")
                self._say(f"Next: {self._line(step)}")
            return
        code = self._code if self._is_over else ""
        fixes = NextStep(variables=self._fixes) if code and self._fixes else None
        step = fixes or after_failure(name, code, self._info, pushes=self._pushes)
        self._say(f"Next: {self._line(step)}")
        if step.then_again:
            self._say(f"Then: {self._command.again()}")

    def _line(self, step: NextStep) -> str:
        return (
            self._command.other(step.playbook, step.variables) if step.playbook else self._command.again(step.variables)
        )

    def _end_unread(self) -> None:
        if not self._is_over:
            self._say("The output was closed, as by head or a pager, so this run ends as with Ctrl-C.")
            os.kill(os.getpid(), signal.SIGINT)

    def check_options(self, extra_vars: Mapping[str, Any]) -> None:
        """End it where a word on the command line belongs to no variable, or a variable to no playbook.

        :param extra_vars: as Ansible has read them.
        """
        try:
            refuse_leftovers(context.CLIARGS.get("extra_vars") or ())
            if self._command.name not in _UNATTENDED:
                refuse_unknown_variables(self._command.name, extra_vars)
        except UpgradeError as error:
            details = error.details
            self._refuse(error, self._command.again(instead=details.get("instead"), renamed=details.get("renamed")))

    def check_limit(self, play: Any) -> None:
        """End it where ``--limit`` takes hosts from a play of the collection that needs them."""
        limit = context.CLIARGS.get("subset")
        file = str(play.get_path()).rpartition(":")[0]
        if not limit or PLAYBOOKS not in Path(file).resolve().parents or honours_limit(file):
            return
        inventory = play.get_variable_manager()._inventory
        found = inventory.get_hosts(play.hosts, ignore_limits=True, ignore_restrictions=True)
        reached = {host.name for host in inventory.get_hosts(play.hosts, ignore_restrictions=True)}
        named = [host.name for host in inventory.get_hosts("all", ignore_restrictions=True)]
        left_out = [host.name for host in found if host.name not in reached]
        try:
            refuse_limit(self._command.playbook, limit, left_out, [name for name in named if name not in reached])
        except UpgradeError as error:
            self._refuse(error, self._command.again(error.details["variables"], limit=False))

    def _refuse(self, error: UpgradeError, command: str) -> None:
        self._say(error.as_text())
        self._say(f"Next: {command}")
        atexit.unregister(self._say_next)
        # What else is raised in a callback, Ansible only warns of.
        sys.exit(BAD_OPTIONS)
