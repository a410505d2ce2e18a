# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages from the tasks of a push run to the daemon."""

from __future__ import annotations

from dataclasses import dataclass

from .._daemon_client.messages import Message
from .prepared_run import PreparedRun
from .run import PushRun


@dataclass(frozen=True, slots=True)
class HostAdmission:
    """Whether a host may begin or resume its upgrade.

    :param state: the host's state, or ``taken`` if another run holds its lease.
    :param done: the task groups that it finished in earlier runs, if it is admitted.
    """

    admitted: bool
    state: str
    reason: str
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskGroupStart:
    """Whether the tasks of a task group run on a host, and why not."""

    run: bool
    why: str


@dataclass(frozen=True, slots=True)
class Settlement:
    """How far the awaited hosts are.

    :param done: whether all of them are upgraded.
    :param can_move: whether anything can change without an operator.
    :param lines: the changes since the last answer; empty while a live view shows them.
    :param count: the running count, such as ``web 1/2; 1 upgrading``.
    :param reasons: why hosts are not upgraded, a sentence for each reason.
    :param partial: hosts of which the tags on the command line left out a part.
    :param unfinished: the awaited hosts that are not upgraded.
    """

    done: bool
    can_move: bool
    lines: tuple[str, ...]
    count: str = ""
    reasons: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeepRun(Message[None]):
    """Keep a prepared run for the tasks that follow."""

    run: PreparedRun


@dataclass(frozen=True, slots=True)
class GetRun(Message[PreparedRun]):
    """Return the prepared run."""


@dataclass(frozen=True, slots=True)
class ReportValidation(Message[None]):
    """Report whether a host can be upgraded.

    :param error: why not; empty if it can.
    """

    host: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class GetValidation(Message[dict[str, str]]):
    """Return host -> error, empty for none, of all hosts that were validated."""


@dataclass(frozen=True, slots=True)
class StartPush(Message[None]):
    """Open a Consul session and admit the hosts of a run from now on."""

    run: PushRun


@dataclass(frozen=True, slots=True)
class StopPush(Message[None]):
    """End the Consul session, and with it all leases of the run."""


@dataclass(frozen=True, slots=True)
class Admit(Message[HostAdmission]):
    """Wait until a host is admitted, or it is clear that it will not be."""

    host: str


@dataclass(frozen=True, slots=True)
class AdmitWave(Message[dict[str, HostAdmission]]):
    """Wait until all hosts of a wave fit under the caps."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BeginTaskGroup(Message[TaskGroupStart]):
    """Finish the host's current task group and begin another.

    :param chosen: whether the tags on the command line select any of its tasks.
    :param whole: whether they select all of them.
    :param skipped: whether what they do not select was left out on purpose (``--skip-tags``).
    """

    host: str
    task_group: str
    chosen: bool = True
    whole: bool = True
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class FinishTaskGroup(Message[None]):
    """Record that a host has finished a task group."""

    host: str
    task_group: str


@dataclass(frozen=True, slots=True)
class EndHost(Message[str]):
    """Report that a host has gone through its task groups. Answered by ``upgraded`` or ``partial``."""

    host: str


@dataclass(frozen=True, slots=True)
class FailHost(Message[None]):
    """Report that a host failed."""

    host: str
    error: str


@dataclass(frozen=True, slots=True)
class Settle(Message[Settlement]):
    """Wait for a change until all of the hosts are upgraded, for at most some seconds."""

    hosts: tuple[str, ...]
    seconds: float
