# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells an operator who waits for a rollout whether planner services carry it on if the run ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...module_utils._common import runtime
from ...module_utils._common.names import listing
from ...module_utils._fleet.ledger import SECONDS_TO_ANSWER
from .._daemon_client.continuation import Continuation, note_continuation


class HandoverNotes:
    """Follows the handover that a run has left to planner services, and says when it changes who carries the rollout.

    :param say: shows a line.
    :param warn: shows a warning.
    :param before: what was said of the same rollout before.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        before: Continuation = Continuation.NONE,
    ) -> None:
        """Keep the arguments."""
        self._say, self._warn = say, warn
        # The ID of the handover; empty for none, None before the first pass.
        self._handover: str | None = None
        self._continuation = before
        # Until when a planner service should have answered it (seconds of the monotonic clock).
        self._answer_by = 0.0

    def note(self, kind: str, handover: str, planners: Sequence[str]) -> None:
        """Note whether planner services carry the rollout on, and say so when that changes.

        :param kind: rollout or job.
        :param handover: the ID of its handover, which the first call notes; empty for none.
        :param planners: the services that carry it.
        """
        if self._handover is None:
            self._handover = handover
            self._answer_by = runtime.monotonic() + SECONDS_TO_ANSWER
        if not self._handover:
            note_continuation(Continuation.NONE)
            return
        before = self._continuation
        if handover != self._handover:
            self._continuation = Continuation.NONE
        else:
            self._continuation = Continuation.CARRIED if planners else Continuation.HANDED_OVER
        note_continuation(self._continuation)
        if self._continuation is Continuation.CARRIED and before is not Continuation.CARRIED:
            self._say(
                f"If this run ends, planner services ({listing(planners, 5)}) carry the {kind} on. To stop admissions, run "
                "ansible-playbook convoy.upgrade.pause."
            )
        elif self._continuation is Continuation.HANDED_OVER and before is Continuation.CARRIED:
            self._warn(
                f"No planner service carries the {kind} at present. If this run ends before the {kind} does, run the same command again."
            )
        elif self._continuation is Continuation.NONE and before is not Continuation.NONE:
            what = "was replaced by another one" if handover else "has ended"
            self._warn(
                f"The handover of the {kind} to planner services {what}, so they may not carry on all that this run waits for. If this run ends "
                f"before the {kind} does, run the same command again."
            )

    def note_unknown(self) -> None:
        """Note that a pass failed: whether services that carried the rollout still do is not known."""
        if self._continuation is Continuation.CARRIED:
            note_continuation(Continuation.HANDED_OVER)

    def seconds_to_answer(self) -> float:
        """Return how long a planner service may still take to answer the handover; 0 if none is awaited."""
        is_awaited = self._continuation is Continuation.HANDED_OVER
        return max(0.0, self._answer_by - runtime.monotonic()) if is_awaited else 0.0
