# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is at work on the fleet: planners, operators, and the nodes. All do what the collection's own modules do."""

from __future__ import annotations

import contextlib
import contextvars
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.repeated_passes import RepeatedPasses
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

from .fleet import FLEET, NEW, OLD
from .processes import Shared
from .rules import Rules, Schedule

# What may happen to who asks Consul in such times; anything else ends the process, and the test.
_EXPECTED = ("unreachable", "consul_error", "busy", "overtaken", "rollout_under_way", "aborted")
# Those of them after which the same planner goes on.
_AWAY = ("unreachable", "consul_error", "busy")
# No one has only these answers for so long (seconds): faults are shorter. What took longer than a try was no failure from its beginning.
_MOST_PATIENCE, _LONGEST_TRY = 60.0, 15.0
# Since when an actor has had no other answer. Each thread has a value of its own.
_away_since: contextvars.ContextVar[float | None] = contextvars.ContextVar("away_since", default=None)
# The errors of an operator's command that comes too late, or during which Consul was restored.
_TOO_LATE = ("no_rollout", "not_running", "nothing_to_approve", "went_back")
_OPERATOR = control.Command("under fire", fleet=FLEET)
# Gives a command: its name, what gives it, and its targets or rules. Returns its result.
Give = Callable[[str, Callable[[], Any], Mapping[str, Any]], Any]
# A command in the details of a host, and those that the operator gives.
_COMMAND = re.compile(r"\bconvoy\.upgrade\.(\w+)((?: -e [\w=,.-]*[\w=-])*)")
_COMMANDS = ("retry", "unhold", "approve", "upgrade")


@contextlib.contextmanager
def patience(*more: str) -> Iterator[None]:
    """Take what a Consul under fire answers for what it is, but not without end that it is away."""
    began = time.monotonic()
    try:
        yield
    except UpgradeError as error:
        since = _away_since.get()
        if since is None or error.code not in _AWAY or time.monotonic() - began > _LONGEST_TRY:
            since = time.monotonic()
        if error.code not in (*_EXPECTED, *more) or time.monotonic() - since > _MOST_PATIENCE:
            raise
        _away_since.set(since)
        time.sleep(0.1)
    else:
        _away_since.set(None)


def be_planner(shared: Shared, settings: Settings, rules: Rules, insisting: bool) -> None:
    """Plan until killed.

    :param insisting: whether each pass asks for the version and the rules, as a playbook does that is run again and again.
    """
    store = Store(settings)
    target: dict[str, Any] = {"version": NEW, "rules": rules.given}
    seen = 0
    while True:
        with patience():
            request: dict[str, Any] = {"fleet": FLEET, "epoch": shared.epoch.value}
            try:
                outcome = make_pass(store, PassRequest(**request, **(target if insisting else {})))
            except UpgradeError as error:
                if error.code != "no_rollout":
                    raise
                outcome = make_pass(store, PassRequest(**request, **target))
            shared.epoch.value = outcome.ledger.epoch if outcome.ledger else 0
            # As in the module: the index of a deletion is in no key, so a read does not find it.
            seen = store.wait_for_change(max(seen, outcome.index), 1)


def be_caching_planner(shared: Shared, settings: Settings, rules: Rules) -> None:
    """Plan until killed, as a playbook does that waits for its rollout: with the fleet in memory, and a pass for several changes."""
    while True:
        passes = RepeatedPasses(settings)
        try:
            with patience():
                _make_passes(passes, shared, rules)
        finally:
            passes.close()


def _make_passes(passes: RepeatedPasses, shared: Shared, rules: Rules) -> None:
    """Make passes of one rollout until an error ends it; while Consul is away, none ends it."""
    request: dict[str, Any] = {"fleet": FLEET, "epoch": shared.epoch.value}
    try:
        passes.first(PassRequest(**request))
    except UpgradeError as error:
        if error.code != "no_rollout":
            raise
        passes.first(PassRequest(**request, version=NEW, rules=rules.given))
    while True:
        ledger = passes.latest.ledger if passes.latest is not None else None
        shared.epoch.value = ledger.epoch if ledger is not None else 0
        while not passes.wait(1):
            pass
        try:
            passes.next()
        except UpgradeError as error:
            if error.code not in _AWAY:
                raise
            time.sleep(0.1)


