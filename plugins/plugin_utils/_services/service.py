# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service: an Ansible role with upgrade tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...module_utils._common.names import did_you_mean, listing
from ...module_utils._rules.allowed_versions import VersionRules
from .meta import ServiceMeta, read_meta, read_plane
from .refusal import refusal
from .service_paths import Checkpoint, read_path
from .steps import MAY_STOP, ONCE, POST, STEPS, tags_of
from .task_file import TaskPiece, read_handlers, read_pieces
from .version_keys import WAY_KEYS, merged_version_rules, read_version_rules

_ENTRY_KEYS = ("service", "name", "vars", "plane", *WAY_KEYS)

# A service's name becomes a tag, and these tags are reserved.
_TAKEN = frozenset(
    ("all", "always", "never", "tagged", "untagged", ONCE, *(tag for step in (*STEPS, POST) for tag in tags_of(step)))
)

# Name of a role -> its folder; None if it is not found.
Finder = Callable[[str], "Path | None"]


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """A service in ``upgrade_roles``.

    :param role: name of the Ansible role, with or without its collection.
    :param name: name of this use; by default the last part of the role's name.
    :param vars: variables for its tasks.
    :param plane: the plane that overrides that of the service; None for the service's own.
    :param version_rules: version rules that override those of the service.
    """

    role: str
    name: str
    vars: Mapping[str, Any] = field(default_factory=dict)
    plane: str | None = None
    version_rules: VersionRules = field(default_factory=VersionRules)


@dataclass(frozen=True, slots=True)
class Service:
    """A service with its tasks.

    :param role: name of the Ansible role.
    :param path: its folder.
    :param pieces: its upgrade tasks, in the order of the file.
    :param post: its post-upgrade tasks.
    :param meta: its ``meta/upgrade.yml``.
    :param checkpoints: the checkpoints of its upgrade path, in any order.
    :param handlers: its handlers.
    """

    role: str
    path: Path
    pieces: Sequence[TaskPiece]
    post: Sequence[TaskPiece]
    meta: ServiceMeta
    checkpoints: Sequence[Checkpoint] = ()
    handlers: Sequence[TaskPiece] = ()

    @property
    def short(self) -> str:
        """The last part of the role's name."""
        return self.role.rpartition(".")[2]

    @property
    def runs_once(self) -> bool:
        """Whether one host runs any of its tasks for all."""
        return self.meta.provider or any(piece.once for piece in (*self.pieces, *self.post))


def read_entry(value: object, where: str) -> ServiceEntry:
    """Return an entry of ``services``: a role's name, or a mapping with ``service``, ``name``, ``vars`` and version rules.

    :raises UpgradeError: ``bad_service``.
    """
    if isinstance(value, str) and value.strip():
        return ServiceEntry(value.strip(), _name(value.strip().rpartition(".")[2], where))
    if not isinstance(value, Mapping):
        raise refusal(
            where, f"{value!r} is not a service. Give the name of a role, or a mapping with service, name and vars."
        )
    for key in value:
        if key not in _ENTRY_KEYS:
            raise refusal(
                where,
                f"unknown key {key!r}{did_you_mean(str(key), _ENTRY_KEYS) or '.'} Known are: {', '.join(_ENTRY_KEYS)}.",
            )
    role, given = value.get("service"), value.get("vars") or {}
    if not isinstance(role, str) or not role.strip():
        raise refusal(where, "service is missing. Set it to the name of the role.")
    if not isinstance(given, Mapping):
        raise refusal(where, f"vars: {given!r} does not map variables to values.")
    name = _name(value.get("name") or role.strip().rpartition(".")[2], where)
    plane = read_plane(value.get("plane"), f"{where}.plane")
    rules = read_version_rules(value, lambda key: f"{where}.{key}", where)
    return ServiceEntry(role.strip(), name, dict(given), plane, rules)


def version_rules_of(entry: ServiceEntry, service: Service) -> VersionRules:
    """Return the version rules for a use of a service: its own, overridden by those of the entry.

    :raises UpgradeError: ``bad_service``.
    """
    return merged_version_rules(service.meta.version_rules, entry.version_rules)


def _name(name: object, where: str) -> str:
    if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
        raise refusal(where, f"name: {name!r} can't name a folder. Use letters, digits, _ and -.")
    if name in _TAKEN:
        raise refusal(where, f"name: {name!r} is a reserved tag. Give the service another name.")
    return name


def load_service(role: str, find: Finder, where: str, places: Sequence[str]) -> Service:
    """Return a service by the name of its role.

    :param places: where roles are searched, for messages.
    :raises UpgradeError: ``bad_service``.
    """
    path = find(role)
    if path is None:
        raise refusal(
            where,
            f"no role {role!r} is in {listing(list(places), 10)}. Check its name, and whether its collection is installed.",
        )
    tasks, after = path / "tasks/upgrade_tasks.yml", path / "tasks/post_upgrade_tasks.yml"
    meta = read_meta(path)
    if not (tasks.is_file() or after.is_file() or meta.upgrade_path):
        raise refusal(
            where,
            f"the role {role!r} in {path} is not a service: it has neither tasks/upgrade_tasks.yml nor tasks/post_upgrade_tasks.yml "
            "nor an upgrade_path in meta/upgrade.yml.",
        )
    pieces = read_pieces(tasks, str(tasks)) if tasks.is_file() else []
    post = read_pieces(after, str(after), POST) if after.is_file() else []
    pieces, post = _with_once(pieces, meta.once), _with_once(post, meta.once)
    _check_once(meta, pieces, post)
    if meta.provider:
        _refuse_once(meta, (*pieces, *post))
        # No host waits for a provider's post-upgrade tasks, so they need no lease on the provider.
        post = [replace(piece, once=True) for piece in post]
    handlers = [one for name in ("main.yml", "main.yaml") for one in read_handlers(path / "handlers" / name)]
    return Service(role, path, pieces, post, meta, read_path(path, meta), handlers)


def _with_once(pieces: Sequence[TaskPiece], once: Sequence[str]) -> list[TaskPiece]:
    return [replace(one, once=one.once or one.step in once) for one in pieces]


def _refuse_once(meta: ServiceMeta, pieces: Sequence[TaskPiece]) -> None:
    for piece in pieces:
        if piece.once:
            where = meta.at("once") if piece.step in meta.once else piece.where
            raise refusal(
                where, f"{ONCE} has no effect here, because one host runs all tasks of a provider. Remove it."
            )


def _check_once(meta: ServiceMeta, pieces: Sequence[TaskPiece], post: Sequence[TaskPiece]) -> None:
    for step in meta.once:
        if not any(piece.step == step for piece in (*pieces, *post)):
            raise refusal(
                meta.at("once"),
                f"once: no task has the step {step}, so nothing would run once. Remove the step, or tag a task with it.",
            )
    for piece in pieces:
        if piece.once and piece.step in (STEPS[0], MAY_STOP):
            raise refusal(
                piece.where,
                f"{ONCE} is not allowed in the step {piece.step}, which checks every host before it is changed. Remove the tag.",
            )
