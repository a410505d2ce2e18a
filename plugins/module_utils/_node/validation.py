# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validations and hooks: the operator's own checks and actions on a node, which are the executables of a folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from .._common.errors import Code, UpgradeError
from .._common.names import in_order
from .._common.sanitize import sanitize
from .process import last_lines, run_process

VALIDATION, HOOK = "validation", "hook"
_CODES: dict[str, Code] = {VALIDATION: "validation_failed", HOOK: "hook_failed"}
_REMEDIES = {
    VALIDATION: "Fix that on the host, and run the validation there: it has to exit with 0.",
    HOOK: "Fix that on the host; the next try runs the hook again.",
}
# Files that are not meant to run, whatever their modes: hidden ones, descriptions, those that an operator has disabled, and what editors and
# package managers leave.
_IGNORED = (".*", "README*", "*.disabled", "*~", "*.bak", "*.orig", "*.dpkg-*", "*.rpm*")


@dataclass(frozen=True)
class PassedValidation:
    """A validation that passed.

    :param seconds: how long it took.
    """

    name: str
    seconds: float
    output: str


def validations(folder: str, kind: str = VALIDATION) -> list[str]:
    """Return the names of the validations in a folder, in the order in which they run; empty if there is no folder.

    Subfolders, and files whose names say that they are not meant to run, are ignored.

    :raises UpgradeError: ``unreadable_folder``; ``validation_failed`` or ``hook_failed`` if one can't run, such as a file that is not executable.
    """
    try:
        return in_order(_names(folder, kind))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UpgradeError("unreadable_folder", f"path: {folder} can't be read: {error.strerror}.") from error


def _names(folder: str, kind: str) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda found: found.name):
        if entry.is_dir() or any(fnmatch(entry.name, pattern) for pattern in _IGNORED):
            continue
        path = shlex.quote(name := sanitize(entry.path))
        if not entry.is_file():
            problem, remedy = (
                ("is a link to nothing", f"ln -sf PROGRAM {path}")
                if entry.is_symlink()
                else ("is no file", f"rm {path}")
            )
        elif not os.access(entry.path, os.X_OK):
            problem, remedy = "is not executable", f"chmod +x {path}"
        else:
            yield entry.name
            continue
        raise UpgradeError(
            _CODES[kind],
            f"{path} {problem}, so this {kind} can't run. Run {remedy} on the host, or mv {path} {shlex.quote(name + '.disabled')}",
            name=entry.name,
        )


def validate(folder: str, seconds: float, kind: str = VALIDATION) -> list[PassedValidation]:
    """Run the validations of a folder one after the other, up to the first that fails; return those that passed.

    :param seconds: how long each may take.
    :param kind: validation or hook, which fail with different codes.
    :raises UpgradeError: ``validation_failed`` or ``hook_failed``; the details have ``name``, ``exit_code`` and ``output``.
    """
    passed = []
    for name in validations(folder, kind):
        path = Path(folder) / name
        ended = run_process([str(path)], seconds)
        if ended.code:
            why = f"ended with {ended.code}"
        elif ended.code is None:
            why = f"took longer than {seconds:g} s and was ended"
        else:
            passed.append(PassedValidation(name, round(ended.seconds, 3), ended.output))
            continue
        raise UpgradeError(
            _CODES[kind],
            f"{path} {why}: {(last_lines(ended.output) or 'it printed nothing').rstrip('.')}. {_REMEDIES[kind]}",
            name=name,
            exit_code=ended.code,
            output=ended.output,
            passed=[one.name for one in passed],
        )
    return passed
