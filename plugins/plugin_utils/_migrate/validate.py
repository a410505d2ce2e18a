# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks whether a step can run, and reports all problems at once."""

from __future__ import annotations

from ...module_utils._common.errors import UpgradeError
from .step import KeysFound, MigrationStep

# How many problems the message has. Its details have all of them.
_MOST_PRINTED = 50


def validate(step: MigrationStep, found: KeysFound, *, is_midway: bool) -> None:
    """Refuse to run a step while keys have problems.

    :param is_midway: whether some keys have been moved already, so that planners are refused until the migration is complete.
    :raises UpgradeError: ``in_the_way``; its details have ``problems``, each with ``key``, ``why`` and ``fix``.
    """
    problems = step.problems(found)
    if not problems:
        return
    shown = " | ".join(map(str, problems[:_MOST_PRINTED]))
    more = f" | And {len(problems) - _MOST_PRINTED} more, in failure.details." if len(problems) > _MOST_PRINTED else ""
    until = (
        "What was copied stays, and planners are refused until the migration is complete. Fix these, then run the same command again"
        if is_midway
        else "Nothing is changed. Fix these, then run the same command again"
    )
    raise UpgradeError(
        "in_the_way",
        f"{len(problems)} of the keys can't be migrated to layout {step.number}. {until}: {shown}{more}",
        problems=[{"key": one.key, "why": one.why, "fix": one.fix} for one in problems],
    )
