# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse options that a run can't follow: Ansible would ignore them, or skip the plan and all checks, or all that a command does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible import constants

from ...module_utils._common.errors import UpgradeError
from .next_step import COMMAND, UPGRADES

TAG_OPTIONS = ["--tags", "--skip-tags"]
# Option of ansible-playbook -> its key in context.CLIARGS, and why it is refused.
_REFUSED = {
    "--step": ("step", "hosts are upgraded independently of each other, so Ansible would not ask before their tasks"),
    "--start-at-task": ("start_at_task", "it would skip the plan, the checks and the admission of hosts"),
}
# The same for commands such as pause, which are run as a whole, and for jobs, of which hosts would also run a part.
_OF_COMMANDS = {"--start-at-task": "start_at_task", "--tags": "tags", "--skip-tags": "skip_tags"}
_FORCE = "--force-handlers"
_OF_JOBS = {"--step": "step", **_OF_COMMANDS}


def refuse_task_options(playbook: str, options: Mapping[str, Any], *, is_imported: bool = False) -> None:
    """Raise an error for options that select tasks in a way that a rollout can't follow.

    :param playbook: the playbook's name, such as ``upgrade``.
    :param options: the options of ``ansible-playbook``, as ``context.CLIARGS`` has them.
    :param is_imported: whether another playbook imports it, whose tags these may be.
    :raises UpgradeError: ``refused_option``. ``option`` in its details is the option to leave out.
    """
    for name, (key, why) in _REFUSED.items():
        if playbook in UPGRADES and options.get(key):
            raise UpgradeError(
                "refused_option",
                f"{name}: {why}. Nothing was done. Leave it out: a host resumes at its first unfinished task group by itself, and "
                "--tags selects steps.",
                option=name,
            )
    everything = sorted({"always", "tagged"}.intersection(options.get("skip_tags") or ()))
    if playbook in UPGRADES and everything:
        raise UpgradeError(
            "refused_option",
            f"--skip-tags {everything[0]}: it would skip the plan, the checks and the admission of hosts. Nothing was done. Leave it out, and name steps.",
            option="--skip-tags",
        )
    # With force_handlers in ansible.cfg, the command has nothing to leave out, and there it may be for other playbooks.
    is_forced = options.get("force_handlers") and not constants.DEFAULT_FORCE_HANDLERS
    if playbook in (*UPGRADES, COMMAND) and is_forced and not is_imported:
        raise UpgradeError(
            "refused_option",
            f"{_FORCE}: handlers do not run on a host that failed, as what they start may be half upgraded. Nothing was done: leave {_FORCE} out.",
            option=_FORCE,
        )
    if playbook == COMMAND:
        _refuse_any(_OF_JOBS, options, "a host that has run a part of a job would count as done")
    elif playbook not in UPGRADES and not is_imported:
        _refuse_any(
            _OF_COMMANDS, options, f"Ansible would skip what convoy.upgrade.{playbook} does, and still report success"
        )


def _refuse_any(refused: Mapping[str, str], options: Mapping[str, Any], why: str) -> None:
    for name, key in refused.items():
        if options.get(key) not in (None, False, [], (), ["all"], ("all",)):
            raise UpgradeError("refused_option", f"{name}: {why}. Nothing was done: leave {name} out.", option=name)
