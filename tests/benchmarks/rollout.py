# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole rollout of simulated nodes over a real Consul, beside the loop of python-jiocloud and plain playbooks.

All ways upgrade the same hosts, whose upgrades take 1 to 3 s. The ideal is a sliding window: the next host begins when another one ends.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import MOST_PASS_LIMIT, Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.repeated_passes import RepeatedPasses
from benchmarks.options import Options
from benchmarks.original import SLEEP, OriginalLoop
from benchmarks.processes import Cost, Measured, operator_folder, run_playbook, start_playbook
from benchmarks.simulated_nodes import KEYS, SimulatedNodes, agents, bare_reports, ideal_seconds, latencies
from benchmarks.tables import NOTHING, Report, median, percentile, times
from devkit.agent import Agent
from devkit.kv import RawKV

NAME = "rollout"
ABOUT = (
    "a rollout of 200 simulated nodes beside python-jiocloud's loop and plain playbooks; from a report to the next gate"
)
NEEDS_LAB = False

OLD, NEW = "v1", "v2"
ROLES = ("api", "cache", "db", "web")
EMPTY = "- hosts: localhost\n  gather_facts: false\n  tasks: []\n"
# Seconds without a change after which a planner that is measured ends.
_QUIET = 2.0
_LIMIT = 1800.0
_FURTHER = "other"
_COUNTER = re.compile(r"^consul_http_(?!GET_v1_agent_metrics)\w+_count (\d+)", re.MULTILINE)
# With it, Consul counts its requests for as long as it runs.
_TELEMETRY = {"telemetry": {"prometheus_retention_time": "24h", "disable_hostname": True}}
_PLAY = """\
- hosts: all
  gather_facts: false
  {how}
  tasks:
    - name: Upgrade
      ansible.builtin.raw: date +%s.%N >>{log}; sleep {{{{ seconds }}}}; date +%s.%N >>{log}
      changed_when: false
      {more}
"""
# name -> the play's keywords, the task's keywords, and how many forks there are for each place under the cap.
_PLAIN: Mapping[str, tuple[str, str, int]] = {
    "plain, serial": ("serial: {cap}", "", 1),
    "plain, free with throttle": ("strategy: ansible.builtin.free", "throttle: {cap}", 2),
    "plain, host_pinned": ("strategy: ansible.builtin.host_pinned", "", 1),
}


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a rollout.

    :param roles: host -> role.
    :param seconds: host -> how long its upgrade takes.
    :param cap: how many of a role at once.
    """

    roles: Mapping[str, str]
    seconds: Mapping[str, float]
    cap: int

    def of(self, role: str) -> list[str]:
        """Return the hosts of a role, in their order."""
        return [host for host, one in self.roles.items() if one == role]

    def ideal(self) -> float:
        """Return how long the slowest role takes in a sliding window (seconds)."""
        found = [[self.seconds[host] for host in self.of(role)] for role in {*self.roles.values()}]
        return max(ideal_seconds(one, self.cap) for one in found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rollout took.

    :param seconds: from the first admission to the last report.
    :param latencies: from each report to the next gate (seconds).
    :param requests: what the planner sent to Consul.
    """

    cost: Cost
    seconds: float
    latencies: Sequence[float]
    requests: int


def uneven_hosts(count: int, cap: int, roles: Sequence[str] = ROLES) -> Hosts:
    """Return hosts whose upgrades take 1 to 3 s, not sorted, because durations are unknown before an upgrade."""
    found: dict[str, str] = {}
    for number in range(count):
        role = roles[number % len(roles)]
        found[f"{role}{number // len(roles) + 1}"] = role
    return Hosts(found, {host: 1 + (number * 7 % 11) / 5 for number, host in enumerate(found)}, cap)


