# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history keeps a number of rollouts. Each write removes older entries in its own transaction, whatever happens around it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.processes.nodes import end_of, open_and_die, spawn
from integration.support.processes.writes import Write, around_writes
from integration.support.runs.playbook import Runner, plan

pytestmark = pytest.mark.one_release

FLEET = names(compute=3)
RULES = {"rolling_rules": {"global": "unlimited"}, "history": {"keep_rollouts": 2}}
HISTORY = "upgrade/history/"


def entries(consul: RawKV) -> dict[int, str]:
    """Return epoch -> kind of all entries, made sure to have no gap from the oldest one in the ledger to its epoch."""
    found = {int(key[len(HISTORY) :]): json.loads(value) for key, value in consul.tree(HISTORY).items()}
    now = ledger(consul)
    assert sorted(found) == list(range(now.get("history_from", 1), now["epoch"] + 1))
    assert all(one["epoch"] == epoch for epoch, one in found.items())
    return {epoch: found[epoch]["what"] for epoch in sorted(found)}


def roll(store: Store, consul: RawKV, version: str) -> PassResult:
    """Upgrade the fleet: a rollout of three entries."""
    make_pass(store, PassRequest(version, RULES))
    former = [key for key in consul.tree("running/versions/") if f"/{version}/" not in key]
    consul.load([(f"running/versions/{version}/{host}", "1700000000") for host in FLEET])
    for key in former:
        consul.delete(key)
    return make_pass(store, PassRequest(version, RULES))


def of_old_rollouts(store: Store, consul: RawKV, count: int) -> None:
    """Give a fleet a history of this many entries, without a list of rollouts: that of a ledger made by hand."""
    seed(consul, FLEET)
    make_pass(store, PassRequest("1", {**RULES, "history": {}}))
    consul.load(
        (f"{HISTORY}{epoch}", json.dumps({"epoch": epoch, "at": 1700000000, "version": "1", "what": "hold"}))
        for epoch in range(2, count + 1)
    )
    plain = {name: value for name, value in ledger(consul).items() if name not in ("rollouts", "history_from")}
    consul.put("upgrade/ledger", json.dumps({**plain, "epoch": count, "commit": "", "state": "complete"}))


def sizes_of_writes(store: Store) -> list[int]:
    """Return a list that gets the number of operations of each transaction from now on."""
    found: list[int] = []

    def counted(write: Write, operations: Sequence[Any]) -> Any:
        found.append(len(operations))
        return write(operations)

    around_writes(store, counted)
    return found


