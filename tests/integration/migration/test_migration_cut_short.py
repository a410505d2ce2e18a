# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrators that are killed, race, lose their session or the replies of Consul: the end is the same, byte for byte."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host import leases
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.migrator import Migrator
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.outcome import MigrationResult
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import names
from integration.support.fleets.old_fleet import (
    forked,
    killed_at,
    legacy_reports,
    load,
    migrate,
    old_fleet,
    whole,
    writes_of,
)
from integration.support.processes.proxy import LOSE_REPLY, LOSE_REQUEST, PASS, LossyProxy
from integration.support.processes.writes import Write, around_writes
from integration.support.runs.commands import UNLIMITED
from thorough import quick

pytestmark = pytest.mark.one_release

HOSTS = 5000
LARGE = old_fleet(list(names(compute=HOSTS)))
# Enough for several transactions of each kind.
SMALL = old_fleet(list(names(compute=150)))
REMOVAL = {"remove_legacy": True}
# So many of the boundaries are drawn.
_SAMPLE = 2


def seed_of_run() -> int:
    """Return the seed of the boundaries: another one each time, or the one that CONVOY_TEST_SEED repeats."""
    given = os.environ.get("CONVOY_TEST_SEED")
    shared = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return int(given) if given else int(shared[:8], 16) if shared else random.randrange(2**32)


SEED = seed_of_run()


def boundaries(writes: int) -> list[tuple[int, bool]]:
    """Return the transactions around which a migrator is killed, and whether before or after each."""
    every = [(at, after) for at in range(1, writes + 1) for after in (False, True)]
    if os.environ.get("CONVOY_TEST_EVERY_KILL") == "1":
        return every
    return sorted(random.Random(SEED).sample(every, _SAMPLE))


@pytest.fixture
def settings(agent: Agent, consul: RawKV) -> Settings:  # noqa: ARG001  it wipes
    return Settings(port=agent.http_port)


class Undisturbed(NamedTuple):
    """A migration that no one cut short.

    :param keys: all that is in Consul after it.
    :param writes: how many transactions it took.
    :param in_check_mode: what check mode reported before.
    """

    keys: dict[str, tuple[str, int, str]]
    writes: int
    in_check_mode: MigrationResult


_KNOWN: dict[int, Undisturbed] = {}


def undisturbed(consul: RawKV, settings: Settings, keys: dict[str, str]) -> Undisturbed:
    """Return what a migration that no one cuts short results in, and write the keys again."""
    if len(keys) not in _KNOWN:
        fresh(consul, keys)
        in_check_mode = Migrator(Store(settings), **REMOVAL).run(dry=True)
        writes = writes_of(settings, **REMOVAL)
        _KNOWN[len(keys)] = Undisturbed(whole(consul), writes, in_check_mode)
    fresh(consul, keys)
    return _KNOWN[len(keys)]


def fresh(consul: RawKV, keys: dict[str, str]) -> None:
    assert consul.delete("", tree=True)
    load(consul, keys)


@pytest.mark.thorough
def test_killed_at_a_boundary_the_next_run_finishes_a_large_fleet(consul: RawKV, settings: Settings) -> None:
    expected, writes, _in_check_mode = undisturbed(consul, settings, LARGE)
    assert len([key for key in expected if key.startswith("running/versions/")]) == HOSTS
    # One for each 62 reports copied, one for each 31 removed, and some.
    assert HOSTS / 62 + HOSTS / 31 < writes < HOSTS / 62 + HOSTS / 31 + 12
    for at, after in boundaries(writes):
        fresh(consul, LARGE)
        assert killed_at(settings, at, after=after, **REMOVAL)
        migrate(settings, **REMOVAL)
        assert whole(consul) == expected, f"killed {'after' if after else 'before'} {at}, CONVOY_TEST_SEED={SEED}"


@pytest.mark.thorough
def test_killed_at_every_boundary_the_next_run_finishes_a_small_fleet(consul: RawKV, settings: Settings) -> None:
    expected, writes, _in_check_mode = undisturbed(consul, settings, SMALL)
    for at in range(1, writes + 1):
        for after in (False, True):
            fresh(consul, SMALL)
            assert killed_at(settings, at, after=after, **REMOVAL)
            migrate(settings, **REMOVAL)
            assert whole(consul) == expected, f"killed {'after' if after else 'before'} {at}"
    assert not killed_at(settings, writes + 1, after=False, **REMOVAL)


