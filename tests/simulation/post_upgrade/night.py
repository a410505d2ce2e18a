# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated night of post-upgrade tasks: push runs and agents run them while hosts join the fleet, and everything goes wrong that can.

In half of the nights, agents run all of them, and planner services admit their hosts.

What is judged here is read from the keys alone, without the code of the collection.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from fire.facts import GATES, HISTORY, LEDGER, RECORDS, REPORTS, data_of, holds_over, is_open
from fire.findings import Findings
from fire.fleet import FLEET, NEW
from fire.replay import State, Step
from greenlet import getcurrent

from ..actor import Actor
from ..faults import KINDS, Faults
from ..network import StateReading
from ..night_log import night_log, shown_by, stuck
from ..start import network_with, simulated
from ..story import NightResult
from ..world import Process, Thread, World
from . import actors

_FAULTS, _SECONDS, _SETUP = 15.0, 120.0, 60.0
_RUNS, _AGENTS = 2, 3
# Tests name seeds below the end of these. They keep what they had before chance decided it.
WITH_SERVICES = range(1000, 2000)
_EXPECTED = ("went_back",)
# The keys that are printed of a night without an end.
_SHOWN = (LEDGER, GATES, RECORDS, "upgrade/hold", REPORTS, "upgrade/drivers/", "upgrade/once/")
_ORDER = {"role_order": {"compute": "controller"}}
# Rules, and what they mean: roles -> how many of their hosts may be down, and how many failed ones stop all admissions.
RULES: tuple[tuple[Mapping[str, Any], Mapping[tuple[str, ...], int], int | None], ...] = (
    ({"rolling_rules": {"global": 1}, **_ORDER}, {(role,): 1 for role in set(FLEET.values())}, None),
    (
        {"rolling_rules": {"global": 3, "fleet": 4}, **_ORDER, "failure_rules": {"fleet": 3}},
        {tuple(set(FLEET.values())): 4, ("web",): 3, ("controller",): 3, ("compute",): 3, ("storage",): 3},
        3,
    ),
)


# What can be left out of a night: the second run or service, and kinds of faults.
PARTS = ("second", *(kind for kind in dict.fromkeys(KINDS) if kind != "clock"))


@dataclass
class PostUpgradeResult(NightResult):
    """What a night of post-upgrade tasks came to.

    :param admissions: how often hosts were admitted to their tasks, and how many hosts that joined.
    """

    OPTION = "--post-upgrade-seed"
    admissions: Counter[str] = field(default_factory=Counter)


def run(seed: int, without: Collection[str] = ()) -> PostUpgradeResult:
    """Simulate the night of a seed, and judge it.

    :param without: which of PARTS to leave out.
    """
    with simulated(f"post-upgrade {seed}") as world:
        return _Night(world, seed, without).run()


def has_services(seed: int) -> bool:
    """Return whether planner services admit the hosts of a night, and no push runs."""
    if seed < WITH_SERVICES.stop:
        return seed in WITH_SERVICES
    return random.Random(f"post-upgrade services {seed}").random() < 0.5


