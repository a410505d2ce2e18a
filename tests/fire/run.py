# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run under fire: a rollout with planners, an operator and nodes, while servers and planners are shot at."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from lab.lab import Lab

from .actors import be_holder, be_nodes, be_operator, be_planner
from .cluster import all_keys, becomes_whole, once_led, url_of
from .facts import GATES, HOLDS, LEDGER, RECORDS, REPORTS
from .faults import Faults
from .findings import Findings
from .fleet import FLEET, NEW, OLD
from .journal import Journal
from .judge import Judge
from .processes import WENT_BACK, Child, prepare
from .proxy import CuttingProxy
from .replay import State, Step, replay
from .restore import Restorer
from .rules import Rules, Schedule, schedule
from .watcher import Witness

_SECONDS = 120
_FIRE = 12
# What is printed of a violation: so many writes before it, and so many characters of each value.
_MOST_WRITES, _MOST_VALUE = 12, 300
_PLANNERS, _NODES = 4, 3


@dataclass
class Result:
    """What a run came to.

    :param least_admissions: how many hosts such a run has to admit.
    :param admissions: hosts that were admitted, by the events of the history.
    :param writes: writes that were judged, each with the keys before and after it.
    :param views: states that the servers showed, each compared with what was written.
    :param events: kinds of entries in the history.
    """

    seed: int
    kind: str
    least_admissions: int = 0
    seconds: float = 0
    faults: Counter[str] = field(default_factory=Counter)
    admissions: int = 0
    writes: int = 0
    views: int = 0
    events: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def run(lab: Lab, seed: int) -> Result:
    """Run a rollout to its end under fire, and judge it."""
    with tempfile.TemporaryDirectory(prefix="convoy-fire-") as folder:
        one = Run(lab, schedule(seed, time.time()), Path(folder))
        try:
            return one.run()
        finally:
            one.end()


