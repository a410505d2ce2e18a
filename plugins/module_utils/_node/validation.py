# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validations and hooks: the operator's own checks and actions on a node, which are the executables of a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .._common.errors import Code, UpgradeError
from .._common.names import in_order
from .process import last_lines, run_process

VALIDATION, HOOK = "validation", "hook"
_CODES: dict[str, Code] = {VALIDATION: "validation_failed", HOOK: "hook_failed"}
_REMEDIES = {
    VALIDATION: "Fix that on the host, and run the validation there: it has to exit with 0.",
    HOOK: "Fix that on the host; the next try runs the hook again.",
}


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

    :raises UpgradeError: ``unreadable_folder``.
    """
    try:
        files = [entry.name for entry in os.scandir(folder) if entry.is_file() and os.access(entry.path, os.X_OK)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UpgradeError("unreadable_folder", f"path: {folder} can't be read: {error.strerror}.") from error
    return in_order(name for name in files if not name.startswith("."))


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
