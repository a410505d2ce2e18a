# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Migration steps are found by their file names, and none is missing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.migration import release_number, release_of
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import SCHEMA
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate import step_finder

STEPS = Path(step_finder.__file__).parent / "steps"


def test_there_is_a_step_to_every_layout_up_to_the_one_that_this_release_writes() -> None:
    assert [step.number for step in step_finder.find_steps()] == list(range(1, SCHEMA + 1))


def test_each_step_says_from_which_release_on_its_layout_is_known() -> None:
    for step in step_finder.find_steps():
        assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", step.release)
        assert release_of(release_number(step.release)) == step.release
        assert step.title


def test_each_step_has_a_test_of_its_own() -> None:
    for path in STEPS.glob("to_*.py"):
        assert (Path(__file__).parent / "steps" / f"test_{path.name}").exists(), path


@pytest.mark.parametrize("lacking", ["to_1.py", "to_2.py"])
def test_a_layout_that_no_step_leads_to_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    for name in ("to_1.py", "to_2.py", "to_3.py", "notes.txt"):
        shutil.copy(STEPS / "to_1.py", tmp_path / name)
    (tmp_path / lacking).unlink()
    monkeypatch.setattr(step_finder, "_FOLDER", tmp_path)
    with pytest.raises(UpgradeError, match=f"{tmp_path / lacking} does not exist"):
        step_finder.find_steps()


def test_without_any_step_that_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_finder, "_FOLDER", tmp_path)
    with pytest.raises(UpgradeError, match="The step to layout 1 is missing"):
        step_finder.find_steps()
