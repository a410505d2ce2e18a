# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""While the keys are migrated, nodes get right answers, all readers see the same fleet, and planners are refused."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import InventoryOptions, survey_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import names
from integration.support.fleets.old_fleet import killed_at, load, migrate, old_fleet, writes_of
from integration.support.fleets.old_keys import legacy_gates, old_answer, original_answer
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner
from integration.support.runs.playbook import ask as ask_task

pytestmark = pytest.mark.one_release

HOSTS = {"controller1": "controller", "controller2": "controller", **names(compute=300, web=20)}


class Watchers:
    """Ask all the time, and keep what was not as it should be.

    :param to_its_end: whether the migration comes to its end meanwhile. From the switch on a planner may go on, and when its
        keys are gone, the old code has nothing to ask any more, so neither is among those that ask.
    """

    def __init__(self, store: Store, consul: RawKV, *, to_its_end: bool = False) -> None:
        self.settings, self.consul = store.settings, consul
        self.right = _old_answers(consul)
        self.versions = _versions(consul)
        self.wrong: list[str] = []
        self.count = 0
        self._acts = [self._one, self._one, self._all, self._read]
        if not to_its_end:
            self._acts += [self._old_code, self._plan]
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask from now on until the end: as single nodes, for all at once, as the old code, as one who looks, as a planner."""
        threads = [threading.Thread(target=self._go, args=(act,)) for act in self._acts]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _go(self, act: Callable[[Store], None]) -> None:
        while not self._over.is_set():
            try:
                # A node's question is a process of its own.
                act(Store(self.settings))
            except Exception as error:
                self.wrong.append(f"{act.__name__}: {error!r}")
            self.count += 1

    def _see(self, who: str, found: Mapping[str, object], right: Mapping[str, object]) -> None:
        bad = {host: value for host, value in found.items() if value != right[host]}
        if bad:
            self.wrong.append(f"{who} reads {bad}")

    def _one(self, store: Store) -> None:
        host = random.choice(list(HOSTS))
        answer = ask_gate(store, {host: HOSTS[host]})[host]
        self._see(f"a node ({answer.reason})", {host: answer.value}, self.right)

    def _all(self, store: Store) -> None:
        self._see("all at once", {host: one.value for host, one in ask_gate(store, HOSTS).items()}, self.right)

    def _old_code(self, _store: Store) -> None:
        self._see("the old code", _old_answers(self.consul), self.right)

    def _read(self, store: Store) -> None:
        self._see(
            "the status", {host: one.version for host, one in read_fleet(store).plan.hosts.items()}, self.versions
        )
        found = survey_fleet(store, InventoryOptions()).hosts
        self._see("the inventory", {host: facts["version"] for host, facts in found.items()}, self.versions)

    def _plan(self, store: Store) -> None:
        try:
            make_pass(store, PassRequest("v675", rules=UNLIMITED))
        except UpgradeError as error:
            if error.code not in ("older_schema", "migrating"):
                raise
            assert "migrate_state" in error.message
        else:
            self.wrong.append("a planner was not refused")


def _old_answers(consul: RawKV) -> dict[str, bool]:
    texts = consul.texts("config_state/")
    pauses = {
        key[len("config_state/") : -len("/enable_puppet")]: text
        for key, text in texts.items()
        if key.endswith("/enable_puppet")
    }
    gates = {key.removeprefix("config_state/enable_puppet/"): text for key, text in texts.items()}
    return {host: old_answer(pauses, host, role) and old_answer(gates, host, role) for host, role in HOSTS.items()}


def _versions(consul: RawKV) -> dict[str, str]:
    reports = [key.split("/")[1:] for key in consul.tree("running_version/")]
    return {host: version for version, host in (parts for parts in reports if len(parts) == 2)}


@pytest.fixture
def seeded() -> random.Random:
    seed = os.environ.get("CONVOY_TEST_SEED", "") or str(random.SystemRandom().randrange(10**6))
    print(f"CONVOY_TEST_SEED={seed}")
    return random.Random(seed)


def test_no_answer_is_wrong_while_migrators_are_killed_and_come_again(
    store: Store, consul: RawKV, seeded: random.Random
) -> None:
    fleet = old_fleet(list(HOSTS))
    load(consul, fleet)
    writes = writes_of(store.settings)
    consul.delete("", tree=True)
    load(consul, fleet)
    watchers = Watchers(store, consul)
    assert set(watchers.right.values()) == {True, False}
    kills = sorted(seeded.sample(range(1, writes), 4))
    with watchers.watching():
        for before, kill in zip([0, *kills], kills, strict=False):
            assert killed_at(store.settings, max(1, kill - before), after=seeded.random() < 0.5)
        # Not to its end: from then on a planner may go on.
        assert consul.get("upgrade/schema") is None
    assert not watchers.wrong, watchers.wrong[:5]
    assert watchers.count > 20
    migrate(store.settings)
    assert consul.get("upgrade/schema") == b"1"


def test_nor_while_it_ends_and_while_the_old_keys_are_removed(store: Store, consul: RawKV) -> None:
    load(consul, old_fleet(list(HOSTS)))
    watchers = Watchers(store, consul, to_its_end=True)
    with watchers.watching():
        migrate(store.settings)
        assert legacy_gates(consul)
        migrate(store.settings, remove_legacy=True)
        assert not legacy_gates(consul)
    assert not watchers.wrong, watchers.wrong[:5]


def test_a_rollout_goes_on_after_it_with_nodes_of_both_kinds(store: Store, consul: RawKV) -> None:
    hosts = list(names(compute=12))
    load(consul, old_fleet(hosts))
    migrate(store.settings)
    held = {"compute1", "compute12"}
    rules = {"rolling_rules": {"global": 5}}
    for _round in range(20):
        outcome = make_pass(store, PassRequest("v674", rules))
        waiting = [host for host, one in outcome.hosts().items() if one.state == "upgrading"]
        for host in waiting:
            assert ask_gate(store, {host: "compute"})[host].value
            assert original_answer(consul, host, "compute")
            # What the old code writes, in two requests.
            consul.put(f"running_version/v674/{host}", "1700000000.5")
            consul.delete(f"running_version/v673/{host}")
        if not waiting:
            break
    assert {host: one.state for host, one in outcome.hosts().items() if one.state != "upgraded"} == {
        "compute12": "held"
    }
    assert not {host for host in held if ask_gate(store, {host: "compute"})[host].value}
    assert not {host for host in held if original_answer(consul, host, "compute")}


@pytest.mark.thorough
def test_the_lookup_answers_from_either_layout(run: Runner, store: Store, consul: RawKV) -> None:
    load(consul, {f"clouds/east/{key}": value for key, value in old_fleet(list(names(compute=6))).items()})
    asked = {"kv_prefix": "clouds/east"}
    task = ask_task("compute1", "compute3", "compute5", "controller9", **asked)
    before = run([task, ask_task("compute1", detail=True, **asked)])
    migrate(Store(store.settings.__class__(port=store.settings.port, kv_prefix="clouds/east/")).settings)
    after = run([task, ask_task("compute1", detail=True, **asked)])
    assert before[0]["msg"] == after[0]["msg"] == [False, True, True, True]
    assert before[1]["msg"][0]["key"] == "clouds/east/config_state/host/compute1/enable_puppet"
    assert after[1]["msg"][0]["key"] == "clouds/east/upgrade/hold/host/compute1"
    assert after[1]["msg"][0]["hold"]
