# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Events that a hook gets twice, or that are not so, or that it does not get, are found; what the documentation allows is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fire.facts import HISTORY, LEDGER, NOTIFIED
from fire.replay import Entry, State, Step

from .network import Network
from .notified import Hook
from .world import Process, World

_PAUSED = {1: "begin", 2: "pause"}


def keys(history: Mapping[int, str], noted: int = 0, state: str = "running") -> State:
    found: dict[str, Any] = {f"{HISTORY}{epoch}": {"what": what} for epoch, what in history.items()}
    found |= {NOTIFIED: {"epoch": noted}, LEDGER: {"state": state}}
    return {key: Entry(json.dumps(value), 1) for key, value in found.items()}


class _Site:
    """A world with a hook, and notifiers that call it when a test says so."""

    def __init__(self) -> None:
        self.world = World("hook")
        self.network = SimpleNamespace(listeners=[], now=keys({}), lines={})
        self.hook = Hook(self.world, cast(Network, self.network))
        self.processes = {name: Process(self.world, name) for name in ("notifier1", "notifier2")}

    def send(self, name: str, at: float, epoch: int, event: str) -> None:
        """Let a notifier start at a time, and send an event at once."""
        process = self.processes[name]
        self.world.call(lambda: process.start(lambda: self.hook.call({"epoch": epoch, "event": event})), at)

    def at(self, seconds: float, act: Callable[[], Any]) -> None:
        self.world.call(act, seconds)

    def keep(self, state: State) -> None:
        self.network.now = state

    def restore(self, state: State) -> None:
        step = Step(9, self.network.now, state, None, is_restore=True)
        for listener in self.network.listeners:
            listener(step)
        self.network.now = state

    def problems(self) -> list[str]:
        self.world.run(60, lambda: False)
        return [*self.hook.problems()]


@pytest.fixture
def site() -> Iterator[_Site]:
    found = _Site()
    yield found
    found.world.end()


def test_each_event_is_sent_once(site: _Site) -> None:
    site.keep(keys(_PAUSED))
    site.send("notifier1", 1, 1, "begin")
    site.send("notifier1", 2, 2, "pause")
    assert site.problems() == []


@pytest.mark.parametrize(
    ("keys_after", "problems"),
    [
        (["failure_rules.roles.web"], []),
        (["failure_rules.roles.db"], ["pause of epoch 3 was not sent"]),
        (["failure_rules.fleet", "failure_rules.roles.web"], ["pause of epoch 3 was not sent"]),
        ([], ["resume of epoch 3 was not sent"]),
    ],
)
def test_a_budget_that_recovers_among_others_is_no_event(
    site: _Site, keys_after: list[str], problems: list[str]
) -> None:
    state = dict(keys({1: "begin"}))
    before = ["failure_rules.roles.web", "failure_rules.roles.app"]
    for epoch, names in ((2, before), (3, keys_after)):
        state[f"{HISTORY}{epoch}"] = Entry(json.dumps({"what": "budget", "keys": names}), 1)
    site.keep(state)
    site.send("notifier1", 1, 1, "begin")
    site.send("notifier1", 2, 2, "pause")
    assert site.problems() == problems


def test_an_event_was_not_sent(site: _Site) -> None:
    site.keep(keys(_PAUSED))
    site.send("notifier1", 1, 1, "begin")
    assert site.problems() == ["pause of epoch 2 was not sent"]


def test_an_event_is_not_so(site: _Site) -> None:
    site.keep(keys(_PAUSED))
    site.send("notifier1", 1, 1, "begin")
    site.send("notifier1", 2, 2, "pause")
    site.send("notifier1", 3, 2, "end")
    assert site.problems() == ["end of epoch 2 was sent, and the history has pause"]


def twice(site: _Site, again: str = "notifier2", noted: int = 0) -> list[str]:
    site.keep(keys({1: "begin"}, noted))
    site.send("notifier1", 1, 1, "begin")
    site.send(again, 5, 1, "begin")
    return site.problems()


def test_an_event_comes_twice(site: _Site) -> None:
    assert twice(site) == ["begin of epoch 1 was sent by notifier1, and again by notifier2"]


