# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs under fire: operators who begin jobs and rollouts to versions at the same time, planners, and nodes that do both kinds of work.

The nodes run the code of the agent, with a spool in memory and commands that take a moment.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Conflict
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import (
    compare,
    compare_and_put,
    read_along,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from convoy_node.jobs import job_run, spool
from convoy_node.jobs.command_schema import CommandSchema
from convoy_node.jobs.node_commands import NodeCommand
from convoy_node.machine.errors import ConsulError
from convoy_node.node.connection import Connection
from convoy_node.node.consul import ConsulKey
from convoy_node.node.gate import NodeKeys
from convoy_node.node.settings import NodeSettings

from .actors import patience
from .fleet import FLEET, OLD
from .processes import Shared

# The errors of a command that comes second, or too late.
_SECOND = ("job_under_way", "rollout_under_way", "unknown_job", "overtaken", "aborted", "no_rollout", "not_running")
# Commands, of which only the second one is repeatable.
_ONCE, _REPEATABLE = "once", "again"
_OPERATOR = control.Command("under fire", fleet=FLEET)


def be_planner(shared: Shared, settings: Settings) -> None:
    """Go on with whatever moves the fleet, until killed."""
    store, seen = Store(settings), 0
    while True:
        with patience(*_SECOND):
            outcome = make_pass(store, PassRequest(fleet=FLEET, epoch=shared.epoch.value))
            shared.epoch.value = outcome.ledger.epoch if outcome.ledger else 0
            seen = store.wait_for_change(max(seen, outcome.index), 1)


def be_controller(shared: Shared, settings: Settings, rules: Mapping[str, Any], seed: int, number: int) -> None:
    """Begin jobs and rollouts, again and again, and abort and retry now and then, until calm is wanted; then help."""
    chance, store, count = random.Random(f"controller {seed} {number}"), Store(settings), 0
    while True:
        count += 1
        with patience(*_SECOND):
            if shared.calm.value:
                _help(store)
            elif chance.random() < 0.5:
                roles = chance.choice(((), (), ("compute",), ("web", "storage")))
                command = chance.choice((_ONCE, _REPEATABLE))
                # Unique, as those of operators: a controller that was killed begins from its first choice again.
                name = f"{command}-{number}-{count}-{runtime.new_id()[:6]}"
                hosts = tuple(chance.sample(sorted(FLEET), 5)) if chance.random() < 0.3 else ()
                whom = {"hosts": hosts} if hosts else {"roles": roles}
                one = Job(name, command, int(runtime.now()) + 7200, **whom)
                make_pass(store, PassRequest(version=one.target, job=one, rules=rules, fleet=FLEET))
            elif chance.random() < 0.5:
                make_pass(store, PassRequest(version=f"{number}.{count}", rules=rules, fleet=FLEET))
            elif chance.random() < 0.3:
                control.abort(store, _OPERATOR)
            else:
                control.retry(store, _OPERATOR)
        time.sleep(0.5 if shared.calm.value else chance.uniform(0.2, 2.0))


def _help(store: Store) -> None:
    """Do what lets the job or rollout under way come to its end."""
    snapshot = store.snapshot()
    ledger = snapshot.ledger
    if ledger is None:
        return
    if ledger.state in ("running", "paused"):
        control.retry(store, _OPERATOR)
        if ledger.version.startswith(f"job/{_ONCE}"):
            # What has failed of it does not run again.
            control.abort(store, _OPERATOR)
    elif ledger.state == "aborted" and not ledger.is_job:
        make_pass(store, PassRequest(version=ledger.version, fleet=FLEET, restart=True))


class _Died(BaseException):
    """The machine is gone in the middle of a command."""


class _Consul:
    """What the agent asks of Consul, by way of the collection's client, which the simulation knows."""

    # No answer had a time.
    time = 0.0

    def __init__(self, store: Store) -> None:
        self._client = store.client

    def read(self, keys: Sequence[str], folder: str = "") -> dict[str, ConsulKey]:
        with _as_agent():
            try:
                found = self._client.read(keys, known=[folder] if folder else [])
            except Conflict:
                return self.read(keys)
            names = {*keys, folder}
            return {one.key: ConsulKey(one.value, one.modify_index, one.flags) for one in found if one.key in names}

    def get(self, key: str) -> ConsulKey | None:
        return self.read([key]).get(key)

    def write(self, operations: Sequence[Mapping[str, Any]]) -> dict[str, ConsulKey] | None:
        make: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "cas": lambda one: compare_and_put(one["Key"], one["Value"].decode(), one["Index"]),
            "check-index": lambda one: compare(one["Key"], one["Index"]),
            "get-tree": lambda one: read_along(one["Key"]),
            "delete-cas": lambda one: {"KV": dict(one)},
        }
        with _as_agent():
            try:
                written = self._client.write([make[one["Verb"]](one) for one in operations])
            except Conflict:
                return None
            return {one["Key"]: ConsulKey(b"", int(one["ModifyIndex"])) for one in written}
        return None


@contextlib.contextmanager
def _as_agent() -> Iterator[None]:
    try:
        yield
    except UpgradeError as error:
        raise ConsulError(str(error)) from error