class Run:
    """One run.

    :param folder: for what processes die of.
    """

    def __init__(self, lab: Lab, plan: Schedule, folder: Path) -> None:
        self._lab = lab
        self._plan = plan
        self._folder = folder
        self._journal = Journal()
        self._proxies: list[CuttingProxy] = []
        self._children: list[Child] = []
        self._addresses = [node.address for node in lab.servers.values()]
        self._urls = [url_of(node) for node in lab.servers.values()]
        self._findings = Findings()

    def run(self) -> Result:
        """Begin, be under fire, calm down, and look back."""
        began, plan = time.monotonic(), self._plan
        result = Result(plan.seed, plan.name)
        prepare(be_planner.__module__)
        base = self._begin()
        planners, others = self._start()
        children = [*planners, *others]
        restorer = None
        if plan.restore:
            restorer = Restorer(self._urls[0], self._journal, planners, children)
        self._wait_until_at_work(children)
        until = time.monotonic() + _FIRE
        faults = Faults(plan.seed, self._lab, planners, self._proxies, restorer, over=lambda: time.monotonic() > until)
        with Witness(self._urls) as witness:
            faults.run()
            for child in children:
                child.shared.calm.value = 1
            self._wait(children, others[0], time.monotonic() + _SECONDS)
            for child in children:
                child.kill()
            self._journal.is_quiet(20)
        for proxy in self._proxies:
            proxy.close()
        result.faults, result.views = faults.count, len(witness.indexes)
        if restorer is not None:
            result.faults["went back"] = restorer.went_back
            for problem in restorer.problems:
                self._findings.at(None)(problem)
        self._judge(base, witness, restorer, children, result)
        result.violations = self._findings.sentences()
        result.seconds = time.monotonic() - began
        return result

    def end(self) -> None:
        """End all processes, also where the run could not be judged, so that none of them is at work in the next one."""
        for child in self._children:
            child.kill()
        for proxy in self._proxies:
            proxy.close()

    def _begin(self) -> State:
        """Make a fleet of the old version, and return its keys."""
        assert becomes_whole(self._lab), "the cluster has no leader"
        once_led(self._old_fleet)
        return all_keys(self._urls[0])[1]

    def _old_fleet(self) -> None:
        kv = self._lab.kv
        if not kv.delete("", tree=True):
            raise RuntimeError("The keys of the last run were not deleted.")
        kv.load([*((f"{REPORTS}{OLD}/{host}", "1700000000") for host in FLEET), ("current_version", OLD)])
        kv.put(f"{GATES}global", "True")

    def _start(self) -> tuple[list[Child], list[Child]]:
        """Start all processes, each with a way to Consul of its own: planners, then operators and nodes."""
        plan = self._plan
        first = plan.kind.rules[0]
        planners = [
            self._child(f"planner{n}", n, be_planner, first, plan.kind.insisting) for n in range(1, _PLANNERS + 1)
        ]
        others = [self._child("operator", plan.seed, be_operator, plan)]
        others.append(self._child("holder", plan.seed + 1, be_holder, plan))
        for n in range(_NODES):
            mine = {host: FLEET[host] for host in _hosts_of_nodes(n)}
            others.append(self._child(f"nodes{n}", n, be_nodes, mine, plan, n))
        return planners, others

    @staticmethod
    def _wait_until_at_work(children: Sequence[Child]) -> None:
        until = time.monotonic() + 60
        while not all(child.shared.ready.value for child in children):
            assert time.monotonic() < until, "the processes did not start"
            time.sleep(0.02)

    def _child(self, name: str, at: int, act: Any, *arguments: Any) -> Child:
        proxy = CuttingProxy(name, self._addresses[at % len(self._addresses)], self._journal)
        self._proxies.append(proxy)
        child = Child(name, self._folder, act, Settings(port=proxy.port, timeout=3), *arguments)
        self._children.append(child)
        return child

    def _wait(self, children: Sequence[Child], operator: Child, until: float) -> None:
        """Wait until the rollout is at its end, or a process is."""
        say = self._findings.at(None)
        while time.monotonic() < until:
            dead = [child for child in children if child.code is not None]
            for child in dead:
                why = "went_back" if child.code == WENT_BACK else child.last_output.strip().rpartition("\n")[2]
                say(f"{child.name} ended with {child.code}: {why}")
            if dead or self._is_over(operator):
                return
            time.sleep(0.1)
        keys = once_led(self._lab.kv.texts)
        prefixes = (LEDGER, GATES, RECORDS, HOLDS, REPORTS)
        at = {key: text for key, text in keys.items() if key.startswith(prefixes)}
        print(json.dumps(at, indent=1, sort_keys=True), *(child.name + "\n" + child.stacks() for child in children))
        say(f"the rollout did not come to an end in {_SECONDS} s; the ledger is {keys.get(LEDGER)}")

    def _is_over(self, operator: Child) -> bool:
        target = self._target(operator)
        if target is None:
            return False
        keys = once_led(self._lab.kv.texts)
        ledger = json.loads(keys.get(LEDGER, "{}"))
        is_complete = ledger.get("state") == "complete" and ledger["version"] == target
        return is_complete and all(f"{REPORTS}{target}/{host}" in keys for host in FLEET)

    def _target(self, operator: Child) -> str | None:
        """Return where the fleet is to be in the end; None while it is still to be taken back."""
        if self._plan.rollback is None:
            return NEW
        return OLD if operator.shared.target.value else None

    def _judge(
        self, base: State, witness: Witness, restorer: Restorer | None, children: Sequence[Child], result: Result
    ) -> None:
        """Judge all that was written."""
        assert becomes_whole(self._lab), "the cluster has no leader"
        for url in self._urls:
            witness.saw(*all_keys(url))
        restores = restorer.restores if restorer is not None else []
        steps, problems = replay(base, self._journal.writes, restores, witness.entries(), witness.indexes)
        for problem in problems:
            self._findings.at(None)(problem)
        for index, sentence in witness.against(base, steps):
            self._findings.at(index)(sentence)
        clocks = {child.name: child for child in children}
        judge = Judge(
            base,
            steps,
            _rules_of(self._plan),
            lambda who, at: clocks[who].ahead_around(at),
            lambda who, at: clocks[who].most_ahead_around(at),
            steady=not result.faults["clock"] and not restores,
            hosts_of={f"nodes{n}": _hosts_of_nodes(n) for n in range(_NODES)},
        )
        judge.judge(self._findings)
        first = self._findings.first()
        if first is not None:
            print("The writes before the first violation:", *_last_writes(steps, first), sep="\n")
        result.admissions, result.writes, result.events = judge.admissions, len(steps), judge.events
        result.least_admissions = self._plan.least_admissions(judge.own_moves)


def _hosts_of_nodes(number: int) -> list[str]:
    """Return the hosts that one of the processes of nodes acts for."""
    return [*FLEET][number::_NODES]


def _last_writes(steps: Sequence[Step], index: int) -> list[str]:
    """Return the last writes up to an index, each with who made it and what it changed."""
    lines = []
    for step in [one for one in steps if one.index <= index][-_MOST_WRITES:]:
        lines.append(f"index {step.index}, {step.write.who if step.write is not None else 'Consul itself'}:")
        for key, (before, after) in step.changed().items():
            texts = [
                f"{one.value[:_MOST_VALUE]!r} flags {one.flags}" if one is not None else "-" for one in (before, after)
            ]
            lines.append(f"    {key}: {' -> '.join(texts)}")
    return lines


def _rules_of(plan: Schedule) -> Any:
    """Return a function that returns the rules by the instructions in a ledger, which are written in another form there."""

    def key(instructions: Mapping[str, Any]) -> str:
        return json.dumps(parse(instructions).plain(), sort_keys=True)

    known: dict[str, Rules] = {key(one.instructions): one for one in plan.kind.rules}
    return lambda instructions: known.get(json.dumps(instructions, sort_keys=True))
