# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages between the daemon of a run, the tasks and the live view of ansible-playbook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...module_utils._consul.settings import Settings
from ...module_utils._observe.progress import RolloutProgress
from .._daemon_client.messages import Message


@dataclass(frozen=True, slots=True)
class ViewUpdate:
    """What the view shows: lines above, the rollout below. All text is sanitized.

    :param lines: what changed, a sentence each.
    :param count: the running count; as long as ``progress`` is None, that of before.
    :param progress: None while Consul can't be reached.
    :param index: the newest of Consul's indexes in it.
    :param away: why Consul can't be reached; empty if it can.
    """

    lines: tuple[str, ...]
    count: str = ""
    progress: RolloutProgress | None = None
    index: int = 0
    away: str = ""


@dataclass(frozen=True, slots=True)
class ViewEnd:
    """Nothing more is shown: the rollout is over (``progress``), or it can't be followed (``why``)."""

    progress: RolloutProgress | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class AttachView(Message[None]):
    """Send every :class:`ViewUpdate` over this connection from now on. The view answers each when it is shown."""


@dataclass(frozen=True, slots=True)
class FollowProgress(Message[bool]):
    """Follow the rollout for the view. Answered by whether the view shows it, so that the task prints no lines.

    :param fleet: host -> role, for hosts that never reported.
    :param version: the target of this run; a Consul with another one is not followed. Empty for any.
    :param first: the result of a pass that no one has shown yet.
    """

    settings: Settings
    fleet: Mapping[str, str] | None = None
    version: str = ""
    first: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class IsShown(Message[bool]):
    """Return whether the view shows the rollout."""


@dataclass(frozen=True, slots=True)
class WaitUntilShown(Message[None]):
    """Wait until the view shows what Consul had at an index, for at most some seconds."""

    index: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WaitForEnd(Message[RolloutProgress | None]):
    """Wait until the rollout is over and shown so. Answered by None if the view ended before."""
