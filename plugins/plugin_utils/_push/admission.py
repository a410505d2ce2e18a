# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may go: the run's hosts wait here until the planner lets them through, or it is clear that it will not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ...module_utils._consul.errors import Unreachable
from ...module_utils._consul.watch import BlockingQueries, Watch
from ...module_utils._fleet.ledger import ABORTED
from ...module_utils._host_states import states
from ...module_utils._planner.blockers import BUDGET
from ...module_utils._planner.plan import HostView, Plan, blocked_hosts
from ...module_utils._planner.reconcile import make_plan
from ...module_utils._rollout.planner_pass import PassRequest, PassResult, make_pass
from ...module_utils._rollout.post_upgrade_pass import make_post_upgrade_pass
from ...module_utils._state.keys import Keys
from ...module_utils._state.legacy_keys import LegacyKeys
from ...module_utils._state.store import Store
from .connections import StorePool
from .resume_point import interrupted_at
from .run import AFTER, PushRun

# The state of a host that another run drives.
TAKEN = "taken"

# Failures of hosts that other runs drive are seen by looking again this often (seconds).
_LOOK_AGAIN = 30
_SHORTEST = 0.5

# Hosts ask as Ansible's forks get to them, in no certain order. The first of them wait for the others to come, so that they
# go in the order of the plan; for no longer than this after the last one that came (seconds).
_LINE_UP = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a host may go.

    :param state: its state, or :data:`TAKEN` where another run drives it.
    """

    go: bool
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class PassView:
    """A pass, and every host as it is after it.

    :param mark: where the watch was before it, so that what came later is waited for.
    """

    outcome: PassResult
    hosts: Mapping[str, HostView]
    mark: int

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever open: the rollout was aborted, and hosts that have begun need no one's leave."""
        return self.outcome.ledger is not None and self.outcome.ledger.state == ABORTED


