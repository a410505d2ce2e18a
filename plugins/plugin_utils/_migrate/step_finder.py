# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the migration steps. Each is a file in the folder ``steps``, such as ``to_1.py`` for layout 1."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from .step import MigrationStep

_NAME = re.compile(r"to_([1-9][0-9]*)\.py")
_FOLDER = Path(__file__).parent / "steps"


def find_steps() -> list[MigrationStep]:
    """Return all steps in order, beginning with the one to layout 1.

    :raises UpgradeError: ``missing_step`` if a step between two others is missing.
    """
    numbers = sorted(int(found[1]) for path in _FOLDER.iterdir() if (found := _NAME.fullmatch(path.name)))
    for number in range(1, max(numbers, default=1) + 1):
        if number not in numbers:
            raise UpgradeError(
                "missing_step",
                f"The step to layout {number} is missing: {_FOLDER / f'to_{number}.py'} does not exist. Install convoy.upgrade again.",
            )
    return [_step(number) for number in numbers]


def _step(number: int) -> MigrationStep:
    module = importlib.import_module(f"{__package__}.steps.to_{number}")
    step: MigrationStep = module.STEP
    if step.number != number:
        raise UpgradeError("missing_step", f"{module.__file__} migrates to layout {step.number}, not to {number}.")
    return step
