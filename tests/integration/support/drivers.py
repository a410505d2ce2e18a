# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers, and what the tasks of a run ask them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import PushRun, RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.server import PushDaemon
from devkit.kv import RawKV

Begin = Callable[..., PushDaemon]


class Drivers:
    """The drivers of several runs.

    :param fleet: host -> role.
    """

    def __init__(self, store: Store, fleet: Mapping[str, str]) -> None:
        """None yet."""
        self._store = store
        self._fleet = fleet
        self._running: list[PushDaemon] = []

    def begin(self, units: Mapping[str, tuple[RunTaskGroup, ...]], version: str, **more: Any) -> PushDaemon:
        """Begin a rollout in place of the one under way, or go on with it, and start a driver for it."""
        rules = {"rolling_rules": {"global": 9}}
        ledger = self._store.snapshot().ledger
        replace = ledger.version if ledger is not None else None
        make_pass(self._store, PassRequest(version, rules, fleet=self._fleet, limit=[], replace=replace))
        return self.start(units, version, **more)

    def start(self, units: Mapping[str, tuple[RunTaskGroup, ...]], version: str, **more: Any) -> PushDaemon:
        """Start a driver for a rollout that has begun."""
        run = PushRun(self._store.settings, "", version, "upgrade", self._fleet, units, tuple(self._fleet), **more)
        self._running.append(PushDaemon(run))
        return self._running[-1]

    def close(self) -> None:
        """End them all."""
        for driver in self._running:
            driver.close()


def admit(driver: PushDaemon, *hosts: str) -> None:
    answer = driver.answer({"do": "wave", "hosts": list(hosts)})["hosts"]
    assert all(one["go"] for one in answer.values()), answer


def admit_apart(driver: PushDaemon, *hosts: str) -> None:
    """Let hosts through that do not take each task together."""
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda host: driver.answer({"do": "admit", "host": host}), hosts))
    assert all(one["go"] for one in answers), answers


def step(driver: PushDaemon, host: str, unit: str, *, whole: bool = True) -> bool:
    message = {"do": "step", "host": host, "unit": unit, "chosen": True, "whole": whole, "skipped": False}
    return bool(driver.answer(message)["run"])


def finish(driver: PushDaemon, host: str, unit: str) -> None:
    driver.answer({"do": "finish", "host": host, "unit": unit})


def end(driver: PushDaemon, host: str) -> str:
    return str(driver.answer({"do": "end", "host": host})["state"])


def entry(consul: RawKV, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(consul.get(key) or b"{}")
    return found
