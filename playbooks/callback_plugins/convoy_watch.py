# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells the driver of a run which hosts Ansible has lost, and the notifier when the run ends.

It lies beside the playbooks, so it is found by itself.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible_collections.convoy.upgrade.plugins.plugin_utils._driver import watch
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify import watch as notices

DOCUMENTATION = r"""
name: convoy_watch
type: notification
short_description: Record hosts that can't be reached as failed, and end the notifier of a run
description:
  - Ansible drops a host that it can't reach from the play without running anything more for it, no rescue either.
    This tells the driver of the run, so that the host is recorded as failed and nobody waits for it.
  - When the run ends, however that goes, it waits until C(upgrade_notify) was told of it, and warns where that was called and failed.
  - It does nothing in runs without a driver and without C(upgrade_notify).
author: The convoy.upgrade authors (@convoy-upgrade)
"""

_PREPARES = ("convoy.upgrade.upgrade_driver", "upgrade_driver")
_NOTIFIES = ("convoy.upgrade.consul_upgrade_notify", "consul_upgrade_notify")


class CallbackModule(CallbackBase):
    """The callback."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "convoy_watch"

    def v2_playbook_on_start(self, playbook: Any) -> None:  # noqa: ARG002  what Ansible gives
        """Say that it is at work."""
        watch.announce()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Take note of the driver and the notifier."""
        if result._task.action in _PREPARES:
            watch.remember(result._result)
        elif result._task.action in _NOTIFIES:
            notices.remember(result._result)

    def v2_playbook_on_stats(self, stats: Any) -> None:  # noqa: ARG002  what Ansible gives
        """Wait until all was told."""
        for text in notices.end():
            self._display.warning(text)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Tell the driver of a host that is lost."""
        if not getattr(result._task, "ignore_unreachable", False):
            why = watch.tell_lost(result._host.get_name(), result._result)
            if why is not None:
                self._display.warning(why)
