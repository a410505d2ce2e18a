# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planners, operators and nodes as processes of their own, each of which can be killed, stopped, or have its clock set."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Mapping
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._model.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.ask import ask
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.hold import Whom, end_holds, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.plan import Request, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.report import Word, report
from ansible_collections.convoy.upgrade.plugins.module_utils._store.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._store.store import Store
from devkit.child import die_with_parent

from .fleet import FLEET, NEW, OLD, RULES

_clock = time.time
# What may happen to who asks Consul in such times; anything else ends the process, and the test.
_EXPECTED = ("unreachable", "consul_error", "busy", "overtaken")


class Child:
    """A process that is started again whenever it was killed."""

    def __init__(self, act: Any, *arguments: Any) -> None:
        self._act = act
        self._arguments = arguments
        # Seconds by which its clock is ahead.
        self.clock: Synchronized[float] = multiprocessing.get_context("spawn").Value("d", 0.0)
        self.start()

    def start(self) -> None:
        """Start it, and again after it was killed."""
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=_run, args=(self._act, self.clock, self._arguments), daemon=True)
        self.process.start()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.process.is_alive() and self.process.pid:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kill it, whatever it is at."""
        self.signal(signal.SIGKILL)
        self.process.join(10)

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.exitcode


def _run(act: Any, clock: Synchronized[float], arguments: tuple[Any, ...]) -> None:
    die_with_parent()
    time.time = lambda: _clock() + clock.value
    act(*arguments)


@contextlib.contextmanager
def patience() -> Any:
    """Take what a Consul under fire answers for what it is."""
    try:
        yield
    except UpgradeError as error:
        if error.code not in _EXPECTED:
            raise
        time.sleep(0.1)


def be_planner(settings: Settings, fleet: Mapping[str, str]) -> None:
    """Plan until all is done."""
    store, epoch, index = Store(settings), 0, 0
    while True:
        with patience():
            outcome = make_pass(store, Request(NEW, RULES, fleet=fleet, epoch=epoch))
            epoch, index = outcome.ledger.epoch if outcome.ledger else 0, outcome.index
            if outcome.plan.complete:
                return
            store.wait_for_change(index, 1)


def be_operator(settings: Settings, seed: int) -> None:
    """Hold hosts and roles for a moment, again and again, until all is done."""
    chance, store = random.Random(seed), Store(settings)
    while True:
        hosts = chance.sample(sorted(FLEET), 2)
        whom = Whom(hosts=hosts, roles=[FLEET[hosts[0]]] if chance.random() < 0.3 else [])
        with patience():
            set_holds(store, whom, "under fire")
            time.sleep(chance.uniform(0.1, 0.6))
        ended = False
        while not ended:
            with patience():
                end_holds(store, whom)
                ended = True
        with patience():
            ledger = store.snapshot().ledger
            if ledger is not None and ledger.state == "complete":
                return


def be_nodes(settings: Settings, hosts: Mapping[str, str], seed: int) -> None:
    """Be hosts until all of them run the version: slow, forgetful, talkative, and not always right."""
    chance, store = random.Random(seed), Store(settings)
    left = dict(hosts)
    while left:
        with patience():
            answers = ask(store, left, default=False)
            for host in [one for one in left if answers[one].value and answers[one].version == NEW]:
                _act(store, chance, host)
                if _is_done(store, host):
                    del left[host]
            time.sleep(chance.uniform(0.02, 0.2))


def _act(store: Store, chance: random.Random, host: str) -> None:
    """Do one thing that a host does in its upgrade."""
    luck = chance.random()
    if luck < 0.15:
        # It dies here, and comes back later.
        return
    report(store, Word(host, NEW, "started"))
    if luck < 0.25:
        return
    if luck < 0.35:
        # A word on what is not wanted (any more).
        report(store, Word(host, "0.9", "failed", error="a former life"))
        return
    if luck < 0.45:
        report(store, Word(host, OLD, "upgraded"))
        return
    if luck < 0.6:
        report(store, Word(host, NEW, "failed", error="no disk"))
        report(store, Word(host, NEW, "started"))
        return
    for _time in range(2 if luck < 0.7 else 1):
        report(store, Word(host, NEW, "upgraded"))


def _is_done(store: Store, host: str) -> bool:
    found = store.snapshot().reports.get(host)
    return found is not None and found.version == NEW
