# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger: the state of the rollout. Each write of a planner begins with a compare-and-set of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .._common.clock import is_time
from .._common.names import is_job, is_valid_target, is_valid_version, listing
from .._common.patterns import compiled
from .._common.sanitize import truncate_middle, truncated_repr
from .host_patterns import excluded_by

RUNNING = "running"
PAUSED = "paused"
ABORTED = "aborted"
COMPLETE = "complete"
STATES = (RUNNING, PAUSED, ABORTED, COMPLETE)
# The field of a command for the state of the rollout before it.
WAS = "was"
# The kinds of history entries with which a rollout begins.
BEGINNINGS = ("begin", "adopt")
# The kinds of those that set the rules of a rollout.
WITH_RULES = (*BEGINNINGS, "rules")
# Within this time, planner services answer a handover: they wait for a quiet second, and try again after at most 2 s (seconds).
SECONDS_TO_ANSWER = 20
# How many patterns of a limit a sentence has, and of one so many characters.
_MOST_PATTERNS, _MOST_OF_PATTERN = 3, 60
# How many bytes the rules, the names of hosts and the rollout before a job take together. Consul takes 512 KiB for a transaction, with its values
# in base64, and that has an entry of the history, gates and records besides the ledger.
_MOST_BYTES = 200_000
# Of these, what a rollback leaves for a job that comes after it, which keeps the ledger of the rollback and may name hosts.
_FOR_JOB = 64_000
# The highest integer that every JSON parser reads exactly.
MOST_EPOCH = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Ledger:
    """The state of the rollout, from ``upgrade/ledger``.

    :param epoch: the number of planner writes. Each write adds 1 and has an entry in the history.
    :param commit: a random ID of this epoch's write, also in its entry in the history. It tells apart two writes with the same
        epoch, as after a restored snapshot. Empty if an older release wrote the ledger.
    :param version: the target of the rollout: a version, or ``job/<id>`` if the rollout is a job.
    :param previous_version: the version that the fleet came from, None if it is not known. Rollouts that were not completed
        do not count.
    :param state: ``running``, ``paused``, ``aborted`` or ``complete``.
    :param command: the last command of an operator to pause, abort or roll back: ``by``, ``at`` (unix seconds), ``reason``; of a pause and the abort
        after it also ``was``, which is ``complete`` if the rollout was complete before.
    :param rollback: whether it is a rollback: the hosts that changed last go first, and no host waits for those in ``broken``.
    :param broken: hosts that had failed or were lost when the rollback began, as many as fit. Others are recognized by their
        records until they start.
    :param admitted: hosts that were admitted when this rollout began, which removed their gates, each with the index of its last report
        then, 0 for none. A host gets its gate back only if it is listed here, has started, and has not reported since.
    :param stopped: keys of the exhausted failure budgets. They are stored so that a planner that was suspended meanwhile can't
        admit hosts on an outdated snapshot.
    :param recoveries: how many writes of this rollout noted that a budget recovered or that a stage is done again.
    :param recovered_at: when the last of these was (unix seconds).
    :param stage: the current stage: ``number`` (0 for the first), and ``done_at`` (unix seconds) once all its hosts are upgraded, with
        ``done_at_behind`` as ``since_behind`` of a health mark, and ``again`` (1) if it was done before and then was not.
    :param instructions: the rules of the rollout, as :meth:`~.instructions.Instructions.plain` returns them.
    :param role_pattern: finds the role in the names of hosts that no fleet names; None for the default.
    :param members: role -> number of hosts, by the last planner that was given a fleet.
    :param begun_index: Consul's index when the rollout began, None if it was not stored. A host's report with a lower index is
        older than the rollout.
    :param all_soak: whether hosts with such a report soak too, because another rollout was cut short after an earlier one to this version.
    :param post_upgrade: roles whose post-upgrade tasks are part of the rollout, until the gates of all are opened.
    :param services: role -> the ID of the tasks of services that its hosts must have to be admitted, because they run these themselves.
    :param rollouts: the epochs at which the rollouts began that the history keeps, in ascending order; the last one is the current
        rollout. Entries before the first of these are removed.
    :param history_from: the oldest epoch of the history. Older entries have been removed.
    :param targets: the ``roles`` and ``hosts`` that a job is for; empty for the whole fleet, and in a rollout to a version.
    :param expires: when a job ends in any case, because no node begins it later (unix seconds); 0 in a rollout to a version.
    :param by_ansible: whether Ansible runs the tasks of a job on its hosts, so that only a run with these tasks may admit hosts.
    :param before: the last rollout to a version, as plain data, if this one is a job. It goes on as if the job had not been there.
    :param who: who began the rollout.
    :param since: when it began (unix seconds).
    """

    epoch: int
    version: str
    previous_version: str | None = None
    state: str = RUNNING
    instructions: Mapping[str, Any] = field(default_factory=dict)
    role_pattern: str | None = None
    members: Mapping[str, int] = field(default_factory=dict)
    who: str = "unknown"
    since: int = 0
    command: Mapping[str, Any] = field(default_factory=dict)
    rollback: bool = False
    stage: Mapping[str, int] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    begun_index: int | None = None
    all_soak: bool = False
    admitted: Mapping[str, int] = field(default_factory=dict)
    post_upgrade: tuple[str, ...] = ()
    services: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expires: int = 0
    by_ansible: bool = False
    before: Mapping[str, Any] = field(default_factory=dict)
    # What a write does besides its purpose is no reason for another write.
    commit: str = field(default="", compare=False)
    rollouts: tuple[int, ...] = field(default=(), compare=False)
    history_from: int = field(default=1, compare=False)
    recoveries: int = field(default=0, compare=False)
    recovered_at: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        """Check the fields, because they may come from Consul.

        :raises ValueError: for the first field with an invalid value.
        """
        checks = {
            "epoch": is_count(self.epoch),
            "version": is_valid_target(self.version),
            "previous_version": self.previous_version is None or is_valid_version(self.previous_version),
            "state": self.state in STATES,
            "instructions": isinstance(self.instructions, Mapping),
            "role_pattern": self.role_pattern is None or _is_pattern(self.role_pattern),
            "members": isinstance(self.members, Mapping) and all(is_count(count) for count in self.members.values()),
            "who": isinstance(self.who, str),
            "commit": isinstance(self.commit, str),
            "since": is_time(self.since),
            "begun_index": self.begun_index is None or is_count(self.begun_index),
            "all_soak": isinstance(self.all_soak, bool),
            "command": isinstance(self.command, Mapping) and is_time(self.command.get("at", 0)),
            "rollback": isinstance(self.rollback, bool),
            "broken": _are_texts(self.broken),
            "stopped": _are_texts(self.stopped),
            "admitted": isinstance(self.admitted, Mapping) and all(map(is_count, self.admitted.values())),
            "post_upgrade": _are_texts(self.post_upgrade),
            "services": isinstance(self.services, Mapping)
            and all(isinstance(one, str) and one for one in self.services.values()),
            "targets": isinstance(self.targets, Mapping)
            and set(self.targets) <= {"roles", "hosts"}
            and all(map(_are_texts, self.targets.values())),
            "expires": is_time(self.expires),
            "by_ansible": isinstance(self.by_ansible, bool),
            "before": isinstance(self.before, Mapping) and not is_job(self.before.get("version")),
            "rollouts": isinstance(self.rollouts, tuple)
            and all(map(is_count, self.rollouts))
            and all(one < other for one, other in pairwise(self.rollouts)),
            "recoveries": is_count(self.recoveries),
            "recovered_at": is_time(self.recovered_at),
            "history_from": is_count(self.history_from) and self.history_from > 0,
            "stage": isinstance(self.stage, Mapping) and all(is_time(value) for value in self.stage.values()),
        }
        for name, fits in checks.items():
            if not fits:
                raise ValueError(f"{name} is {truncated_repr(getattr(self, name))}")

    @property
    def is_job(self) -> bool:
        """Whether the rollout is a job, and not one to a version."""
        return is_job(self.version)

    @property
    def is_under_way(self) -> bool:
        """Whether it may still admit hosts."""
        return self.state in (RUNNING, PAUSED)

    @property
    def has_post_upgrade_tasks(self) -> bool:
        """Whether it is complete, perhaps paused after that, and post-upgrade tasks may be left."""
        return self.was_complete and self.state in (COMPLETE, PAUSED) and bool(self.post_upgrade)

    @property
    def room_for_names(self) -> int:
        """How many bytes it has for more names of hosts."""
        taken = (self.instructions, self.admitted, self.targets, self.before)
        return _MOST_BYTES - len(json.dumps([*map(dict, taken), self.broken]))

    @property
    def room_for_broken(self) -> int:
        """How many bytes the ledger of a rollback has for the names of broken hosts. A job after it keeps few of the admitted ones."""
        return min(self.room_for_names, _MOST_BYTES - _FOR_JOB - len(json.dumps(dict(self.instructions))))

    @property
    def was_complete(self) -> bool:
        """Whether it is complete, or was before an operator paused it."""
        return COMPLETE in (self.state, self.command.get(WAS))

    def again(self) -> tuple[str, dict[str, str]]:
        """Return the playbook that begins the aborted rollout to a version again, and its variables. A rollback goes on in its own order."""
        if self.rollback:
            return "rollback", {"version": self.version}
        return "upgrade", {"version": self.version, "restart": "true"}

    def is_for(self, host: str, role: str) -> bool:
        """Return whether the rollout is for a host. One to a version is for all hosts."""
        roles, hosts = self.targets.get("roles", ()), self.targets.get("hosts", ())
        return not (roles or hosts) or role in roles or host in hosts


