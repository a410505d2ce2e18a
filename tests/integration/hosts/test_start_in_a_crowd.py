# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Eight planners, an operator, slow nodes and push runs at once: no host starts with a closed gate, under a hold, or over the cap.

Every transaction is noted with its index and played back, so what is judged is what stood in Consul when a host started.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import ConsulClient
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store_pool import StorePool
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.host_runs import HostRuns
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import UPGRADE, PushRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.session import RunSession
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, names, seed

pytestmark = pytest.mark.one_release

FLEET = names(web=4, db=4)
CAP = 2
RULES = {"rolling_rules": {"global": CAP, "fleet": CAP}}
COMMAND = control.Command("a crowd", fleet=FLEET)
_SECONDS, _PLANNERS, _NODES = 6.0, 8, 4
_LATE = (
    "not_admitted",
    "busy",
    "overtaken",
    "rollout_under_way",
    "aborted",
    "not_running",
    "no_rollout",
    "conflict",
    "in_progress",
)


@dataclass
class Crowd:
    """What was written, by Consul's index, and which hosts started."""

    settings: Any
    writes: list[tuple[int, Any]] = field(default_factory=list)
    starts: dict[int, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    faults: list[BaseException] = field(default_factory=list)
    version: int = 2
    orders: Iterator[str] = field(
        default_factory=lambda: itertools.cycle(("host", "role", "host", "next version", "all"))
    )
    runs: dict[str, str] = field(default_factory=dict)
    pushed: int = 0

    def worker(self, act: Callable[[Store, random.Random], None], seed: int) -> threading.Thread:
        """Return a thread that does something again and again, with a connection of its own."""

        def work() -> None:
            store, chance = Store(self.settings), random.Random(seed)
            while not self.over.is_set():
                try:
                    act(store, chance)
                except UpgradeError as error:
                    if error.code not in _LATE:
                        self.faults.append(error)
                        return
                except Exception as error:
                    self.faults.append(error)
                    return

        return threading.Thread(target=work, daemon=True)

    def plan(self, store: Store, chance: random.Random) -> None:
        make_pass(store, PassRequest(fleet=FLEET))
        time.sleep(chance.uniform(0, 0.05))

    def be_node(self, store: Store, chance: random.Random, hosts: list[str]) -> None:
        host = chance.choice(hosts)
        answer = ask_gate(store, {host: FLEET[host]}, default=False)[host]
        if not answer.value or answer.version in (None, self.runs.get(host)):
            return
        # As much happens between a node's question and its start.
        time.sleep(chance.uniform(0, 0.3))
        mine: list[int] = []
        if (sorted(FLEET).index(host) + int(answer.version)) % 2:
            self.start_by_push(host, str(answer.version), mine)
        else:
            self.watched(store, mine)
            write_report(store, HostReport(host, str(answer.version), "started", role=FLEET[host], default=False))
        self.starts[mine[-1]] = host
        time.sleep(chance.uniform(0, 0.1))
        write_report(store, HostReport(host, str(answer.version), "upgraded"))
        self.runs[host] = str(answer.version)

    def start_by_push(self, host: str, version: str, indexes: list[int]) -> None:
        """Start an upgrade as the daemon of a push run does."""
        pool = StorePool(self.settings)
        with pool.store() as store:
            self.watched(store, indexes)
        session = RunSession(pool, list)
        run = PushRun(self.settings, version, phase=UPGRADE, fleet=FLEET, task_groups={}, hosts=(host,))
        try:
            HostRuns(run, pool, session).begin(host)
        finally:
            session.close()
            pool.close()
        self.pushed += 1

    def watched(self, store: Store, indexes: list[int]) -> None:
        write = ConsulClient.write

        def noted(operations: Any) -> Any:
            found = write(store.client, operations)
            indexes.append(max(one["ModifyIndex"] for one in found if one["Key"].startswith("upgrade/hosts/")))
            return found

        store.client.write = noted  # type: ignore[method-assign]

    def command(self, store: Store, chance: random.Random) -> None:
        time.sleep(chance.uniform(0, 0.15))
        what = next(self.orders)
        if what == "next version":
            try:
                control.abort(store, COMMAND)
            except UpgradeError as error:
                # A complete rollout needs no abort.
                if error.code != "not_running":
                    raise
            self.version += 1
            make_pass(store, PassRequest(str(self.version), RULES, fleet=FLEET))
            return
        hosts = chance.sample(sorted(FLEET), 2)
        whom = HoldTargets(what == "all", [FLEET[hosts[0]]] if what == "role" else [], hosts if what == "host" else [])
        set_holds(store, whom, "a crowd")
        time.sleep(chance.uniform(0.05, 0.2))
        ended = False
        while not ended:
            try:
                end_holds(store, whom)
                ended = True
            except UpgradeError as error:
                if error.code != "busy":
                    raise


def judged(crowd: Crowd) -> list[str]:
    """Return what was wrong, by playing back all writes in the order of their indexes."""
    state: dict[str, str] = {}
    found = []
    for index, operations in sorted(crowd.writes, key=lambda one: one[0]):
        host = crowd.starts.get(index)
        if host is not None and any(one["KV"]["Key"] == f"upgrade/hosts/{host}" for one in operations):
            gates = (f"{GATES}/host/{host}", f"{GATES}/role/{FLEET[host]}", f"{GATES}/global")
            gate = next((state[key] for key in gates if key in state), "False")
            holds = [f"upgrade/hold/{name}" for name in ("global", f"role/{FLEET[host]}", f"host/{host}")]
            found += [f"{index}: {host} started behind a closed gate"] if gate != "True" else []
            found += [f"{index}: {host} started under {key}" for key in holds if key in state]
        for one in operations:
            facts = one["KV"]
            if facts["Verb"] in ("set", "cas"):
                state[facts["Key"]] = base64.b64decode(facts["Value"]).decode()
            elif facts["Verb"] == "delete":
                state.pop(facts["Key"], None)
            elif facts["Verb"] == "delete-tree":
                state = {key: value for key, value in state.items() if not key.startswith(facts["Key"])}
        records = {key: json.loads(value) for key, value in state.items() if key.startswith("upgrade/hosts/")}
        down = [key for key, record in records.items() if record["state"] == "started"]
        found += [f"{index}: {down} are down under a cap of {CAP}"] if len(down) > CAP else []
    return found


def test_no_host_starts_without_an_admission_that_holds(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, FLEET)
    crowd = Crowd(store.settings)
    write = ConsulClient.write

    def noted(client: ConsulClient, operations: Any) -> Any:
        found = write(client, operations)
        # The ledger's index, or that of a record, is the transaction's; what it only compares or reads may be older.
        crowd.writes.append(
            (max([one["ModifyIndex"] for one in found if one["Key"].startswith("upgrade/")]), operations)
        )
        return found

    monkeypatch.setattr(ConsulClient, "write", noted)
    make_pass(store, PassRequest("2", RULES, fleet=FLEET))
    threads = [crowd.worker(crowd.plan, number) for number in range(_PLANNERS)]
    for number in range(_NODES):
        mine = sorted(FLEET)[number::_NODES]
        threads.append(crowd.worker(functools.partial(crowd.be_node, hosts=mine), 100 + number))
    threads.append(crowd.worker(crowd.command, 1000))
    for thread in threads:
        thread.start()
    time.sleep(_SECONDS)
    crowd.over.set()
    for thread in threads:
        thread.join(30)

    assert crowd.faults == []
    assert judged(crowd) == []
    assert len(crowd.starts) >= 5
    assert crowd.version > 2
    assert 0 < crowd.pushed < len(crowd.starts)
