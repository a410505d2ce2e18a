# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose claim on a host is that of a run that is gone: only what can be known for sure counts."""

from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import boot_id, start_ticks
from ansible_collections.convoy.upgrade.plugins.module_utils._host.leases import LeaseHolder


def holder(pid: int, started: int, machine: str | None = None) -> LeaseHolder:
    return LeaseHolder("ann@here", 1, "session", boot_id() if machine is None else machine, pid, started)


def test_a_run_that_is_there_is_not_dead_and_one_that_ended_is() -> None:
    process = subprocess.Popen(["sleep", "60"])
    started = start_ticks(process.pid) or 0
    assert not holder(process.pid, started).is_dead
    # The same number, given to another process since.
    assert holder(process.pid, started - 1).is_dead
    process.kill()
    process.wait()
    assert holder(process.pid, started).is_dead


@pytest.mark.parametrize("machine", ["", "another"])
def test_of_another_machine_nothing_is_known(machine: str) -> None:
    assert not holder(2**22 + 1, 1, machine).is_dead


def test_of_another_users_run_nothing_is_known_as_it_may_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = holder(2**22 + 1, 1)
    assert theirs.is_dead
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not theirs.is_dead
