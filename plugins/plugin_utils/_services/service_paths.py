# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service's path: what has to be done at each version on the way from an older one to a newer one, a file for each."""

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

# The step of its tasks, unless they say otherwise.
_STEP = "upgrade"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What has to be done at one version.

    :param file: below the folder ``tasks`` of the role.
    :param pieces: its tasks, in the order of the file.
    """

    version: str
    file: str
    pieces: tuple[TaskPiece, ...]


def read_path(role: Path, meta: ServiceMeta) -> tuple[Checkpoint, ...]:
    """Return the points of a service's path, in no certain order.

    :raises UpgradeError: ``bad_service``.
    """
    where = meta.at("upgrade_path")
    return tuple(_point(role, version, file, where) for version, file in meta.upgrade_path.items())


def in_order_of(order: VersionOrder, points: Sequence[Checkpoint], meta: ServiceMeta) -> list[Checkpoint]:
    """Return the points of a service's path, from the oldest version to the newest one.

    :raises UpgradeError: ``bad_service`` for versions without an order among each other.
    """
    where = meta.at("upgrade_path")
    by_name = {point.version: point for point in points}
    try:
        found = order.in_order(by_name)
        twice = [one for one, other in pairwise(found) if not order.compare(one, other)]
    except UpgradeError as error:
        raise refusal(where, f"upgrade_path: {error.message}") from error
    if twice:
        raise refusal(where, f"upgrade_path: {twice[0]} is there twice, in two spellings. Keep one of them.")
    return [by_name[version] for version in found]


def _point(role: Path, version: str, file: str, where: str) -> Checkpoint:
    path = role / "tasks" / file
    if not path.is_file():
        raise refusal(where, f"upgrade_path: the file of {version}, {path}, is not there.")
    # As Ansible has it: what a task includes is named from the role's folder of tasks.
    pieces = read_pieces(path, str(path), default=_STEP, top=role / "tasks")
    for piece in pieces:
        if piece.once:
            raise refusal(
                piece.where,
                f"{ONCE} does not go with a path: hosts at several versions would go it, and what they share is at one. Make "
                "what they share a service of its own, with provider: true, which has its own version.",
            )
    if not pieces:
        raise refusal(
            str(path), "the file has no task, so nothing would be done. Take the version out of upgrade_path."
        )
    return Checkpoint(version, file, tuple(pieces))


def by_version(
    paths: Mapping[str, tuple[VersionOrder, Sequence[Checkpoint]]],
) -> list[tuple[str, Checkpoint]]:
    """Return the points of several services in the order in which a host goes through them: by version, then by service.

    Versions of two services that can't be compared keep the order of the services.

    :param paths: service -> how its versions are ordered, and its points; in the order in which services go.
    """
    left = {service: list(points) for service, (_order, points) in paths.items() if points}
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