@pytest.mark.thorough
def test_killed_again_and_again_each_run_goes_on_where_the_last_one_was(consul: RawKV, settings: Settings) -> None:
    expected, writes, _in_check_mode = undisturbed(consul, settings, SMALL)
    runs = 1
    # Each time: finding the lock of one who died, taking it over, and one chunk of work.
    while killed_at(settings, 4, after=False, **REMOVAL):
        runs += 1
        assert runs <= writes
    assert whole(consul) == expected
    assert runs > 5


def test_until_it_is_finished_planners_are_refused_and_nodes_are_answered(consul: RawKV, settings: Settings) -> None:
    load(consul, SMALL)
    roles = {f"compute{number}": "compute" for number in range(1, 151)}
    store = Store(settings)
    before = {host: one.value for host, one in ask_gate(store, roles).items()}
    for at in range(2):
        assert killed_at(settings, 4, after=False), at
        with pytest.raises(UpgradeError) as caught:
            make_pass(store, PassRequest(version="v675", rules=UNLIMITED))
        assert caught.value.code == "migrating"
        migration = json.loads(consul.get("upgrade/migration") or b"")
        assert (migration["state"], migration["from"], migration["to"]) == ("running", 0, 1)
        assert f"{migration['done']} of {migration['of']} done" in caught.value.message
        assert {host: one.value for host, one in ask_gate(store, roles).items()} == before
        assert f"{migration['done']} of {migration['of']} done)" in " ".join(read_fleet(store).warnings)
        assert consul.get("upgrade/schema") is None
    migrate(settings)
    assert not any("migration" in one for one in read_fleet(store).warnings)
    assert {host: one.value for host, one in ask_gate(store, roles).items()} == before
    migrate(settings, **REMOVAL)
    assert {host: one.value for host, one in ask_gate(store, roles).items()} == before


def test_of_two_migrators_one_works_and_the_other_is_informed(agent: Agent, consul: RawKV, settings: Settings) -> None:
    expected = undisturbed(consul, settings, SMALL).keys
    store = Store(settings)
    refusals = []

    def with_another_one(write: Write, operations: Sequence[Any]) -> Any:
        answer = write(operations)
        if consul.get("upgrade/migration") is not None:
            with pytest.raises(UpgradeError) as caught:
                migrate(Settings(port=agent.http_port), **REMOVAL)
            refusals.append(caught.value)
        return answer

    around_writes(store, with_another_one)
    Migrator(store, **REMOVAL).run()
    assert len(refusals) > 5
    assert {one.code for one in refusals} == {"migrating"}
    assert all("Another migration is under way" in one.message for one in refusals)
    assert whole(consul) == expected


def _migrate_at(start: threading.Barrier, port: int, ends: list[str]) -> None:
    """Migrate as soon as all others are about to, and report how that ended."""
    start.wait()
    try:
        migrate(Settings(port=port), **REMOVAL)
        ends.append("done")
    except UpgradeError as error:
        ends.append(error.code)


