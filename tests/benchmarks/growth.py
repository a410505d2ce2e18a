# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the cost of each operation grows with the fleet and with the history: requests, seconds, memory.

Every operation runs in a process of its own, which is forked when everything is imported. The last column divides the seconds per host, or per entry
of the history, by those of the smallest size: what stays about 1 is linear.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._cache.cached_store import CachedStore
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import MOST_PASS_LIMIT, Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.transport import Transport
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import VersionReport, roles_of_hosts
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import fleet_summary
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.reconcile import make_plan
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import InventoryOptions, survey_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._state.ledger_writer import LedgerWriter
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from benchmarks.options import Options
from benchmarks.processes import Measured
from benchmarks.stored_fleets import (
    ADMISSIONS,
    ENTRIES_OF_ROLLOUT,
    NEW,
    OLDER,
    ROLE,
    RULES,
    former_rollouts,
    host_name,
    in_memory,
    legacy_keys,
    register_nodes,
    under_way,
    waiting,
)
from benchmarks.tables import NOTHING, Report, Table, times
from devkit.agent import Agent

NAME = "growth"
ABOUT = "how planning, passes and all reads grow with hosts and with the history"
NEEDS_LAB = False

SIZES, QUICK_SIZES = (1_000, 10_000, 30_000, 100_000), (100, 1_000)
# Planning also runs at this size, without Consul.
LARGEST, QUICK_LARGEST = 1_000_000, 10_000
ASKED = 99
_HOSTS_OF_HISTORY = 1_000
# The history has fewer entries than the fleet has hosts.
_HOSTS_PER_ENTRY = 10
_QUESTION = f"gate question for {ASKED} hosts"
# What was measured in a process: requests and seconds.
Found = tuple[int, float]


@dataclass(slots=True)
class _Growth:
    """A table of operations at several sizes.

    :param rounds: how often each operation is run; the quickest run counts.
    """

    table: Table
    report: Report
    rounds: int
    smallest: dict[str, float] = field(default_factory=dict)

    def measure(self, operation: str, size: int, act: Callable[[], Found], promised: int | None = None) -> None:
        """Run an operation in processes of their own, and add its row.

        :param promised: how many requests it may need; None if nothing is promised.
        """
        costs = [Measured(act).end() for _round in range(self.rounds)]
        seconds, requests = min((cost.found[1], cost.found[0]) for cost in costs)
        memory = max(cost.memory for cost in costs)
        each = seconds / size
        share = times(each, self.smallest.setdefault(operation, each))
        self.table.add(operation, size, requests or NOTHING, f"{seconds:.3f}", f"{memory:.0f}", share)
        if promised is not None and requests != promised:
            self.report.mistakes.append(f"{operation} at size {size:,} took {requests} requests instead of {promised}.")


