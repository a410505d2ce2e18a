# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases of runs that have ended: a run counts as ended only if that is certain."""

from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import boot_id, start_ticks
from ansible_collections.convoy.upgrade.plugins.module_utils._host.leases import LeaseHolder


def holder(pid: int, started: int, machine: str | None = None) -> LeaseHolder:
    return LeaseHolder("ann@here", 1, "session", boot_id() if machine is None else machine, pid, started)


def test_a_run_is_dead_only_after_it_has_ended() -> None:
    process = subprocess.Popen(["sleep", "60"])
    started = start_ticks(process.pid) or 0
    assert not holder(process.pid, started).is_dead
    # Another process has the same PID.
    assert holder(process.pid, started - 1).is_dead
    # A run that could not see its own start, as in a container with the /proc of its machine.
    assert not holder(process.pid, 0).is_dead
    process.kill()
    process.wait()
    assert holder(process.pid, started).is_dead


@pytest.mark.parametrize("machine", ["", "another"])
def test_a_run_on_another_machine_is_not_known_to_be_dead(machine: str) -> None:
    assert not holder(2**22 + 1, 1, machine).is_dead


def test_a_run_of_another_user_is_not_known_to_be_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = holder(2**22 + 1, 1)
    assert theirs.is_dead
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not theirs.is_dead
