# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The deliberate faults can be made: what they replace is in the product."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .mutations import MUTATIONS, ROOT, Mutation, apply


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_what_a_fault_replaces_is_there(mutation: Mutation, tmp_path: Path) -> None:
    file = tmp_path / mutation.path
    file.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutation.path, file)
    apply(mutation, tmp_path)
    compile(file.read_text(), mutation.file, "exec")