class _Spool(spool.Spool):
    """The disk of a node, which outlives its deaths."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, spool.JobEntry] = {}

    def prepare(self) -> None:
        pass

    def read(self, identifier: str) -> spool.JobEntry | None:
        return self._found.get(identifier)

    def add(self, entry: spool.JobEntry) -> None:
        assert entry.id not in self._found
        self._found[entry.id] = entry

    def save(self, entry: spool.JobEntry) -> None:
        # No process of a simulation has a PID, so none is taken for running.
        self._found[entry.id] = replace(entry, boot="gone", pid=0)

    def entries(self) -> Iterator[spool.JobEntry]:
        yield from list(self._found.values())

    def prune(self, now: int) -> None:
        pass


@dataclass
class Ran:
    """How often hosts have begun and done commands: (host, job) -> count. It is no part of Consul, so that nothing in it is made up."""

    begun: Counter[tuple[str, str]] = field(default_factory=Counter)
    done: Counter[tuple[str, str]] = field(default_factory=Counter)

    def problems(self) -> list[str]:
        """Return sentences on commands that ran too often."""
        twice = [pair for pair, count in self.begun.items() if count > 1 and pair[1].startswith(_ONCE)]
        twice += [pair for pair, count in self.done.items() if count > 1]
        return [f"{host} ran {job} twice" for host, job in twice]


def _refuse_surprises(line: str) -> None:
    """Let a run fail with an error that the agent does not expect, and would report as a refusal."""
    assert "The agent failed with" not in line, line


class _Run(job_run.JobRun):
    """A run of the agent, on a node of a simulation."""

    def __init__(self, node: Nodes, host: str) -> None:
        # The real one opens a connection of its own.
        self._settings = NodeSettings(host, FLEET[host], Connection(), {})
        self._keys = NodeKeys(host, FLEET[host])
        self._consul = _Consul(node.store)
        self._spool = node.spools[host]
        self._say = _refuse_surprises
        self._facts = {"role": FLEET[host], "machine": "", "release": "test"}
        self._node, self._host = node, host

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        yield

    def _execute(self, job: Any, _command: Any, entry: spool.JobEntry) -> spool.JobEntry:
        node, chance = self._node, self._node.chance
        node.ran.begun[self._host, job.id] += 1
        time.sleep(chance.uniform(0.05, 0.4))
        luck = 1.0 if node.shared.calm.value else chance.random()
        if luck < 0.05:
            raise _Died
        now = int(runtime.now())
        if luck < 0.1:
            return replace(entry, state=spool.FAILED, ended=now, exit_status=1, error="work: exit status 1")
        node.ran.done[self._host, job.id] += 1
        return replace(entry, state=spool.DONE, ended=now, exit_status=0)


class Nodes:
    """Some hosts, one after the other: each upgrades itself, and runs jobs, as it is admitted."""

    def __init__(
        self, shared: Shared, settings: Settings, hosts: Collection[str], ran: Ran, seed: int, number: int
    ) -> None:
        self.chance = random.Random(f"jobs {seed} {number}")
        self.shared, self.ran, self.store = shared, ran, Store(settings)
        self.spools = {host: _Spool() for host in hosts}
        self._runs = dict.fromkeys(hosts, OLD)
        self._out_until = dict.fromkeys(hosts, 0.0)

    def work(self) -> None:
        """Be these hosts until killed."""
        instead = {"time": time, "uuid": SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=runtime.new_id()))}
        vars(job_run).update(instead, find_command=_command, _REPORT_SECONDS=2.0)
        while True:
            for host in self.spools:
                if time.monotonic() < self._out_until[host]:
                    continue
                with patience("not_admitted"), contextlib.suppress(ConsulError):
                    try:
                        self._act(host)
                    except _Died:
                        self._out_until[host] = time.monotonic() + self.chance.uniform(0.5, 4)
            time.sleep(self.chance.uniform(0.02, 0.2))

    def _act(self, host: str) -> None:
        run = _Run(self, host)
        run.run()
        answer = ask_gate(self.store, {host: FLEET[host]}, default=False)[host]
        if not answer.value or answer.version is None or self._runs.get(host) == answer.version:
            return
        role = FLEET[host]
        write_report(self.store, HostReport(host, answer.version, "started", role=role, default=False))
        # As the agent does: a host that fails has no version until an upgrade ends.
        self._runs[host] = ""
        time.sleep(self.chance.uniform(0.05, 0.4))
        if not self.shared.calm.value and self.chance.random() < 0.1:
            write_report(self.store, HostReport(host, answer.version, "failed", error="no disk"))
            self._out_until[host] = time.monotonic() + self.chance.uniform(0.5, 2)
            return
        write_report(self.store, HostReport(host, answer.version, "upgraded"))
        self._runs[host] = answer.version


def _command(name: str, _folder: str = "") -> NodeCommand:
    return NodeCommand(name, Path("/work"), CommandSchema(is_repeatable=name == _REPEATABLE))


def be_nodes(shared: Shared, settings: Settings, hosts: Collection[str], ran: Ran, seed: int, number: int) -> None:
    """Be some hosts until killed."""
    Nodes(shared, settings, hosts, ran, seed, number).work()


def of_record(value: str | None) -> dict[str, Any]:
    """Return what a key holds, nothing where it is not there."""
    found: dict[str, Any] = json.loads(value) if value else {}
    return found
