# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator's commands take beside an empty playbook: seconds, processor time, memory and task banners, on fleets that upgrade themselves.

Rounds are interleaved, so that the load of the machine meets all of them alike. Each column is the median.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from benchmarks.options import Options
from benchmarks.original import OriginalLoop
from benchmarks.processes import Cost, Measured, interleaved, operator_folder, run_playbook, start_playbook
from benchmarks.rollout import EMPTY
from benchmarks.simulated_nodes import KEYS, SimulatedNodes, agents
from benchmarks.stored_fleets import NEW, OLD, ROLE, host_name, under_way, waiting
from benchmarks.tables import Report, median
from devkit.agent import Agent

NAME = "playbooks"
ABOUT = "status.yml, a pass, upgrade.yml --check and a trivial rollout beside an empty playbook"
NEEDS_LAB = False

SIZE, QUICK_SIZE = 5_000, 500
# status.yml and upgrade.yml --check also run at this size.
LARGEST, QUICK_LARGEST = 100_000, 1_000
_EMPTY, _STATUS, _CHECK = "empty playbook", "status.yml", "upgrade.yml --check"
_IN_ROLLOUT, _NO_ADMISSION = "status.yml in a rollout", "a pass in a rollout that admits none"
_ORIGINAL, _ORIGINAL_PASS = "python-jiocloud's status", "python-jiocloud's pass that admits none"
_AT_LARGEST = (_EMPTY, _STATUS, _IN_ROLLOUT, _ORIGINAL, _CHECK)
# Commands with an inventory that names all hosts -> those with one that names none. Ansible reads it for seconds.
_NAMED = {f"{name}, hosts in the inventory": name for name in (_EMPTY, _STATUS, _CHECK)}
_NAMED_INVENTORY = "hosts.yml"
# Ways to the same: what they are for, and their names.
_SAME = {"status": (_IN_ROLLOUT, _ORIGINAL), "pass": (_NO_ADMISSION, _ORIGINAL_PASS)}
# Task banners of upgrade.yml on a fleet that upgrades itself, at most.
_MOST_BANNERS = 15
_RULES: dict[str, Any] = {"rolling_rules": {"global": 10}}
_INVENTORY = "all: {hosts: {localhost: {ansible_connection: local}}}\n"
_PASS = f"""\
- hosts: localhost
  gather_facts: false
  tasks:
    - convoy.upgrade.consul_upgrade_plan: {{version: {NEW}, instructions: {{rolling_rules: {{global: 10}}}}}}
"""
_NEXT_PASS = f"""\
- hosts: localhost
  gather_facts: false
  tasks:
    - convoy.upgrade.consul_upgrade_plan: {{version: {NEW}}}
"""
_HEAD = [
    "command",
    *("seconds", "beyond empty", "times empty"),
    *("processor", "beyond empty", "times empty"),
    "MiB",
    "task banners",
    "characters printed",
]
_NODE_SECONDS = 0.5
_LIMIT = 600.0


def run(options: Options, report: Report) -> None:
    """Measure the commands at one size, a trivial rollout, and those for all hosts at a large size."""
    rounds = options.repeated(5)
    size, largest = (QUICK_SIZE, QUICK_LARGEST) if options.quick else (SIZE, LARGEST)
    if options.sizes:
        size, largest = options.sizes[0], options.sizes[-1]
    at_largest = _AT_LARGEST if options.quick else (*_AT_LARGEST, *_NAMED)
    for hosts, repeats, names in ((size, rounds, None), (largest, min(rounds, 3), at_largest)):
        with tempfile.TemporaryDirectory() as folder, Agent() as agent, Agent() as busy:
            operator_folder(Path(folder), _INVENTORY, {"empty": EMPTY, "pass": _PASS, "next_pass": _NEXT_PASS})
            (Path(folder) / _NAMED_INVENTORY).write_text(inventory_of(hosts))
            agent.kv.load(waiting(hosts))
            busy.kv.load(under_way(hosts))
            ways = {**_ways(Path(folder), agent), **_ways_in_rollout(Path(folder), busy)}
            selected = {name: ways[name] for name in names or [one for one in ways if one not in _NAMED]}
            _add(report, f"{hosts:,} hosts that Consul knows. Rounds: {repeats}.", interleaved(selected, repeats))
    trivial = {_EMPTY: _empty_beside_trivial, f"upgrade.yml, 1 host, {_NODE_SECONDS:g} s of its own": _trivial}
    _add(report, f"A trivial rollout. Rounds: {rounds}.", interleaved(trivial, rounds))


