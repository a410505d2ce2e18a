# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a wait for a rollout needs of its passes, whether they are made in this process or by a module on another machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._observe.summary import MOST_LISTED
from ...module_utils._rollout.handover import HandedOver
from ...module_utils._rollout.opened_gates import MOST_SLOW, SlowTries
from .._observe.progress_lines import FleetStates

# What the result of a wait has from its first pass.
OF_FIRST = ("forecast", "waves", "wave_seconds", "replaces", "sources")


@dataclass(frozen=True, slots=True)
class WaitedPass:
    """A pass.

    :param done: whether all hosts in scope are upgraded.
    :param can_move: whether the rollout can go on without an operator.
    :param blocker: what blocks the whole rollout: ``code`` and ``reason``; empty for nothing.
    :param blockers: returns why hosts in scope are not upgraded, a sentence for each reason.
    :param wake_at: when the plan may change without a write (unix seconds); 0 for never.
    :param result: returns the module's result for this pass.
    :param handover: the handover of the rollout to planner services; of the first pass, what it handed over.
    """

    done: bool
    can_move: bool
    blocker: Mapping[str, Any]
    blockers: Callable[[], list[str]]
    wake_at: float
    states: FleetStates
    result: Callable[[], dict[str, Any]]
    handover: HandedOver = field(default_factory=HandedOver)


@dataclass(slots=True)
class Total:
    """What all passes of a wait have done.

    :param admitted: the number of the admitted hosts.
    :param transitions: the first of them, as in the module's result.
    :param diffs: the changes of each pass in diff mode.
    :param warnings: each once.
    """

    changed: bool = False
    admitted: int = 0
    transitions: list[Any] = field(default_factory=list)
    diffs: list[Any] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)

    def admit(self, transitions: Sequence[Any]) -> None:
        """Add what a pass admitted."""
        self.admitted += len(transitions)
        self.transitions += transitions[: MOST_LISTED - len(self.transitions)]

    def as_result(self) -> dict[str, Any]:
        """Return it as part of a result."""
        return {
            "changed": self.changed,
            "admitted": self.admitted,
            "transitions": self.transitions,
            "diff": self.diffs,
            "warnings": list(self.warnings),
        }


class PassFailed(Exception):
    """A pass that failed.

    :param result: the failed result, with ``msg`` and ``failure``.
    """

    def __init__(self, result: Mapping[str, Any]) -> None:
        """Keep the result."""
        super().__init__(str(result.get("msg")))
        self.result = dict(result)
        failure = result.get("failure") or {}
        self.code = str(failure.get("code") or "")
        self.details: Mapping[str, Any] = failure.get("details") or {}


class Passes(ABC):
    """The passes of one wait. ``total`` is what they have done so far."""

    def __init__(self) -> None:
        """Begin the total at zero."""
        self.total = Total()

    @abstractmethod
    def first(self) -> WaitedPass:
        """Make the first pass.

        :raises PassFailed: if it failed.
        """

    @abstractmethod
    def next(self, seconds: float) -> WaitedPass | None:
        """Wait for a change for at most some seconds, and make a pass; None if nothing has changed.

        :raises PassFailed: if it failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what the passes hold."""


class PatientPasses:
    """Makes a pass again if it was too slow, and says so.

    :param say: shows a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """Keep the function."""
        self._say = say

    def make(self, act: Callable[[], Any]) -> Any:
        """Return what ``act`` returns.

        :param act: makes a pass that fails after one slow try, with :class:`PassFailed`.
        :raises PassFailed: what ``act`` raises; ``too_slow`` only after several slow tries in a row.
        """
        tries: SlowTries | None = None
        while True:
            try:
                return act()
            except PassFailed as failed:
                if failed.code != "too_slow":
                    raise
                (seconds,), limit = failed.details["seconds"], failed.details["limit"]
                tries = tries or SlowTries(limit, MOST_SLOW)
                try:
                    tries.add(seconds)
                except UpgradeError as error:
                    raise PassFailed({**failed.result, **error.as_result()}) from None
                self._say(
                    f"Reading the fleet and planning took {seconds:.1f} s, but at most {limit:g} s are allowed. Trying again."
                )
