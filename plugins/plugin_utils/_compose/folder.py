# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder that a composition is written to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...module_utils._common.errors import UpgradeError

# By this file a folder is known to be a composition, and none of somebody's own things.
SIGN = "composition.json"


@dataclass(frozen=True, slots=True)
class Difference:
    """A file before and after; None where it is not there."""

    path: str
    before: bytes | None
    after: bytes | None


def compare(folder: Path, files: Mapping[str, bytes]) -> list[Difference]:
    """Return in which files a folder differs from what it should hold.

    :raises UpgradeError: ``bad_folder`` for a folder with other things in it.
    """
    before = _read(folder)
    strange = sorted(before.keys() - _listed(before.get(SIGN, b"")))
    if strange:
        raise UpgradeError(
            "bad_folder",
            f"folder: {folder} holds other things than a composition ({strange[0]} for one). Give a folder of its own.",
        )
    return [
        Difference(path, before.get(path), files.get(path))
        for path in sorted({*before, *files})
        if before.get(path) != files.get(path)
    ]


def write(folder: Path, differences: list[Difference]) -> None:
    """Make a folder hold what it should.

    :raises UpgradeError: ``bad_folder``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in differences:
            path = folder / one.path
            if one.after is None:
                path.unlink()
                _remove_empty(path.parent, folder)
        # The file that names all others is written first, so that what is interrupted is known as a composition.
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
    """Make a folder again, with these files and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    write(folder, [Difference(path, None, content) for path, content in files.items()])


def _read(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    inside = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    # A folder may be under version control, and Python leaves things beside modules that were run from it.
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