def test_the_current_rollout_and_the_one_before_are_kept(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    for at, version in enumerate("23456", 1):
        roll(store, consul, version)
        assert list(entries(consul).values()) == ["begin", "open", "complete"] * min(2, at)
    assert ledger(consul)["rollouts"] == [10, 13]
    assert ledger(consul)["history_from"] == 10
    make_pass(store, PassRequest())
    assert max(entries(consul)) == 15


def test_readers_say_what_was_removed(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    roll(store, consul, "2")
    assert read_rollout_report(store, "2")["version"] == "2"
    assert (read_fleet(store, name="compute1").details or {})["older_events"] is False
    for version in "345":
        roll(store, consul, version)
    assert [one["what"] for one in read_rollout_report(store, "4")["commands"]] == ["begin", "open", "complete"]
    with pytest.raises(UpgradeError) as caught:
        read_rollout_report(store, "2")
    assert caught.value.code == "no_rollout"
    assert (
        "It has rollouts to 5, 4. Entries before epoch 7 were removed; history.keep_rollouts in the rules"
        in caught.value.message
    )
    before = store.client.requests
    view = read_fleet(store, name="compute1", history=1000)
    assert [one["epoch"] for one in view.history] == list(range(12, 6, -1))
    assert view.details is not None
    assert view.details["older_events"] is True
    assert len(view.details["events"]) == 6
    # The fleet, all entries, and all entries again for the host: nothing is listed, and nothing is read one by one.
    assert store.client.requests - before == 3
    assert "convoy_upgrade_history_entries 6" in metrics_text(store, view)
    before = store.client.requests
    assert [one["epoch"] for one in store.events_after(2, view.snapshot.ledger)] == list(range(7, 13))
    assert store.client.requests - before == 1


def toggle(store: Store) -> None:
    """Make two planner writes with few operations of their own."""
    operator.pause(store, operator.Command())
    operator.resume(store, operator.Command())


def test_a_long_history_goes_with_the_writes_that_are_made_anyway(store: Store, consul: RawKV) -> None:
    of_old_rollouts(store, consul, 1000)
    sizes = sizes_of_writes(store)
    roll(store, consul, "2")
    # All earlier entries count as one rollout, which is kept.
    assert len(sizes) == 4
    assert max(sizes) < 64
    assert min(entries(consul)) == 1
    make_pass(store, PassRequest("3", RULES))
    # The transactions have as many operations as Consul 1.8 takes, and they are as many as without old entries.
    # The third one wakes the agents of the role.
    assert sizes[4:] == [64, 64, 3]
    assert 100 < min(entries(consul)) < 122
    for _each in range(9):
        toggle(store)
    assert min(entries(consul)) == 1001
    # The first pause closes the gate of the role, too.
    assert len(sizes) == 7 + 1 + 18
    assert max(sizes) == 64
    assert [*entries(consul).values()][:5] == ["begin", "open", "complete", "begin", "open"]
    toggle(store)
    assert max(sizes[-2:]) == 3


def test_a_lower_number_removes_at_once_and_a_higher_one_keeps_what_is_left(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    many = {**RULES, "history": {"keep_rollouts": 10}}
    for version in "234":
        roll(store, consul, version)
        make_pass(store, PassRequest(version, many))
    make_pass(store, PassRequest("5", many))
    assert len(ledger(consul)["rollouts"]) == 4 - 1
    oldest = ledger(consul)["history_from"]
    make_pass(store, PassRequest("5", {**RULES, "history": {"keep_rollouts": 2}}))
    assert len(ledger(consul)["rollouts"]) == 2
    assert ledger(consul)["history_from"] > oldest
    assert [*entries(consul).values()].count("begin") == 2
    make_pass(store, PassRequest("5", {**RULES, "history": {}}))
    assert [*entries(consul).values()].count("begin") == 2


@pytest.mark.parametrize("after", [False, True])
def test_a_planner_that_is_killed_between_two_writes_leaves_a_whole_history(
    store: Store, consul: RawKV, *, after: bool
) -> None:
    of_old_rollouts(store, consul, 300)
    roll(store, consul, "2")
    killed = spawn(open_and_die, store.settings, PassRequest("3", RULES), 2, after=after)
    assert end_of([killed], 60) == [-9]
    found = entries(consul)
    assert list(found.values())[-2:] == (["begin", "open"] if after else ["complete", "begin"])
    assert 1 < min(found) < 301
    make_pass(store, PassRequest("3", RULES))
    for _each in range(3):
        toggle(store)
    assert min(entries(consul)) == 301


def test_a_planner_that_comes_second_removes_nothing_on_an_old_ledger(store: Store, consul: RawKV) -> None:
    of_old_rollouts(store, consul, 300)
    roll(store, consul, "2")
    seen: list[set[int]] = []

    def meanwhile(write: Write, operations: Sequence[Any]) -> Any:
        if not seen:
            make_pass(Store(store.settings), PassRequest("3", RULES))
            seen.append(set(entries(consul)))
            with pytest.raises(UpgradeError) as caught:
                write(operations)
            assert set(entries(consul)) == seen[0]
            raise caught.value
        return write(operations)

    around_writes(store, meanwhile)
    outcome = make_pass(store, PassRequest("3", RULES))
    assert outcome.begun is False
    assert len(seen) == 1
    assert list(entries(consul).values()).count("begin") == 2
    assert ledger(consul)["rollouts"] == [301, 304]


def test_after_a_restore_the_history_goes_on_from_the_restored_ledger(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    for version in "23":
        roll(store, consul, version)
    earlier = consul.texts()
    for version in "45":
        roll(store, consul, version)
    assert min(entries(consul)) == 7
    stale: list[str] = []

    def restored(write: Write, operations: Sequence[Any]) -> Any:
        if not stale:
            assert consul.delete("", tree=True)
            consul.load(earlier.items())
            with pytest.raises(UpgradeError) as caught:
                write(operations)
            stale.append(caught.value.code)
            assert set(entries(consul)) == set(range(1, 7))
            raise caught.value
        return write(operations)

    around_writes(store, restored)
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest("6", RULES))
    assert (stale, caught.value.code) == (["conflict"], "went_back")
    roll(Store(store.settings), consul, "6")
    assert list(entries(consul).values()) == ["begin", "open", "complete"] * 2
    assert ledger(consul)["rollouts"] == [4, 7]


def test_a_run_that_is_two_rollouts_late_is_overtaken(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    seen = roll(store, consul, "2").ledger
    assert seen is not None
    for version in "34":
        roll(store, consul, version)
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest(since=1, epoch=seen.epoch, commit=seen.commit))
    assert caught.value.code == "overtaken"
    assert caught.value.message.startswith("Another rollout is under way, to '4'")


def test_check_mode_removes_nothing_and_shows_the_ledger_that_the_run_writes(
    run: Runner, store: Store, consul: RawKV
) -> None:
    of_old_rollouts(store, consul, 300)
    roll(store, consul, "2")
    task = plan(version="3", instructions=RULES)
    before = consul.tree()
    (checked,) = run([task], check=True)
    assert consul.tree() == before
    (done,) = run([task])
    assert min(entries(consul)) == ledger(consul)["history_from"] > 1

    def shown(result: Any) -> dict[str, Any]:
        (line,) = (one for one in result["diff"]["after"].splitlines() if one.startswith("upgrade/ledger = "))
        found: dict[str, Any] = json.loads(line.removeprefix("upgrade/ledger = "))
        return {name: found[name] for name in ("epoch", "rollouts", "history_from")}

    assert shown(checked) == shown(done)
    assert HISTORY not in checked["diff"]["before"]
    (again,) = run([task])
    assert again["changed"] is False