def run(options: Options, report: Report) -> None:
    """Measure rollouts, the latency from a report to the next gate, and plain playbooks."""
    count, cap = (16, 2) if options.quick else (200, 10)
    if options.sizes:
        count = options.sizes[0]
    sleep = 1.0 if options.quick else SLEEP
    hosts = uneven_hosts(count, cap)
    _rollouts(report, hosts, sleep, options.repeated(3))
    _latency(report, options, sleep)
    _plain(report, replace(hosts, cap=8) if options.quick else hosts)


def _rollouts(report: Report, hosts: Hosts, sleep: float, rounds: int) -> None:
    ideal = hosts.ideal()
    rules = {"rolling_rules": {"global": hosts.cap}}
    original = f"python-jiocloud's loop, sleep {sleep:g} s"
    ways: Mapping[str, Callable[[Path, Agent], tuple[Outcome, Cost]]] = {
        "convoy.upgrade, upgrade.yml": lambda folder, agent: _by_playbook(folder, agent, hosts, rules),
        "convoy.upgrade, passes in one process": lambda _folder, agent: _here(
            agent, hosts, lambda: _passes(agent, rules)
        ),
        original: lambda _folder, agent: _loop(agent, hosts, sleep),
    }
    found: dict[str, list[tuple[Outcome, Cost]]] = {name: [] for name in ways}
    for _round in range(rounds):
        for name, act in ways.items():
            with tempfile.TemporaryDirectory() as folder, _fleet(hosts.roles) as agent:
                found[name].append(act(Path(folder), agent))
    table = report.table(
        f"A rollout of {len(hosts.roles)} nodes in {len(ROLES)} roles, {hosts.cap} of each at once. The ideal is {ideal:.1f} s. "
        "Processor time is the planner's, without what an empty playbook takes.",
        [
            "way",
            "seconds",
            "over ideal",
            "processor",
            "of an empty playbook",
            "whole over empty",
            "requests",
            "report to gate, p50",
            "p95",
        ],
    )
    least: dict[str, dict[str, float]] = {"seconds": {}, "processor": {}, "requests": {}}
    for name, outcomes in found.items():
        seconds = median(one.seconds for one, _empty in outcomes)
        empty = median(empty.busy for _one, empty in outcomes)
        busy = median(one.cost.busy for one, _empty in outcomes) - empty
        requests = median(one.requests for one, _empty in outcomes)
        waits = [wait for one, _empty in outcomes for wait in one.latencies]
        for what, value in zip(least, (seconds, busy, requests), strict=True):
            least[what][name] = value
        table.add(
            name,
            f"{seconds:.1f}",
            times(seconds, ideal),
            f"{busy:.2f} s",
            f"{empty:.2f} s" if empty else NOTHING,
            times(busy + empty, empty),
            round(requests),
            f"{percentile(waits, 50) * 1000:.0f} ms",
            f"{percentile(waits, 95) * 1000:.0f} ms",
        )
    report.least(least)


_NOTHING_ELSE = Cost(0, 0, 0, "")


def _by_playbook(folder: Path, agent: Agent, hosts: Hosts, rules: Mapping[str, Any]) -> tuple[Outcome, Cost]:
    """Return what upgrade.yml takes, and what an empty playbook with the same inventory takes."""
    groups = {role: {"hosts": dict.fromkeys(hosts.of(role))} for role in ROLES}
    variables = {"upgrade_roles": {role: {"plane": "dataplane"} for role in ROLES}}
    inventory = yaml.safe_dump({"all": {"vars": variables, "children": groups}})
    operator_folder(folder, inventory, {"empty": EMPTY})
    empty = run_playbook(folder / "empty.yml", folder, agent)
    planner = start_playbook("upgrade", folder, agent, version=NEW, instructions=rules)
    return _with_nodes(agent, hosts, planner, agents(agent, NEW, hosts.roles)), empty


def _here(agent: Agent, hosts: Hosts, act: Callable[[], object]) -> tuple[Outcome, Cost]:
    return _with_nodes(agent, hosts, Measured(act), agents(agent, NEW, hosts.roles)), _NOTHING_ELSE