class RunAdmission:
    """Lets the hosts of one run through, in passes that are made for all who wait together.

    :param claim: takes a host on; gives who has it, None where it is this run's.
    """

    def __init__(
        self,
        run: PushRun,
        pool: StorePool,
        claim: Callable[[str], str | None],
        queries: BlockingQueries | None = None,
    ) -> None:
        """No one waits yet."""
        self._run = run
        self._pool = pool
        self._claim = claim
        keys = Keys(pool.settings.kv_prefix)
        reports = (keys.reports, LegacyKeys(keys.prefix).reports)
        self._watcher = Watch(pool.settings, (keys.ledger, keys.holds, keys.drivers, *reports), queries)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: dict[str, Verdict | None] = {}
        self._live = dict.fromkeys(run.scope)
        self._play_of = {host: at for at, hosts in enumerate(run.plays) for host in hosts}
        self._going: set[str] = set()
        self._watching = False
        self._latest: PassView | None = None
        self._epoch, self._commit = 0, ""
        self._asked: set[str] = set()
        self._asked_at = 0.0
        self._lined_up: set[int] = set()
        self._passed = False
        self._pulled = [host for host, role in run.fleet.items() if not run.is_pushed(role) and host in self._live]

    def close(self) -> None:
        """Watch nothing more."""
        self._watcher.close()

    def ended(self, host: str) -> None:
        """Count a host as gone from this run, whatever became of it, and see who may go in its place."""
        with self._lock:
            self._live.pop(host, None)
            self._going.discard(host)
            self._changed.notify_all()
            if any(verdict is None for verdict in self._waiting.values()):
                self._pass()

    def admit(self, host: str) -> Verdict:
        """Wait until a host may go; return the verdict."""
        return self._together([host], whole=False)[host]

    def admit_wave(self, hosts: Collection[str]) -> dict[str, Verdict]:
        """Wait until hosts may go together.

        As long as anybody else is at work they wait for all to fit; after that, those go that can.
        """
        return self._together(hosts, whole=True)

    def settle(self, hosts: Collection[str], seconds: float) -> tuple[bool, bool, PassView]:
        """Let hosts that upgrade themselves through, and wait for a change.

        :returns: whether all of the hosts are upgraded, whether anything can still move, and the last pass.
        """
        with self._lock:
            look = self._make_pass(self._pulled)
            unfinished = [host for host in hosts if look.hosts[host].state != states.UPGRADED]
            if not unfinished or not self._can_move(look, ()):
                return not unfinished, False, look
        self._wait(look, seconds)
        return False, True, look

    def explain(self, look: PassView, hosts: Collection[str]) -> list[str]:
        """Return why hosts are not upgraded, as if this run were for the whole fleet: a sentence for each reason."""
        plan = self._plan(look, None)
        free = {one.host for one in plan.admissions}
        claimed = look.outcome.snapshot.leases

        def reason(host: str) -> str:
            view = plan.hosts[host]
            if host in claimed and host not in self._live:
                return f"{view.reason}; another run drives it"
            if view.state == states.PENDING and host in free:
                return f"{view.reason}, and no run drives it; run the same command again"
            return view.reason

        explained = {host: replace(plan.hosts[host], reason=reason(host)) for host in hosts}
        return blocked_hosts(Plan(unfinished=tuple(hosts)), explained)

    def _together(self, hosts: Collection[str], *, whole: bool) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        for host in hosts:
            who = self._claim(host)
            if who is not None:
                verdicts[host] = Verdict(go=False, state=TAKEN, reason=f"{who} is at it")
        mine = [host for host in hosts if host not in verdicts]
        deadline = time.monotonic() + self._run.patience
        with self._lock:
            if whole:
                return verdicts | self._wave(mine, deadline)
            self._note_asked(hosts)
            play = self._play(hosts)
            if not mine:
                return verdicts
            for host in mine:
                self._waiting[host] = None
            self._line_up(play)
            if not self._passed:
                self._pass()
            self._start_watching()
            while self._waiting[mine[0]] is None:
                if (
                    not self._changed.wait(timeout=max(0.0, deadline - time.monotonic()))
                    and time.monotonic() >= deadline
                ):
                    self._waiting[mine[0]] = Verdict(go=False, state=states.PENDING, reason="the time to wait is up")
            for host in mine:
                verdict = self._waiting.pop(host)
                if verdict is not None:
                    verdicts[host] = verdict
        return verdicts

    def _note_asked(self, hosts: Collection[str]) -> None:
        self._asked.update(hosts)
        self._asked_at = time.monotonic()
        self._passed = False
        self._changed.notify_all()

    def _play(self, hosts: Iterable[str]) -> int:
        """Return the number of the play that these hosts are in; a host asks in the play that is under way."""
        return next((self._play_of[host] for host in hosts if host in self._play_of), 0)

    def _line_up(self, play: int) -> None:
        """Wait until as many hosts have asked as Ansible has at work at once, or until no more of them do."""
        while play not in self._lined_up:
            mates = [host for host in self._live if self._play_of.get(host, play) == play]
            to_ask = sum(1 for host in mates if self._run.is_pushed(self._run.fleet.get(host, "")))
            left = self._asked_at + _LINE_UP - time.monotonic()
            asked = sum(1 for host in self._asked if self._play_of.get(host, play) == play)
            if left <= 0 or asked >= min(self._run.forks, to_ask):
                self._lined_up.add(play)
            else:
                self._changed.wait(left)

    def _wave(self, hosts: Collection[str], deadline: float) -> dict[str, Verdict]:
        while True:
            try:
                look = self._make_pass(self._pulled)
                waiting = [host for host in hosts if self._verdict(look, host) is None]
                plan = self._plan(look, hosts)
                opening = {one.host for one in plan.admissions}
                fits = all(host in opening for host in waiting)
                if fits or not (plan.waits or self._others(look, hosts)) or time.monotonic() >= deadline:
                    look = self._make_pass([*waiting, *self._pulled]) if waiting else look
                    return {host: _final(self._verdict(look, host), look.hosts[host]) for host in hosts}
            except Unreachable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1)
                continue
            self._lock.release()
            try:
                self._wait(look, min(_LOOK_AGAIN, max(0.1, deadline - time.monotonic())))
            finally:
                self._lock.acquire()

    def _pass(self) -> None:
        """Make a pass for all who wait, and tell those whose waiting is over."""
        waiting = [host for host, verdict in self._waiting.items() if verdict is None]
        play = self._play(waiting)
        if not waiting or play not in self._lined_up:
            return
        look = self._make_pass([*waiting, *self._pulled])
        self._passed = True
        for host in waiting:
            verdict = self._waiting[host] = self._verdict(look, host)
            if verdict is not None and verdict.go:
                self._going.add(host)
        left = [host for host in waiting if self._waiting[host] is None]
        # A host of a later play asks when this play is over, so no host waits for it.
        to_come = [host for host in self._live if host not in self._going and self._play_of.get(host, play) == play]
        if left and not self._can_move(look, to_come):
            for host in left:
                self._waiting[host] = _final(None, look.hosts[host])
        self._changed.notify_all()

    def _make_pass(self, limit: Collection[str]) -> PassView:
        run = self._run
        request = PassRequest(
            version=run.version, fleet=run.fleet, limit=[*limit], since=1, epoch=self._epoch, commit=self._commit
        )
        if run.phase != AFTER:
            request = replace(request, post_upgrade=tuple(run.roles_with_after))

        def act(store: Store) -> PassResult:
            if run.phase == AFTER:
                return make_post_upgrade_pass(store, request, run.roles_with_after)
            return make_pass(store, request)

        mark = self._watcher.mark()
        outcome = self._pool.with_retries(act)
        if outcome.ledger is not None:
            self._epoch, self._commit = outcome.ledger.epoch, outcome.ledger.commit
        self._latest = PassView(outcome, outcome.hosts(), mark)
        return self._latest

    @staticmethod
    def _plan(look: PassView, limit: Collection[str] | None) -> Plan:
        """Return what a pass for some hosts, or for all, would let through, as things stood at the last one."""
        outcome = look.outcome
        return make_plan(outcome.snapshot, outcome.members, outcome.rules, None if limit is None else [*limit])

    def _verdict(self, look: PassView, host: str) -> Verdict | None:
        """Return the verdict on a host, None for one that has to wait. One that is not where its way begins does not go."""
        verdict, view = self._by_state(look, host), look.hosts[host]
        if verdict is not None and not verdict.go:
            return verdict
        version = interrupted_at(self._run, host, view)
        if not version:
            return verdict
        why = f"it is at {version} by now, and this run worked out its way from {self._run.origins[host]}"
        return Verdict(go=False, state=view.state, reason=f"{why}; run the same command again")

    def _by_state(self, look: PassView, host: str) -> Verdict | None:
        """Return the verdict on a host by its state, None for one that has to wait.

        One that failed holds its slot, and so needs none; what keeps others from beginning keeps it from beginning again,
        but for a budget, which it may have used up itself.
        """
        view, blocker = look.hosts[host], look.outcome.plan.blocker
        if view.soaking:
            return Verdict(go=False, state=view.state, reason=view.reason)
        # Under a hold no further run begins, also where one was cut off midway; the run that is at work does not ask again.
        if view.state == states.UPGRADING and not view.held and not view.unadmitted:
            return Verdict(go=True, state=view.state, reason=view.reason)
        if view.state in states.BROKEN and self._run.retry_failed and not view.held:
            stopped = blocker is not None and blocker.code != BUDGET
            return None if stopped else Verdict(go=True, state=view.state, reason=view.reason)
        if view.state == states.PENDING:
            return None
        again = "; try it again with -e retry_failed=true once it is fixed" if view.state == states.FAILED else ""
        return Verdict(go=False, state=view.state, reason=f"{view.reason}{again}")

    def _others(self, look: PassView, hosts: Collection[str]) -> bool:
        """Return whether anybody else is at work, for whom it is worth waiting."""
        mine = set(hosts)
        return not look.is_over and self._at_work(look, [host for host in _flying(look) if host not in mine])

    def _can_move(self, look: PassView, still_to_come: Collection[str]) -> bool:
        """Return whether anything may still change without an operator."""
        if look.is_over:
            return False
        if look.outcome.admissions or look.outcome.plan.waits or self._going or self._at_work(look, _flying(look)):
            return True
        # Hosts of this run that have not asked yet will ask, and others may be waiting for them.
        if any(self._will_go(look, host) for host in still_to_come):
            return True
        return bool(still_to_come) and bool(self._plan(look, still_to_come).admissions)

    def _will_go(self, look: PassView, host: str) -> bool:
        """Return whether a host goes without having to be let through: it holds its slot already."""
        verdict = self._verdict(look, host)
        return verdict is not None and verdict.go

    def _at_work(self, look: PassView, flying: Collection[str]) -> bool:
        """Return whether anybody is at work on one of these hosts.

        A host that upgrades itself is, and one whose health is still to be seen; one that Ansible upgrades is only if its
        run is still there.
        """
        claimed = look.outcome.snapshot.leases
        return any(
            not self._run.is_pushed(look.hosts[host].role)
            or look.hosts[host].soaking
            or (host in claimed and host not in self._waiting)
            for host in flying
        )

    def _start_watching(self) -> None:
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Make a pass whenever something changed that may let somebody through, as long as anybody waits."""
        while True:
            with self._lock:
                if not any(verdict is None for verdict in self._waiting.values()):
                    self._watching = False
                    return
                look = self._latest
            self._wait(look, _LOOK_AGAIN)
            with self._lock:
                try:
                    self._pass()
                except Exception as error:
                    # Those who wait have to hear of it, whatever it is.
                    for host, verdict in self._waiting.items():
                        if verdict is None:
                            self._waiting[host] = Verdict(go=False, state=states.PENDING, reason=str(error))
                    self._changed.notify_all()

    def _wait(self, look: PassView | None, seconds: float) -> None:
        wake_at = look.outcome.plan.wake_at if look else None
        if wake_at is not None:
            seconds = min(seconds, max(_SHORTEST, wake_at - time.time() + _SHORTEST))
        self._watcher.wait(look.mark if look else 0, seconds)


def _flying(look: PassView) -> list[str]:
    return [host for host, view in look.hosts.items() if view.state == states.UPGRADING]


def _final(verdict: Verdict | None, view: HostView) -> Verdict:
    """Return a verdict permanently: a host that would have to wait does not go."""
    return verdict or Verdict(go=False, state=view.state, reason=view.reason)
