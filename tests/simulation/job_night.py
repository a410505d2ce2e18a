# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated night of jobs: three controllers begin jobs and rollouts to versions at the same time, while everything goes wrong that can.

What is judged here is read from the keys alone, without the code of the collection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from fire import jobs
from fire.findings import Findings
from fire.fleet import FLEET
from fire.replay import State, Step

from .actor import Actor
from .faults import KINDS, Faults
from .night_log import JOB_RECORDS, night_log, shown_by, stuck
from .start import network_with, simulated
from .story import NightResult
from .world import Process, World

_FAULTS, _SECONDS = 20.0, 60.0
_CONTROLLERS, _PLANNERS, _NODES = 3, 2, 6
CAP = 2
RULES = {"rolling_rules": {"global": CAP}}
_LEDGER, _JOB_GATES = "upgrade/ledger", "upgrade/job_gates/"
_OF_PUPPET = ("config_state/", "current_version", "running/")
_UNDER_WAY = ("running", "paused")
_EXPECTED = ("went_back",)
# The keys that are printed of a night without an end.
_SHOWN = (_LEDGER, _JOB_GATES, JOB_RECORDS, "upgrade/hosts/", "config_state/")


# What can be left out of a night.
PARTS = ("controller3", "controller2", "planner2", *(kind for kind in dict.fromkeys(KINDS) if kind != "clock"))


@dataclass
class JobResult(NightResult):
    """What a night of jobs came to.

    :param begun: how many jobs and how many rollouts to versions began.
    """

    OPTION = "--job-seed"
    begun: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    runs: int = 0


def run(seed: int, without: Collection[str] = ()) -> JobResult:
    """Simulate the night of a seed, and judge it.

    :param without: which of PARTS to leave out.
    """
    with simulated(f"jobs {seed}") as world:
        return _Night(world, seed, without).run()


class _Night:
    def __init__(self, world: World, seed: int, without: Collection[str]) -> None:
        self._world, self._result, self._without = world, JobResult(seed, "jobs"), without
        self._network = network_with(world, FLEET)
        self._network.listeners.append(self._judge)
        self._actors: list[Actor] = []
        self._ran = jobs.Ran()
        self._findings = Findings()

    def run(self) -> JobResult:
        """Let it pass: some seconds with faults, then calm until what moves the fleet has ended."""
        world, result, seed = self._world, self._result, self._result.seed
        controllers = [
            self._actor(f"controller{n}", jobs.be_controller, RULES, seed, n)
            for n in range(1, _CONTROLLERS + 1)
            if f"controller{n}" not in self._without
        ]
        planners = [
            self._actor(f"planner{n}", jobs.be_planner)
            for n in range(1, _PLANNERS + 1)
            if f"planner{n}" not in self._without
        ]
        hosts = [*FLEET]
        for n in range(_NODES):
            self._actor(f"nodes{n}", jobs.be_nodes, hosts[n::_NODES], self._ran, seed, n)
        for actor in self._actors:
            actor.start()
        # Clocks of controllers decide when a job expires, and are not what is looked at here.
        without = [*self._without, "clock"]
        faults = Faults(world, self._network, [*controllers, *planners], self._actors, restores=False, without=without)
        harness = Process(world, "faults")
        harness.start(lambda: faults.run(_FAULTS))
        world.run(3600, lambda: not harness.is_alive or self._has_failed())
        if harness.error is not None:
            raise harness.error
        for actor in [*controllers, *planners]:
            actor.process.go_on()
            if not actor.process.is_alive and not self._has_failed():
                actor.start()
        for actor in self._actors:
            actor.shared.calm.value = 1
        world.run(world.now + _SECONDS, lambda: self._is_over() or self._has_failed())
        say = self._findings.at(None)
        if not self._is_over() and not self._has_failed():
            say(f"nothing ended in {_SECONDS:.0f} s")
            result.stuck = stuck(self._network, _SHOWN, self._actors)
        for actor in self._actors:
            if actor.process.error is not None and actor.code not in _EXPECTED:
                say(f"{actor.name} ended with {actor.process.error!r}\n{actor.process.stack}")
        for problem in [*self._ran.problems(), *self._network.malformed]:
            say(problem)
        result.violations, result.faults = self._findings.sentences(), faults.count
        result.runs = len(self._ran.begun)
        if result.violations:
            first = self._findings.first()
            result.log = night_log(self._network, faults.log, first)
            result.shown_by = shown_by(self._network, first)
        return result

    def _has_failed(self) -> bool:
        has_ended = bool(self._world.failed) and any(
            one.process.error is not None and one.code not in _EXPECTED for one in self._actors
        )
        return has_ended or bool(self._findings.sentences())

    def _actor(self, name: str, act: Any, *arguments: Any) -> Actor:
        port = self._network.line(name, self._world.chance.choice((0.001, 0.005, 0.05)))
        actor = Actor(self._world, name, port, act, Settings(port=port, timeout=3), *arguments)
        self._actors.append(actor)
        return actor

    def _is_over(self) -> bool:
        ledger = _data(self._network.now, _LEDGER)
        return bool(self._actors[0].shared.calm.value) and ledger.get("state") not in _UNDER_WAY

    def _judge(self, step: Step) -> None:
        """Say what a step broke."""
        before, after = _data(step.before, _LEDGER), _data(step.after, _LEDGER)
        changed, say = step.changed(), self._findings.at(step.index)
        if before.get("version") != after.get("version"):
            self._result.begun["job" if _is_job(after) else "version"] += 1
            if before.get("state") in _UNDER_WAY:
                say(f"{after['version']} took the place of {before['version']}, which was {before['state']}")
        if _LEDGER in changed and _is_job(after):
            touched = [key for key in changed if key.startswith(_OF_PUPPET)]
            if touched:
                say(f"a job changed {touched}")
        for host, role in FLEET.items():
            self._of_start(step, host, role, say)
        self._of_caps(step, say)

    def _of_start(self, step: Step, host: str, role: str, say: Any) -> None:
        key = f"{JOB_RECORDS}{host}"
        was, now = _data(step.before, key), _data(step.after, key)
        if now.get("state") == "lost" != was.get("state"):
            self._result.lost += 1
        # A report whose answer was lost is made again.
        if now.get("state") == "done" and (was.get("run") != now.get("run") or was["state"] not in ("started", "done")):
            say(f"{host} is done with {now['job']}, and was {was}")
        if now.get("state") != "started" or (was.get("state"), was.get("run")) == ("started", now.get("run")):
            return
        target = step.before.get("upgrade/current_job")
        gates = [f"{_JOB_GATES}host/{host}", f"{_JOB_GATES}role/{role}"]
        gate = next((step.before[one].value for one in gates if one in step.before), "")
        if target is None or target.value != f"job/{now['job']}" or gate != "True":
            say(f"{host} started {now['job']} behind the gate {gate!r} of {target and target.value}")

    def _of_caps(self, step: Step, say: Any) -> None:
        """Say that a step admitted a host beyond the cap of its role."""
        opened = {
            key.rpartition("/")[2]
            for key, (was, now) in step.changed().items()
            if key.startswith((f"{_JOB_GATES}host/", "config_state/enable_puppet/host/"))
            and now is not None
            and now.value == "True"
            and (was is None or was.value != "True")
        }
        if not opened:
            return
        is_job = _is_job(_data(step.after, _LEDGER))
        for role in {FLEET[host] for host in opened}:
            down = [host for host in FLEET if FLEET[host] == role and _is_down(step.after, host, is_job)]
            if len(down) > CAP:
                say(f"{sorted(opened)} were admitted, and {down} of {role} are down: {CAP} may be")


