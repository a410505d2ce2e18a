# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of an upgrade and their tags. The numbers are those of TripleO; what is done before a stop and after it belongs to one of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from ...module_utils._common.names import did_you_mean
from .refusal import refusal

NUMBERED = ("validate", "prepare", "stop", "upgrade", "start", "verify")
MAY_STOP, DRAIN, UNDRAIN = "may_stop", "drain", "undrain"
# All steps in their order.
STEPS = ("validate", "prepare", MAY_STOP, DRAIN, "stop", "upgrade", "start", "verify", UNDRAIN)
POST = "post_upgrade"
UPGRADE = "upgrade"
# While some of these steps are done and others are not, services of a host may be down.
REPLACEMENT = ("stop", UPGRADE, "start")

# A tag besides the step: one host per version runs the task for all hosts.
ONCE = "once"

# How long MAY_STOP is tried again, if nothing else is said, and at most (seconds). Each try is an include within the one before, and after
# some 330 of them, at least 5 hours, Python's stack would be full.
PATIENCE, MOST_PATIENCE = 1800, 14400

_PART_OF = {MAY_STOP: "stop", DRAIN: "stop", UNDRAIN: "verify"}

_NUMBERED = re.compile(r"step_?(\S*)", re.IGNORECASE)


def file_of(step: str) -> str:
    """Return the base name of a step's task files, such as ``step3_upgrade``, or ``step2_drain``."""
    return step if step == POST else f"step{NUMBERED.index(numbered_step(step))}_{step}"


def numbered_step(step: str) -> str:
    """Return the step with a number that a step belongs to, such as ``stop`` for ``drain``."""
    return _PART_OF.get(step, step)


def tags_of(step: str) -> list[str]:
    """Return the tags that select a step on the command line."""
    if step == POST:
        return [POST]
    numbered = numbered_step(step)
    return list(dict.fromkeys((f"step{NUMBERED.index(numbered)}", numbered, step)))


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
    if re.fullmatch(r"step\d+", tag) and int(number) < len(NUMBERED):
        return NUMBERED[int(number)]
    raise refusal(where, f"there is no step {tag!r}. {all_steps()}")


def step_of(tags: Iterable[str], where: str) -> str | None:
    """Return the step of a task from its tags; None if they name no step.

    :raises UpgradeError: ``bad_service`` for two steps, or for one that does not exist.
    """
    found = list(dict.fromkeys(step for tag in tags if (step := step_of_tag(tag, where)) is not None))
    if len(found) > 1:
        raise refusal(where, f"the task has two steps, {' and '.join(found)}. Keep one of them, or split the task.")
    return found[0] if found else None


def stops_to_repeat(task_groups: Sequence[tuple[str, str, str]], done: Collection[str]) -> set[str]:
    """Return the finished task groups of the step ``stop`` that a resumed upgrade runs again, because their services are not started yet.

    A reboot or an operator may have started the old version since. Its packages would be replaced while it runs, and ``start`` would not restart it.
    A service is started by ``start``, or by ``upgrade`` if it has no tasks of that step. If a part of that is done, nothing would start it again.
    Services that stop together may stop each other, so none of them is stopped again once one is started. Others go on in turn, whichever of them
    were replaced before: the order may have changed since, as with ``rollback_order``.

    :param task_groups: name, step, and service or checkpoint of a host's task groups in their order, without those that one host runs for all.
    :param done: the finished task groups.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for name, step, unit in task_groups:
        names.setdefault((unit, step), []).append(name)
    replacing = [REPLACEMENT.index(step) for _name, step, _unit in task_groups if step in REPLACEMENT]
    is_together = replacing == sorted(replacing)
    of_all = [name for name, step, _unit in task_groups if step == "start"] if is_together else []
    found = set()
    for stop, step, unit in task_groups:
        starts = names.get((unit, "start")) or names.get((unit, UPGRADE))
        if step == "stop" and stop in done and starts and not {*starts, *of_all} & {*done}:
            found.add(stop)
    return found


def no_step(tags: Iterable[str], where: str) -> Exception:
    """Return the error for a task without a step."""
    hints = "".join(f" Its tag {tag!r} is not a step{hint}" for tag in tags if (hint := did_you_mean(tag, STEPS)))
    return refusal(where, f"the task has no step, so it would never run.{hints} {all_steps()}")


def all_steps() -> str:
    """Return a sentence that names all steps."""
    numbered = ", ".join(f"step{n} ({name})" for n, name in enumerate(NUMBERED))
    return f"Tag it with one of {numbered}, {', '.join(_PART_OF)}."
