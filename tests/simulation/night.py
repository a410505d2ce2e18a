# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One simulated night: a rollout by the real code with planners, operators and nodes, while everything goes wrong that can.

Actors, rules and judge are those of the fire tests, which run on real servers. What is different here is that a second of a night takes
some milliseconds, and that a seed decides all of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._cache import key_cache, partitions
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout import host_health_notes
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.decision import PassView
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import PushRun
from fire import actors
from fire.facts import GATES, HANDOVER, HISTORY, LEDGER, OF_RUNS, RECORDS, REPORTS, Facts, data_of, is_open
from fire.findings import Findings
from fire.fleet import FLEET, NEW, OLD
from fire.judge import Judge
from fire.push import ROLE, STEPS, Pusher, PushService
from fire.replay import State, Step
from fire.rules import Rules, Schedule, schedule
from greenlet import getcurrent

from . import stand_ins
from .actor import Actor
from .commands import CommandJudge
from .faults import KINDS, Faults
from .network import Network
from .night_log import night_log, shown_by, stuck
from .notified import Hook, be_notifier
from .planner_services import be_beginner, be_planner_service
from .real_versions import RealVersions
from .reported import mistakes_of_report
from .start import network_with, simulated
from .status import StatusReader
from .story import NightResult
from .world import Process, Thread, World

_FAULTS = 12.0
_SECONDS = 150.0
# For so many recoveries that are noted with pauses, the end may take longer: of each budget, of the stages, and both again after a retry.
_MOST_RECOVERIES = 4
# How long the end may take to reach a hook.
_UNTIL_SENT = 60.0
# How long the rollout report may take.
_UNTIL_REPORTED = 20.0
# So many of all nights have push runs, and notifiers, each of which reads as much as a planner.
_WITH_PUSH, _WITH_NOTIFIERS = 0.4, 0.25
# The same of a reader of the status.
_WITH_READER = 0.3
# In so many nights without push runs, all planners are planner services, to which an operator hands the rollout over. A push run ends the handover.
_WITH_SERVICES = 0.3
# In so many nights, only what has changed is decoded for a snapshot.
_WITH_SHARED_DECODING = 0.8
# In so many nights, all planners keep the fleet in memory.
_CACHING = 0.5
# The fleet has 25 hosts. In so many nights, folders of so many keys are divided, and otherwise those of real sizes.
_DIVIDED, _LEAST_TO_DIVIDE = 1 / 3, 9
_REAL_SIZES = (partitions.LEAST_TO_DIVIDE, partitions._LEAST)
_PLANNERS, _NODES, _PUSH_RUNS, _NOTIFIERS = (1, 2, 2, 3, 4), 3, 2, 2
# Ended processes whose end is no finding: planners that noticed a restore.
_EXPECTED = ("went_back",)


@dataclass
class Result(NightResult):
    """What a night of a rollout came to.

    :param seconds: how long the night was.
    """

    OPTION = "--seed"
    seconds: float = 0
    admissions: int = 0
    writes: int = 0
    requests: int = 0


# What can be left out of a night, to see whether it fails without it too.
PARTS = (
    "restore",
    "rollback",
    "lies",
    "holder",
    "push2",
    "push",
    "services",
    "reader",
    "notifier2",
    "notifier1",
    "planner4",
    "planner3",
    "planner2",
    *dict.fromkeys(KINDS),
)


def run(seed: int, without: Collection[str] = ()) -> Result:
    """Simulate the night of a seed, and judge it.

    :param without: which of PARTS to leave out.
    """
    plan = schedule(seed, stand_ins.BEGIN)
    if "restore" in without:
        plan = replace(plan, restore=False)
    if "rollback" in without:
        plan = replace(plan, rollback=None)
    # In some nights, planners that keep the fleet in memory read a small fleet as they read a large one.
    is_divided = _is_divided(seed)
    partitions.LEAST_TO_DIVIDE = key_cache.LEAST_TO_DIVIDE = _LEAST_TO_DIVIDE if is_divided else _REAL_SIZES[0]
    partitions._LEAST = _LEAST_TO_DIVIDE // 3 if is_divided else _REAL_SIZES[1]
    is_shared = random.Random(f"decoding {seed}").random() < _WITH_SHARED_DECODING
    with simulated(f"night {seed}", is_shared=is_shared) as world:
        return Night(world, plan, without).run()


