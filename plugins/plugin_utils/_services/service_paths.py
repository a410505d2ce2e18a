# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service's upgrade path: a task file for each checkpoint between an older and a newer version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.versions import VersionOrder
from .meta import ServiceMeta
from .refusal import refusal
from .steps import ONCE
from .task_file import TaskPiece, read_pieces

# The default step of its tasks.
_STEP = "upgrade"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A version of an upgrade path and its tasks.

    :param file: path below the folder ``tasks`` of the role.
    :param pieces: its tasks, in the order of the file.
    """

    version: str
    file: str
    pieces: tuple[TaskPiece, ...]


def read_path(role: Path, meta: ServiceMeta) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of a service's upgrade path, in any order.

    :raises UpgradeError: ``bad_service``.
    """
    where = meta.at("upgrade_path")
    return tuple(_point(role, version, file, where) for version, file in meta.upgrade_path.items())


def in_order_of(order: VersionOrder, checkpoints: Sequence[Checkpoint], meta: ServiceMeta) -> list[Checkpoint]:
    """Return the checkpoints of a service's upgrade path, from the oldest version to the newest.

    :raises UpgradeError: ``bad_service`` for versions that can't be compared.
    """
    where = meta.at("upgrade_path")
    by_name = {checkpoint.version: checkpoint for checkpoint in checkpoints}
    try:
        found = order.in_order(by_name)
        twice = [one for one, other in pairwise(found) if not order.compare(one, other)]
    except UpgradeError as error:
        raise refusal(where, f"upgrade_path: {error.message}") from error
    if twice:
        raise refusal(where, f"upgrade_path: {twice[0]} is listed twice, in two spellings. Remove one of them.")
    return [by_name[version] for version in found]


def _point(role: Path, version: str, file: str, where: str) -> Checkpoint:
    path = role / "tasks" / file
    if not path.is_file():
        raise refusal(where, f"upgrade_path: the file of {version}, {path}, does not exist.")
    # Ansible resolves included files from the role's folder ``tasks``.
    pieces = read_pieces(path, str(path), default=_STEP, top=role / "tasks")
    for piece in pieces:
        if piece.once:
            raise refusal(
                piece.where,
                f"{ONCE} is not allowed in upgrade_path: hosts at several versions would run it, but what they share has one version. "
                "Make that a service of its own with provider: true, which has its own version.",
            )
    if not pieces:
        raise refusal(
            str(path), "the file has no task, so nothing would be done. Remove the version from upgrade_path."
        )
    return Checkpoint(version, file, tuple(pieces))


def by_version(
    paths: Mapping[str, tuple[VersionOrder, Sequence[Checkpoint]]],
) -> list[tuple[str, Checkpoint]]:
    """Return the checkpoints of several services in the order in which a host runs them: by version, then by service.

    Checkpoints of two services whose versions can't be compared keep the order of the services.

    :param paths: service -> the order of its versions, and its checkpoints; in the order of services.
    """
    left = {service: list(checkpoints) for service, (_order, checkpoints) in paths.items() if checkpoints}
    found = []
    while left:
        first = next(iter(left))
        for service in left:
            if service != first and _is_before(paths[service][0], left[service][0], left[first][0]):
                first = service
        found.append((first, left[first].pop(0)))
        if not left[first]:
            del left[first]
    return found


def _is_before(order: VersionOrder, one: Checkpoint, other: Checkpoint) -> bool:
    try:
        return order.compare(one.version, other.version) < 0
    except UpgradeError:
        return False
