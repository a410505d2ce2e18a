# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks after a run: it refuses options that would be ignored, and tells the driver of lost hosts and the notifier of the end.

It lies beside the playbooks, so it is found by itself.
"""

from __future__ import annotations

from typing import Any

from ansible import constants as C
from ansible.plugins.callback import CallbackBase
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify import run_watch as notifications
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push import lost_hosts
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.ansible_run import PlaybookRun

DOCUMENTATION = r"""
name: convoy_watch
type: notification
short_description: Refuse options that would be ignored, record hosts that can't be reached as failed, and end the notifier of a run
description:
  - A run that stops ends with C(Next:) and a command.
  - It ends a run whose output is read no more, as where C(head) or a pager ended, the way Ctrl-C does. ansible-core would wait for ever.
  - Before anything is done it refuses words on the command line that belong to no variable, extra variables that no playbook has and
    that look like one that they have, and a C(--limit) that leaves out hosts on which a playbook has to run. Ansible itself ignores
    the ones, and passes the others over.
  - Ansible drops a host that it can't reach from the play without running anything more for it, no rescue either.
    This tells the driver of the run, so that the host is recorded as failed and no one waits for it.
  - When the run ends, however that goes, it waits until C(upgrade_notify) was told of it, and warns where that was called and failed.
author: The convoy.upgrade authors (@convoy-upgrade)
"""

_PREPARES = ("convoy.upgrade.push_daemon", "push_daemon")
_NOTIFIES = ("convoy.upgrade.consul_upgrade_notify", "consul_upgrade_notify")


class CallbackModule(CallbackBase):
    """The callback."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "convoy_watch"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Say that it is at work, and look at the command line."""
        lost_hosts.announce()
        self._run = PlaybookRun(str(playbook._file_name), self._say)
        self._run.check_options(playbook.get_plays()[0].get_variable_manager().extra_vars)
        self._run.begin()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Look whether all hosts of the play are reached."""
        self._run.check_limit(play)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Take note of the driver, the notifier, and where the fleet stands."""
        self._run.remember(result._result)
        if result._task.action in _PREPARES:
            lost_hosts.remember(result._result)
        elif result._task.action in _NOTIFIES:
            notifications.remember_notifier(result._result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Wait until all was told."""
        self._run.end(is_well=not stats.failures and not stats.dark)
        for text in notifications.end_notifier():
            self._display.warning(text)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ARG002  what Ansible gives
        """Take note of why."""
        self._run.remember(result._result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Tell the driver of a host that is lost."""
        if not getattr(result._task, "ignore_unreachable", False):
            why = lost_hosts.report_lost_host(result._host.get_name(), result._result)
            if why is not None:
                self._display.warning(why)

    def _say(self, line: str) -> None:
        self._display.display(line, color=C.COLOR_ERROR, stderr=True)
