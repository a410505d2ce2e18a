# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the steps: each is a file of the folder ``steps``, and its name says which layout it leads to."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from .step import MigrationStep

_NAME = re.compile(r"to_([1-9][0-9]*)\.py")
_FOLDER = Path(__file__).parent / "steps"


def find_steps() -> list[MigrationStep]:
    """Return all steps in order, the first of which leads to layout 1.

    :raises UpgradeError: ``missing_step`` where one is not there, so that a layout could not be reached.
    """
    numbers = sorted(int(found[1]) for path in _FOLDER.iterdir() if (found := _NAME.fullmatch(path.name)))
    for number in range(1, max(numbers, default=1) + 1):
        if number not in numbers:
            raise UpgradeError(
                "missing_step",
                f"The step to layout {number} is missing: there is no {_FOLDER / f'to_{number}.py'}. Install convoy.upgrade again.",
            )
    return [_step(number) for number in numbers]


def _step(number: int) -> MigrationStep:
    module = importlib.import_module(f"{__package__}.steps.to_{number}")
    step: MigrationStep = module.STEP
    if step.number != number:
        raise UpgradeError("missing_step", f"{module.__file__} leads to layout {step.number}, and not to {number}.")
    return step
