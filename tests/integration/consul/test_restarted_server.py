# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that replays its log after a restart: nothing that a process acts on is answered with old values."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._cache.cached_store import CachedStore
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import ConsulClient
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host import leases
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import InventoryOptions, survey_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.notifications import read_rollout
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from integration.support.fleets.fleet import names

pytestmark = pytest.mark.one_release

FLEET = names(compute=3)
GATE = "config_state/enable_puppet/global"
LEDGER = {"epoch": 1, "version": "1", "state": "running", "instructions": {}, "who": "ann"}
HOSTS = dict(FLEET)
_RESTARTS = 8


@cache
def _cached(port: int) -> CachedStore:
    return CachedStore(Settings(port=port, timeout=0.2))


# What each reader says of the fleet as it is when the server is stopped.
READERS: dict[str, tuple[Callable[[Store], object], object]] = {
    "node": (lambda store: [(one.value, one.version) for one in ask_gate(store, HOSTS).values()], [(False, "2")] * 3),
    "inventory": (
        lambda store: sorted(
            {one["gate"] for one in survey_fleet(store, InventoryOptions(roles=HOSTS)).hosts.values()}
        ),
        ["closed"],
    ),
    "notifier": (
        lambda store: (read_rollout(store, FLEET).epoch, read_rollout(store, FLEET).view.snapshot.current_version),
        (2, "2"),
    ),
    "info": (lambda store: read_fleet(store, fleet=FLEET).snapshot.current_version, "2"),
    "epochs": (lambda store: store.epochs(), [2, 1]),
    # Runs that wait, the push service and planner services plan with what they have in memory.
    "cached": (lambda store: _cached(store.settings.port).snapshot().current_version, "2"),
    "history": (lambda store: [one["what"] for one in store.events([2])], ["complete"]),
    "wait": (
        lambda store: [
            store.client.wait_for_change_below(GATE, 0, 1)[0] > 0,
            [entry.value for entry in store.client.read([GATE])],
        ],
        [True, [b"False"]],
    ),
}


@pytest.fixture
def restarted() -> Iterator[Agent]:
    """A server with a log that takes it a moment to replay, and whose last entries close a fleet that was open."""
    with Agent() as agent:
        agent.kv.put(GATE, "True")
        agent.kv.put("current_version", "1")
        agent.kv.put("upgrade/ledger", json.dumps(LEDGER))
        agent.kv.put("upgrade/history/1", json.dumps({"epoch": 1, "what": "begin", "at": 1, "version": "1"}))
        filler = base64.b64encode(b"x" * 2000).decode()
        for at in range(300):
            operations = [{"KV": {"Verb": "set", "Key": f"other/{at}/{one}", "Value": filler}} for one in range(64)]
            assert agent.kv.call("PUT", "txn", json.dumps(operations).encode())[0] == 200
        agent.kv.put("upgrade/history/2", json.dumps({"epoch": 2, "what": "complete", "at": 2, "version": "2"}))
        agent.kv.put("upgrade/ledger", json.dumps({**LEDGER, "epoch": 2, "version": "2", "state": "complete"}))
        agent.kv.put("current_version", "2")
        agent.kv.put(GATE, "False")
        agent.stop()
        yield agent


def test_no_reader_gets_what_is_over(restarted: Agent) -> None:
    over = threading.Event()
    answers: dict[str, list[object]] = {name: [] for name in READERS}
    by_default: list[bytes] = []

    def ask_on(name: str) -> None:
        store = Store(Settings(port=restarted.http_port, timeout=0.2))
        while not over.is_set():
            try:
                answers[name].append(READERS[name][0](store))
            except UpgradeError as error:
                # No leader, or none that may answer yet; anything else is a wrong answer too.
                if error.code != "unreachable":
                    answers[name].append(error.message)
                time.sleep(0.002)

    def ask_by_default() -> None:
        while not over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", restarted.http_port, timeout=2)
            try:
                connection.request("GET", f"/v1/kv/{GATE}?raw")
                reply = connection.getresponse()
                by_default.append(reply.read() if reply.status == 200 else b"")
            except (OSError, http.client.HTTPException):
                time.sleep(0.002)
            finally:
                connection.close()

    threads = [threading.Thread(target=ask_on, args=(name,)) for name in READERS]
    threads.append(threading.Thread(target=ask_by_default))
    for thread in threads:
        thread.start()
    try:
        # The moment is short, and on a busy machine no one may have asked in it.
        for _restart in range(_RESTARTS):
            restarted.start()
            time.sleep(1)
            if b"True" in by_default:
                break
            restarted.stop()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    # There was such a moment: Consul's own default has answered with the open gate of before.
    assert b"True" in by_default
    for name, (_read, expected) in READERS.items():
        assert answers[name], f"{name} was never answered"
        assert all(one == expected for one in answers[name]), f"{name} got {answers[name]}"


@pytest.mark.thorough
def test_a_session_that_lives_is_not_said_to_have_ended(restarted: Agent) -> None:
    """A push run would take its own leases for those of another run, and give up its hosts."""
    restarted.start()
    session = leases.open_session(Store(Settings(port=restarted.http_port)))
    over = threading.Event()
    answers: list[object] = []
    by_renewal: list[int] = []

    def renew() -> None:
        client = ConsulClient(Settings(port=restarted.http_port, timeout=0.2))
        while not over.is_set():
            try:
                answers.append(client.renew_session(session))
            except UpgradeError as error:
                if error.code != "unreachable":
                    answers.append(error.message)
                time.sleep(0.002)

    def renew_once() -> None:
        while not over.is_set():
            try:
                by_renewal.append(restarted.kv.call("PUT", f"session/renew/{session}")[0])
            except (OSError, http.client.HTTPException):
                time.sleep(0.002)

    threads = [threading.Thread(target=one) for one in (renew, renew_once)]
    for thread in threads:
        thread.start()
    try:
        for _restart in range(_RESTARTS):
            restarted.stop()
            restarted.start()
            time.sleep(1)
            if 404 in by_renewal:
                break
    finally:
        over.set()
        for thread in threads:
            thread.join()
    # There was such a moment: Consul itself has said that it does not know the session.
    assert 404 in by_renewal
    assert {*answers} == {True}
