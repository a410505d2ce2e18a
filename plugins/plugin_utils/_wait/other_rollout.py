# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until no other job or rollout is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...module_utils._common import runtime
from ...module_utils._common.errors import TEMPORARY_CODES
from .._actions.other_action import ActionFailed

# Between two tries, at first and at most (seconds). A try plans for the whole fleet.
_PAUSE, _LONGEST_PAUSE = 5.0, 30.0
_CAME_SECOND = ("job_under_way", "rollout_under_way")


def when_free(attempt: Callable[[], dict[str, Any]], deadline: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the result of an attempt, once no other job or rollout is under way; at the deadline, its failure.

    :param attempt: begins a rollout or a job, or plans one. Its result may have failed.
    :param deadline: as :func:`runtime.monotonic` counts.
    :param say: shows a line that names the other one, once for each, and an outage of Consul meanwhile.
    :raises ActionFailed: if ``attempt`` raises it for another reason, or at the deadline.
    """
    is_waiting, shown, pause = False, "", _PAUSE
    while True:
        try:
            found, failed = attempt(), None
        except ActionFailed as error:
            found, failed = error.result, error
        failure = found.get("failure") or {}
        is_second = failure.get("code") in _CAME_SECOND
        is_waiting = is_waiting or is_second
        if (
            not (is_second or (is_waiting and failure.get("code") in TEMPORARY_CODES))
            or runtime.monotonic() + pause >= deadline
        ):
            if failed is not None:
                raise failed
            return found
        line = f"{failure['message'].partition('. So ')[0]}. This run waits for its end."
        if not is_second:
            line = f"{failure['message']} This run goes on waiting."
        if line != shown:
            say(line)
        shown = line
        runtime.sleep(pause)
        pause = min(_LONGEST_PAUSE, 1.5 * pause)
