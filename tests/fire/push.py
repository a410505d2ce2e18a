# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push runs that are made again and again: the push service of the product, and hosts whose tasks take a moment and fail now and then."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.state_names import UPGRADED
from ansible_collections.convoy.upgrade.plugins.module_utils._state.snapshot import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    Admit,
    BeginTaskGroup,
    EndHost,
    FailHost,
    FinishTaskGroup,
    GetNextHosts,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import UPGRADE, PushRun, RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import HostService, PushService

from .actors import patience
from .fleet import FLEET
from .processes import Shared
from .rules import Schedule

# The role that Ansible upgrades where a run has push runs; all other hosts upgrade themselves.
ROLE = "web"
# How long a run waits for the admission of a host (seconds). A rollout has 150 s to end, so several runs fit into it.
_WAIT = 20.0
STEPS = ("prepare", "stop", "upgrade", "start")


class Pusher:
    """Makes a push run after the other until killed."""

    def __init__(self, shared: Shared, settings: Settings, plan: Schedule, number: int) -> None:
        self._chance = random.Random(f"push {plan.seed} {number}")
        self._shared = shared
        self._settings = settings
        self._store = Store(settings)
        self._failing = plan.kind.failing
        groups = [RunTaskGroup(f"{ROLE}/{step}", step, ROLE, once=False) for step in STEPS]
        if self._chance.random() < 0.5:
            groups.insert(2, RunTaskGroup(f"{ROLE}/schema", "upgrade", ROLE, once=True))
        self._task_groups = {ROLE: tuple(groups)}

    def work(self) -> None:
        """Work until killed."""
        while True:
            # A session that could not be opened, or a rollout that another one has replaced.
            with patience("went_back"):
                self._run_once()
            time.sleep(self._chance.uniform(0.2, 1.0))

    def _run_once(self) -> None:
        snapshot = self._store.snapshot()
        ledger = snapshot.ledger
        if ledger is None:
            return
        hosts = [host for host, role in FLEET.items() if role == ROLE and not _is_done(snapshot, host, ledger.version)]
        if not hosts:
            return
        run = PushRun(
            self._settings,
            ledger.version,
            UPGRADE,
            FLEET,
            self._task_groups,
            tuple(hosts),
            retry_failed=True,
            wait_timeout=_WAIT,
            forks=self._chance.choice((1, 3, 5)),
        )
        service = self._service_of(run)
        try:
            Play(service, run, hosts, self).finish()
        finally:
            service.close()

    def _service_of(self, run: PushRun) -> PushService:
        return PushService(run)

    def upgrade(self, service: PushService, run: PushRun, host: str) -> None:
        """Do what the playbook does with a host."""
        try:
            if service.admit(Admit(host)).admitted:
                run_task_groups(service, run, host, self.act)
        except UpgradeError as error:
            record_failure(service, host, error)

    def act(self, host: str) -> None:
        """Run the tasks of a task group on a host."""
        time.sleep(self._chance.uniform(0.02, 0.3))
        if not self._shared.calm.value and self._chance.random() < self._failing / len(STEPS):
            raise TaskFailed(f"{host}: no disk")


def _is_done(snapshot: Snapshot, host: str, version: str) -> bool:
    """Return whether a host has a version, and is not on its way from or to another one."""
    report, record = snapshot.reports.get(host), snapshot.records.get(host)
    return report is not None and report.version == version and (record is None or record.state == UPGRADED)


class TaskFailed(Exception):
    """A task of a host failed."""


def run_task_groups(service: HostService, run: PushRun, host: str, act: Callable[[str], None]) -> None:
    """Do what the playbook does with a host that has begun: run its task groups, and report how it ends.

    :param act: runs the tasks of a task group on a host.
    """
    try:
        for one in run.task_groups_of(host):
            if service.begin_task_group(BeginTaskGroup(host, one.name)).run:
                act(host)
                service.finish_task_group(FinishTaskGroup(host, one.name))
        service.end_host(EndHost(host))
    except (UpgradeError, TaskFailed) as error:
        record_failure(service, host, error)


def record_failure(service: HostService, host: str, error: Exception) -> None:
    """Record whatever is wrong as the host's failure, as the playbook does."""
    with contextlib.suppress(UpgradeError):
        service.fail_host(FailHost(host, str(error)))


class Play:
    """A play: a thread for each host that the push service lets begin. The others wait without one."""

    def __init__(self, service: PushService, run: PushRun, hosts: Sequence[str], pusher: Pusher) -> None:
        self._service = service
        self._run = run
        self._left = list(hosts)
        self._pusher = pusher
        self._changed = threading.Condition()
        self._threads = 0
        self._error: Exception | None = None

    def finish(self) -> None:
        """Let all hosts begin, and wait for their ends."""
        while self._left and self._error is None:
            found = self._service.next_hosts(GetNextHosts(tuple(self._left))).hosts
            self._left = [host for host in self._left if host not in found]
            for host in found:
                with self._changed:
                    self._threads += 1
                threading.Thread(target=self._work, args=(host,), daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: not self._threads)
        if self._error is not None:
            raise self._error

    def _work(self, host: str) -> None:
        try:
            self._pusher.upgrade(self._service, self._run, host)
        except Exception as error:
            self._error = error
            if not isinstance(error, UpgradeError):
                # It ends the process now, as the end of the service may fail too, and hide it.
                raise
        finally:
            with self._changed:
                self._threads -= 1
                self._changed.notify_all()


def be_push(shared: Shared, settings: Settings, plan: Schedule, number: int) -> None:
    """Make push runs until killed."""
    Pusher(shared, settings, plan, number).work()
