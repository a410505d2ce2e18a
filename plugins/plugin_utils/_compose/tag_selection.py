# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of a composition that the tags on the command line select."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import in_order, listing
from .._services.steps import NUMBERED, UNDRAIN, tags_of

if TYPE_CHECKING:
    from .composition import Composition


def is_selected(tags: Iterable[str], only: Sequence[str], skip: Sequence[str]) -> bool:
    """Return whether Ansible would run a task with these tags. Follows Ansible's rules, including its special tags.

    :param only: ``ansible_run_tags``.
    :param skip: ``ansible_skip_tags``.
    """
    own, requested, skipped = set(tags), set(only) or {"all"}, set(skip)
    never = "never" in own
    run = (
        "always" in own
        or ("all" in requested and not never)
        or bool(own & requested)
        or ("tagged" in requested and bool(own) and not never)
        or ("untagged" in requested and not own)
    )
    if not run:
        return False
    if "all" in skipped:
        return "always" in own and "always" not in skipped
    return not (own & skipped or ("tagged" in skipped and own) or ("untagged" in skipped and not own))


def is_task_selected(tags: Iterable[str], only: Sequence[str], skip: Sequence[str]) -> bool:
    """Return whether a task of a composition runs.

    :param tags: its tags, with those of its step and its service.
    """
    own = set(tags)
    return is_selected(own, only, skipping(own, skip))


def skipping(tags: Iterable[str], skip: Sequence[str]) -> list[str]:
    """Return which tags of ``--skip-tags`` can skip a task with these tags.

    A host that skips its verification is undrained nevertheless.
    """
    kept = tags_of(NUMBERED[-1]) if UNDRAIN in tags else ()
    return [tag for tag in skip if tag not in kept]


def refuse_empty(composition: Composition, only: Sequence[str], skip: Sequence[str]) -> None:
    """Refuse tags that select no task, because the run would silently do nothing.

    :raises UpgradeError: ``no_such_tag``.
    """
    if not composition.roles or (not skip and set(only) <= {"all"}):
        return
    known: dict[str, None] = {}
    for role in composition.roles.values():
        for group in role.task_groups:
            for leaf in (leaf for piece in group.pieces for leaf in piece.leaves):
                tags = (*tags_of(group.step), group.service, *leaf)
                if is_task_selected(tags, only, skip):
                    return
                known |= dict.fromkeys(tags)
    options = (("--tags", set(only) - {"all"}), ("--skip-tags", set(skip)))
    given = " ".join(f"{name} {','.join(in_order(tags))}" for name, tags in options if tags)
    raise UpgradeError(
        "no_such_tag",
        f"{given}: these tags select no task of any service, so nothing would be done. The known tags are "
        f"{listing(in_order(known), 40)}.",
    )
