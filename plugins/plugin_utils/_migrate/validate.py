# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in the way of a step, all at once."""

from __future__ import annotations

from ...module_utils._common.errors import UpgradeError
from .step import KeysFound, MigrationStep

# So many are in the sentence; all are in its details.
_MOST_TOLD = 50


def validate(step: MigrationStep, found: KeysFound, *, is_midway: bool) -> None:
    """Refuse to go on while anything stands in the way.

    :param is_midway: whether keys are in the middle of being moved, so that planners are refused until that is over.
    :raises UpgradeError: ``in_the_way``; its details have ``obstacles``, each with ``key``, ``why`` and ``fix``.
    """
    obstacles = step.obstacles(found)
    if not obstacles:
        return
    told = " | ".join(str(one) for one in obstacles[:_MOST_TOLD])
    more = f" | And {len(obstacles) - _MOST_TOLD} more, in failure.details." if len(obstacles) > _MOST_TOLD else ""
    until = (
        "What was copied stays, and planners are refused until the migration is finished; fix these, then run the same command "
        "again"
        if is_midway
        else "Nothing is changed before that is fixed"
    )
    raise UpgradeError(
        "in_the_way",
        f"{len(obstacles)} of the keys stand in the way of layout {step.number}. {until}: {told}{more}",
        obstacles=[{"key": one.key, "why": one.why, "fix": one.mend} for one in obstacles],
    )
