# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planner service takes over at once from one that is killed, also if neither could work for a minute before. All seconds are simulated.

One that was frozen for an hour, or is of an older release than another one, admits nothing that the rules forbid.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.migration import decode_schema, encode_migration
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put, remove
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.migration import RUNNING, Migration
from ansible_collections.convoy.upgrade.plugins.module_utils._host import host_report
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state import layout, snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate import migrator
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.step import MigrationStep
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.step_finder import find_steps
from fire.facts import GATES, HANDOVER, LEDGER, is_open
from fire.findings import Findings
from fire.fleet import FLEET, NEW
from fire.judge import Judge
from fire.rules import CAPS
from thorough import quick

from . import stand_ins
from .actor import Actor
from .consul import acl
from .network import Network, Sent
from .night import rules_by_instructions
from .planner_services import be_beginner, be_planner_service
from .start import network_with, simulated
from .world import World

# Longer than the longest pause of a service, and than its blocking queries. They end at different moments of its pauses.
_OUTAGES = (78.0, 81.0, 84.0, 87.0, 90.0)
# docs/operating.md promises it.
_HANDOVER = 2.0
_HOUR = 3600.0
_SCHEMA, _MIGRATION = "upgrade/schema", "upgrade/migration"
_OPERATOR = control.Command("under fire", fleet=FLEET)
# No writes of it are judged, as no rule is about them.
_HARNESS = "harness"


