# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of an upgrade, and the tags that name them. They are TripleO's, with names beside the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...module_utils._common.names import did_you_mean
from .refusal import refusal

STEPS = ("validate", "prepare", "stop", "upgrade", "start", "verify")
POST = "post_upgrade"

# Beside a step: one host per version runs the task for all of them.
ONCE = "once"

_NUMBERED = re.compile(r"step_?(\S*)", re.IGNORECASE)


def file_of(step: str) -> str:
    """Return the name of the files that hold a step's tasks, such as ``step3_upgrade``."""
    return step if step == POST else f"step{STEPS.index(step)}_{step}"


def tags_of(step: str) -> list[str]:
    """Return the tags by which a step is chosen on the command line."""
    return [POST] if step == POST else [f"step{STEPS.index(step)}", step]


def step_of_tag(tag: str, where: str) -> str | None:
    """Return the step that a tag names, None for a tag that is no step's.

    :param where: file and line, for messages.
    :raises UpgradeError: ``bad_service`` for a step out of range.
    """
    if tag in STEPS:
        return tag
    numbered = _NUMBERED.fullmatch(tag)
    if numbered is None:
        return None
    number = numbered[1]
    if re.fullmatch(r"step\d+", tag) and int(number) < len(STEPS):
        return STEPS[int(number)]
    raise refusal(where, f"there is no step {tag!r}. {all_steps()}")


def step_of(tags: Iterable[str], where: str) -> str | None:
    """Return the one step that a task's tags name, None where they name none.

    :raises UpgradeError: ``bad_service`` for two steps, or for one that does not exist.
    """
    found = list(dict.fromkeys(step for tag in tags if (step := step_of_tag(tag, where)) is not None))
    if len(found) > 1:
        raise refusal(where, f"the task has two steps, {' and '.join(found)}. Give it one, or make two tasks of it.")
    return found[0] if found else None


def no_step(tags: Iterable[str], where: str) -> Exception:
    """Return the refusal of a task without a step."""
    meant = "".join(f" Its tag {tag!r} names none{hint}" for tag in tags if (hint := did_you_mean(tag, STEPS)))
    return refusal(where, f"the task has no step, so it would never run.{meant} {all_steps()}")


def all_steps() -> str:
    """Return the sentence that names the steps."""
    return f"Tag it with one of {', '.join(f'step{n} ({name})' for n, name in enumerate(STEPS))}."
