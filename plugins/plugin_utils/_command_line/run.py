# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of ``ansible-playbook``, as the callback of every run sees it: what it may begin with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible import context

from ...module_utils._model.errors import UpgradeError
from .command import Command
from .extra_vars import refuse_leftovers
from .limit import honours_limit, refuse_limit

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
# Ansible's own for options that can't be used.
BAD_OPTIONS = 5


class Run:
    """One of them.

    :param playbook: its file.
    :param say: prints a line where errors go.
    """

    def __init__(self, playbook: str, say: Callable[[str], None]) -> None:
        """Take note of the command."""
        self._command = Command(tuple(sys.argv), playbook)
        self._say = say

    def check_options(self) -> None:
        """End it where a word on the command line belongs to no variable."""
        try:
            refuse_leftovers(context.CLIARGS.get("extra_vars") or ())
        except UpgradeError as error:
            self._refuse(error, self._command.again(instead=error.details.get("instead")))

    def check_limit(self, play: Any) -> None:
        """End it where ``--limit`` takes hosts from a play of the collection that needs them."""
        limit = context.CLIARGS.get("subset")
        file = str(play.get_path()).rpartition(":")[0]
        if not limit or Path(file).resolve().parent != PLAYBOOKS or honours_limit(file):
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
        self._say(error.message)
        self._say(f"Next: {command}")
        # What else is raised in a callback, Ansible only warns of.
        sys.exit(BAD_OPTIONS)