class Operator:
    """Says this and that of a rollout until calm is wanted, and helps from then on.

    :param give: gives each command, to judge its result.
    """

    def __init__(self, shared: Shared, settings: Settings, plan: Schedule, give: Give | None = None) -> None:
        self._give_command = give or (lambda _name, act, _about: act())
        self._chance = random.Random(f"operator {plan.seed}")
        self._shared = shared
        self._store = Store(settings)
        self._plan = plan
        self._gone_back = plan.rollback is None
        # Playbook -> how often the status has advised it.
        self.advice: Counter[str] = Counter()
        # Consul's index at the beginning of the first rollout, 0 as long as it is not known. Its entry in the history is removed later.
        self._first = 0

    def work(self) -> None:
        """Work until killed."""
        while True:
            self._note_first()
            self._chance_to_go_back()
            if self._shared.calm.value:
                self.help()
                time.sleep(0.3)
            else:
                with patience(*_TOO_LATE):
                    getattr(self, self._chance.choice(self._plan.kind.commands))()
                time.sleep(self._chance.uniform(0.05, 0.4))

    def hold_on(self) -> None:
        """Hold hosts, again and again, until calm is wanted."""
        while not self._shared.calm.value:
            self.hold()
            time.sleep(self._chance.uniform(0.05, 0.4))
        while True:
            time.sleep(1)

    def _note_first(self) -> None:
        if not self._first:
            with patience():
                entry = self._store.client.get(self._store.keys.event(1))
                self._first = entry.modify_index if entry is not None else 0

    def _chance_to_go_back(self) -> None:
        if self._gone_back:
            return
        with patience(*_TOO_LATE):
            snapshot = self._store.snapshot()
            # The answer to an earlier try may have been lost.
            is_back = snapshot.ledger is not None and snapshot.ledger.rollback
            done = sum(1 for one in snapshot.reports.values() if one.version == NEW)
            if not is_back and done >= (self._plan.rollback or 0):
                self._command("rollback", control.roll_back)
                is_back = True
            if is_back:
                self._gone_back = True
                self._shared.target.value = 1

    def _command(self, name: str, act: Callable[..., Any], *given: Any) -> None:
        self._give_command(name, lambda: act(self._store, _OPERATOR, *given), {})

    def _hold(self, whom: HoldTargets) -> None:
        self._give_command("hold", lambda: set_holds(self._store, whom, "under fire"), {"whom": whom})

    def _unhold(self, whom: HoldTargets) -> None:
        self._give_command("unhold", lambda: end_holds(self._store, whom), {"whom": whom})

    def _until_done(self, act: Callable[[], Any]) -> None:
        while True:
            with patience(*_TOO_LATE):
                act()
                return
            if not self._store_has_rollout():
                return

    def _store_has_rollout(self) -> bool:
        with patience():
            ledger = self._store.snapshot().ledger
            return ledger is not None and ledger.state in ("running", "paused")
        return True

    def hold(self) -> None:
        """Hold hosts and perhaps a role for a moment."""
        hosts = self._chance.sample(sorted(FLEET), 2)
        whom = HoldTargets(hosts=hosts, roles=[FLEET[hosts[0]]] if self._chance.random() < 0.3 else [])
        with patience(*_TOO_LATE):
            self._hold(whom)
            time.sleep(self._chance.uniform(0.1, 0.6))
        ended = False
        while not ended:
            with patience(*_TOO_LATE):
                self._unhold(whom)
                ended = True

    def pause(self) -> None:
        """Pause for a moment."""
        self._command("pause", control.pause)
        time.sleep(self._chance.uniform(0.1, 0.8))
        self._until_done(lambda: self._command("resume", control.resume))

    def retry(self) -> None:
        """Put back what failed."""
        self._command("retry", control.retry)

    def approve(self) -> None:
        """Approve whatever waits for it."""
        self._command("approve", control.approve)

    def change(self) -> None:
        """Change the rules in the middle of the rollout."""
        self._change_to(self._chance.choice(self._plan.kind.rules))

    def _change_to(self, rules: Rules) -> None:
        request = PassRequest(rules=rules.given, fleet=FLEET)
        self._give_command("change", lambda: make_pass(self._store, request), {"rules": rules})

    def abort(self) -> None:
        """Abort, and begin again; the fleet is not taken back meanwhile."""
        if self._shared.target.value:
            return
        self._command("abort", control.abort)
        time.sleep(self._chance.uniform(0, 0.5))
        self._begin_again()

    def _begin_again(self) -> None:
        request = PassRequest(NEW, self._plan.kind.rules[0].given, fleet=FLEET, restart=True)
        self._give_command("begin", lambda: make_pass(self._store, request), {})

    def help(self) -> None:
        """Do what lets the rollout come to its end: what a restored snapshot brought back is ended too."""
        if self._plan.is_advised:
            with patience(*_TOO_LATE):
                self._follow_advice()
            return
        with patience(*_TOO_LATE):
            snapshot = self._store.snapshot()
            holds, ledger = snapshot.holds, snapshot.ledger
            if holds.everywhere or holds.roles or holds.hosts:
                self._unhold(HoldTargets(bool(holds.everywhere), list(holds.roles), list(holds.hosts)))
            if ledger is None or ledger.state == "complete":
                return
            if ledger.state == "aborted":
                self._begin_again()
            elif ledger.state == "paused":
                self._command("resume", control.resume)
            elif len(self._plan.kind.rules) > 1 and {"freezes", "windows"} & set(ledger.instructions):
                self._change_to(self._plan.kind.rules[0])
            self._command("retry", control.retry)
            self._retry_unadmitted()
            if self._plan.kind.rules[0].canary:
                self._command("approve", control.approve)

    def _follow_advice(self) -> None:
        """Give the command that the status names, and nothing else; but end a freeze, which only an operator's wish can."""
        view = read_fleet(self._store, fleet=FLEET)
        ledger = view.snapshot.ledger
        if ledger is None:
            return
        if len(self._plan.kind.rules) > 1 and {"freezes", "windows"} & set(ledger.instructions):
            self._change_to(self._plan.kind.rules[0])
            return
        for need in operator_needs(view.snapshot, view.plan)[:1]:
            self.advice[need.playbook] += 1
            if need.playbook != "status":
                self._give(need.playbook, need.variables)
                continue
            details = read_fleet(self._store, fleet=FLEET, name=need.variables["host"]).details
            assert details is not None
            commands = _COMMAND.finditer(" ".join(details["explanation"]))
            # Without its variables, it is a hint and no command. Push runs, which are other processes here, retry hosts themselves.
            found = [one for one in commands if one[1] in _COMMANDS and one[2] and "retry_failed" not in one[2]]
            for one in found[:1]:
                self._give(one[1], dict(variable.split("=", 1) for variable in one[2].split(" -e ")[1:]))

    def _give(self, playbook: str, variables: Mapping[str, str]) -> None:
        """Give the command of a playbook, as its modules do."""
        hosts = variables["host"].split(",") if "host" in variables else []
        roles = variables["role"].split(",") if "role" in variables else []
        if playbook == "upgrade" or (playbook == "rollback" and "restart" not in variables):
            # A rollback that is under way goes on.
            restart = variables.get("restart") == "true"
            make_pass(self._store, PassRequest(variables["version"], fleet=FLEET, restart=restart))
        elif playbook == "resume":
            self._command("resume", control.resume)
        elif playbook == "approve":
            self._command("approve", control.approve, variables["stage"])
        elif playbook == "retry":
            self._command("retry", control.retry, hosts or None)
        elif playbook == "unhold":
            self._unhold(HoldTargets(variables.get("everything") == "true", roles, hosts))
        else:
            raise AssertionError(f"the status advises {playbook} with {variables}")

    def _retry_unadmitted(self) -> None:
        """Retry by name what started with the global gate closed before the first rollout, as the status says to do.

        After a restore, a host that had reported the version may start again under the gate that came back. What else is shown as not
        admitted is a fault, and keeps the rollout from its end.
        """
        snapshot = self._store.snapshot()
        plan = make_pass(self._store, PassRequest(fleet=FLEET), dry=True).plan
        early = {host for host, one in snapshot.records.items() if one.index < self._first}
        may_be = [*plan.hosts] if self._plan.restore else early
        hosts = [host for host in may_be if host in plan.hosts and plan.hosts[host].unadmitted]
        if hosts:
            self._command("retry", control.retry, hosts)


