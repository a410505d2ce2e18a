# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of an upgrade and their tags. The numbers are those of TripleO."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...module_utils._common.names import did_you_mean
from .refusal import refusal

STEPS = ("validate", "prepare", "stop", "upgrade", "start", "verify")
POST = "post_upgrade"

# A tag besides the step: one host per version runs the task for all hosts.
ONCE = "once"

_NUMBERED = re.compile(r"step_?(\S*)", re.IGNORECASE)


def file_of(step: str) -> str:
    """Return the base name of a step's task files, such as ``step3_upgrade``."""
    return step if step == POST else f"step{STEPS.index(step)}_{step}"


def tags_of(step: str) -> list[str]:
    """Return the tags that select a step on the command line."""
    return [POST] if step == POST else [f"step{STEPS.index(step)}", step]


def step_of_tag(tag: str, where: str) -> str | None:
    """Return the step of a tag; None for any other tag.

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
    """Return the step of a task from its tags; None if they name no step.

    :raises UpgradeError: ``bad_service`` for two steps, or for one that does not exist.
    """
    found = list(dict.fromkeys(step for tag in tags if (step := step_of_tag(tag, where)) is not None))
    if len(found) > 1:
        raise refusal(where, f"the task has two steps, {' and '.join(found)}. Keep one of them, or split the task.")
    return found[0] if found else None


def no_step(tags: Iterable[str], where: str) -> Exception:
    """Return the error for a task without a step."""
    hints = "".join(f" Its tag {tag!r} is not a step{hint}" for tag in tags if (hint := did_you_mean(tag, STEPS)))
    return refusal(where, f"the task has no step, so it would never run.{hints} {all_steps()}")


def all_steps() -> str:
    """Return a sentence that names all steps."""
    return f"Tag it with one of {', '.join(f'step{n} ({name})' for n, name in enumerate(STEPS))}."
