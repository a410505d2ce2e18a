# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planner service finds a new handover, in whatever order its watches see the write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.planner_service import PlannerService


class Watch:
    """A watch that sees a change after it was asked some times.

    :param reads: how often it is asked before that.
    """

    def __init__(self, reads: int) -> None:
        self.reads = reads

    def wait(self, _mark: int, _seconds: float) -> bool:
        self.reads -= 1
        return self.reads < 0


class Passes:
    """Passes that see the write of the handover first, and nothing after it."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) == 1


@pytest.mark.parametrize("reads", [0, 1, 2, 3])
def test_a_new_handover_is_found_soon_although_the_passes_saw_it_first(
    reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent: Any = mock.Mock(every=20.0)
    connection: Any = SimpleNamespace(consul=Settings())
    planner = PlannerService(connection, silent, silent, silent)
    passes = Passes()
    work: Any = SimpleNamespace(handover=SimpleNamespace(by="ann", id="1"), passes=passes, own="mine", is_after=False)
    monkeypatch.setattr(planner, "_handover", Watch(reads))
    monkeypatch.setattr(planner, "_make_pass", lambda *_given: SimpleNamespace(plan=SimpleNamespace(complete=False)))
    planner._carry(work, Ledger(1, "2"), 0)
    # It never waits for as long as the interval in which systemd wants to hear of it.
    assert sum(passes.waited) <= 3


def test_a_refusal_because_of_hosts_that_are_not_upgraded_lasts_until_a_key_of_the_fleet_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "sleep", lambda _seconds: None)
    silent: Any = mock.Mock(every=20.0)
    connection: Any = SimpleNamespace(consul=Settings())
    planner = PlannerService(connection, silent, silent, silent)
    passes = Passes()
    work: Any = SimpleNamespace(passes=passes)
    monkeypatch.setattr(planner, "_either", Watch(99))
    monkeypatch.setattr(planner, "_work", work)
    planner._rest_after_refusal("denied", 0)
    assert passes.waited == []
    planner._rest_after_refusal("not_complete", 0)
    (seconds,) = passes.waited
    assert 9 < seconds <= 10