def _data(state: State, key: str) -> Mapping[str, Any]:
    return jobs.of_record(state[key].value if key in state else None)


def _is_job(ledger: Mapping[str, Any]) -> bool:
    return str(ledger.get("version", "")).startswith("job/")


def _is_down(state: State, host: str, is_job: bool) -> bool:
    """Return whether a host is at work, may begin at any time, or has failed in what moves the fleet."""
    job = state["upgrade/current_job"].value.removeprefix("job/") if "upgrade/current_job" in state else ""
    record, of_job = _data(state, f"upgrade/hosts/{host}"), _data(state, f"{JOB_RECORDS}{host}")
    if "started" in (record.get("state"), of_job.get("state")):
        return True
    if is_job:
        gate = state.get(f"{_JOB_GATES}host/{host}")
        has_ended = of_job.get("job") == job and of_job.get("state") == "done"
        has_failed = of_job.get("job") == job and of_job.get("state") in ("failed", "lost")
        is_admitted = gate is not None and gate.value == "True" and not has_ended
        return has_failed or is_admitted or _may_upgrade(state, host)
    current = state["current_version"].value
    gate = state.get(f"config_state/enable_puppet/host/{host}")
    is_there = f"running/versions/{current}/{host}" in state
    has_failed = record.get("version") == current and record.get("state") == "failed"
    return has_failed or (gate is not None and gate.value == "True" and not is_there)


def _may_upgrade(state: State, host: str) -> bool:
    """Return whether a host may start an upgrade at any time: its gate is open, and it does not run the version."""
    folder, current = "config_state/enable_puppet/", state["current_version"].value
    gates = (f"{folder}host/{host}", f"{folder}role/{FLEET[host]}", f"{folder}global")
    gate = next((state[key].value for key in gates if key in state), "True")
    record, report = state.get(f"upgrade/hosts/{host}"), state.get(f"running/versions/{current}/{host}")
    has_left = record is not None and _data(state, f"upgrade/hosts/{host}").get("state") != "upgraded"
    is_newer = record is not None and (report is None or record.index > report.index)
    return gate == "True" and (report is None or (has_left and is_newer))
