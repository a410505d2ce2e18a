# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a night says of its steps besides the judge of the fire tests, each with a step that is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fire.facts import CURRENT, GATES, HANDOVER, HISTORY, LEDGER, RECORDS, REPORTS
from fire.fleet import FLEET, NEW, OLD
from fire.journal import Write
from fire.replay import Entry, State, Step
from fire.rules import CAPS, schedule

from .actor import Actor
from .faults import Faults
from .night import Night, _WatchedPusher
from .stand_ins import BEGIN
from .start import simulated
from .world import Process

_BASE = {CURRENT: Entry(NEW, 1), f"{GATES}global": Entry("False", 1)}
_OLD = {f"{REPORTS}{OLD}/{host}": Entry("1", 1) for host in FLEET}


@pytest.fixture
def night() -> Iterator[Night]:
    """A night that has not begun."""
    with simulated("judges") as world:
        found = Night(world, schedule(0, BEGIN), ())
        found._rules_of = lambda _given: CAPS
        yield found


def step_of(before: State, after: State, who: str = "planner1", *, is_restore: bool = False) -> Step:
    write = None if is_restore else Write(who, [], None)
    return Step(9, before, after, write, is_restore=is_restore)


def event(what: str, epoch: int, **ledger: Any) -> State:
    """Return a ledger with an entry of the history."""
    return {
        LEDGER: Entry(json.dumps({"epoch": epoch, "history_from": 1, **ledger}), epoch),
        f"{HISTORY}{epoch}": Entry(json.dumps({"what": what}), epoch),
    }


def admitted(*hosts: str) -> State:
    return {f"{GATES}host/{host}": Entry("True", 5) for host in hosts}


_STARTED = Entry(json.dumps({"state": "started", "version": NEW, "times": {}}), 6)


def test_more_hosts_than_a_cap_allows_are_down(night: Night) -> None:
    before = {**_BASE, **_OLD, **event("begin", 1), **admitted("controller1")}
    night._over_the_caps(step_of(before, {**before, **event("open", 2), **admitted("controller2")}))
    (sentence,) = night._findings.sentences()
    assert "2 of ('controller',) are down, 1 may be" in sentence


def test_hosts_that_a_restore_has_put_back_count_from_their_next_admission_on(night: Night) -> None:
    restored = {**_BASE, **_OLD, **event("begin", 1)}
    before = {**restored, **event("open", 2), **admitted("controller1"), f"{RECORDS}controller1": _STARTED}
    night._over_the_caps(step_of(before, restored, is_restore=True))
    failed = Entry(json.dumps({"state": "failed", "version": NEW, "times": {}}), 7)
    late = {**restored, f"{RECORDS}controller1": failed}
    night._over_the_caps(step_of(restored, late, "nodes0"))
    opened = {**late, **event("open", 2), **admitted("controller2")}
    night._over_the_caps(step_of(late, opened))
    assert night._findings.sentences() == []
    both = {**opened, **event("open", 3), **admitted("controller1")}
    night._over_the_caps(step_of(opened, both))
    (sentence,) = night._findings.sentences()
    assert "2 of ('controller',) are down, 1 may be" in sentence


def went_on(night: Night, what: str = "open", **ledger: Any) -> list[str]:
    """Return what is said of a planner that had seen epoch 7 before a restore of epoch 2, and wrote epoch 3 after it."""
    restored = {**_BASE, HANDOVER: Entry("{}", 2), **event("begin", 2, **ledger)}
    faults = cast(Faults, SimpleNamespace(ahead={"planner1": (5, 1, 7)}, restored=restored))
    night._goes_on(step_of(restored, {**restored, **event(what, 3)}), faults)
    return night._findings.sentences()


def planner_of(night: Night, pid: int = 5, runs: int = 1) -> Actor:
    actor = Actor(night._world, "planner1", 1, lambda _shared: None)
    actor.process.pid, actor.shared.runs.value = pid, runs
    night._actors.append(actor)
    return actor


def test_a_planner_goes_on_after_a_restore(night: Night) -> None:
    planner_of(night)
    assert went_on(night) == ["at index 9: planner1 had seen epoch 7 before the restore, and wrote ['open'] after it"]


@pytest.mark.parametrize(("pid", "runs"), [(6, 1), (5, 2)])
def test_one_that_has_begun_since_may(night: Night, pid: int, runs: int) -> None:
    planner_of(night, pid, runs)
    assert went_on(night) == []


def test_a_restore_is_not_distinguished_from_two_rollouts(night: Night) -> None:
    planner_of(night)
    assert went_on(night, history_from=8) == []


def test_a_push_run_may_put_its_hosts_back(night: Night) -> None:
    planner_of(night)
    assert went_on(night, "retry") == []


@pytest.mark.parametrize("is_again", [True, False])
def test_a_planner_service_may_go_on_with_another_handover(night: Night, is_again: bool) -> None:
    planner_of(night)
    night._has_services = True
    restored = {**_BASE, HANDOVER: Entry("{}", 2), **event("begin", 2)}
    faults = cast(Faults, SimpleNamespace(ahead={"planner1": (5, 1, 7)}, restored=restored))
    before = {**restored, HANDOVER: Entry("{}", 8)} if is_again else restored
    night._goes_on(step_of(before, {**before, **event("open", 3)}), faults)
    assert bool(night._findings.sentences()) != is_again


@pytest.mark.parametrize(
    ("restored_at", "stopped_at", "is_wrong"),
    [(None, None, True), (0.5, None, True), (1.5, None, False), (None, 1.5, False)],
)
def test_two_work_on_one_host(
    night: Night, restored_at: float | None, stopped_at: float | None, is_wrong: bool
) -> None:
    world, working = night._world, dict[str, Any]()
    processes = []
    for name, begins in (("push1", 1.0), ("push2", 2.0)):
        pusher = object.__new__(_WatchedPusher)
        pusher._network, pusher._working, pusher._failing = night._network, working, 0.0
        pusher._real, pusher._version = night._real, NEW
        pusher._shared = cast(Any, SimpleNamespace(calm=SimpleNamespace(value=1)))
        pusher._chance = cast(random.Random, SimpleNamespace(uniform=lambda _least, _most: 5.0))

        def work(pusher: _WatchedPusher = pusher, begins: float = begins) -> None:
            world.wait(begins)
            pusher.act("web1")

        processes.append(Process(world, name))
        processes[-1].start(work)
    if restored_at is not None:
        night._network.restored_at = restored_at
    if stopped_at is not None:
        processes[0].stopped_at = stopped_at
    world.run(20, lambda: False)
    assert (processes[1].error is not None) == is_wrong
