# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a service's `meta/upgrade.yml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ...module_utils._common.names import did_you_mean
from ...module_utils._rules.allowed_versions import VersionRules
from .path_key import read_versions
from .planes import PLANES
from .refusal import refusal
from .steps import POST, STEPS, step_of_tag
from .version_keys import WAY_KEYS, read_version_rules

KEYS = ("requires", "once", "stop_together", "plane", "upgrade_path", "provider", "needs_controller", *WAY_KEYS)


@dataclass(frozen=True, slots=True)
class ServiceMeta:
    """A service's ``meta/upgrade.yml``. A missing file counts as an empty one.

    :param file: the file, for messages.
    :param lines: key -> its line; None if there is no file.
    :param requires: services that are upgraded before it.
    :param once: steps that one host per version runs for all.
    :param stop_together: whether all services of its role are stopped before any of them is upgraded, and started after all are.
    :param plane: the plane that it belongs to; None if it fits into both.
    :param upgrade_path: version -> file below the folder ``tasks`` that upgrades a host to it, in any order.
    :param provider: whether it upgrades something shared with a version of its own, such as a database, which one host upgrades.
    :param version_rules: which versions may be upgraded to which.
    :param needs_controller: whether it acts on other hosts or needs a connection from another machine, so that pull hosts can't run it.
    """

    file: str
    lines: Mapping[str, int] | None = field(default=None, compare=False)
    requires: Sequence[str] = ()
    once: Sequence[str] = ()
    stop_together: bool = False
    plane: str | None = None
    upgrade_path: Mapping[str, str] = field(default_factory=dict)
    provider: bool = False
    version_rules: VersionRules = field(default_factory=VersionRules)
    needs_controller: bool = False

    def at(self, key: str) -> str:
        """Return file and line of a key, for messages."""
        return self.file if self.lines is None else f"{self.file}:{self.lines.get(key, 1)}"


def read_meta(path: Path) -> ServiceMeta:
    """Return the ``meta/upgrade.yml`` of the role in a folder.

    :raises UpgradeError: ``bad_service``.
    """
    file = path / "meta/upgrade.yml"
    if not file.is_file():
        return ServiceMeta(str(file), version_rules=VersionRules(str(file)))
    try:
        text = file.read_text(encoding="utf-8-sig")
        data = yaml.safe_load(text) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise refusal(str(file), f"the file can't be read: {' '.join(str(error).split())}.") from error
    if not isinstance(data, Mapping):
        raise refusal(f"{file}:1", f"{data!r} is not a mapping with {', '.join(KEYS[:-1])} and {KEYS[-1]}.")
    where = ServiceMeta(str(file), _lines(text))
    for key in data:
        if key not in KEYS:
            raise refusal(
                where.at(str(key)),
                f"unknown key {key!r}{did_you_mean(str(key), KEYS) or '.'} Known are: {', '.join(KEYS)}.",
            )
    return ServiceMeta(
        where.file,
        where.lines,
        requires=_names(data.get("requires"), where.at("requires"), "requires"),
        once=_steps(data.get("once"), where.at("once")),
        stop_together=_bool(data.get("stop_together"), where.at("stop_together"), "stop_together"),
        plane=read_plane(data.get("plane"), where.at("plane")),
        upgrade_path=read_versions(data.get("upgrade_path"), where.at("upgrade_path")),
        provider=_bool(data.get("provider"), where.at("provider"), "provider"),
        version_rules=read_version_rules(data, where.at, where.file),
        needs_controller=_bool(data.get("needs_controller"), where.at("needs_controller"), "needs_controller"),
    )


def read_plane(value: object, where: str) -> str | None:
    """Return a plane; None for none.

    :param where: file and line, for messages.
    :raises UpgradeError: ``bad_service``.
    """
    if value is not None and value not in PLANES:
        raise refusal(
            where, f"{value!r} is not a plane{did_you_mean(str(value), PLANES) or '.'} Planes are: {', '.join(PLANES)}."
        )
    return None if value is None else str(value)


def _lines(text: str) -> dict[str, int]:
    root = yaml.compose(text, yaml.SafeLoader)
    pairs: Sequence[Any] = root.value if isinstance(root, yaml.MappingNode) else ()
    # For a duplicate key, the first line counts.
    return {name.value: name.start_mark.line + 1 for name, _value in reversed(pairs)}


def _steps(value: object, where: str) -> list[str]:
    found = []
    for name in _names(value, where, "once"):
        step = POST if name == POST else step_of_tag(name, where)
        if step is None:
            raise refusal(
                where,
                f"once: {name!r} is not a step{did_you_mean(name, (*STEPS, POST)) or '.'} Steps are: {', '.join((*STEPS, POST))}.",
            )
        found.append(step)
    return found


def _bool(value: object, where: str, key: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise refusal(where, f"{key}: {value!r} is neither true nor false.")
    return bool(value)


def _names(value: object, where: str, key: str) -> list[str]:
    found = [value] if isinstance(value, str) else ([] if value is None else value)
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise refusal(where, f"{key}: {value!r} is not a list of names.")
    return found
