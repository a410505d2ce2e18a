# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages from tasks to the notifier in the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...module_utils._consul.settings import Settings
from .._daemon_client.messages import Message
from .hook import Hook
from .messenger import Messenger


@dataclass(frozen=True, slots=True)
class StartNotifier(Message[None]):
    """Call a hook with each event of the rollout from now on, if this run has no notifier yet.

    :param fleet: host -> role.
    :param retry_failed: whether this run retries failed hosts, so that a host which fails again is an event again.
    """

    settings: Settings
    hook: Hook | Messenger
    fleet: Mapping[str, str]
    retry_failed: bool
