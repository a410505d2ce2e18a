# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares and writes the folder of a composition."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...module_utils._common.errors import UpgradeError

# A folder with this file is a composition. It lists the other files.
SIGN = "composition.json"


@dataclass(frozen=True, slots=True)
class Difference:
    """A file before and after; None if it does not exist."""

    path: str
    before: bytes | None
    after: bytes | None


def read_composition(folder: Path) -> dict[str, Any]:
    """Return the composition in a folder that was written before, as ``compose_upgrade_tasks`` returned it.

    :raises UpgradeError: ``bad_folder``.
    """
    try:
        found: dict[str, Any] = json.loads((folder / SIGN).read_bytes())
    except (OSError, ValueError) as error:
        raise UpgradeError(
            "bad_folder",
            f"composed: {folder / SIGN} can't be read ({error}), so {folder} holds no composition. Give the folder that "
            "ansible-playbook convoy.upgrade.compose wrote.",
        ) from error
    return {**found, "changed": False, "folder": str(folder), "run_folder": str(folder), "diff": []}


def refuse_untrusted(folder: Path) -> None:
    """Refuse a composition that another user than root, or the one who runs this, could change.

    :raises UpgradeError: ``untrusted_services``.
    """
    owners = (0, os.geteuid())
    for path in (*reversed(folder.parents), folder, *sorted(folder.rglob("*"))):
        facts = path.lstat()
        is_shared = path in folder.parents and bool(facts.st_mode & stat.S_ISVTX)
        is_writable = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (stat.S_ISLNK(facts.st_mode) or is_shared)
        if facts.st_uid not in owners or is_writable:
            mode = f"user {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):04o}"
            raise UpgradeError(
                "untrusted_services",
                f"{path} can be changed by others than root ({mode}), so no task in {folder} runs. Run chown -R root: {folder}; chmod -R go-w {folder}.",
                path=str(path),
            )


def compare(folder: Path, files: Mapping[str, bytes]) -> list[Difference]:
    """Return the files in which a folder differs from a composition.

    :param files: path below the folder -> content.
    :raises UpgradeError: ``bad_folder`` for a folder with other files in it.
    """
    before = _read(folder)
    strange = sorted(before.keys() - _listed(before.get(SIGN, b"")))
    if strange:
        raise UpgradeError(
            "bad_folder",
            f"folder: {folder} has files that belong to no composition, such as {strange[0]}. Give another folder.",
        )
    return [
        Difference(path, before.get(path), files.get(path))
        for path in sorted({*before, *files})
        if before.get(path) != files.get(path)
    ]


def write(folder: Path, differences: list[Difference]) -> None:
    """Write the differences to a folder.

    :raises UpgradeError: ``bad_folder``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in differences:
            path = folder / one.path
            if one.after is None:
                path.unlink()
                _remove_empty(path.parent, folder)
        # SIGN is written first, so that an interrupted composition is still recognized as one.
        for one in sorted(differences, key=lambda one: one.path != SIGN):
            path = folder / one.path
            if one.after is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(one.after)
    except OSError as error:
        raise UpgradeError(
            "bad_folder", f"folder: {error.filename or folder} can't be written: {error.strerror}. Give another folder."
        ) from error


def write_new(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace a folder by one with only these files."""
    shutil.rmtree(folder, ignore_errors=True)
    write(folder, [Difference(path, None, content) for path, content in files.items()])


def _read(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    inside = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    # Files of version control and of Python's cache are ignored.
    return {
        str(name): path.read_bytes()
        for name, path in inside.items()
        if not name.parts[0].startswith(".") and "__pycache__" not in name.parts
    }


def _listed(sign: bytes) -> set[str]:
    try:
        return {str(path) for path in json.loads(sign)["files"]}
    except (ValueError, TypeError, KeyError):
        return set()


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
