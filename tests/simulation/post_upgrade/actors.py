# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is at work while hosts run their post-upgrade tasks: push runs or planner services, agents of pull hosts, a planner, and an operator."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import decode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import hand_over
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import Settle
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import (
    POST_UPGRADE_PHASE,
    PushRun,
    RunTaskGroup,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import HostService, PushService
from fire.actors import patience
from fire.fleet import FLEET, NEW
from fire.processes import Shared
from fire.push import Play, Pusher, TaskFailed, run_task_groups

from ..planner_services import be_planner_service

PUSHED, PULLED = ("controller", "web"), ("compute", "storage")
# They join the fleet while others are in their post-upgrade tasks.
JOINING = ("compute12", "storage5")
# The errors of those that come too late, or second.
LATE = (
    "no_rollout",
    "not_running",
    "not_complete",
    "fleet_too_small",
    "overtaken",
    "went_back",
    "not_admitted",
    "leased",
)
# What is in a host's record as long as its tasks are to be run.
_TO_RUN = ("open", "started", "failed")
_WAIT, _SETTLE = 20.0, 5.0


@dataclass
class Site:
    """What actors share besides Consul.

    :param work_on: called with a host on which tasks begin; returns what is called at their end.
    :param pushed: the roles whose tasks push runs run.
    """

    work_on: Callable[[str], Callable[[], None]]
    pushed: Collection[str] = PUSHED
    members: dict[str, str] = field(
        default_factory=lambda: {host: role for host, role in FLEET.items() if host not in JOINING}
    )


def groups_of(role: str) -> tuple[RunTaskGroup, ...]:
    """Return the post-upgrade task groups of a role. One host of the role storage runs the first one for all."""
    return tuple(
        RunTaskGroup(
            f"post_upgrade/{role}-{what}", "post_upgrade", f"{role}-{what}", once=role == "web" and what == "a"
        )
        for what in ("a", "b")
    )


def upgrade_all(store: Store, rules: Mapping[str, object], site: Site) -> None:
    """Upgrade a fleet whose hosts have post-upgrade tasks, and give it rules at the end; without push runs, hand the rollout over."""
    members = dict(site.members)
    wide = {"rolling_rules": {"global": len(members)}}
    asked = PassRequest(NEW, wide, fleet=members, post_upgrade=[*PUSHED, *PULLED])
    make_pass(store, asked)
    *most, last = members
    for host in most:
        _upgrade(store, host, site)
    make_pass(store, PassRequest(rules=rules, fleet=members))
    _upgrade(store, last, site)
    made = make_pass(store, PassRequest(NEW, fleet=members, converge=True))
    assert made.plan.complete
    assert made.ledger is not None
    if not site.pushed:
        hand_over(store, made.ledger, None, dry=False)


def _upgrade(store: Store, host: str, site: Site) -> None:
    services = None if FLEET[host] in site.pushed else "abc"
    write_report(store, HostReport(host, NEW, "started", services=services))
    write_report(store, HostReport(host, NEW, "upgraded", services=services))


class PostUpgradeRuns(Pusher):
    """Makes runs of the post-upgrade tasks, one after the other, until killed."""

    def __init__(self, site: Site, shared: Shared, settings: Settings, seed: int, number: int) -> None:
        self._chance = random.Random(f"post-upgrade run {seed} {number}")
        self._shared = shared
        self._settings = settings
        self._store = Store(settings)
        self._failing = 0.3
        self._task_groups = {role: groups_of(role) for role in PUSHED}
        self._site = site

    def work(self) -> None:
        """Work until killed."""
        while True:
            with patience(*LATE):
                self._run_once()
            runtime.sleep(self._chance.uniform(0.2, 1.0))

    def _run_once(self) -> None:
        snapshot, fleet = self._store.snapshot(), dict(self._site.members)
        ledger = snapshot.ledger
        if ledger is None or ledger.version != NEW or ledger.state != "complete":
            return
        records = snapshot.records
        hosts = [host for host in fleet if host not in records or records[host].post != "done"]
        if not hosts:
            make_pass(self._store, PassRequest(NEW, fleet=fleet, converge=True, since=0))
            return
        run = PushRun(
            self._settings,
            NEW,
            POST_UPGRADE_PHASE,
            fleet,
            self._task_groups,
            tuple(hosts),
            retry_failed=True,
            wait_timeout=_WAIT,
            forks=self._chance.choice((1, 3, 5)),
            pull_roles=frozenset(PULLED),
        )
        service = PushService(run)
        try:
            waiting = [host for host in hosts if fleet[host] in PUSHED]
            Play(service, run, waiting, self).finish()
            until = runtime.monotonic() + _WAIT
            while runtime.monotonic() < until:
                settled = service.settle(Settle(tuple(hosts), _SETTLE))
                if settled.done or not settled.can_move:
                    break
        finally:
            service.close()

    def act(self, host: str) -> None:
        """Run the tasks of a task group on a host."""
        end = self._site.work_on(host)
        try:
            super().act(host)
        finally:
            end()


class Agents:
    """The agents of some pull hosts, one after the other: each runs its post-upgrade tasks, and upgrades a host that joins."""

    def __init__(
        self, site: Site, shared: Shared, settings: Settings, hosts: Collection[str], seed: int, number: int
    ) -> None:
        self._chance = random.Random(f"post-upgrade agents {seed} {number}")
        self._site, self._shared, self._settings = site, shared, settings
        self._store = Store(settings)
        self._hosts = tuple(hosts)

    def work(self) -> None:
        """Be these hosts until killed."""
        while True:
            for host in self._hosts:
                if host in self._site.members:
                    with patience(*LATE):
                        self._act(host)
            runtime.sleep(self._chance.uniform(0.05, 0.3))

    def _act(self, host: str) -> None:
        entry = self._store.client.get(self._store.keys.record(host))
        record = decode_record(entry.key, entry.value) if entry is not None else None
        if record is None or record.state != "upgraded":
            answer = ask_gate(self._store, {host: FLEET[host]}, default=False)[host]
            if answer.value and answer.version is not None:
                report = HostReport(host, answer.version, "started", role=FLEET[host], default=False, services="abc")
                write_report(self._store, report)
                runtime.sleep(self._chance.uniform(0.05, 0.5))
                write_report(self._store, HostReport(host, answer.version, "upgraded"))
        elif record.post in _TO_RUN:
            self._run_tasks(host, record.version)

    def _run_tasks(self, host: str, version: str) -> None:
        role = FLEET[host]
        fleet, groups = {host: role}, {role: groups_of(role)}
        run = PushRun(self._settings, version, POST_UPGRADE_PHASE, fleet, groups, (host,), on_host=True)
        service = HostService(run)
        try:
            service.begin_on_host()
            run_task_groups(service, run, host, self._run_task_group)
        finally:
            service.close()

    def _run_task_group(self, host: str) -> None:
        end = self._site.work_on(host)
        try:
            runtime.sleep(self._chance.uniform(0.02, 0.3))
            if not self._shared.calm.value and self._chance.random() < 0.05:
                raise TaskFailed(f"{host}: no disk")
        finally:
            end()


def be_runs(shared: Shared, settings: Settings, site: Site, seed: int, number: int) -> None:
    """Make runs of post-upgrade tasks until killed."""
    PostUpgradeRuns(site, shared, settings, seed, number).work()


def be_service(shared: Shared, settings: Settings, site: Site, name: str) -> None:
    """Be a planner service until killed."""
    be_planner_service(shared, settings, name, fleet=dict(site.members))


def be_agents(shared: Shared, settings: Settings, site: Site, hosts: Collection[str], seed: int, number: int) -> None:
    """Be the agents of some hosts until killed."""
    Agents(site, shared, settings, hosts, seed, number).work()


def be_planner(shared: Shared, settings: Settings, site: Site) -> None:
    """Admit hosts that join, until killed."""
    store, seen = Store(settings), 0
    while True:
        with patience(*LATE):
            outcome = make_pass(store, PassRequest(fleet=dict(site.members), epoch=shared.epoch.value))
            shared.epoch.value = outcome.ledger.epoch if outcome.ledger else 0
            seen = store.wait_for_change(max(seen, outcome.index), 1)


def be_operator(shared: Shared, settings: Settings, site: Site, seed: int) -> None:
    """Hold, pause and retry until calm is wanted; from then on, end that and give the commands that the status names."""
    chance, store = random.Random(f"post-upgrade operator {seed}"), Store(settings)
    while True:
        with patience(*LATE):
            if shared.calm.value:
                _help(store, site)
            else:
                chance.choice((_hold, _pause, _retry, _retry, _retry_named))(store, site, chance)
        runtime.sleep(0.5 if shared.calm.value else chance.uniform(0.3, 1.5))


def _command(site: Site) -> control.Command:
    return control.Command("under fire", fleet=dict(site.members))


def _hold(store: Store, site: Site, chance: random.Random) -> None:
    whom = HoldTargets(hosts=chance.sample(sorted(site.members), 2), fleet=dict(site.members))
    with patience(*LATE):
        set_holds(store, whom, "under fire")
    runtime.sleep(chance.uniform(0.1, 1.5))
    end_holds(store, whom)


def _pause(store: Store, site: Site, chance: random.Random) -> None:
    control.pause(store, _command(site))
    runtime.sleep(chance.uniform(0.1, 1.0))
    control.resume(store, _command(site))


def _retry(store: Store, site: Site, _chance: random.Random) -> None:
    control.retry(store, _command(site))


def _retry_named(store: Store, site: Site, chance: random.Random) -> None:
    """Retry by name a host on which no run has a lease, as an operator who has looked there."""
    snapshot = store.snapshot()
    idle = [host for host, one in snapshot.records.items() if one.post in _TO_RUN and host not in snapshot.leases]
    pushed = [host for host in idle if FLEET[host] in site.pushed]
    if pushed:
        control.retry(store, _command(site), [chance.choice(pushed)])


def _help(store: Store, site: Site) -> None:
    """End holds and pauses, then do what the status names."""
    snapshot = store.snapshot()
    if snapshot.holds.hosts:
        end_holds(store, HoldTargets(hosts=list(snapshot.holds.hosts)))
    if snapshot.ledger is not None and snapshot.ledger.state == "paused":
        control.resume(store, _command(site))
    view = read_fleet(store, fleet=dict(site.members))
    for need in operator_needs(view.snapshot, view.plan)[:1]:
        if need.playbook == "retry":
            hosts = need.variables["host"].split(",") if "host" in need.variables else None
            control.retry(store, _command(site), hosts)
