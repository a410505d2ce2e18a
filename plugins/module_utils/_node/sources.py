# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package sources that come with a version: write them, and remove those that only the version before had."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .._common.errors import UpgradeError
from .._common.names import check_version, in_order, listing
from .._common.sanitize import truncated_repr

# Where the files of a version go, by the ends of their names. apt and dnf read no others there.
_FOLDERS = {
    ".list": "/etc/apt/sources.list.d",
    ".sources": "/etc/apt/sources.list.d",
    ".pref": "/etc/apt/preferences.d",
    ".asc": "/etc/apt/keyrings",
    ".repo": "/etc/yum.repos.d",
}
# apt ignores files with other characters in their names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_MOST_BYTES = 1_000_000
# What stands for the version, as in the templates that come with enrollment.
_VERSION = re.compile(r"\{\{[ \t]*version[ \t]*\}\}")


@dataclass(frozen=True)
class SourceChange:
    """A file before and after; None if it does not exist."""

    path: str
    before: str | None
    after: str | None


def read_folder(folder: str) -> dict[str, str]:
    """Return name -> content of the files in a folder.

    :raises UpgradeError: ``no_sources``, ``bad_sources``.
    """
    found = {}
    try:
        for entry in os.scandir(folder):
            if entry.is_file() and not entry.name.startswith("."):
                found[entry.name] = _text(entry.path, Path(entry.path).read_bytes())
    except OSError as error:
        raise UpgradeError(
            "no_sources",
            f"folder: the package sources can't be read: {error.filename or folder}: {error.strerror}. Put them there.",
            folder=folder,
        ) from error
    if not found:
        raise UpgradeError(
            "no_sources", f"folder: {folder} has no package sources. Put them there, such as fleet.list.", folder=folder
        )
    return found


def for_version(files: Mapping[str, str], version: str) -> dict[str, str]:
    """Return the files with the version in place of ``{{ version }}``. Nothing else in them is evaluated: others may write them to Consul.

    :param files: name -> content.
    :raises UpgradeError: ``bad_name`` if it can't be a version.
    """
    check_version(version, "version")
    return {name: _VERSION.sub(lambda _found: version, content) for name, content in files.items()}


def write_sources(files: Mapping[str, str], state_file: str, *, dry: bool = False) -> list[SourceChange]:
    """Write the files of a version, and remove those that an earlier call wrote and this version lacks; return what changed.

    The state file lists what was written. It is written first, so that an interrupted call leaves no file that no later one removes.

    :param files: name -> content.
    :param dry: check mode: write nothing.
    :raises UpgradeError: ``bad_sources``; then nothing is changed. ``unwritten_sources``.
    """
    target = {_path(name): content for name, content in files.items()}
    state = Path(state_file)
    before = _listed(state)
    changes = []
    for path in in_order({*target, *before}):
        present = _content(path)
        if present != target.get(path):
            changes.append(SourceChange(path, present, target.get(path)))
    if dry:
        return changes
    try:
        if before != set(target):
            _write_state(state, before.union(target))
        for change in changes:
            if change.after is None:
                Path(change.path).unlink()
                _sync_folder(Path(change.path).parent)
            else:
                _write(Path(change.path), change.after)
        if before != set(target):
            _write_state(state, target)
    except OSError as error:
        raise UpgradeError(
            "unwritten_sources",
            f"The package sources can't be written: {error.filename}: {error.strerror}. Fix that, and run it again.",
        ) from error
    return changes


def _text(path: str, content: bytes) -> str:
    with contextlib.suppress(UnicodeDecodeError):
        if len(content) <= _MOST_BYTES:
            return content.decode("utf-8")
    raise UpgradeError("bad_sources", f"{path} is not UTF-8 text of at most {_MOST_BYTES} bytes. Correct or remove it.")


def _path(name: str) -> str:
    folder = _FOLDERS.get(Path(name).suffix)
    if folder is None or not _NAME.fullmatch(name):
        raise UpgradeError(
            "bad_sources",
            f"files: {truncated_repr(name)} can't be a file of package sources. Its name needs one of the ends {listing(list(_FOLDERS), 10)}, and "
            "only letters, digits, '.', '_' and '-'. Rename it.",
            name=name,
        )
    return f"{folder}/{name}"


def _listed(state: Path) -> set[str]:
    """Return the paths that earlier calls wrote."""
    try:
        found = json.loads(state.read_bytes())
        paths = {_path(Path(path).name) for path in found}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, TypeError, UpgradeError) as error:
        raise UpgradeError(
            "bad_sources",
            f"state_file: {state} can't be read, so it is not known which package sources belong to the version before: {error}. Remove the "
            "package sources that are no longer wanted, and this file.",
        ) from error
    return paths


def _content(path: str) -> str | None:
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UpgradeError("bad_sources", f"{path} can't be read: {error.strerror}. Correct or remove it.") from error


def _write(path: Path, content: str) -> None:
    """Write a file as a whole, so that neither apt nor dnf reads a part of it."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # apt and dnf ignore files with this name.
    new = path.with_name(f".{path.name}.convoy")
    with new.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        # After a power cut, the file would be empty otherwise.
        os.fsync(file.fileno())
    new.chmod(0o644)
    new.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_state(state: Path, paths: Iterable[str]) -> None:
    _write(state, json.dumps(in_order(paths), indent=2) + "\n")