def _is_divided(seed: int) -> bool:
    return random.Random(f"partitions {seed}").random() < _DIVIDED


class _WatchedPusher(Pusher):
    """Makes push runs, and notices two of them at work on one host.

    :param working: host -> the thread of a push run that works on it, and since when.
    :param real: what hosts really run.
    """

    def __init__(
        self, network: Network, working: dict[str, tuple[Thread, float]], real: RealVersions, *given: Any
    ) -> None:
        super().__init__(*given)
        self._network, self._working, self._real, self._version = network, working, real, ""

    def _service_of(self, run: PushRun) -> PushService:
        """Return the service of a run, which shares the epoch of its last pass."""
        shared: Any = self._shared
        self._version = run.version
        shared.epoch.value = 0
        shared.runs.value += 1
        service = super()._service_of(run)
        admission = service._admission
        make_pass = admission._make_pass

        def watched(limit: Collection[str]) -> PassView:
            made = make_pass(limit)
            shared.epoch.value = made.outcome.ledger.epoch if made.outcome.ledger is not None else 0
            return made

        vars(admission)["_make_pass"] = watched
        return service

    def act(self, host: str) -> None:
        me = getcurrent()
        assert isinstance(me, Thread)
        other, since = self._working.get(host, (me, 0.0))
        # One that was stopped in the middle of a task can't know that its lease has ended, nor that a restore has taken it away.
        is_told = max(other.process.stopped_at, self._network.restored_at) < since
        if other is not me and other.is_alive and is_told:
            raise AssertionError(f"{me.process.name} works on {host} while {other.process.name} does")
        self._working[host] = me, me.process.world.now
        try:
            super().act(host)
            self._real.ran_tasks(host, self._version)
        finally:
            self._working.pop(host, None)


