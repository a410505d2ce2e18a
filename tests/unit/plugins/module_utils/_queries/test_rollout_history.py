# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history in memory: it is read once, then only what is new, and again from its beginning after a restore of Consul."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_history import (
    MOST_ROLLOUTS,
    RolloutHistory,
    summary,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from memory_consul import MemoryConsul


class Past:
    """A history in a Consul in memory."""

    def __init__(self, consul: MemoryConsul) -> None:
        self.consul = consul
        self.epoch, self.commit = 0, ""
        self.history = RolloutHistory(Store(Settings()))

    def add(self, what: str, version: str = "2", commit: str = "c", **more: Any) -> None:
        self.epoch, self.commit = self.epoch + 1, f"{commit}{self.epoch + 1}"
        event = {
            "what": what,
            "version": version,
            "at": 1000 + self.epoch,
            "epoch": self.epoch,
            "commit": self.commit,
            **more,
        }
        self.consul.keys[f"upgrade/history/{self.epoch}"] = json.dumps(event).encode()

    def refresh(self) -> bool:
        return self.history.refresh(Ledger(self.epoch, "2", commit=self.commit))

    def refresh_job(self) -> None:
        self.history.refresh(Ledger(self.epoch, "job/restart-1", commit=self.commit))

    @property
    def epochs(self) -> list[int]:
        return [event["epoch"] for event in self.history.current]


@pytest.fixture
def past() -> Iterator[Past]:
    with MemoryConsul().in_place() as consul:
        yield Past(consul)


def test_only_new_entries_are_read(past: Past) -> None:
    past.add("begin")
    for number in range(200):
        past.add("open", hosts={f"web{number}": "because"})
    assert past.refresh()
    assert past.epochs == [*range(1, 202)]
    requests = past.consul.requests
    assert not past.refresh()
    assert past.consul.requests == requests
    past.add("publish")
    assert past.refresh()
    assert (past.consul.requests, past.epochs[-1]) == (requests + 1, 202)


def test_earlier_rollouts_are_summaries_and_the_next_one_ends_the_current(past: Past) -> None:
    past.add("begin", "1", **{"from": "0", "by": "ann"})
    past.add("open", "1", hosts={"web1": "", "web2": ""})
    past.add("abort", "1", by="bob")
    past.add("begin", "2", **{"from": "1", "who": "ann@deploy1"})
    past.add("open", "2", hosts={"web1": ""})
    past.add("complete", "2")
    past.add("converge", "2")
    past.refresh()
    (first,) = past.history.former
    assert (first.version, first.previous_version, first.state, first.begun, first.end, first.by, first.admitted) == (
        "1", "0", "aborted", 1001, 1003, "ann", 2,
    )  # fmt: skip
    current = summary(past.history.current)
    assert current is not None
    assert (current.version, current.state, current.end, current.by) == ("2", "complete", 1007, "ann@deploy1")

    past.add("begin", "3")
    past.refresh()
    assert [(one.version, one.state) for one in past.history.former] == [("2", "complete"), ("1", "aborted")]
    running = summary(past.history.current)
    assert running is not None
    assert (running.state, running.end) == ("running", 0)
    past.add("begin", "4")
    past.refresh()
    assert (past.history.former[0].state, past.history.former[0].end) == ("replaced", 1009)


def test_after_a_restore_the_history_is_read_from_its_beginning(past: Past) -> None:
    past.add("begin")
    past.add("open", hosts={"web1": ""})
    past.refresh()
    # An older snapshot, and other writes after it.
    past.epoch = 1
    for _write in range(3):
        past.add("pause", commit="other")
    past.refresh()
    assert [event["what"] for event in past.history.current] == ["begin", "pause", "pause", "pause"]
    past.epoch, past.commit = 1, "c1"
    past.refresh()
    assert past.epochs == [1]
    assert past.history.refresh(None)
    assert (past.history.current, past.history.former) == ([], [])


def test_a_long_history_is_not_read_to_its_end(past: Past) -> None:
    for number in range(MOST_ROLLOUTS + 10):
        past.add("begin", str(number + 1))
        past.add("complete", str(number + 1))
    past.refresh()
    assert len(past.history.former) == MOST_ROLLOUTS
    for number in range(MOST_ROLLOUTS):
        past.add("begin", str(number + 100))
    past.refresh()
    assert len(past.history.former) == MOST_ROLLOUTS


def test_a_history_without_its_beginning_is_what_is_left(past: Past) -> None:
    past.add("begin")
    past.add("open", hosts={"web1": ""})
    past.add("pause")
    del past.consul.keys["upgrade/history/1"]
    past.refresh()
    assert past.epochs == [2, 3]
    assert summary([]) is None


def test_once_a_job_is_over_the_rollout_before_it_is_the_current_one_again(past: Past) -> None:
    past.add("begin")
    past.add("open", hosts={"web1": "because"})
    past.add("complete")
    past.add("begin", version="job/restart-1")
    past.add("open", hosts={"web1": "because", "web2": "because"})
    past.refresh_job()
    assert (past.epochs, [one.version for one in past.history.former]) == ([4, 5], ["2"])
    past.add("complete")
    past.add("publish")
    assert past.refresh()
    assert past.epochs == [1, 2, 3, 7]
    assert [(one.version, one.admitted) for one in past.history.former] == [("job/restart-1", 2)]
    past.add("begin", version="2")
    assert past.refresh()
    assert past.epochs == [8]
    assert [one.version for one in past.history.former] == ["job/restart-1", "2"]