def _ways(folder: Path, agent: Agent) -> Mapping[str, Callable[[], Cost]]:
    given = {"version": NEW, "instructions": _RULES}

    def again() -> None:
        """Return to the state before the rollout, which the commands that write begin."""
        agent.kv.delete(KEYS.upgrade, tree=True)
        agent.kv.delete(KEYS.gates, tree=True)
        agent.kv.put(KEYS.gate("global"), "False")
        agent.kv.put(KEYS.current_version, OLD)

    def play(name: str | Path, *arguments: str, **more: Any) -> Cost:
        again()
        return run_playbook(name, folder, agent, *arguments, **more)

    ways: dict[str, Callable[..., Cost]] = {
        _EMPTY: lambda **more: play(folder / "empty.yml", **more),
        _STATUS: lambda **more: play("status", **more),
        "one pass as a task": lambda: play(folder / "pass.yml"),
        _CHECK: lambda **more: play("upgrade", "--check", **given, **more),
        "upgrade.yml -e once=true": lambda: play("upgrade", **given, once=True),
    }
    return {**ways, **{name: partial(ways[same], inventory=_NAMED_INVENTORY) for name, same in _NAMED.items()}}


def inventory_of(hosts: int) -> str:
    """Return an inventory that names all hosts of a fleet, which upgrade themselves."""
    names = "".join(f"        {host_name(number)}:\n" for number in range(1, hosts + 1))
    head = f"all:\n  vars: {{upgrade_roles: {{{ROLE}: {{plane: dataplane}}}}}}\n  hosts: {{localhost: {{ansible_connection: local}}}}\n"
    return f"{head}  children:\n    {ROLE}:\n      hosts:\n{names}"


def _ways_in_rollout(folder: Path, agent: Agent) -> Mapping[str, Callable[[], Cost]]:
    # The first pass admits as many hosts as the rules allow, so the next ones admit none.
    run_playbook(folder / "next_pass.yml", folder, agent)
    return {
        _IN_ROLLOUT: lambda: run_playbook("status", folder, agent),
        _NO_ADMISSION: lambda: run_playbook(folder / "next_pass.yml", folder, agent),
        # Without the start of a Python.
        _ORIGINAL: lambda: Measured(lambda: OriginalLoop(agent.http_port, NEW, 0).status() and None).end(),
        _ORIGINAL_PASS: lambda: Measured(lambda: OriginalLoop(agent.http_port, NEW, 0).run(1) and None).end(),
    }


def _empty_beside_trivial() -> Cost:
    with tempfile.TemporaryDirectory() as folder, Agent() as agent:
        _trivial_folder(Path(folder))
        return run_playbook(Path(folder) / "empty.yml", Path(folder), agent)


def _trivial() -> Cost:
    """Return what a rollout of one host takes."""
    host = host_name(1)
    roles = {host: host.rstrip("1")}
    with tempfile.TemporaryDirectory() as name, Agent() as agent:
        folder = Path(name)
        _trivial_folder(folder)
        agent.kv.load(waiting(1))
        planner = start_playbook("upgrade", folder, agent, version=NEW, instructions=_RULES)
        nodes = SimulatedNodes(agent, {host: _NODE_SECONDS}, roles, agents(agent, NEW, roles))
        nodes.wait(_LIMIT, planner.is_running)
        return planner.end()


def _trivial_folder(folder: Path) -> None:
    host = host_name(1)
    role = host.rstrip("1")
    variables = {"upgrade_roles": {role: {"plane": "dataplane"}}}
    inventory = yaml.safe_dump({"all": {"vars": variables, "children": {role: {"hosts": {host: None}}}}})
    operator_folder(folder, inventory, {"empty": EMPTY})


def _add(report: Report, title: str, found: Mapping[str, list[Cost]]) -> None:
    """Add a table with the medians of each command."""
    table = report.table(title, _HEAD)
    empty = found[_EMPTY]
    for name, costs in found.items():
        seconds, busy = median(one.seconds for one in costs), median(one.busy for one in costs)
        beyond, over = (
            [
                median(act(getattr(one, what), getattr(other, what)) for one, other in zip(costs, empty, strict=True))
                for what in ("seconds", "busy")
            ]
            for act in (operator.sub, operator.truediv)
        )
        last = costs[-1]
        if name.startswith("upgrade.yml") and last.banners > _MOST_BANNERS:
            report.mistakes.append(f"{name} printed {last.banners} task banners; at most {_MOST_BANNERS} are promised.")
        table.add(
            name,
            f"{seconds:.2f} s",
            f"{beyond[0]:.2f} s",
            f"{over[0]:.2f}",
            f"{busy:.2f} s",
            f"{beyond[1]:.2f} s",
            f"{over[1]:.2f}",
            f"{median(one.memory for one in costs):.0f}",
            last.banners,
            len(last.output),
        )
    report.least(
        {
            f"{what} of a {command}": {name: median(getattr(one, field) for one in found[name]) for name in names}
            for command, names in _SAME.items()
            if found.keys() >= {*names}
            for what, field in (("seconds", "seconds"), ("processor", "busy"))
        }
    )