def names_that_fit(hosts: Iterable[str], room: int, more: int = 0) -> list[str]:
    """Return the first hosts whose names fit into a ledger.

    :param room: the bytes for all of them.
    :param more: the bytes that each takes besides its name.
    """
    found: list[str] = []
    for host in hosts:
        room -= len(json.dumps(host)) + len(", ") + more
        if room < 0:
            break
        found.append(host)
    return found


def is_count(value: object) -> bool:
    """Return whether a decoded value is a count: a whole number from 0 to ``MOST_EPOCH``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_EPOCH


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


def _is_pattern(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(compiled(text))
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Handover:
    """A rollout that planner services carry to its end.

    :param version: the target of the rollout.
    :param since: when the rollout began (unix seconds). Together with the version, it identifies the rollout.
    :param limit: host patterns of the hosts that may be admitted; None for all.
    :param id: a random ID of this handover.
    :param by: who handed it over.
    :param at: when (unix seconds).
    """

    version: str
    since: int
    limit: tuple[str, ...] | None
    id: str
    by: str
    at: int

    def is_of(self, ledger: Ledger) -> bool:
        """Return whether it is the handover of the rollout of a ledger."""
        return (self.version, self.since) == (ledger.version, ledger.since)

    def limit_text(self) -> str:
        """Return the limit for a sentence. The pattern of a group of the inventory names all of its hosts."""
        limit = self.limit or ()
        chosen = [truncate_middle(one, _MOST_OF_PATTERN) for one in limit if not one.startswith("!")]
        excluded = [truncate_middle(excluded_by(one), _MOST_OF_PATTERN) for one in limit if one.startswith("!")]
        text = listing(chosen, _MOST_PATTERNS) if chosen else "all hosts" if self.is_of_all else "no host"
        return f"{text} but {listing(excluded, _MOST_PATTERNS)}" if excluded else text

    @property
    def is_of_all(self) -> bool:
        """Whether it is for all hosts, or for all but some."""
        return self.limit is None or (bool(self.limit) and all(one.startswith("!") for one in self.limit))


@dataclass(frozen=True, slots=True)
class PlannerAnswer:
    """The answer of a planner service to a handover.

    :param handover: the ID of the handover.
    :param refusal: why it refuses it; empty if it carries the rollout.
    """

    handover: str
    refusal: str