def run(options: Options, report: Report) -> None:
    """Measure planning in memory, operations on Consul, and reads of the history."""
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    largest = () if options.sizes else (QUICK_LARGEST if options.quick else LARGEST,)
    rounds = options.repeated(3)
    title = "Planning without IO: a tenth is upgraded, and the rest waits."
    planning = _Growth(report.table(title, _head("hosts", "host")), report, rounds)
    for size in sorted({*sizes, *largest}):
        planning.measure("plan", size, partial(_plan, size))
        planning.measure("plan again after one report", size, partial(_plan_again, size))
    title = "Operations on Consul, in the middle of a rollout."
    stored = _Growth(report.table(title, _head("hosts", "host")), report, rounds)
    for size in sizes:
        _stored(stored, size)
    title = f"Reads of the history. Each {ENTRIES_OF_ROLLOUT} entries are a rollout of {_HOSTS_OF_HISTORY:,} hosts, and all of them are over."
    history = _Growth(report.table(title, _head("entries", "entry")), report, rounds)
    for size in sizes:
        _history(history, max(ENTRIES_OF_ROLLOUT, size // _HOSTS_PER_ENTRY))


def _head(sizes: str, unit: str) -> list[str]:
    return ["operation", sizes, "requests", "seconds", "MiB", f"per {unit} against the smallest"]


def _plan(size: int) -> Found:
    snapshot = in_memory(size)
    members, rules = roles_of_hosts({}, snapshot.reports), parse(RULES)
    began = time.perf_counter()
    plan = make_plan(snapshot, members, rules)
    fleet_summary(plan.hosts)
    return 0, time.perf_counter() - began


def _plan_again(size: int) -> Found:
    snapshot = in_memory(size)
    members, rules = roles_of_hosts({}, snapshot.reports), parse(RULES)
    before = make_plan(snapshot, members, rules)
    reported = {**snapshot.reports, host_name(size): VersionReport(NEW, snapshot.now, size + 1)}
    after = replace(snapshot, reports=reported)
    began = time.perf_counter()
    make_plan(after, members, rules, before=before)
    return 0, time.perf_counter() - began


def _stored(growth: _Growth, size: int) -> None:
    with Agent() as agent:
        settings = _settings(agent)
        agent.kv.load(under_way(size))
        register_nodes(agent.kv, size)
        host = host_name(size)

        def measure(
            operation: str,
            act: Callable[[Store], object],
            promised: int | None = None,
            before: Callable[[Store], object] | None = None,
        ) -> None:
            growth.measure(operation, size, lambda: _on_consul(settings, act, before), promised)

        measure("status", read_fleet, 1)
        measure("one host explained", lambda store: read_fleet(store, name=host))
        measure("rollout report", read_rollout_report)
        measure("metrics", lambda store: metrics_text(store, read_fleet(store)))
        measure("inventory", lambda store: survey_fleet(store, InventoryOptions()), 3)
        measure(_QUESTION, _ask, 1)
        measure(f"pass that admits {ADMISSIONS}", lambda store: _pass(store, ADMISSIONS), 2, reset_gates)
        measure("pass that admits none", lambda store: _pass(store, 0), 1)
        growth.measure("pass that admits none, fleet in memory", size, lambda: _pass_in_memory(settings))
        started = HostReport(host, NEW, "started")
        upgraded = replace(started, state="upgraded")
        measure(
            "one host report",
            lambda store: write_report(store, upgraded),
            2,
            lambda store: _reported(store, upgraded, started),
        )
        agent.kv.load(legacy_keys(size))
        measure("pass that admits none, both layouts", lambda store: _pass(store, 0), 1)
        measure(f"{_QUESTION}, both layouts", _ask, 1)


def _settings(agent: Agent) -> Settings:
    """Return how to reach Consul, with limits that a machine under load does not reach."""
    return Settings(port=agent.http_port, timeout=300, pass_limit=MOST_PASS_LIMIT)


def _on_consul(
    settings: Settings, act: Callable[[Store], object], before: Callable[[Store], object] | None = None
) -> Found:
    """Return what an operation costs, without what is done before it."""
    if before is not None:
        before(Store(settings))
    sent = _count_requests()
    store = Store(settings)
    began = time.perf_counter()
    act(store)
    return len(sent), time.perf_counter() - began


def _count_requests() -> list[str]:
    """Return a list that gets the path of each request of the clients that this process creates from now on."""
    sent: list[str] = []
    send = Transport.send

    def counted(transport: Transport, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        sent.append(path)
        return send(transport, method, path, *arguments, **options)

    Transport.send = counted
    return sent


def _ask(store: Store) -> object:
    return ask_gate(store, {host_name(number): ROLE for number in range(1, ASKED + 1)})


def _reported(store: Store, *reports: HostReport) -> None:
    """Write reports, so that the host's record has the version that it runs."""
    for report in reports:
        write_report(store, report)


def _pass(store: Store, admits: int) -> None:
    outcome = make_pass(store, PassRequest())
    if len(outcome.admissions) != admits:
        raise RuntimeError(f"a pass admitted {len(outcome.admissions)} hosts instead of {admits}")


def _pass_in_memory(settings: Settings) -> Found:
    """Return what the second pass of a process that keeps the fleet in memory costs."""
    sent = _count_requests()
    store = CachedStore(settings)
    before = make_pass(store, PassRequest())
    sent.clear()
    began = time.perf_counter()
    make_pass(store, PassRequest(), before=before)
    return len(sent), time.perf_counter() - began


def _history(growth: _Growth, entries: int) -> None:
    with Agent() as agent:
        settings = _settings(agent)
        agent.kv.load(waiting(_HOSTS_OF_HISTORY))
        agent.kv.load(former_rollouts(entries, _HOSTS_OF_HISTORY))

        def measure(operation: str, act: Callable[[Store], object]) -> None:
            growth.measure(operation, entries, lambda: _on_consul(settings, act))

        measure("all entries", lambda store: _all(store, entries))
        measure("report on the oldest rollout", lambda store: read_rollout_report(store, OLDER))
        measure("report on the newest rollout", read_rollout_report)
        measure("status with 10 entries", lambda store: read_fleet(store, history=10))
        growth.measure(
            "planner write that removes old entries", entries, lambda: _on_consul(settings, _remove_entries), 2
        )


def _remove_entries(store: Store) -> None:
    """Read and write as a planner whose history keeps the last rollout only."""
    snapshot = store.snapshot()
    if snapshot.ledger is None:
        raise RuntimeError("there is no ledger")
    ledger = replace(snapshot.ledger, rollouts=(max(1, snapshot.ledger.epoch - ENTRIES_OF_ROLLOUT),))
    writer = LedgerWriter(store, replace(snapshot, ledger=ledger), "benchmark", int(time.time()))
    writer.write(ledger, {"what": "open", "hosts": {}, "roles": {}})


def _all(store: Store, entries: int) -> None:
    found = len(list(store.history(Ledger(entries, NEW))))
    if found != entries:
        raise RuntimeError(f"{found} entries were read instead of {entries}")