def _loop(agent: Agent, hosts: Hosts, sleep: float) -> tuple[Outcome, Cost]:
    loop = OriginalLoop(agent.http_port, NEW, hosts.cap, sleep=sleep)
    return _with_nodes(agent, hosts, Measured(loop.run), bare_reports(agent, OLD, NEW)), _NOTHING_ELSE


def _with_nodes(agent: Agent, hosts: Hosts, planner: Measured, reporter: Callable[[], Any]) -> Outcome:
    """Let the nodes follow a planner that has just begun, until its end."""
    before = _requests(agent.kv)
    nodes = SimulatedNodes(agent, hosts.seconds, hosts.roles, reporter)
    nodes.wait(_LIMIT, planner.is_running)
    cost = planner.end()
    if len(nodes.reported) < len(hosts.seconds):
        raise RuntimeError(f"{len(nodes.reported)} of {len(hosts.seconds)} hosts were upgraded:\n{cost.output[-4000:]}")
    waits: list[float] = []
    for role in {*hosts.roles.values()}:
        of_role = [host for host in hosts.of(role) if host in nodes.reported]
        opened, reported = ([found[host] for host in of_role] for found in (nodes.opened, nodes.reported))
        waits += latencies(opened, reported, hosts.cap)
    seconds = max(nodes.reported.values()) - min(nodes.opened.values())
    return Outcome(cost, seconds, waits, _requests(agent.kv) - before - nodes.requests)


def _passes(agent: Agent, rules: Mapping[str, Any], *, until_quiet: bool = False) -> None:
    """Make passes until all hosts are upgraded, or until nothing changes any more."""
    passes = RepeatedPasses(Settings(port=agent.http_port, pass_limit=MOST_PASS_LIMIT))
    latest = passes.first(PassRequest(version=NEW, rules=rules))
    while not latest.plan.scope_done:
        if passes.wait(_QUIET if until_quiet else _LIMIT):
            latest = passes.next()
        elif until_quiet:
            break
    passes.close()


def _requests(kv: RawKV) -> int:
    """Return how many requests Consul has answered so far."""
    code, _headers, body = kv.call("GET", "agent/metrics?format=prometheus")
    if code != 200:
        raise RuntimeError(f"{code}: {body!r}")
    return sum(map(int, _COUNTER.findall(body.decode())))


@contextmanager
def _fleet(roles: Mapping[str, str]) -> Iterator[Agent]:
    """Give a Consul in which hosts have reported the old version, and all gates are closed."""
    with Agent(_TELEMETRY) as agent:
        agent.kv.load((KEYS.report(OLD, host), "1789000000") for host in roles)
        agent.kv.put(KEYS.gate("global"), "False")
        agent.kv.put(KEYS.current_version, OLD)
        yield agent


