# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A push run beside plain playbooks that run the same tasks on the same hosts, which are this machine under several names.

The first table has hosts whose upgrades take 1 to 3 s: the time from the first task to the last, beside that of a sliding window. The second one has
twelve hosts whose upgrades take 3 to 12 s, three at once, with five forks. The third one has five tasks that do nothing: the processor time of
all processes, beside plain playbooks that gather the facts that an upgrade gathers, or none.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from benchmarks.options import Options
from benchmarks.processes import Cost, interleaved, operator_folder, run_playbook
from benchmarks.rollout import uneven_hosts
from benchmarks.simulated_nodes import ideal_seconds
from benchmarks.tables import Report, Table, median, times
from devkit.agent import Agent
from devkit.wipe import wipe

NAME = "push"
ABOUT = "push runs beside plain playbooks: linear, serial, free with throttle, host_pinned"
NEEDS_LAB = False

SIZES, QUICK_SIZES = (10, 50, 200), (4,)
CAP, QUICK_CAP = 10, 2
# How long the tasks of the hosts of the second table take. The ideal for three of the first at once is 32 s.
SECONDS, QUICK_SECONDS = (9, 7, 8, 8, 12, 11, 7, 12, 3, 10, 5, 4), (1, 3, 2, 1)
OURS = "convoy.upgrade"
STEPS = ("prepare", "stop", "upgrade", "start", "verify")
_ROLE = "web"
_TASK = "- name: {step}\n  ansible.builtin.command: {command}\n  changed_when: false\n  tags: [{step}]\n"
_PLAY = """\
- hosts: web
  {facts}
  {how}
  tasks:
    - ansible.builtin.import_tasks: roles/app/tasks/upgrade_tasks.yml
"""
_LOG = "times"
_WALL_HEAD = ("hosts", "way", "first to last task", "over ideal", "whole run", "processor")
# From this size on, each way is run once.
_LARGE = 100
_SAME = "host_pinned with the same facts"
_NO_FACTS = "gather_facts: false"
# As upgrade_fact_subset in playbooks/group_vars.
_SAME_FACTS = "gather_subset: ['!all', '!min', distribution, pkg_mgr, service_mgr, platform]"


@dataclass(frozen=True, slots=True)
class _Peer:
    """A plain playbook.

    :param how: keywords of the play.
    :param throttle: whether each task has ``throttle``.
    :param forks: forks for each place under the cap.
    """

    how: str = ""
    throttle: bool = False
    forks: int = 1


_PEERS: Mapping[str, _Peer] = {
    "linear, forks at the cap": _Peer(),
    "serial": _Peer("serial: {cap}"),
    "free with throttle": _Peer("strategy: ansible.builtin.free", throttle=True, forks=2),
    "host_pinned": _Peer("strategy: ansible.builtin.host_pinned"),
}


def run(options: Options, report: Report) -> None:
    """Measure wall clock and processor time at each size."""
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    cap = QUICK_CAP if options.quick else CAP
    _wall(report, sizes, cap, options)
    _few_slots(report, options)
    _processor(report, sizes, cap, options)


def _rounds(options: Options, size: int) -> int:
    """Return how often each way is run; large fleets vary less and take longer."""
    return options.repeated(3 if size < _LARGE else 1)


