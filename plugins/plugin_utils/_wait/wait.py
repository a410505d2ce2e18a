# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a rollout: makes one pass after the other, shows the changes, and tells why it stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...module_utils._common import runtime
from ...module_utils._common.errors import TEMPORARY_CODES, Code, UpgradeError
from ...module_utils._common.names import is_job
from .._daemon_client.continuation import Continuation, note_continuation
from .._observe.progress_lines import FleetStates, PassProgress, running_count
from .handover_notes import HandoverNotes
from .passes import Passes, PassFailed, WaitedPass

# If nothing changes, the running count is shown this often (seconds).
_SHOW_EVERY = 30
_LONGEST_PAUSE = 15


class RolloutWait:
    """Waits for the end of a rollout.

    :param say: shows lines.
    :param is_shown: returns whether a live view shows the rollout, so that no line is needed.
    :param follow: called once with the lines of the first pass and its states, for the live view.
    """

    def __init__(
        self,
        passes: Passes,
        say: Callable[[list[str]], None],
        is_shown: Callable[[], bool],
        follow: Callable[[list[str], FleetStates], None],
    ) -> None:
        """Keep the arguments."""
        self._passes = passes
        self._say = say
        self._is_shown = is_shown
        self._follow = follow
        self._progress = PassProgress()
        self._said_at = 0.0
        self._notes = HandoverNotes(lambda line: say([line]), self._warn)

    def until(self, deadline: float) -> dict[str, Any]:
        """Return the result of the task once all hosts in scope are upgraded, nothing can go on, or the time is over.

        :param deadline: seconds of the monotonic clock.
        """
        note_continuation(Continuation.NONE)
        try:
            latest = self._passes.first()
        except PassFailed as failed:
            return failed.result
        lines = self._progress.lines(latest.states)
        if not latest.done:
            # Before the live view, which takes its place.
            self._warn(latest.handover.warning)
            self._note(latest)
            self._follow(lines[:-1], latest.states)
        self._show(lines)
        try:
            return self._until(deadline, latest)
        except PassFailed as failed:
            return {**failed.result, **self._passes.total.as_result()}

    def _until(self, deadline: float, latest: WaitedPass) -> dict[str, Any]:
        pause = 1.0
        while True:
            if latest.done:
                note_continuation(Continuation.NONE)
                return self._ended(latest)
            # A run that stops tells its operator to run the same command again, unless a planner service has answered that it carries the
            # rollout.
            to_answer = self._notes.seconds_to_answer()
            if not latest.can_move and to_answer <= 0:
                blocker = latest.blocker
                reason = blocker["reason"] if blocker else "no host can continue without an operator"
                return self._stopped(latest, blocker.get("code", "stuck"), f"{reason[0].upper()}{reason[1:]}")
            left = deadline - runtime.monotonic()
            if left <= 0:
                why = f"The wait timeout has passed, and the {_kind(latest)} continues without this call"
                return self._stopped(latest, "timeout", why)
            longest = min(left, _SHOW_EVERY, latest.wake_at - runtime.now() + 1 if latest.wake_at else left)
            if not latest.can_move:
                longest = min(longest, to_answer)
            try:
                made = self._passes.next(max(0.0, longest))
            except PassFailed as failed:
                self._notes.note_unknown()
                if failed.code not in TEMPORARY_CODES or deadline - runtime.monotonic() <= pause:
                    raise
                self._say([f"{failed} No host is admitted meanwhile; the next try is in {pause:.0f} s."])
                runtime.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            pause = 1.0
            if made is not None:
                latest = made
                self._note(latest)
            self._show(self._progress.lines(latest.states), latest)

    def _note(self, latest: WaitedPass) -> None:
        if not latest.done:
            self._notes.note(_kind(latest), latest.handover.id, latest.handover.planners)

    def _warn(self, warning: str) -> None:
        if warning:
            self._say([f"Warning: {warning}"])
            self._passes.total.warnings[warning] = None

    def _show(self, lines: list[str], latest: WaitedPass | None = None) -> None:
        if self._is_shown():
            self._said_at = runtime.monotonic()
            return
        if not lines and latest is not None and runtime.monotonic() - self._said_at >= _SHOW_EVERY:
            lines = [running_count(latest.states)]
        if lines:
            self._say(lines)
            self._said_at = runtime.monotonic()

    def _ended(self, latest: WaitedPass) -> dict[str, Any]:
        return {**latest.result(), **self._passes.total.as_result()}

    def _stopped(self, latest: WaitedPass, code: Code, why: str) -> dict[str, Any]:
        blockers = latest.blockers()
        message = f"{why}. {running_count(latest.states)[3:]}. " + " | ".join(blockers)
        return {**self._ended(latest), **UpgradeError(code, message, blockers=blockers).as_result()}


def _kind(latest: WaitedPass) -> str:
    return "job" if is_job(latest.states.version) else "rollout"
