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
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    Admit,
    AdmitWave,
    BeginTaskGroup,
    EndHost,
    FinishTaskGroup,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import PushRun, RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import PushService
from devkit.kv import RawKV

Begin = Callable[..., PushService]


class Drivers:
    """The drivers of several runs.

    :param fleet: host -> role.
    """

    def __init__(self, store: Store, fleet: Mapping[str, str]) -> None:
        """None yet."""
        self._store = store
        self._fleet = fleet
        self._running: list[PushService] = []

    def begin(self, units: Mapping[str, tuple[RunTaskGroup, ...]], version: str, **more: Any) -> PushService:
        """Begin a rollout in place of the one under way, or go on with it, and start a driver for it."""
        rules = {"rolling_rules": {"global": 9}}
        ledger = self._store.snapshot().ledger
        replace = ledger.version if ledger is not None else None
        make_pass(self._store, PassRequest(version, rules, fleet=self._fleet, limit=[], replace=replace))
        return self.start(units, version, **more)

    def start(self, units: Mapping[str, tuple[RunTaskGroup, ...]], version: str, **more: Any) -> PushService:
        """Start a driver for a rollout that has begun."""
        run = PushRun(self._store.settings, version, "upgrade", self._fleet, units, tuple(self._fleet), **more)
        self._running.append(PushService(run))
        return self._running[-1]

    def close(self) -> None:
        """End them all."""
        for driver in self._running:
            driver.close()


def admit(driver: PushService, *hosts: str) -> None:
    answer = driver.admit_wave(AdmitWave(hosts))
    assert all(one.go for one in answer.values()), answer


def admit_apart(driver: PushService, *hosts: str) -> None:
    """Let hosts through that do not take each task together."""
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda host: driver.admit(Admit(host)), hosts))
    assert all(one.go for one in answers), answers


def step(driver: PushService, host: str, unit: str, *, whole: bool = True) -> bool:
    return driver.begin_task_group(BeginTaskGroup(host, unit, whole=whole)).run


def finish(driver: PushService, host: str, unit: str) -> None:
    driver.finish_task_group(FinishTaskGroup(host, unit))


def end(driver: PushService, host: str) -> str:
    return driver.end_host(EndHost(host))


def entry(consul: RawKV, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(consul.get(key) or b"{}")
    return found