class Night:
    """One night."""

    def __init__(self, world: World, plan: Schedule, without: Collection[str]) -> None:
        """Make a fleet of the old version."""
        self._world = world
        self._without = without
        self._plan = plan
        self._network = network_with(world, FLEET)
        for host in FLEET:
            self._network.server.catalog.add(host)
        self._rules_of = rules_by_instructions(plan.kind.rules)
        self._actors: list[Actor] = []
        self._findings = Findings()
        # Half of the nights have nodes that report the truth, so that caps are judged by what hosts really do.
        self._is_honest = world.chance.random() < 0.5 or "lies" in without
        self._is_pushed = world.chance.random() < _WITH_PUSH and "push" not in without
        self._has_notifiers = world.chance.random() < _WITH_NOTIFIERS
        has_services = random.Random(f"services {plan.seed}").random() < _WITH_SERVICES and "services" not in without
        self._has_services = has_services and not self._is_pushed
        self._is_read = random.Random(f"reader {plan.seed}").random() < _WITH_READER and "reader" not in without
        self._hook = Hook(world, self._network)
        # Host -> the thread of a push run that works on it, and since when.
        self._working: dict[str, tuple[Thread, float]] = {}
        # Process -> the hosts that it acts for.
        self._hosts_of: dict[str, Collection[str]] = {}
        self._real = RealVersions(len(STEPS))
        # Hosts that a restore has put back, and that were not admitted since.
        self._forgotten: set[str] = set()
        self._is_complete = False
        self._down: tuple[State, Rules, set[str]] | None = None

    def run(self) -> Result:
        """Let it pass: some seconds with faults, then calm until the rollout ends."""
        world, plan, network = self._world, self._plan, self._network
        more = [
            *(["honest"] if self._is_honest else []),
            *(["push"] if self._is_pushed else []),
            *(["notifiers"] if self._has_notifiers else []),
            *(["services"] if self._has_services else []),
            *(["reader"] if self._is_read else []),
            *(["advised"] if plan.is_advised else []),
            *(["partitions"] if _is_divided(plan.seed) else []),
        ]
        result = Result(plan.seed, ", ".join([plan.name, *more]))
        planners, others = self._start()
        to_kill = [*planners, *(actor for actor in others if actor.name.startswith(("push", "notifier")))]
        without = self._without if world.chance.random() < 0.6 else [*self._without, "clock"]
        faults = Faults(world, network, to_kill, self._actors, restores=plan.restore, without=without)
        harness = Process(world, "faults")
        harness.start(lambda: faults.run(_FAULTS))
        if self._has_services:
            network.listeners.append(self._not_handed_over)
        if self._is_honest:
            network.listeners.append(self._over_the_caps)
        network.listeners.append(lambda step: self._goes_on(step, faults))
        network.listeners.append(self._really_runs)
        world.run(3600, lambda: not harness.is_alive or self._has_failed())
        if harness.error is not None:
            raise harness.error
        for actor in to_kill:
            actor.process.go_on()
            if plan.is_advised or plan.kind.rules[0].canary:
                # By an operator's clock, what a planner with a wrong one says is done has not soaked. A wait that it began goes on.
                actor.set_clock(0)
            # As an operator does with a planner that noticed a restore.
            if not actor.process.is_alive and not self._has_failed():
                actor.start()
        for actor in self._actors:
            actor.shared.calm.value = 1
        network.listeners.append(lambda _step: self._note_end(others[0]))
        self._note_end(others[0])
        why = self._wait_for_the_end(to_kill)
        self._wait_for_hook()
        say = self._findings.at(None)
        for actor in self._actors:
            if actor.process.error is not None and not self._may_end(actor):
                say(f"{actor.name} ended with {actor.process.error!r}\n{actor.process.stack}")
        if not self._is_complete and not self._has_failed():
            say(f"the rollout did not come to an end {why}")
            result.stuck = stuck(network, (LEDGER, GATES, RECORDS, "upgrade/hold", REPORTS, *OF_RUNS), self._actors)
        for problem in [*faults.problems, *network.malformed]:
            say(problem)
        if self._has_notifiers and self._is_complete:
            for problem in self._hook.problems():
                say(problem)
            if not self._is_notified():
                say(f"the end was not sent within {_UNTIL_SENT:.0f} s: {[one['event'] for one in self._hook.events]}")
        if self._is_complete and not self._has_failed() and not network.restores:
            self._compare_report(steady=not faults.count["clock"])
        self._judge(faults, result)
        result.violations = self._findings.sentences()
        result.faults, result.seconds, result.requests = faults.count, world.now, network.requests
        if result.violations:
            first = self._findings.first()
            result.log, result.shown_by = night_log(network, faults.log, first), shown_by(network, first)
        return result

    def _start(self) -> tuple[list[Actor], list[Actor]]:
        plan = self._plan
        hosts = [host for host, role in FLEET.items() if role != ROLE or not self._is_pushed]
        first = plan.kind.rules[0]
        planners = [
            self._planner(n, first)
            for n in range(1, self._world.chance.choice(_PLANNERS) + 1)
            if f"planner{n}" not in self._without
        ]
        others = [self._actor("operator", actors.be_operator, plan, self._judged_commands("operator"))]
        if self._has_services:
            others.append(self._actor("beginner", be_beginner, first))
        if "holder" not in self._without:
            others.append(self._actor("holder", actors.be_holder, plan, self._judged_commands("holder")))
        for n in range(_NODES):
            mine = {host: FLEET[host] for host in hosts[n::_NODES]}
            self._hosts_of[f"nodes{n}"] = mine
            others.append(self._actor(f"nodes{n}", actors.be_nodes, mine, plan, n, self._is_honest, self._real.runs))
        if self._is_pushed:
            for n in range(1, _PUSH_RUNS + 1):
                if f"push{n}" not in self._without:
                    self._hosts_of[f"push{n}"] = [host for host, role in FLEET.items() if role == ROLE]
                    others.append(self._actor(f"push{n}", self._be_push, plan, n))
                    others[-1].outlives = True
        if self._is_read:
            reader = StatusReader(self._network, self._rules_of, self._report_now)
            others.append(self._actor("reader", reader.work, plan.seed))
        for n in range(1, _NOTIFIERS + 1):
            if self._has_notifiers and f"notifier{n}" not in self._without:
                others.append(self._actor(f"notifier{n}", be_notifier, self._hook, self._world))
        if self._has_notifiers:
            # A notifier sends what happens after its first read.
            for actor in others:
                if actor.name.startswith("notifier"):
                    actor.start()
            self._world.run(1.0, lambda: False)
        for actor in self._actors:
            if not actor.process.is_alive:
                actor.start()
        return planners, others

    def _planner(self, number: int, first: Rules) -> Actor:
        """Return a planner: one that keeps the fleet in memory, or one that begins again in each pass, as a module does.

        Only the first one may be such, as it reads all keys in each pass.
        """
        name = f"planner{number}"
        if self._has_services:
            service = self._actor(name, be_planner_service, name)
            service.outlives = True
            return service
        if number > 1 or self._world.chance.random() < _CACHING:
            return self._actor(name, actors.be_caching_planner, first)
        return self._actor(name, actors.be_planner, first, self._plan.kind.insisting)

    def _judged_commands(self, who: str) -> actors.Give:
        return CommandJudge(self._network, who, self._rules_of, self._report_now).give

    def _be_push(self, shared: Any, settings: Settings, plan: Schedule, number: int) -> None:
        _WatchedPusher(self._network, self._working, self._real, shared, settings, plan, number).work()

    def _wait_for_the_end(self, planners: Sequence[Actor]) -> str:
        """Let time pass until the rollout ends; return in which time it should have.

        A planner that notices a restore only now is started again, once, as an operator does.
        """
        world, again = self._world, [*planners]
        until = world.now + _SECONDS
        recoveries: set[float] = set()
        while world.now < until and not (self._is_complete or self._has_failed()):
            recoveries.add(self._next_recovery())
            if len(recoveries - {0.0}) > _MOST_RECOVERIES:
                return f"although planners noted {_MOST_RECOVERIES} recoveries after the faults, each with a pause: what recovers is lost again"
            until = max(until, *recoveries)
            world.run(world.now + 1, lambda: self._is_complete or self._has_failed())
            for actor in [one for one in again if self._may_end(one)]:
                again.remove(actor)
                actor.start()
        return f"in {_SECONDS:.0f} s"

    def _next_recovery(self) -> float:
        """Return how long the end may take because planners note further recoveries of one rollout with pauses only (seconds of the night)."""
        ledger = data_of(self._network.now.get(LEDGER))
        if ledger.get("recoveries", 0) < host_health_notes._FREE_RECOVERIES:
            return 0.0
        pause = host_health_notes._LEAST_BETWEEN_RECOVERIES
        return float(ledger["recovered_at"] - stand_ins.BEGIN + pause + _SECONDS)

    def _wait_for_hook(self) -> None:
        """Let time pass until the hook has got every event, or should have."""
        world = self._world
        until = world.now + _UNTIL_SENT
        while self._has_notifiers and world.now < until and not self._has_failed():
            if self._is_notified() and not [*self._hook.problems()]:
                return
            world.run(min(until, world.now + 1), self._has_failed)

    def _report_now(self, sentence: str) -> None:
        self._findings.at(self._network.server.index)(sentence)

    def _is_notified(self) -> bool:
        return not any(actor.name.startswith("notifier") for actor in self._actors) or self._hook.has_sent_the_end

    def _actor(self, name: str, act: Any, *arguments: Any) -> Actor:
        port = self._network.line(name, self._world.chance.choice((0.001, 0.005, 0.05)))
        actor = Actor(self._world, name, port, act, Settings(port=port, timeout=3), *arguments)
        self._actors.append(actor)
        return actor

    def _has_failed(self) -> bool:
        if not self._world.failed:
            return False
        return any(one.process.error is not None and not self._may_end(one) for one in self._actors)

    def _may_end(self, actor: Actor) -> bool:
        """Return whether the error that ended an actor is no finding. Without a restore, nobody may have noticed one."""
        return self._plan.restore and actor.code in _EXPECTED

    def _note_end(self, operator: Actor) -> None:
        """Notice the end of the rollout."""
        target = NEW
        if self._plan.rollback is not None:
            if not operator.shared.target.value:
                return
            target = OLD
        state = self._network.now
        ledger = data_of(state.get(LEDGER))
        if ledger.get("state") == "complete" and ledger["version"] == target:
            self._is_complete = all(f"{REPORTS}{target}/{host}" in state for host in FLEET)

    def _over_the_caps(self, step: Step) -> None:
        """Say that more hosts are down than a cap allows, if a step made it so."""
        rules = self._rules_of(data_of(step.after.get(LEDGER)).get("instructions", {}))
        forgotten = {*self._forgotten}
        self._forget(step)
        if rules is None or LEDGER not in step.before or step.is_restore:
            return
        changed = [key for key, (_before, after) in step.changed().items() if after is not None]
        events = [data_of(step.after[key])["what"] for key in changed if key.startswith(HISTORY)]
        # The beginning of a rollout closes all gates. Hosts that run its version already are down for the judge until they are seen to be well.
        if "begin" in events or not any(key.startswith((GATES, RECORDS, REPORTS)) for key in changed):
            return
        before, after = (
            self._down_in(step.before, rules) - forgotten,
            self._down_in(step.after, rules) - self._forgotten,
        )
        # A host that failed before it started may say so after it was put back, which closed its gate. No planner has admitted it.
        late = {host for host in after - before if self._fails_late(step, host)}
        for roles, cap in rules.caps.items():
            now = {host for host in after if FLEET[host] in roles}
            if len(now) > cap and now - before - late:
                self._findings.at(step.index)(
                    f"{len(now)} of {roles} are down, {cap} may be: {sorted(now)}, of them new {sorted(now - before)}"
                )

    def _really_runs(self, step: Step) -> None:
        """Say which hosts do not run what they report. Push hosts never lie."""
        if step.is_restore:
            return
        is_pushed = self._is_pushed
        hosts = {host: role for host, role in FLEET.items() if self._is_honest or (is_pushed and role == ROLE)}
        for sentence in self._real.mistakes(step, hosts):
            self._findings.at(step.index)(sentence)

    def _compare_report(self, *, steady: bool) -> None:
        """Compare the rollout report with the failures and retries of the night.

        :param steady: whether no clock was set at all.
        """
        found: list[dict[str, Any]] = []
        settings = Settings(port=self._network.line("report", 0.001), timeout=3)
        process = Process(self._world, "report")
        process.start(lambda: found.append(read_rollout_report(Store(settings), fleet=FLEET)))
        self._world.run(self._world.now + _UNTIL_REPORTED, lambda: not process.is_alive)
        version = data_of(self._network.now[LEDGER])["version"]
        say = self._findings.at(None)
        if not found:
            say(f"there is no report: {process.error!r}")
        for sentence in mistakes_of_report(found[0], self._network.steps, version, steady=steady) if found else ():
            say(sentence)

    def _forget(self, step: Step) -> None:
        """Note which hosts a restore has put back, until they are admitted again: they may be down, and no planner can know that."""
        if step.is_restore:
            keys = step.changed()
            self._forgotten.update(host for host in FLEET if any(key.endswith(f"/{host}") for key in keys))
            self._forgotten.update(host for host in FLEET if is_open(step.before, host) != is_open(step.after, host))
        elif self._forgotten and LEDGER in step.changed():
            self._forgotten -= {
                host for host in self._forgotten if is_open(step.after, host) and not is_open(step.before, host)
            }

    def _goes_on(self, step: Step, faults: Faults) -> None:
        """Say that a process goes on after a restore, and had seen a newer epoch before.

        A planner service may, as soon as an operator has handed the rollout over again. A push run may put its hosts back, which admits none.
        """
        who = step.write.who if step.write is not None else ""
        if who not in faults.ahead or LEDGER not in step.changed():
            return
        pid, runs, newest = faults.ahead[who]
        actor = next(one for one in self._actors if one.name == who)
        is_new = (actor.process.pid, actor.shared.runs.value) != (pid, runs)
        handover = step.before.get(HANDOVER)
        is_again = self._has_services and handover is not None and handover != faults.restored.get(HANDOVER)
        # The history no longer distinguishes a restore from rollouts that have begun since.
        is_overtaken = newest < data_of(step.before.get(LEDGER)).get("history_from", 1)
        if is_new or is_again or is_overtaken:
            del faults.ahead[who]
            return
        events = [
            data_of(after)["what"] for key, (_was, after) in step.changed().items() if key.startswith(HISTORY) and after
        ]
        if events != ["retry"]:
            self._findings.at(step.index)(
                f"{who} had seen epoch {newest} before the restore, and wrote {events} after it"
            )

    def _not_handed_over(self, step: Step) -> None:
        """Say that a planner service wrote the ledger of a rollout that was not handed over to it."""
        if step.write is None or not step.write.who.startswith("planner") or LEDGER not in step.changed():
            return
        ledger, handover = data_of(step.before.get(LEDGER)), data_of(step.before.get(HANDOVER))
        if [handover.get(name) for name in ("version", "since")] != [ledger.get(name) for name in ("version", "since")]:
            self._findings.at(step.index)(f"{step.write.who} wrote {LEDGER}, and {HANDOVER} is {handover or 'missing'}")

    @staticmethod
    def _fails_late(step: Step, host: str) -> bool:
        changed = step.changed().get(f"{RECORDS}{host}")
        return changed is not None and data_of(changed[1]).get("state") == "failed" and not is_open(step.before, host)

    def _down_in(self, state: State, rules: Rules) -> set[str]:
        """Return the hosts that are down. The keys after a step are mostly those before the next one."""
        if self._down is None or self._down[0] is not state or self._down[1] is not rules:
            self._down = (state, rules, Facts(state, rules).down())
        return self._down[2]

    def _judge(self, faults: Faults, result: Result) -> None:
        network = self._network
        clocks = {actor.name: actor for actor in self._actors}
        judge = Judge(
            network.base,
            network.steps,
            self._rules_of,
            lambda who, at: clocks[who].ahead_around(at),
            lambda who, at: clocks[who].most_ahead_around(at),
            steady=not faults.count["clock"] and not network.restores,
            hosts_of=self._hosts_of,
        )
        judge.judge(self._findings)
        result.admissions, result.writes = judge.admissions, len(network.steps)


def rules_by_instructions(rules: Sequence[Rules]) -> Any:
    """Return a function that returns the rules by the instructions in a ledger."""

    def key(instructions: Mapping[str, Any]) -> str:
        return json.dumps(parse(instructions).plain(), sort_keys=True)

    known = {key(one.instructions): one for one in rules}
    # Ledgers with the same text have the same object, which is kept here so that no other one gets its ID.
    found: dict[int, tuple[Mapping[str, Any], Rules | None]] = {}

    def rules_of(instructions: Mapping[str, Any]) -> Rules | None:
        if id(instructions) not in found:
            found[id(instructions)] = instructions, known.get(json.dumps(instructions, sort_keys=True))
        return found[id(instructions)][1]

    return rules_of
