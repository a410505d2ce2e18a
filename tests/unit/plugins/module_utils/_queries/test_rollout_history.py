# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history in memory: it is read once, then only what is new, and again from its beginning after a restore of Consul."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.values import encode_ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.notifications import RolloutEvents
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_history import (
    MOST_ROLLOUTS,
    RolloutHistory,
    summary,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from job_fleet import FLEET, RULES, complete_fleet
from memory_consul import MemoryConsul


class StoredHistory:
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
def stored() -> Iterator[StoredHistory]:
    with MemoryConsul().in_place() as consul:
        yield StoredHistory(consul)


def test_only_new_entries_are_read(stored: StoredHistory) -> None:
    stored.add("begin")
    for number in range(200):
        stored.add("open", hosts={f"web{number}": "because"})
    assert stored.refresh()
    assert stored.epochs == [*range(1, 202)]
    requests = stored.consul.requests
    assert not stored.refresh()
    assert stored.consul.requests == requests
    stored.add("publish")
    assert stored.refresh()
    assert (stored.consul.requests, stored.epochs[-1]) == (requests + 1, 202)


def test_earlier_rollouts_are_summaries_and_the_next_one_ends_the_current(stored: StoredHistory) -> None:
    stored.add("begin", "1", **{"from": "0", "by": "ann"})
    stored.add("open", "1", hosts={"web1": "", "web2": ""}, roles={"db": {"hosts": 3, "reason": ""}})
    stored.add("open", "1", roles={"db": {"hosts": 0, "reason": ""}, "mail": "of another release"})
    stored.add("abort", "1", by="bob")
    stored.add("begin", "2", **{"from": "1", "who": "ann@deploy1"})
    stored.add("open", "2", hosts={"web1": ""})
    stored.add("complete", "2")
    stored.add("converge", "2")
    stored.refresh()
    (first,) = stored.history.former
    assert (first.version, first.previous_version, first.state, first.begun, first.end, first.by, first.admitted) == (
        "1", "0", "aborted", 1001, 1004, "ann", 5,
    )  # fmt: skip
    current = summary(stored.history.current)
    assert current is not None
    assert (current.version, current.state, current.end, current.by) == ("2", "complete", 1008, "ann@deploy1")

    stored.add("begin", "3")
    stored.refresh()
    assert [(one.version, one.state) for one in stored.history.former] == [("2", "complete"), ("1", "aborted")]
    running = summary(stored.history.current)
    assert running is not None
    assert (running.state, running.end) == ("running", 0)
    stored.add("begin", "4")
    stored.refresh()
    assert (stored.history.former[0].state, stored.history.former[0].end) == ("replaced", 1010)


def test_a_complete_rollout_that_admits_a_host_that_joined_runs_again(stored: StoredHistory) -> None:
    for what in ("begin", "open", "complete", "converge", "hold", "open", "complete"):
        stored.add(what)
    stored.refresh()
    events = stored.history.current
    shown = [summary(events[:count]) for count in range(4, 8)]
    assert [(one.state, one.end) for one in shown if one is not None] == [
        ("complete", 1004), ("complete", 1004), ("running", 0), ("complete", 1007),
    ]  # fmt: skip


def test_after_a_restore_the_history_is_read_from_its_beginning(stored: StoredHistory) -> None:
    stored.add("begin")
    stored.add("open", hosts={"web1": ""})
    stored.refresh()
    # An older snapshot, and other writes after it.
    stored.epoch = 1
    for _write in range(3):
        stored.add("pause", commit="other")
    stored.refresh()
    assert [event["what"] for event in stored.history.current] == ["begin", "pause", "pause", "pause"]
    stored.epoch, stored.commit = 1, "c1"
    stored.refresh()
    assert stored.epochs == [1]
    assert stored.history.refresh(None)
    assert (stored.history.current, stored.history.former) == ([], [])


def test_a_long_history_is_not_read_to_its_end(stored: StoredHistory) -> None:
    for number in range(MOST_ROLLOUTS + 10):
        stored.add("begin", str(number + 1))
        stored.add("complete", str(number + 1))
    stored.refresh()
    assert len(stored.history.former) == MOST_ROLLOUTS
    for number in range(MOST_ROLLOUTS):
        stored.add("begin", str(number + 100))
    stored.refresh()
    assert len(stored.history.former) == MOST_ROLLOUTS


def test_a_history_without_its_beginning_is_what_is_left(stored: StoredHistory) -> None:
    stored.add("begin")
    stored.add("open", hosts={"web1": ""})
    stored.add("pause")
    del stored.consul.keys["upgrade/history/1"]
    stored.refresh()
    assert stored.epochs == [2, 3]
    assert summary([]) is None


def test_once_a_job_is_over_the_rollout_before_it_is_the_current_one_again(stored: StoredHistory) -> None:
    stored.add("begin")
    stored.add("open", hosts={"web1": "because"})
    stored.add("complete")
    stored.add("begin", version="job/restart-1")
    stored.add("open", version="job/restart-1", hosts={"web1": "because", "web2": "because"})
    stored.refresh_job()
    assert (stored.epochs, [one.version for one in stored.history.former]) == ([4, 5], ["2"])
    stored.add("complete", version="job/restart-1")
    stored.add("publish")
    assert stored.refresh()
    assert stored.epochs == [1, 2, 3, 7]
    assert [(one.version, one.admitted) for one in stored.history.former] == [("job/restart-1", 2)]
    stored.add("begin", version="2")
    assert stored.refresh()
    assert stored.epochs == [8]
    assert [one.version for one in stored.history.former] == ["job/restart-1", "2"]


def test_a_rollout_that_goes_on_after_a_job_that_was_aborted_has_nothing_of_it_and_the_job_nothing_of_the_rollout(
    stored: StoredHistory,
) -> None:
    job = "job/restart-1"
    stored.add("begin", **{"from": "1"})
    stored.add("open", hosts={"web1": "because", "web2": "because"})
    stored.add("complete")
    stored.add("begin", version=job)
    stored.add("open", version=job, hosts={"web2": "because"})
    stored.add("abort", version=job)
    stored.add("close", version=job, hosts={"web2": "it had not started"})
    # The same version again, and a host that has joined.
    stored.add("rules")
    stored.add("open", hosts={"web3": "because"})
    stored.add("converge")
    assert stored.refresh()
    assert stored.epochs == [1, 2, 3, 8, 9, 10]
    (of_job,) = stored.history.former
    assert (of_job.version, of_job.state, of_job.end, of_job.admitted) == (job, "aborted", 1006, 1)

    keys = stored.consul.keys
    keys |= {f"running/versions/2/web{number}": b"1000" for number in (1, 2, 3)}
    keys |= {
        "current_version": b"2",
        "upgrade/ledger": encode_ledger(Ledger(10, "2", "1", "complete", since=1001)).encode(),
    }
    store = Store(Settings())
    found = read_rollout_report(store)
    assert (found["version"], found["state"], found["end"]) == ("2", "converge", 1010)
    assert [(one["host"], len(one["admitted"])) for one in found["hosts"]] == [("web1", 1), ("web2", 1), ("web3", 1)]
    assert [one["epoch"] for one in found["commands"]] == [1, 2, 3, 8, 9, 10]
    assert read_rollout_report(store, "2") == found
    report_of_job = read_rollout_report(store, job)
    assert (report_of_job["state"], [one["epoch"] for one in report_of_job["commands"]]) == ("abort", [4, 5, 6, 7])


def test_once_a_job_is_complete_the_rollout_before_it_is_shown_again_although_nothing_is_new(
    stored: StoredHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.add("begin")
    stored.add("complete")
    stored.add("begin", version="job/restart-1")
    stored.add("complete", version="job/restart-1")
    stored.refresh_job()
    assert stored.epochs == [3, 4]

    def fail(*_: Any) -> Any:
        raise Unreachable("unreachable", "Consul does not answer.")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Store, "history", fail)
        with pytest.raises(Unreachable):
            stored.refresh()
    assert stored.refresh()
    assert stored.epochs == [1, 2]
    assert not stored.refresh()


def test_a_ledger_that_is_missing_for_a_moment_repeats_no_event() -> None:
    with complete_fleet().in_place() as consul:
        store = consul.store()
        events = RolloutEvents(store, FLEET)
        assert events.read() == []
        make_pass(store, PassRequest("2.1", RULES, fleet=FLEET))
        assert "begin" in {one["event"] for one in events.read()}
        ledger = consul.keys.pop("upgrade/ledger")
        assert events.read() == []
        consul.write("upgrade/ledger", ledger.decode())
        assert events.read() == []
        control.pause(store, control.Command("lunch"))
        assert [one["event"] for one in events.read()] == ["pause"]
