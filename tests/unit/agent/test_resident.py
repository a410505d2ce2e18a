# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The loop of the resident agent: what a signal ends, without a server and without signals of this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from convoy_node import resident
from convoy_node.decision import NextAction
from convoy_node.machine.signals import Signals
from convoy_node.resident import Resident


class NoSignals(Signals):
    """Signals that tests give. Those of the agent would take over the handlers of this process."""

    def __init__(self) -> None:
        self.is_over = self.read_again = False


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resident:
    monkeypatch.setattr(resident, "Signals", NoSignals)
    monkeypatch.setattr(resident, "keep_last_good", lambda _settings, _path: None)
    file = tmp_path / "node.json"
    file.write_text(json.dumps({"puppet_gate_host": "compute7"}))
    return Resident(str(file), lambda _text: None)


@pytest.mark.parametrize("when", ["look", "run", "never"])
def test_a_signal_that_ends_the_service_starts_no_run_and_no_other_release(
    when: str, agent: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def note(what: str) -> None:
        done.append(what)
        agent._signals.is_over = agent._signals.is_over or what == when

    def look() -> NextAction:
        note("look")
        return NextAction("upgrade to v2", "open", 1.0)

    monkeypatch.setattr(agent._look, "look", look)
    monkeypatch.setattr(agent, "_make_run", lambda _what: note("run"))
    monkeypatch.setattr(agent, "_replace_release", lambda: note("release"))
    agent._look_and_act()
    assert done == {"look": ["look"], "run": ["look", "run"], "never": ["look", "run", "release"]}[when]


def test_the_trial_of_an_agent_looks_and_waits_and_starts_nothing(
    agent: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def look() -> NextAction:
        done.append("look")
        return NextAction("upgrade to v2", "open", 1.0)

    monkeypatch.setattr(agent._look, "look", look)
    monkeypatch.setattr(agent, "_wait", lambda _seconds: done.append("wait"))
    monkeypatch.setattr(agent, "_make_run", lambda _what: done.append("run"))
    assert agent.try_once() == 0
    assert done == ["look", "wait"]
