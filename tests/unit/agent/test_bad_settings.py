# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A failed service is started again: also if the unit that started it has not ended, and without systemd nothing happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from convoy_node import bad_settings


@pytest.mark.parametrize(("fails", "tries"), [(0, 1), (1, 2), (9, 3)])
def test_the_timer_is_tried_again_while_the_one_before_is_there(
    fails: int, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "systemd-run"
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n[ "$(wc -l <{tmp_path}/calls)" -gt {fails} ]\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(bad_settings.time, "sleep", lambda _seconds: None)
    bad_settings.start_again()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == tries
    assert "--unit=convoy-node-again" in calls[0]


def test_without_systemd_nothing_starts_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bad_settings.time, "sleep", None)
    bad_settings.start_again()
