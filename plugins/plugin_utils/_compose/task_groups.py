# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units of an upgrade: what a service does in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils._fleet.checkpoints import checkpoint_name
from .._services.steps import tags_of
from .._services.task_file import TaskPiece


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """What of a service belongs to one step: the piece of an upgrade that is begun, and recorded, as a whole.

    :param name: unique in its role, such as ``upgrade/nginx``.
    :param service: the service's name in the role.
    :param once: whether one host per version runs it for all.
    :param tags: those of all its tasks.
    :param number: which one of the service's units of this step and point it is.
    :param point: the version to which it brings a host on its path; empty for what every host goes through.
    :param provider: whether it belongs to a provider, so that one host runs it, on the way of the provider.
    """

    name: str
    step: str
    service: str
    once: bool
    tags: tuple[str, ...]
    pieces: tuple[TaskPiece, ...]
    number: int = 1
    point: str = ""
    provider: bool = False

    def plain(self) -> dict[str, Any]:
        """Return what of it is written down."""
        return {
            "name": self.name,
            "step": self.step,
            "service": self.service,
            "once": self.once,
            "point": self.point,
            "provider": self.provider,
            "tags": list(self.tags),
            "tasks": len(self.pieces),
        }


def task_groups(
    step: str, service: str, pieces: Sequence[TaskPiece], *, point: str = "", provider: bool = False
) -> list[TaskGroup]:
    """Return a service's units of a step: one, or more where tasks for one host stand among those for all."""
    whose = checkpoint_name(service, point) if point else service
    groups: list[list[TaskPiece]] = []
    for piece in pieces:
        if groups and groups[-1][0].once == piece.once:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    units = []
    for number, group in enumerate(groups, 1):
        tags = dict.fromkeys((*tags_of(step), service, *(tag for piece in group for tag in piece.tags)))
        name = f"{step}/{whose}" + (f"/{number}" if number > 1 else "")
        units.append(TaskGroup(name, step, service, group[0].once, tuple(tags), tuple(group), number, point, provider))
    return units