def test_it_may_come_again_if_the_first_sender_died_before_it_noted_that(site: _Site) -> None:
    site.at(3, lambda: site.processes["notifier1"].start(lambda: None))
    assert twice(site) == []


def test_but_not_if_it_went_on_before_it_died(site: _Site) -> None:
    first = site.processes["notifier1"]
    site.keep(keys({1: "begin"}))

    def send_two() -> None:
        site.hook.call({"epoch": 1, "event": "begin"})
        site.hook.call({"epoch": 1, "event": "failure"})

    site.at(1, lambda: first.start(send_two))
    site.at(3, lambda: first.start(lambda: None))
    site.send("notifier2", 5, 1, "begin")
    assert len(site.problems()) == 1


def test_or_if_the_first_sender_slept_then(site: _Site) -> None:
    site.at(1.001, site.processes["notifier1"].stop)
    assert twice(site) == []


def test_but_not_once_it_was_noted(site: _Site) -> None:
    site.at(3, lambda: site.processes["notifier1"].start(lambda: None))
    assert len(twice(site, noted=1)) == 1


def test_or_if_the_second_sender_had_asked_and_slept_since(site: _Site) -> None:
    second = site.processes["notifier2"]
    site.at(0.5, lambda: second.start(lambda: (site.world.wait(0.2), site.hook.call({"epoch": 1, "event": "begin"}))))
    site.at(0.6, second.stop)
    site.at(40, second.go_on)
    site.keep(keys({1: "begin"}, 1))
    site.send("notifier1", 1, 1, "begin")
    assert site.problems() == []


@pytest.mark.parametrize(("state", "noted", "missing"), [("running", 0, [3]), ("complete", 0, []), ("complete", 3, [])])
def test_a_notifier_that_begins_sends_what_the_current_rollout_missed(
    site: _Site, state: str, noted: int, missing: list[int]
) -> None:
    site.keep(keys({1: "begin", 2: "pause", 3: "begin"}, noted, state))
    site.hook.has_begun(noted)
    found = [f"begin of epoch {epoch} was not sent" for epoch in missing]
    if noted:
        found = ["begin of epoch 1 was not sent", "pause of epoch 2 was not sent", "begin of epoch 3 was not sent"]
    assert site.problems() == found


def test_epochs_are_given_again_after_a_restore(site: _Site) -> None:
    site.keep(keys(_PAUSED))
    site.send("notifier1", 1, 2, "pause")
    site.at(2, lambda: site.restore(keys({1: "begin"})))
    site.at(3, lambda: site.keep(keys({1: "begin", 2: "abort"})))
    site.send("notifier1", 4, 2, "end")
    assert site.problems() == []


def test_what_was_read_before_a_restore_is_sent_after_it(site: _Site) -> None:
    site.keep(keys(_PAUSED))
    site.at(2, lambda: site.restore(keys({1: "begin"})))
    site.send("notifier1", 3, 2, "pause")
    site.at(4, lambda: site.keep(keys(_PAUSED)))
    site.send("notifier1", 5, 2, "pause")
    assert site.problems() == []


def test_what_was_sent_before_a_restore_was_so_then(site: _Site) -> None:
    site.keep(keys({1: "begin"}))
    site.send("notifier1", 1, 2, "end")
    site.at(2, lambda: site.restore(keys({1: "begin"})))
    site.at(3, lambda: site.keep(keys({1: "begin", 2: "abort"})))
    assert site.problems() == ["end of epoch 2 was sent, and the history has None"]


def test_the_end_is_sent_after_a_restore(site: _Site) -> None:
    site.keep(keys(_PAUSED))
    site.restore(keys({1: "begin"}))
    site.keep(keys({1: "begin", 2: "abort"}))
    assert site.hook.has_sent_the_end
    site.keep(keys({1: "begin", 2: "pause", 3: "abort"}))
    assert not site.hook.has_sent_the_end
    site.send("notifier1", 1, 3, "end")
    site.problems()
    assert site.hook.has_sent_the_end