class _Night:
    def __init__(self, world: World, seed: int, without: Collection[str]) -> None:
        self._has_services = has_services(seed)
        kind = f"post-upgrade tasks, {'services' if self._has_services else 'push runs'}"
        self._world, self._result, self._without = world, PostUpgradeResult(seed, kind), without
        self._site = actors.Site(self._work_on, () if self._has_services else actors.PUSHED)
        self._network = network_with(world, self._site.members)
        self._actors: list[Actor] = []
        self._findings = Findings()
        self._rules, self._caps, self._budget = world.chance.choice(RULES)
        # Host -> the thread that works on it, and since when.
        self._working: dict[str, tuple[Thread, float]] = {}
        # Hosts that planners have admitted to their tasks, without those that were retried since.
        self._admitted: set[str] = set()

    def run(self) -> PostUpgradeResult:
        """Let it pass: an upgrade without faults, some seconds of tasks with them, then calm until all is done."""
        world, result, seed = self._world, self._result, self._result.seed
        self._upgrade_all()
        self._network.listeners.append(self._judge)
        runs = [self._run_or_service(n) for n in range(1, 2 if "second" in self._without else _RUNS + 1)]
        planner = self._actor("planner", actors.be_planner, self._site)
        pulled = [host for host, role in FLEET.items() if role not in self._site.pushed]
        agents = [
            self._actor(f"agents{n}", actors.be_agents, self._site, pulled[n::_AGENTS], seed, n) for n in range(_AGENTS)
        ]
        self._actor("operator", actors.be_operator, self._site, seed)
        for actor in self._actors:
            actor.start()
        to_kill = [*runs, planner, *agents]
        faults = Faults(world, self._network, to_kill, self._actors, restores=False, without=[*self._without, "clock"])
        harness = Process(world, "faults")
        harness.start(lambda: faults.run(world.now + _FAULTS))
        joins_at = world.now + world.chance.uniform(0, _FAULTS)
        world.run(joins_at, self._has_failed)
        self._site.members.update({host: FLEET[host] for host in actors.JOINING})
        world.run(3600, lambda: not harness.is_alive or self._has_failed())
        if harness.error is not None:
            raise harness.error
        for actor in to_kill:
            actor.process.go_on()
            if not actor.process.is_alive and not self._has_failed():
                actor.start()
        for actor in self._actors:
            actor.shared.calm.value = 1
        world.run(world.now + _SECONDS, lambda: self._is_over() or self._has_failed())
        say = self._findings.at(None)
        for actor in self._actors:
            if actor.process.error is not None and actor.code not in _EXPECTED:
                say(f"{actor.name} ended with {actor.process.error!r}\n{actor.process.stack}")
        if not self._is_over() and not self._has_failed():
            say(f"the tasks did not come to an end in {_SECONDS:.0f} s")
            result.stuck = stuck(self._network, _SHOWN, self._actors)
        for problem in self._network.malformed:
            say(problem)
        result.violations, result.faults = self._findings.sentences(), faults.count
        if result.violations:
            first = self._findings.first()
            result.log = night_log(self._network, faults.log, first)
            result.shown_by = shown_by(self._network, first)
        return result

    def _run_or_service(self, number: int) -> Actor:
        if self._has_services:
            return self._actor(f"service{number}", actors.be_service, self._site, f"service{number}")
        return self._actor(f"run{number}", actors.be_runs, self._site, self._result.seed, number)

    def _upgrade_all(self) -> None:
        port = self._network.line("setup", 0.001)
        settings = Settings(port=port, timeout=3)
        process = Process(self._world, "setup")
        process.start(lambda: actors.upgrade_all(Store(settings), self._rules, self._site))
        self._world.run(_SETUP, lambda: not process.is_alive)
        if process.error is not None:
            raise process.error
        assert not process.is_alive

    def _actor(self, name: str, act: Any, *arguments: Any) -> Actor:
        port = self._network.line(name, self._world.chance.choice((0.001, 0.005, 0.05)))
        actor = Actor(self._world, name, port, act, Settings(port=port, timeout=3), *arguments)
        self._actors.append(actor)
        return actor

    def _work_on(self, host: str) -> Callable[[], None]:
        """Notice two at work on one host."""
        me = getcurrent()
        assert isinstance(me, Thread)
        other, since = self._working.get(host, (me, 0.0))
        # One that was stopped in the middle of a task can't know that its lease has ended.
        if other is not me and other.is_alive and other.process.stopped_at < since:
            self._say(f"{me.process.name} works on {host} while {other.process.name} does")
        self._working[host] = me, me.process.world.now
        return lambda: self._working.pop(host, None) and None

    def _say(self, sentence: str) -> None:
        self._findings.at(self._network.server.index)(sentence)

    def _has_failed(self) -> bool:
        return bool(self._findings.sentences()) or any(
            one.process.error is not None and one.code not in _EXPECTED for one in self._actors
        )

    def _is_over(self) -> bool:
        state = self._network.now
        is_open_again = f"{GATES}global" in state and state[f"{GATES}global"].value == "True"
        ledger = data_of(state.get(LEDGER))
        # Hosts that joined after the gates were opened are no part of the tasks. Only push runs, which judge by records, run them there.
        late = actors.JOINING if self._has_services and not ledger.get("post_upgrade") else ()
        done = all(_post(state, host) == "done" for host in FLEET if host not in late)
        there = all(f"{REPORTS}{NEW}/{host}" in state for host in late)
        return done and there and is_open_again and ledger["state"] == "complete"

    def _judge(self, step: Step) -> None:
        """Say what a step broke."""
        for key, (_before, after) in step.changed().items():
            if key.startswith(HISTORY) and after is not None:
                self._of_event(data_of(after), step)
        for host in FLEET:
            self._of_start(host, step)

    def _of_event(self, event: Mapping[str, Any], step: Step) -> None:
        what, hosts = event["what"], [*event.get("hosts", ())]
        if what == "retry":
            self._admitted.difference_update(hosts)
        if what == "converge" and data_of(step.before.get(LEDGER)).get("post_upgrade"):
            upgraded = [host for host in FLEET if f"{REPORTS}{NEW}/{host}" in step.before]
            left = [host for host in upgraded if _post(step.before, host) != "done"]
            if left:
                self._say(f"all gates were opened, and {left} have not finished their tasks")
        if what not in ("after", "open"):
            return
        self._result.admissions[what] += len(hosts)
        state = data_of(step.before.get(LEDGER)).get("state")
        if state == "paused":
            self._say(f"{hosts} were admitted while the rollout was paused")
        held = [host for host in hosts for key in holds_over(host) if key in step.before]
        if held:
            self._say(f"{held} were admitted under a hold")
        down = {host for host in FLEET if _is_down(step.after, host)}
        for roles, cap in self._caps.items():
            of_roles = sorted(host for host in down if FLEET[host] in roles)
            if len(of_roles) > cap and set(hosts) & set(of_roles):
                self._say(f"{hosts} were admitted, and {of_roles} are down: {cap} may be")
        # A failure that was reported between the read and the write of a planner stops the next one.
        reading = step.write.reading if step.write is not None else None
        read = reading.state if isinstance(reading, StateReading) else step.before
        failed = [host for host in FLEET if _post(step.before, host) == _post(read, host) == "failed"]
        if self._budget is not None and len(failed) >= self._budget:
            self._say(f"{hosts} were admitted while {failed} had failed, and {self._budget} stop it")
        if what == "after":
            self._of_tasks(hosts, step)

    def _of_tasks(self, hosts: list[str], step: Step) -> None:
        self._admitted.update(hosts)
        missing = [host for host in self._site.members if f"{REPORTS}{NEW}/{host}" not in step.before]
        is_known = [host for host in missing if data_of(step.before.get(RECORDS + host))]
        if is_known:
            self._say(f"{hosts} were admitted to their tasks, and {is_known} are not upgraded")
        first = [host for host, role in FLEET.items() if role == "controller" and _post(step.before, host) != "done"]
        early = [host for host in hosts if FLEET[host] == "compute"]
        if first and early:
            self._say(f"{early} were admitted to their tasks before {first}")
        again = [host for host in hosts if _post(step.before, host)]
        if again:
            self._say(f"{again} were admitted to their tasks, and were in them")

    def _of_start(self, host: str, step: Step) -> None:
        was, now = _post(step.before, host), _post(step.after, host)
        if now == was or now not in ("started", "done"):
            return
        if now == "done":
            if was != "started":
                self._say(f"{host} is done with its tasks, and was {was}")
            return
        if host not in self._admitted or was not in ("open", "failed"):
            self._say(f"{host} began its tasks without being admitted, and was {was}")
        if any(key in step.before for key in holds_over(host)):
            self._say(f"{host} began its tasks under a hold")
        if FLEET[host] not in self._site.pushed and not is_open(step.before, host):
            self._say(f"{host} began its tasks behind a closed gate")


def _post(state: State, host: str) -> str:
    record = data_of(state.get(f"{RECORDS}{host}"))
    found: str = record.get("post") or ""
    return found if record.get("version") == NEW else ""


def _is_down(state: State, host: str) -> bool:
    """Return whether a host is at its tasks, or may begin them at any time, or failed in them; or is on its way to the version."""
    if _post(state, host) in ("open", "started", "failed"):
        return True
    if f"{REPORTS}{NEW}/{host}" in state:
        return False
    return is_open(state, host) or data_of(state.get(f"{RECORDS}{host}")).get("state") in ("started", "failed")
