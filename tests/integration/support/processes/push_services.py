# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push services of several runs, and the messages that the tasks of a run send them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    Admit,
    AdmitWave,
    BeginTaskGroup,
    EndHost,
    FinishTaskGroup,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import UPGRADE, PushRun, RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import PushService
from devkit.kv import RawKV
from integration.support.fleets.fleet import seed

Begin = Callable[..., PushService]


class PushServices:
    """Starts the push services of several runs.

    :param fleet: host -> role.
    """

    def __init__(self, store: Store, fleet: Mapping[str, str]) -> None:
        """Start none."""
        self._store = store
        self._fleet = fleet
        self._running: list[PushService] = []

    def begin(
        self,
        task_groups: Mapping[str, tuple[RunTaskGroup, ...]],
        version: str,
        cap: int = 9,
        role_order: Mapping[str, str] | None = None,
        **more: Any,
    ) -> PushService:
        """Begin a rollout, or resume the current one, and start a push service for it."""
        rules = {"rolling_rules": {"global": cap}, "role_order": dict(role_order or {})}
        ledger = self._store.snapshot().ledger
        replace = ledger.version if ledger is not None else None
        make_pass(self._store, PassRequest(version, rules, fleet=self._fleet, limit=[], replace=replace))
        return self.start(task_groups, version, **more)

    def start(self, task_groups: Mapping[str, tuple[RunTaskGroup, ...]], version: str, **more: Any) -> PushService:
        """Start a push service for the current rollout, for the whole fleet if no hosts are given."""
        given = {"phase": UPGRADE, "hosts": tuple(self._fleet), **more}
        run = PushRun(self._store.settings, version, fleet=self._fleet, task_groups=task_groups, **given)
        self._running.append(PushService(run))
        return self._running[-1]

    def close(self) -> None:
        """Close all of them."""
        for service in self._running:
            service.close()


@contextmanager
def push_services(store: Store, consul: RawKV, fleet: Mapping[str, str]) -> Iterator[PushServices]:
    """Seed a fleet, yield what starts push services for it, and close them all."""
    seed(consul, fleet)
    running = PushServices(store, fleet)
    try:
        yield running
    finally:
        running.close()


def admit(service: PushService, *hosts: str) -> None:
    answer = service.admit_wave(AdmitWave(hosts))
    assert all(one.admitted for one in answer.values()), answer


def admit_apart(service: PushService, *hosts: str) -> None:
    """Admit hosts one by one, outside a wave."""
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda host: service.admit(Admit(host)), hosts))
    assert all(one.admitted for one in answers), answers


def step(
    service: PushService,
    host: str,
    task_group: str,
    *,
    whole: bool = True,
    machine: str | None = None,
    is_control_node: bool = False,
) -> bool:
    message = BeginTaskGroup(host, task_group, machine, whole=whole, is_control_node=is_control_node)
    return service.begin_task_group(message).run


def finish(service: PushService, host: str, task_group: str) -> None:
    service.finish_task_group(FinishTaskGroup(host, task_group))


def end(service: PushService, host: str) -> str:
    return service.end_host(EndHost(host))


def entry(consul: RawKV, key: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(consul.get(key) or b"{}")
    return data
