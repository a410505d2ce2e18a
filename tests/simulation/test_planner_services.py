# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planner service takes over at once from one that is killed, also if neither could work for a minute before. All seconds are simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from fire.facts import LEDGER, is_open
from fire.fleet import FLEET, NEW
from fire.rules import CAPS

from .actor import Actor
from .network import Network
from .planner_services import be_beginner, be_planner_service
from .start import network_with, simulated
from .world import World

# Longer than the longest pause of a service, and than its blocking queries. They end at different moments of its pauses.
_OUTAGES = (78.0, 81.0, 84.0, 87.0, 90.0)
# docs/operating.md promises it.
_HANDOVER = 2.0


class _Site:
    """Two planner services, and a rollout that was handed over to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network: Network = network_with(world, FLEET)
        self.services = [self._actor(name, be_planner_service, name) for name in ("one", "two")]
        for actor in (*self.services, self._actor("beginner", be_beginner, CAPS)):
            actor.start()
        self._done: set[str] = set()
        self.wait(20)

    def _actor(self, name: str, act: Callable[..., None], *arguments: Any) -> Actor:
        port = self.network.line(name, 0.002)
        return Actor(self.world, name, port, act, Settings(port=port), *arguments)

    def wait(self, seconds: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        self.world.run(self.world.now + seconds, is_done)

    def admitted(self) -> set[str]:
        """Return the hosts whose gates are open."""
        return {host for host in FLEET if is_open(self.network.now, host)}

    def act(self, act: Callable[[Store], Any]) -> None:
        """Let another process do something."""
        other = self._actor("other", lambda _shared, settings: act(Store(settings)))
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
        host = min(before - self._done)
        self._done.add(host)
        self.act(lambda store: write_report(store, HostReport(host, NEW, "upgraded")))
        self.wait(60, lambda: bool(self.admitted() - before))
        assert self.admitted() - before
        return self.world.now - began


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


@pytest.mark.parametrize("seconds", _OUTAGES)
@pytest.mark.parametrize("minute", [_without_consul, _with_a_ledger_that_is_unreadable])
def test_a_service_that_is_killed_after_a_minute_without_passes_is_replaced_in_time(
    minute: Callable[[_Site, float], None], seconds: float
) -> None:
    with simulated(f"takeover {seconds}") as world:
        site = _Site(world)
        site.upgrade_one()
        minute(site, seconds)
        # Both can work again when one is killed.
        site.wait(2)
        site.acting().process.kill()
        assert site.upgrade_one() < _HANDOVER