def _wall(report: Report, sizes: Sequence[int], cap: int, options: Options) -> None:
    title = "Hosts of uneven speed, one task of 1 to 3 s each. The ideal is a sliding window."
    table = report.table(title, _WALL_HEAD, texts=2)
    least: dict[str, dict[str, float]] = {}
    for size in sizes:
        hosts = uneven_hosts(size, cap, [_ROLE])
        # With fewer hosts than places, nothing has to wait.
        at_once = min(cap, max(1, size // 2))
        spans = _add_spans(table, hosts.seconds, at_once, at_once, _PEERS, _rounds(options, size))
        least[f"seconds with {size:,} hosts"] = spans
    report.least(least)


def _few_slots(report: Report, options: Options) -> None:
    """Measure with more forks than slots, all of which would be full of hosts that wait if these took one."""
    seconds, cap, forks = (QUICK_SECONDS, 2, 3) if options.quick else (SECONDS, 3, 5)
    title = "Fewer slots than forks, one task of each host. Plain playbooks have as many forks as there are slots."
    table = report.table(title, _WALL_HEAD, texts=2)
    hosts = {f"{_ROLE}{number}": float(one) for number, one in enumerate(seconds, 1)}
    peers = {name: _PEERS[name] for name in ("host_pinned", "serial")}
    spans = _add_spans(table, hosts, cap, forks, peers, _rounds(options, len(hosts)))
    report.least({f"seconds with {len(hosts)} hosts, {cap} slots and {forks} forks": spans})


def _add_spans(
    table: Table, seconds: Mapping[str, float], at_once: int, forks: int, peers: Mapping[str, _Peer], rounds: int
) -> dict[str, float]:
    """Run one task on each host in all ways, and add a row for each; return way -> seconds from the first task to the last.

    :param seconds: host -> how long its task takes.
    :param forks: those of our run.
    """
    log = f"{{{{ inventory_dir }}}}/{_LOG}"
    shell = f"sh -c 'date +%s.%N >>{log}; sleep {{{{ seconds }}}}; date +%s.%N >>{log}'"
    ideal = ideal_seconds(list(seconds.values()), at_once)
    spans: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, Agent() as agent:
        folder = Path(name)
        _write(folder, seconds, _TASK.format(step="upgrade", command=shell), at_once)
        ways = {
            way: _timed(act, folder / _LOG, spans.setdefault(way, []))
            for way, act in _ways(folder, agent, at_once, peers, _NO_FACTS, forks).items()
        }
        found = interleaved(ways, rounds)
    for way, costs in found.items():
        span = median(spans[way])
        whole, busy = median(one.seconds for one in costs), median(one.busy for one in costs)
        table.add(
            f"{len(seconds):,}, {at_once} at once" + (f", {forks} forks" if forks != at_once else ""),
            way,
            f"{span:.1f} s",
            times(span, ideal),
            f"{whole:.1f} s",
            f"{busy:.1f} s",
        )
    return {way: median(found_spans) for way, found_spans in spans.items()}


def _timed(act: Callable[[], Cost], log: Path, spans: list[float]) -> Callable[[], Cost]:
    """Return a way that also notes the seconds from its first task to its last."""

    def run_timed() -> Cost:
        log.write_text("")
        cost = act()
        at = sorted(map(float, log.read_text().split()))
        spans.append(at[-1] - at[0])
        return cost

    return run_timed


def _processor(report: Report, sizes: Sequence[int], cap: int, options: Options) -> None:
    head = ["hosts", "way", "processor", "convoy.upgrade over it", "per host and step", "whole run"]
    title = f"Processor time of {len(STEPS)} tasks that do nothing, with {cap} places under the cap."
    table = report.table(title, head, texts=2)
    least: dict[str, dict[str, float]] = {}
    tasks = "".join(_TASK.format(step=step, command="'true'") for step in STEPS)
    for size in sizes:
        hosts = uneven_hosts(size, cap, [_ROLE])
        with tempfile.TemporaryDirectory() as name, Agent() as agent:
            _write(Path(name), hosts.seconds, tasks, cap)
            pinned = {"host_pinned": _PEERS["host_pinned"]}
            bare = _ways(Path(name), agent, cap, pinned if options.quick else _PEERS, _NO_FACTS)
            same = {} if options.quick else {_SAME: _ways(Path(name), agent, cap, pinned, _SAME_FACTS)["host_pinned"]}
            ways = {**bare, **same}
            found = interleaved(ways, _rounds(options, size))
        mine = found[OURS]
        least[f"processor with {size:,} hosts"] = {
            way: median(one.busy for one in costs) for way, costs in found.items()
        }
        for way, costs in found.items():
            busy = median(one.busy for one in costs)
            ratio = median(one.busy / other.busy for one, other in zip(mine, costs, strict=True))
            each = busy / size / len(STEPS) * 1000
            whole = median(one.seconds for one in costs)
            table.add(f"{size:,}", way, f"{busy:.1f} s", f"{ratio:.3f}", f"{each:.0f} ms", f"{whole:.1f} s")
    report.least(least)


def _write(folder: Path, seconds: Mapping[str, float], tasks: str, cap: int) -> None:
    """Write an operator's folder with one service, whose tasks plain playbooks run too.

    :param seconds: host -> how long its upgrade takes.
    """
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    variables = {**local, "upgrade_roles": {_ROLE: {"services": ["app"]}}}
    hosts = {host: {"seconds": one} for host, one in seconds.items()}
    inventory = yaml.safe_dump({"all": {"vars": variables, "children": {_ROLE: {"hosts": hosts}}}}, sort_keys=False)
    operator_folder(folder, inventory, {})
    place = folder / "roles/app/tasks"
    place.mkdir(parents=True)
    (place / "upgrade_tasks.yml").write_text(f"---\n{tasks}")
    limited = tasks.replace("  tags:", f"  throttle: {cap}\n  tags:")
    (place / "limited_tasks.yml").write_text(f"---\n{limited}")


def _ways(
    folder: Path, agent: Agent, cap: int, peers: Mapping[str, _Peer], facts: str, forks: int | None = None
) -> dict[str, Callable[[], Cost]]:
    """Return the ways to run the tasks: ours, with as many forks as places under the cap if no number is given, and the peers."""

    def ours() -> Cost:
        wipe(agent.kv)
        rules: dict[str, Any] = {"rolling_rules": {"global": cap}}
        return run_playbook("upgrade", folder, agent, forks=forks or cap, version="v2", instructions=rules)

    def plain(name: str, peer: _Peer) -> Callable[[], Cost]:
        play = folder / f"{name.replace(' ', '-').replace(',', '')}-{len(facts)}.yml"
        text = _PLAY.format(facts=facts, how=peer.how.format(cap=cap))
        play.write_text(text.replace("upgrade_tasks", "limited_tasks") if peer.throttle else text)
        return lambda: run_playbook(play, folder, agent, forks=cap * peer.forks)

    return {OURS: ours, **{name: plain(name, peer) for name, peer in peers.items()}}