def test_two_that_begin_at_once_end_as_one_does(agent: Agent, consul: RawKV, settings: Settings) -> None:
    expected = undisturbed(consul, settings, SMALL).keys
    for _round in range(5):
        fresh(consul, SMALL)
        start, ends = threading.Barrier(3), list[str]()
        port = agent.http_port
        threads = [threading.Thread(target=_migrate_at, args=(start, port, ends)) for _each in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        assert "done" in ends
        assert set(ends) <= {"done", "migrating"}
        assert whole(consul) == expected


@pytest.mark.parametrize("at", [2, 4, 6])
def test_one_that_loses_its_session_writes_nothing_more_and_the_next_run_finishes(
    consul: RawKV, settings: Settings, at: int
) -> None:
    expected = undisturbed(consul, settings, SMALL).keys
    store = Store(settings)
    count = 0
    left: dict[str, Any] = {}

    def losing(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal count, left
        count += 1
        if count == at:
            _value, _flags, session = whole(consul)["upgrade/migration"]
            assert consul.call("PUT", f"session/destroy/{session}")[0] == 200
            left = whole(consul)
        return write(operations)

    around_writes(store, losing)
    with pytest.raises(UpgradeError) as caught:
        Migrator(store, **REMOVAL).run()
    assert caught.value.code == "lost_lock"
    assert "Run the same command again" in caught.value.message
    assert whole(consul) == left
    migrate(settings, **REMOVAL)
    assert whole(consul) == expected


@pytest.mark.thorough
def test_the_session_is_renewed_while_it_works(
    consul: RawKV, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{Migrator.__module__.rpartition('.')[0]}.lock.SESSION_SECONDS", 10)
    monkeypatch.setattr(leases, "RENEW_EVERY", 1)
    load(consul, SMALL)
    store = Store(settings)
    slept = False

    def slow(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal slept
        answer = write(operations)
        if not slept:
            slept = True
            # Consul ends a session after twice its time at the latest.
            time.sleep(21)
        return answer

    around_writes(store, slow)
    Migrator(store).run()
    assert consul.get("upgrade/schema") == b"1"


@pytest.fixture
def lossy(agent: Agent, consul: RawKV) -> Iterator[LossyProxy]:  # noqa: ARG001  it wipes
    with LossyProxy(agent.http_port) as proxy:
        yield proxy


@pytest.mark.parametrize("fate", [LOSE_REPLY, LOSE_REQUEST])
@pytest.mark.parametrize("before", quick(2, (1, 6, 2, 3, 4, 5, 7, 8)))
def test_what_is_lost_is_neither_done_twice_nor_reported_twice(
    consul: RawKV, settings: Settings, lossy: LossyProxy, fate: str, before: int
) -> None:
    expected, _writes, in_check_mode = undisturbed(consul, settings, SMALL)
    lossy.fates[:] = [PASS] * before + [fate]
    outcome = Migrator(Store(Settings(port=lossy.port, timeout=2)), **REMOVAL).run()
    assert not lossy.fates
    assert whole(consul) == expected
    assert outcome.plain(dry=False) == in_check_mode.plain(dry=False)
    assert outcome.net_changes() == in_check_mode.net_changes()


@pytest.mark.thorough
def test_when_the_last_replies_are_lost_it_still_comes_to_its_end(
    consul: RawKV, settings: Settings, lossy: LossyProxy
) -> None:
    expected, writes, _in_check_mode = undisturbed(consul, settings, SMALL)
    for last in (writes - 1, writes - 2):
        fresh(consul, SMALL)
        lossy.fates[:] = [PASS] * last + [LOSE_REPLY]
        Migrator(Store(Settings(port=lossy.port, timeout=2)), **REMOVAL).run()
        assert whole(consul) == expected


def test_where_consul_stays_away_that_is_reported_and_the_next_run_goes_on(
    consul: RawKV, settings: Settings, lossy: LossyProxy
) -> None:
    expected = undisturbed(consul, settings, SMALL).keys

    def go_away() -> None:
        lossy.loses_all = lossy.writes == 4

    lossy.after_write = go_away

    def run() -> None:
        with pytest.raises(Unreachable, match="can't be reached"):
            Migrator(Store(Settings(port=lossy.port, timeout=0.3)), **REMOVAL).run()

    # As the one of ansible-playbook, it can't end its session in Consul, and is gone then.
    assert forked(run) == 0
    assert consul.get("upgrade/schema") is None
    migrate(settings, **REMOVAL)
    assert whole(consul) == expected


@pytest.mark.thorough
def test_nodes_that_report_meanwhile_are_not_lost(consul: RawKV, settings: Settings) -> None:
    hosts = list(names(compute=200))
    load(consul, {"current_version": "v674", **legacy_reports(hosts, "v673")})
    over = threading.Event()
    moved: list[str] = []

    def be_old_nodes() -> None:
        """Report the next version as python-jiocloud did: the new key first, then away with the previous one."""
        for host in hosts:
            if over.is_set():
                return
            consul.put(f"running_version/v674/{host}", f"{time.time():.2f}")
            consul.delete(f"running_version/v673/{host}")
            moved.append(host)

    nodes = threading.Thread(target=be_old_nodes)
    store = Store(settings)

    def with_nodes(write: Write, operations: Sequence[Any]) -> Any:
        # A host that is between its two requests when nothing has begun yet is one at two versions.
        answer = write(operations)
        if nodes.ident is None:
            nodes.start()
        return answer

    around_writes(store, with_nodes)
    Migrator(store).run()
    over.set()
    nodes.join(30)
    outcome = Migrator(Store(settings), **REMOVAL).run()
    assert outcome.left == []
    assert moved
    expected = {host: "v674" if host in moved else "v673" for host in hosts}
    found = {key.split("/")[3]: key.split("/")[2] for key in consul.tree("running/versions/")}
    assert found == expected
    assert len(consul.tree("running/versions/")) == len(hosts)