class _Site:
    """Two planner services, and a rollout that was handed over to them."""

    def __init__(self, world: World, timeout: float = 10) -> None:
        self.world, self._timeout = world, timeout
        self.network: Network = network_with(world, FLEET)
        self.logs = {name: io.StringIO() for name in ("one", "two", "newer")}
        self.services = [self.service("one"), self.service("two")]
        self.beginner = self._actor("beginner", be_beginner, CAPS)
        for actor in (*self.services, self.beginner):
            actor.start()
        self._done: set[str] = set()
        self.wait(20)

    def _actor(self, name: str, act: Callable[..., None], *arguments: Any) -> Actor:
        port = self.network.line(name, 0.002)
        return Actor(self.world, name, port, act, Settings(port=port, timeout=self._timeout), *arguments)

    def service(self, name: str) -> Actor:
        """Return a service, which is not started."""
        return self._actor(name, be_planner_service, name, self.logs[name])

    def said(self, name: str, after: int = 0) -> set[str]:
        """Return the events that a service has logged, without those of its first lines."""
        return {json.loads(line)["event"] for line in self.lines_of(name)[after:]}

    def lines_of(self, name: str) -> list[str]:
        """Return the log of a service."""
        return self.logs[name].getvalue().splitlines()

    def wait(self, seconds: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        self.world.run(self.world.now + seconds, is_done)

    def admitted(self) -> set[str]:
        """Return the hosts whose gates are open."""
        return {host for host in FLEET if is_open(self.network.now, host)}

    def act(self, act: Callable[[Store], Any], who: str = "operator") -> None:
        """Let another process do something."""
        other = self._actor(who, lambda _shared, settings: act(Store(settings)))
        other.start()
        self.wait(5, lambda: not other.process.is_alive)
        assert other.process.error is None

    def acting(self) -> Actor:
        """Return the service that wrote the ledger last."""
        writes = [step.write for step in self.network.steps if step.write is not None]
        ledgers = [one.who for one in writes if any(each["Key"] == LEDGER for each in one.operations)]
        names = {actor.name: actor for actor in self.services}
        return next(names[who] for who in reversed(ledgers) if who in names)

    def upgrade_one(self) -> float:
        """Let a host finish; return after how many seconds another one is admitted in its place."""
        before, began = self.admitted(), self.world.now
        self.finish_one()
        self.wait(60, lambda: bool(self.admitted() - before))
        assert self.admitted() - before
        return self.world.now - began

    def finish_one(self) -> None:
        """Let a host finish."""
        host = min(self.admitted() - self._done)
        self._done.add(host)
        self.act(lambda store: write_report(store, HostReport(host, NEW, "upgraded")), "nodes")

    def stop_in_a_pass(self, actor: Actor) -> Callable[[], bool]:
        """Stop a service as soon as what it has read for its next pass is on its way to it.

        :return: what returns whether it has gone on by that.
        """
        read: list[Sent] = []
        later: list[Sent] = []

        def note(sent: Sent, _code: int) -> None:
            if sent.line.name != actor.name:
                return
            if not read and not sent.is_write and any(one["Key"] == LEDGER for one in sent.operations):
                read.append(sent)
                actor.process.stop()
            elif read and sent.reading is not None and sent.reading.at == read[0].at:
                later.append(sent)

        # It has made all passes that an earlier change has caused.
        self.wait(2)
        self.network.arrived.append(note)
        self.finish_one()
        self.wait(5, lambda: bool(read))
        assert read, f"{actor.name} has made no pass since a host has finished"
        return lambda: bool(later)

    def writers_since(self, index: int) -> set[str]:
        """Return who has written the ledger or a gate since an index."""
        return {
            step.write.who
            for step in self.network.steps
            if step.index > index
            and step.write is not None
            and any(key.startswith((LEDGER, GATES)) for key in step.changed())
        }

    def judged(self) -> list[str]:
        """Return what was done against the rules."""
        findings = Findings()
        network = self.network
        rules_of = rules_by_instructions([CAPS])
        Judge(network.base, network.steps, rules_of, lambda *_: 0.0, lambda *_: 0.0, steady=True).judge(findings)
        return [*findings.sentences(), *network.malformed]


def _without_consul(site: _Site, seconds: float) -> None:
    lines = [site.network.lines[actor.port] for actor in site.services]
    for line in lines:
        line.is_cut = True
    site.wait(seconds)
    for line in lines:
        line.is_cut = False


def _with_a_ledger_that_is_unreadable(site: _Site, seconds: float) -> None:
    before = site.network.now[LEDGER].value
    site.act(lambda store: store.client.write([put(LEDGER, "{")]))
    site.wait(seconds)
    site.act(lambda store: store.client.write([put(LEDGER, before)]))


def _with_a_migration_under_way(site: _Site, seconds: float) -> None:
    text = encode_migration(Migration(RUNNING, 0, 1))
    site.act(lambda store: store.client.write([put(_MIGRATION, text)]))
    _wait_without_admissions(site, seconds, "migrating")
    # Neither the ledger nor the handover nor the layout is written.
    site.act(lambda store: store.client.write([remove(_MIGRATION)]))


def _with_tokens_that_may_nothing(site: _Site, seconds: float) -> None:
    server, lines = site.network.server, [site.network.lines[actor.port] for actor in site.services]
    server.tokens = {"": acl.ALL, "services": acl.parse("")}
    for line in lines:
        line.token = "services"
    _wait_without_admissions(site, seconds, "denied")
    # As an operator corrects a policy: Consul's keys say nothing of it.
    server.tokens["services"] = acl.ALL


def _wait_without_admissions(site: _Site, seconds: float, code: str) -> None:
    """Let a host finish and time pass, in which both services refuse to admit another one in its place."""
    before, epoch = site.admitted(), site.network.epoch()
    lines = {actor.name: len(site.lines_of(actor.name)) for actor in site.services}
    site.finish_one()
    site.wait(seconds - 5)
    # None says that it stands by as there is no rollout: it would wait for one then.
    assert {name: site.said(name, count) for name, count in lines.items()} == {name: {code} for name in lines}
    assert (site.admitted(), site.network.epoch()) == (before, epoch)


@pytest.mark.parametrize("seconds", _OUTAGES)
@pytest.mark.parametrize(
    "minute",
    [
        _without_consul,
        _with_a_ledger_that_is_unreadable,
        _with_a_migration_under_way,
        _with_tokens_that_may_nothing,
    ],
)
def test_a_service_that_is_killed_after_a_minute_without_passes_is_replaced_in_time(
    minute: Callable[[_Site, float], None], seconds: float
) -> None:
    with simulated(f"takeover {seconds}") as world:
        site = _Site(world)
        site.upgrade_one()
        site.wait(1)
        minute(site, seconds)
        # Both can work again when one is killed.
        site.wait(2)
        site.acting().process.kill()
        assert site.upgrade_one() < _HANDOVER


def _nothing(_store: Store) -> None:
    pass


def _pause(store: Store) -> None:
    control.pause(store, _OPERATOR)


def _hold(store: Store) -> None:
    set_holds(store, HoldTargets(True, [], []), "under fire")


def _end_the_handover(store: Store) -> None:
    store.client.write([remove(HANDOVER)])


@pytest.mark.parametrize("command", [_nothing, _pause, _hold, _end_the_handover])
@pytest.mark.parametrize("is_alone", [False, True], ids=["beside another", "alone"])
@pytest.mark.parametrize("seed", quick(1, range(3)))
def test_a_service_that_was_frozen_for_an_hour_admits_nothing_by_what_it_read_before(
    command: Callable[[Store], object], is_alone: bool, seed: int
) -> None:
    with simulated(f"frozen {seed}") as world:
        # What is on its way to a process that is stopped waits for it.
        site = _Site(world, 2 * _HOUR)
        site.upgrade_one()
        frozen, began = site.acting(), world.now
        before = site.admitted()
        other = next(actor for actor in site.services if actor is not frozen)
        if is_alone:
            # Nothing is admitted in its place, so Consul would take the gates that it opens an hour later.
            other.process.stop()
        goes_on = site.stop_in_a_pass(frozen)
        site.wait(60, lambda: bool(site.admitted() - before))
        assert (site.acting() is frozen) == is_alone
        for _host in range(0 if is_alone else 3):
            site.upgrade_one()
        if command is _end_the_handover:
            # No one hands the rollout over again.
            site.beginner.process.stop()
        # As a push run does.
        site.act(command, "push" if command is _end_the_handover else "operator")
        site.finish_one()
        site.wait(began + _HOUR - world.now)
        before, index = site.admitted(), site.network.server.index
        frozen.process.go_on()
        site.wait(30)
        # The hour has been, and it has gone on by what it had read before.
        assert goes_on()
        assert world.now - began >= _HOUR
        assert not site.judged()
        if command is not _nothing:
            assert site.admitted() == before
            assert frozen.name not in site.writers_since(index)
            return
        # It works again.
        other.process.kill()
        assert site.upgrade_one() < _HANDOVER
        assert site.acting() is frozen
        assert not site.judged()


class _ToTwo(MigrationStep):
    """A step of a newer release."""

    number: ClassVar[int] = 2
    release: ClassVar[str] = "9.8.7"
    title: ClassVar[str] = "nothing is moved"

    def folders(self, prefix: str) -> Sequence[str]:
        return (f"{prefix}running/versions/",)

    def problems(self, _found: Any) -> list[Any]:
        return []

    def moves(self, _found: Any) -> list[Any]:
        return []

    def removals(self, _found: Any) -> list[Any]:
        return []

    def waiting(self, _found: Any) -> list[str]:
        return []


@pytest.mark.parametrize("is_frozen", [False, True], ids=["awake", "frozen"])
@pytest.mark.parametrize("seed", quick(1, range(3)))
def test_services_of_an_older_release_admit_nothing_beside_one_of_a_newer_release(
    is_frozen: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(key: str, value: bytes) -> int:
        # All others are of the newer release, which supports the newer layout. Nothing is elsewhere in that.
        found = stand_ins.current()
        is_older = found is not None and found[1].name in ("one", "two")
        return decode_schema(key, value) if is_older else 1

    for module in (layout, snapshot, host_report):
        monkeypatch.setattr(module, "decode_schema", decoded)
    monkeypatch.setattr(migrator, "find_steps", lambda: [*find_steps(), _ToTwo()])
    with simulated(f"older {seed}") as world:
        # What is on its way to a process that is stopped waits for it.
        site = _Site(world, 2 * _HOUR)
        site.upgrade_one()
        older = site.acting()
        goes_on = site.stop_in_a_pass(older) if is_frozen else lambda: True
        if is_frozen:
            # The other one admits nothing in its place: the newer release has come before.
            site.services[1 - site.services.index(older)].process.stop()
        site.act(lambda store: migrator.Migrator(store).run(), _HARNESS)
        assert site.network.now[_SCHEMA].value == "2"
        index = site.network.server.index
        newer = site.service("newer")
        newer.start()
        for actor in site.services:
            actor.process.go_on()
        site.wait(20)
        for _host in range(3):
            site.finish_one()
            site.wait(20)
        assert site.writers_since(index) == {"newer"}
        assert site.judged() == []
        for actor in site.services:
            assert "newer_schema" in site.said(actor.name)
        assert goes_on()
        # Once the older ones are alone, no host is admitted.
        newer.process.kill()
        before = site.admitted()
        site.finish_one()
        site.wait(60)
        assert site.admitted() == before
