# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback of each run: refuses ineffective options, lets hosts wait without a fork, records unreachable and hanging hosts as lost, and ends the
notifier.

Ansible finds it because it is beside the playbooks.
"""

from __future__ import annotations

import shutil
from typing import Any

from ansible import constants as C
from ansible.plugins.callback import CallbackBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client import address
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.messages import EndRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.play_hosts import (
    PlayHosts,
    report_lost_host,
    report_timeout,
    took_too_long,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.ansible_run import PlaybookRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.output import print_each_line_at_once

DOCUMENTATION = r"""
name: convoy_watch
type: notification
short_description: Refuse ineffective options, record unreachable hosts as lost, and end the notifier of a run
description:
  - If a run stops, prints C(Next:) and a command at its end.
  - Ends a run like Ctrl-C if its output is closed, for example because C(head) or a pager ended. ansible-core would wait forever.
  - Before the run begins, refuses arguments in C(-e) that belong to no variable, extra variables that are probably misspelled, a C(--limit) that
    leaves out hosts on which a playbook must run, hosts to enroll that do not exist, and a planner host that is not one host of the inventory.
    Ansible itself ignores all of these.
  - Ansible removes an unreachable host from the play and runs no other task for it, not even in a rescue block. This callback reports it
    to the push daemon, which records the host as lost. It also reports tasks that took longer than C(health.progress_deadline), as a service
    may rescue them.
  - Keeps hosts that wait for their admission out of Ansible's forks, so that only admitted hosts take one.
  - Reports hosts that have no tasks left. One whose tasks ended without a report has failed.
  - When the run ends, waits until the notifier has sent all events, and shows a warning if a call failed.
author: The convoy.upgrade authors (@convoy-upgrade)
"""


class CallbackModule(CallbackBase):
    """Callback of each run of a playbook."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "convoy_watch"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Announce that this callback is enabled, and check the command line."""
        print_each_line_at_once()
        address.announce(watched=True)
        plays = playbook.get_plays()
        self._run = PlaybookRun(str(playbook._file_name), self._say, plays)
        self._run.check_options(plays[0].get_variable_manager().extra_vars)
        self._run.begin()
        # Host -> when its task began (monotonic seconds).
        self._began: dict[str, float] = {}
        self._hosts = PlayHosts(self._display.display)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Check that the play has the hosts that it needs, keep the connections to them alive, and let hosts wait without a fork."""
        self._run.check_hosts(play)
        self._run.keep_connections_alive(play)
        self._hosts.begin(play)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:  # noqa: ARG002  what Ansible gives
        """Keep when a task of a host began."""
        self._began[host.get_name()] = runtime.monotonic()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep what the ``Next:`` line depends on."""
        self._run.remember(result._result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Wait until all notifications are sent, and end the daemon."""
        self._run.end(has_succeeded=not stats.failures and not stats.dark)
        for warning in _end_daemon():
            self._display.warning(warning)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ARG002  what Ansible gives
        """Keep the failure, for the ``Next:`` line, and report a task that took too long."""
        self._run.remember(result._result)
        host = result._host.get_name()
        seconds = runtime.monotonic() - self._began.get(host, runtime.monotonic())
        if took_too_long(result._result, seconds, self._run.task_timeout):
            warning = report_timeout(host)
            if warning is not None:
                self._display.warning(warning)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Record an unreachable host as lost."""
        if not getattr(result._task, "ignore_unreachable", False):
            is_recorded, warning = report_lost_host(result._host.get_name(), result._result)
            if is_recorded:
                self._run.remember_lost_host()
            if warning is not None:
                self._display.warning(warning)

    def _say(self, line: str) -> None:
        self._display.display(line, color=C.COLOR_ERROR, stderr=True)


def _end_daemon() -> tuple[str, ...]:
    """End the daemon of this run if it has started; return the warnings to show."""
    folder = address.run_folder()
    if folder is None or not address.is_started():
        return ()
    try:
        return ask(EndRun())
    except UpgradeError as error:
        return (error.message,)
    finally:
        # A daemon that was killed has not removed its folder.
        shutil.rmtree(folder, ignore_errors=True)
        address.forget()
