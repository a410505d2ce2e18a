# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages between the daemon of a run, the tasks and the live view of ansible-playbook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...module_utils._consul.settings import Settings
from ...module_utils._observe.progress import RolloutProgress
from .._daemon_client.messages import Message


@dataclass(frozen=True, slots=True)
class ViewUpdate:
    """An update of the view: lines, and the progress of the rollout below them. All text is sanitized.

    :param lines: the changes, a sentence each.
    :param count: the running count; empty without ``progress``.
    :param progress: None while Consul can't be reached.
    :param index: the newest Consul index that was read.
    :param away: why Consul can't be reached; empty if it can.
    """

    lines: tuple[str, ...]
    count: str = ""
    progress: RolloutProgress | None = None
    index: int = 0
    away: str = ""


@dataclass(frozen=True, slots=True)
class ViewEnd:
    """The last message: the rollout is over (``progress``), or it can't be followed (``why``)."""

    progress: RolloutProgress | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class AttachView(Message[None]):
    """Send every :class:`ViewUpdate` over this connection from now on. The view answers each when it is shown."""


@dataclass(frozen=True, slots=True)
class FollowProgress(Message[bool]):
    """Follow the rollout for the view. Answered by whether the view shows it, so that the task prints no lines.

    :param fleet: host -> role, for hosts that never reported.
    :param version: the target of this run. Another rollout is not followed. Empty for any target.
    :param lines: changes that were not shown yet.
    :param states: host -> state after these changes; None if there are none.
    :param until_hosts_finish: as for :func:`follow`.
    """

    settings: Settings
    fleet: Mapping[str, str] | None = None
    version: str = ""
    lines: tuple[str, ...] = ()
    states: Mapping[str, str] | None = None
    until_hosts_finish: bool = False


@dataclass(frozen=True, slots=True)
class IsShown(Message[bool]):
    """Return whether the view shows the rollout."""


@dataclass(frozen=True, slots=True)
class WaitUntilShown(Message[None]):
    """Wait until the view shows the state at a Consul index, and its end if the rollout is over, for at most some seconds."""

    index: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WaitForEnd(Message[RolloutProgress | None]):
    """Wait until the view shows that the rollout is over. Answered by None if the view ended before."""
