# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validations and hooks: the operator's own checks and actions on a node, which are the executables of a folder."""

from __future__ import annotations

import os
import shlex
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
# package managers leave. Each is a whole end, because a validation may be called 50-check.rpmdb.sh.
_ENDS = "disabled bak orig dpkg-old dpkg-dist dpkg-new dpkg-tmp ucf-old ucf-dist ucf-new rpmnew rpmsave rpmorig"
_IGNORED = (".*", "README*", "*~", *(f"*.{end}" for end in _ENDS.split()))


@dataclass(frozen=True)
class PassedValidation:
    """A validation that passed.

    :param seconds: how long it took.
    """

    name: str
    seconds: float
    output: str


def validations(folder: str) -> list[str]:
    """Return the names of the validations in a folder, in the order in which they run; empty if there is no folder.

    They are its executables, without files whose names say that they are not meant to run. Other files are data.

    :raises UpgradeError: ``unreadable_folder``.
    """
    return in_order(path.name for path in _paths(folder) if os.access(path, os.X_OK) and path.is_file())


def check_validations(folder: str, kind: str = VALIDATION) -> None:
    """Raise an error if a file of a folder is meant to run and can't: a program without its x bit, or a link to nothing.

    This is for the time before an upgrade takes something down: later, the files that can run do.

    :raises UpgradeError: ``unreadable_folder``; ``validation_failed`` or ``hook_failed``.
    """
    for path in _paths(folder):
        quoted = shlex.quote(name := sanitize(str(path)))
        if path.is_symlink() and not os.access(path, os.F_OK):
            problem, remedy = "is a link to nothing", f"ln -sf PROGRAM {quoted}"
        elif not os.access(path, os.X_OK) and path.is_file() and _is_program(path):
            problem, remedy = "begins with #! and is not executable", f"chmod +x {quoted}"
        else:
            continue
        raise UpgradeError(
            _CODES[kind],
            f"{quoted} {problem}, so this {kind} can't run. Run {remedy} on the host, or mv {quoted} {shlex.quote(name + '.disabled')}",
            name=path.name,
        )


def _paths(folder: str) -> list[Path]:
    """Return what a folder has, in the order of the names, without what is ignored."""
    try:
        found = sorted(Path(folder).iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UpgradeError("unreadable_folder", f"path: {folder} can't be read: {error.strerror}.") from error
    return [path for path in found if not any(fnmatch(path.name, pattern) for pattern in _IGNORED)]


def _is_program(path: Path) -> bool:
    """Return whether a file names its interpreter. One that can't be read may do so."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True


def validate(folder: str, seconds: float, kind: str = VALIDATION) -> list[PassedValidation]:
    """Run the validations of a folder one after the other, up to the first that fails; return those that passed.

    :param seconds: how long each may take.
    :param kind: validation or hook, which fail with different codes.
    :raises UpgradeError: ``validation_failed`` or ``hook_failed``; the details have ``name``, ``exit_code`` and ``output``.
    """
    passed = []
    for name in validations(folder):
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
