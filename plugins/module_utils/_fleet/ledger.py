# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger: the one value that every planner must compare-and-set before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.clock import is_time
from .._common.names import is_valid_version
from .._common.patterns import compiled
from .._common.sanitize import truncated_repr

RUNNING = "running"
PAUSED = "paused"
ABORTED = "aborted"
COMPLETE = "complete"
STATES = (RUNNING, PAUSED, ABORTED, COMPLETE)
# No count is above that, as other languages read numbers of JSON no further.
MOST_EPOCH = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the fleet is doing.

    :param epoch: counts planner writes; each one adds exactly 1 and has its entry in the history.
    :param commit: tells the write of this epoch from any other, as one with the same number after a snapshot was restored. Its
        entry in the history has the same. Empty where the writer knew of none.
    :param version: the version the fleet moves to.
    :param previous_version: where it came from, None where no one knows. A rollout that was not completed is passed over.
    :param state: ``running``, ``paused``, ``aborted`` or ``complete``.
    :param word: of whoever paused, aborted or took back: ``by``, ``at`` (unix seconds), ``reason``.
    :param rollback: whether it goes back to where the fleet was: the hosts that changed last go first, and those in
        ``broken`` hold no one up.
    :param broken: hosts that had failed or were lost when the rollback began.
    :param admitted: hosts that planners had admitted and that had started when this rollout began and removed their gates: each with
        the index of its last report then, 0 for none. They alone get their gates back; a host that has reported since has used its
        admission up.
    :param stopped: keys of the budgets of failure that are spent. As planners write them here, one that slept meanwhile
        can't let anybody through on what it knew before.
    :param stage: where it is in the stages of its rules: ``number`` (0 for the first), and ``done_at`` (unix seconds) once
        all hosts of that stage are upgraded.
    :param instructions: the rules the rollout runs under, in the form :mod:`instructions` writes.
    :param role_pattern: places reported hosts that no fleet names; None for the default.
    :param members: role -> number of hosts, from the planner that was last given a fleet.
    :param begun_index: Consul's index when it began, None where no one noted it. What a host said up to there, it did not
        say under this rollout.
    :param post_upgrade: roles whose tasks after the upgrade are part of it, until the gates of all are opened.
    :param who: who began the rollout.
    :param since: when, in unix seconds.
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
    word: Mapping[str, Any] = field(default_factory=dict)
    rollback: bool = False
    stage: Mapping[str, int] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    begun_index: int | None = None
    admitted: Mapping[str, int] = field(default_factory=dict)
    post_upgrade: tuple[str, ...] = ()
    commit: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse at once what a reader would otherwise stumble over far from here."""
        checks = {
            "epoch": is_count(self.epoch),
            "version": is_valid_version(self.version),
            "previous_version": self.previous_version is None or is_valid_version(self.previous_version),
            "state": self.state in STATES,
            "instructions": isinstance(self.instructions, Mapping),
            "role_pattern": self.role_pattern is None or _is_pattern(self.role_pattern),
            "members": isinstance(self.members, Mapping) and all(is_count(count) for count in self.members.values()),
            "who": isinstance(self.who, str),
            "commit": isinstance(self.commit, str),
            "since": is_time(self.since),
            "begun_index": self.begun_index is None or is_count(self.begun_index),
            "word": isinstance(self.word, Mapping) and is_time(self.word.get("at", 0)),
            "rollback": isinstance(self.rollback, bool),
            "broken": _are_texts(self.broken),
            "stopped": _are_texts(self.stopped),
            "admitted": isinstance(self.admitted, Mapping) and all(map(is_count, self.admitted.values())),
            "post_upgrade": _are_texts(self.post_upgrade),
            "stage": isinstance(self.stage, Mapping) and all(is_time(value) for value in self.stage.values()),
        }
        for name, fits in checks.items():
            if not fits:
                raise ValueError(f"{name} is {truncated_repr(getattr(self, name))}")


def is_count(value: object) -> bool:
    """Return whether a value that was read is a count that others can read too."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_EPOCH


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


def _is_pattern(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(compiled(text))
    except ValueError:
        return False
