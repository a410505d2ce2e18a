# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages from the tasks of a push run to the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .._daemon_client.messages import Message

if TYPE_CHECKING:
    # Only the daemon needs them at run time.
    from .prepared_run import PreparedRun
    from .run import PushRun


@dataclass(frozen=True, slots=True)
class HostAdmission:
    """Whether a host may begin or resume its upgrade.

    :param state: the host's state, or ``leased`` if another run holds its lease.
    :param done: the task groups that it finished in earlier runs, if it is admitted.
    """

    admitted: bool
    state: str
    reason: str
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NextHosts:
    """Hosts that do not wait any longer.

    :param lines: why others wait for another run or for Consul, each sentence once.
    """

    hosts: tuple[str, ...]
    lines: tuple[str, ...] = ()


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
    :param partial: host -> its steps that the tags on the command line left out.
    :param only_tags_wait: whether the other unfinished hosts wait for nothing but hosts that tags left between two steps, in this or an earlier play.
    :param unfinished: the awaited hosts that are not upgraded.
    :param handover: the ID of the rollout's handover to planner services; empty for none.
    :param planners: the planner services that carry it.
    :param warning: what an operator has to know of the handover; empty for nothing new.
    """

    done: bool
    can_move: bool
    lines: tuple[str, ...]
    count: str = ""
    reasons: tuple[str, ...] = ()
    partial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only_tags_wait: bool = False
    unfinished: tuple[str, ...] = ()
    handover: str = ""
    planners: tuple[str, ...] = ()
    warning: str = ""


@dataclass(frozen=True, slots=True)
class KeepRun(Message[None]):
    """Keep a prepared run for the tasks that follow.

    :param is_new: whether it was just prepared, so that earlier validations are of another run, such as one of another imported playbook.
    """

    run: PreparedRun
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class GetRun(Message["PreparedRun"]):
    """Return the prepared run."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Whether a host can be upgraded.

    :param error: why not; empty if it can.
    :param goes_last: whether it goes after the other hosts of its role, such as the primary of a database.
    :param puppet_disabled: the reason that was given to ``puppet agent --disable`` on it; empty if its Puppet is enabled, None if it is not known.
    """

    error: str = ""
    goes_last: bool = False
    puppet_disabled: str | None = None


@dataclass(frozen=True, slots=True)
class ReportValidation(Message[None]):
    """Report whether a host can be upgraded."""

    host: str
    validation: Validation


@dataclass(frozen=True, slots=True)
class GetValidation(Message[dict[str, Validation]]):
    """Return host -> whether it can be upgraded, of all hosts that were validated."""


@dataclass(frozen=True, slots=True)
class StartPush(Message[None]):
    """Open a Consul session and admit the hosts of a run from now on. In a run on a pull host, that host begins."""

    run: PushRun


@dataclass(frozen=True, slots=True)
class StopPush(Message[None]):
    """End the Consul session, and with it all leases of the run."""


@dataclass(frozen=True, slots=True)
class GetNextHosts(Message[NextHosts]):
    """Wait until one of the hosts of a play is admitted, or it is clear that it will not be. Each host that is answered asks with :class:`Admit`.

    :param hosts: those that wait. No more of them are admitted than Ansible has free forks. Others than those of this run are answered at once.
    """

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Admit(Message[HostAdmission]):
    """Return whether a host is admitted. One that was not answered to :class:`GetNextHosts` waits."""

    host: str


@dataclass(frozen=True, slots=True)
class AdmitWave(Message[dict[str, HostAdmission]]):
    """Wait until all hosts of a wave fit under the caps.

    :param unreachable: those that can't be reached, and are not admitted.
    :param others: the hosts of other waves. Those that have begun have no tasks left.
    """

    hosts: tuple[str, ...]
    unreachable: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CloseHosts(Message[None]):
    """Report that Ansible has no tasks left for hosts of a play. Those that have not reported how they ended have failed."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BeginTaskGroup(Message[TaskGroupStart]):
    """Finish the host's current task group and begin another.

    :param chosen: whether the tags on the command line select any of its tasks.
    :param whole: whether they select all of them.
    :param skipped: whether what they do not select was left out on purpose (``--skip-tags``).
    :param machine: the ID of the host's machine; None if it is not known.
    :param is_control_node: whether that machine is the control node, which may have the tasks of many hosts.
    """

    host: str
    task_group: str
    machine: str | None = None
    chosen: bool = True
    whole: bool = True
    skipped: bool = False
    is_control_node: bool = False


@dataclass(frozen=True, slots=True)
class RefuseStop(Message[float]):
    """Report that a service may not be stopped on a host yet. The answer is how long to wait before the next try (seconds).

    :param error: why not.
    :param patience: how long it is tried (seconds).
    """

    host: str
    task_group: str
    error: str
    patience: float


@dataclass(frozen=True, slots=True)
class FinishTaskGroup(Message[None]):
    """Record that a host has finished a task group."""

    host: str
    task_group: str


@dataclass(frozen=True, slots=True)
class EndHost(Message[str]):
    """Report that a host has gone through its task groups. The answer is ``upgraded`` or ``partial``."""

    host: str


@dataclass(frozen=True, slots=True)
class BeginFailure(Message[tuple[str, ...]]):
    """Report that a host fails, before :class:`FailHost`. The answer is what has to be undrained: see :meth:`HostRuns.begin_failure`."""

    host: str
    error: str


@dataclass(frozen=True, slots=True)
class NoteTimeout(Message[None]):
    """Report that a task of a host took too long, so that the host is lost if it fails because of that."""

    host: str


@dataclass(frozen=True, slots=True)
class FailHost(Message["tuple[str, str]"]):
    """Report that a host failed. The answer is the service and the step that failed, both empty if it has run nothing.

    :param is_lost: whether it no longer answers.
    """

    host: str
    error: str
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Settle(Message[Settlement]):
    """Wait for a change until all of the hosts are upgraded, for at most some seconds. Their play is over."""

    hosts: tuple[str, ...]
    seconds: float