def _latency(report: Report, options: Options, sleep: float) -> None:
    """Measure the latency with one slot, so that every report admits exactly one host."""
    size, further, samples, passes = (100, 1_000, 6, 4) if options.quick else (1_000, 20_000, 100, 6)
    table = report.table(
        f"From a report to the next gate: one slot, {size:,} hosts, upgrades of 0.2 s.",
        [
            "way",
            "further hosts that wait",
            "samples",
            "p50",
            "p50 over ours",
            "p95",
            "processor per admission",
            "requests per admission",
        ],
    )
    least: dict[str, dict[str, float]] = {}

    def add(name: str, more: int, outcome: Outcome, admissions: int) -> None:
        values = percentile(outcome.latencies, 50), outcome.cost.busy / admissions, outcome.requests / admissions
        for what, value in zip(("p50", "processor", "requests"), values, strict=True):
            least.setdefault(f"{what} with {more:,} further hosts", {})[name] = value
        table.add(
            name,
            more,
            len(outcome.latencies),
            f"{values[0] * 1000:.0f} ms",
            times(values[0], next(iter(least[f"p50 with {more:,} further hosts"].values()))),
            f"{percentile(outcome.latencies, 95) * 1000:.0f} ms",
            f"{values[1] * 1000:.0f} ms",
            f"{values[2]:.1f}",
        )

    for more in (0, further):
        web = {f"web{number}": "web" for number in range(1, size + 1)}
        waiting = {f"{_FURTHER}{number}": _FURTHER for number in range(1, more + 1)}
        order = {_FURTHER: "web"} if more else {}
        rules: dict[str, Any] = {"rolling_rules": {"global": 1}, "role_order": order}
        with _fleet({**web, **waiting}) as agent:
            hosts = Hosts(web, dict.fromkeys(list(web)[:samples], 0.2), 1)
            outcome, _empty = _here(agent, hosts, partial(_passes, agent, rules, until_quiet=True))
        add("convoy.upgrade, passes in one process", more, outcome, samples)
        with _fleet({**web, **waiting}) as agent:
            # It takes hosts in the order of their names as texts.
            hosts = Hosts(web, dict.fromkeys(sorted(web)[: passes - 1], 0.2), 1)
            loop = OriginalLoop(agent.http_port, NEW, 1, order, sleep)
            planner = Measured(partial(loop.run, passes))
            outcome = _with_nodes(agent, hosts, planner, bare_reports(agent, OLD, NEW))
        add(f"python-jiocloud's loop, sleep {sleep:g} s", more, outcome, passes - 1)
    report.least(least)


def _plain(report: Report, hosts: Hosts) -> None:
    """Measure plain playbooks, whose only task takes as long as the upgrade of a node, beside pull with the same cap over the fleet."""
    ideal = ideal_seconds(list(hosts.seconds.values()), hosts.cap)
    table = report.table(
        f"{len(hosts.roles)} hosts, {hosts.cap} at once in the whole fleet. The ideal is {ideal:.1f} s. Plain playbooks run one raw task on each host, "
        "which is the cheapest that Ansible has, and know no state, order or failure budget.",
        ["way", "seconds", "over ideal", "processor, all of it"],
    )
    rules = {"rolling_rules": {"global": hosts.cap, "fleet": hosts.cap}}
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder, _fleet(hosts.roles) as agent:
        outcome, _empty = _by_playbook(Path(folder), agent, hosts, rules)
        found["convoy.upgrade, upgrade.yml, pull"] = outcome.seconds, outcome.cost.busy
        for name, (how, more, factor) in _PLAIN.items():
            found[name] = _by_plain(Path(folder), agent, hosts, how, more, factor)
    for name, (seconds, busy) in found.items():
        table.add(name, f"{seconds:.1f}", times(seconds, ideal), f"{busy:.1f} s")
    report.least(
        {
            "seconds": {name: seconds for name, (seconds, _busy) in found.items()},
            "processor": {name: busy for name, (_seconds, busy) in found.items()},
        }
    )


def _by_plain(folder: Path, agent: Agent, hosts: Hosts, how: str, more: str, factor: int) -> tuple[float, float]:
    """Return the seconds from the first task to the last, and the processor time of a plain playbook."""
    variables = {host: {"seconds": seconds} for host, seconds in hosts.seconds.items()}
    inventory = yaml.safe_dump({"all": {"vars": {"ansible_connection": "local"}, "hosts": variables}}, sort_keys=False)
    log = folder / "times"
    log.write_text("")
    play = _PLAY.format(how=how.format(cap=hosts.cap), more=more.format(cap=hosts.cap), log=log)
    operator_folder(folder, inventory, {"plain": play})
    cost = run_playbook(folder / "plain.yml", folder, agent, forks=hosts.cap * factor)
    at = sorted(map(float, log.read_text().split()))
    if len(at) != 2 * len(hosts.seconds):
        raise RuntimeError(f"{len(at) // 2} of {len(hosts.seconds)} hosts were upgraded:\n{cost.output[-4000:]}")
    return at[-1] - at[0], cost.busy