def be_operator(shared: Shared, settings: Settings, plan: Schedule, give: Give | None = None) -> None:
    """Be an operator until killed."""
    Operator(shared, settings, plan, give).work()


def be_holder(shared: Shared, settings: Settings, plan: Schedule, give: Give | None = None) -> None:
    """Hold hosts as another operator, until killed."""
    Operator(shared, settings, plan, give).hold_on()


class Nodes:
    """Some hosts: slow, forgetful, talkative, and not always right.

    :param honest: whether they are: what they say is so, and they never fall back.
    :param runs: host -> the version that it really runs, which is kept up to date; None if no one looks at it.
    """

    def __init__(
        self,
        shared: Shared,
        settings: Settings,
        hosts: Mapping[str, str],
        plan: Schedule,
        number: int,
        honest: bool = False,
        runs: dict[str, str] | None = None,
    ) -> None:
        self._chance = random.Random(f"nodes {plan.seed} {number}")
        self._shared = shared
        self._store = Store(settings)
        self._hosts = dict(hosts)
        self._kind = plan.kind
        self._is_honest = honest
        self._may_be_lost = plan.restore
        # What each really runs, what it reported last, and until when it is down.
        self._runs = dict.fromkeys(hosts, OLD) if runs is None else runs
        self._reported = dict.fromkeys(hosts, OLD)
        self._out_until = dict.fromkeys(hosts, 0.0)
        self._flaps = 3

    def work(self) -> None:
        """Be these hosts until killed."""
        while True:
            with patience():
                answers = ask_gate(self._store, self._hosts, default=False)
                for host, answer in answers.items():
                    if answer.value and answer.version is not None and time.monotonic() > self._out_until[host]:
                        with patience("not_admitted"):
                            self._agent_run(host, answer.version)
            time.sleep(self._chance.uniform(0.02, 0.2))

    def _agent_run(self, host: str, goal: str) -> None:
        if self._runs[host] == goal and self._reported[host] == goal:
            self._after(host, goal)
        elif self._runs[host] == goal and self._is_honest:
            # The answer to its last report was lost. It has nothing to do but report again, and is not down for that.
            self._report(host, goal, "upgraded")
        else:
            self._upgrade(host, goal)

    def _report(self, host: str, version: str, state: str, error: str | None = None) -> None:
        # As on a node: a start rests on the admission of that moment, and what a host has done is in its own record.
        role = self._hosts[host] if state == "started" else None
        # Nor does a node believe that its last report still stands before it has an answer.
        self._reported[host] = ""
        write_report(self._store, HostReport(host, version, state, error=error, role=role, default=False))
        self._reported[host] = version if state == "upgraded" else ""

    def _after(self, host: str, goal: str) -> None:
        """Let a host that is done say so again, and now and then fall back to where it was.

        At the end of a night, a host repeats its report only in nights with a restore, which may have removed it.
        """
        is_calm = bool(self._shared.calm.value)
        if is_calm and not self._may_be_lost:
            return
        luck = self._chance.random()
        if luck < 0.02 and self._flaps and not is_calm and not self._is_honest:
            self._flaps -= 1
            self._runs[host] = OLD if goal == NEW else NEW
            self._report(host, self._runs[host], "upgraded")
        elif luck < 0.1:
            self._report(host, goal, "upgraded")

    def _upgrade(self, host: str, goal: str) -> None:
        """Do one thing that a host does in its upgrade."""
        luck = self._chance.random()
        if self._shared.calm.value:
            luck = 1.0
        elif self._chance.random() < self._kind.dying:
            self._out_until[host] = time.monotonic() + self._chance.uniform(6, 9)
            return
        elif self._chance.random() < self._kind.failing:
            self._report(host, goal, "failed", error="no disk")
            self._out_until[host] = time.monotonic() + self._chance.uniform(0.5, 2.5)
            return
        if luck < 0.15:
            # It dies here, and comes back later.
            return
        self._report(host, goal, "started")
        if luck < 0.25:
            return
        if self._is_honest:
            luck = max(luck, 0.4)
        if luck < 0.33:
            # A report of a version that is not the target (any more).
            self._report(host, "0.9", "failed", error="a former life")
            return
        if luck < 0.4:
            self._report(host, OLD if goal == NEW else NEW, "upgraded")
            return
        if luck < 0.5:
            self._report(host, goal, "failed", error="no disk")
            self._report(host, goal, "started")
            return
        self._runs[host] = goal
        for _time in range(2 if luck < 0.6 else 1):
            self._report(host, goal, "upgraded")


def be_nodes(
    shared: Shared,
    settings: Settings,
    hosts: Mapping[str, str],
    plan: Schedule,
    number: int,
    honest: bool = False,
    runs: dict[str, str] | None = None,
) -> None:
    """Be some hosts until killed."""
    Nodes(shared, settings, hosts, plan, number, honest, runs).work()
