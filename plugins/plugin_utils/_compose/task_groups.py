# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Task groups: what one service does in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils._fleet.checkpoints import checkpoint_name
from .._services.steps import tags_of
from .._services.task_file import TaskPiece


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """The tasks of a service in one step. They are begun and recorded together.

    :param name: unique in its role, such as ``upgrade/nginx``.
    :param service: the service's name in the role.
    :param once: whether one host per version runs it for all.
    :param tags: the tags of all its tasks.
    :param pieces: its tasks.
    :param number: its number among the service's task groups of this step and checkpoint, from 1.
    :param checkpoint: the checkpoint of an upgrade path that it upgrades to; empty for tasks that every host runs.
    :param provider: whether it belongs to a provider, so that one host runs it for the provider's upgrade.
    """

    name: str
    step: str
    service: str
    once: bool
    tags: tuple[str, ...]
    pieces: tuple[TaskPiece, ...]
    number: int = 1
    checkpoint: str = ""
    provider: bool = False

    def plain(self) -> dict[str, Any]:
        """Return it as plain data, with the number of its tasks in place of them."""
        return {
            "name": self.name,
            "step": self.step,
            "service": self.service,
            "once": self.once,
            "checkpoint": self.checkpoint,
            "provider": self.provider,
            "tags": list(self.tags),
            "tasks": len(self.pieces),
        }


def task_groups(
    step: str, service: str, pieces: Sequence[TaskPiece], *, checkpoint: str = "", provider: bool = False
) -> list[TaskGroup]:
    """Return a service's task groups of a step: one, or more if tasks with and without ``once`` alternate."""
    whose = checkpoint_name(service, checkpoint) if checkpoint else service
    parts: list[list[TaskPiece]] = []
    for piece in pieces:
        if parts and parts[-1][0].once == piece.once:
            parts[-1].append(piece)
        else:
            parts.append([piece])
    groups = []
    for number, part in enumerate(parts, 1):
        tags = dict.fromkeys((*tags_of(step), service, *(tag for piece in part for tag in piece.tags)))
        name = f"{step}/{whose}" + (f"/{number}" if number > 1 else "")
        groups.append(
            TaskGroup(name, step, service, part[0].once, tuple(tags), tuple(part), number, checkpoint, provider)
        )
    return groups
