# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Admission of a run's hosts: they wait here until the planner admits them, or until it is clear that it will not.

The hosts of a play wait together and take no fork: see :meth:`RunAdmission.next_hosts`. A host that asks by itself waits in its task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from ...module_utils._cache.cached_store import CachedStore
from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._consul.errors import Conflict, Unreachable
from ...module_utils._consul.watch import BlockingQueries, Watch
from ...module_utils._fleet.ledger import Ledger
from ...module_utils._host_states import state_names
from ...module_utils._passes.planner_pass import PassRequest, PassResult, make_pass
from ...module_utils._passes.post_upgrade_pass import make_post_upgrade_pass
from ...module_utils._planner.explanations import CAP, SETS
from ...module_utils._planner.plan import Plan, blocked_hosts
from ...module_utils._rollout._commands.command import Command
from ...module_utils._rollout._commands.retry import retry
from ...module_utils._state.keys import Keys
from ...module_utils._state.legacy_keys import LegacyKeys
from ...module_utils._state.store import Store
from ...module_utils._state.store_pool import StorePool
from .._wait.run_handover import RunHandover
from .decision import (
    LEASED_ELSEWHERE,
    Decision,
    PassView,
    chosen_to_retry,
    decide,
    decide_finally,
    needs_slot,
    to_retry,
)
from .run import POST_UPGRADE_PHASE, PushRun

# Some changes are not watched, such as failures that another run records. A pass at least this often takes them into account (seconds).
_LONGEST_WAIT = 30
# What failed may have ended without a change that would be noticed.
_LONGEST_WAIT_AFTER_FAILURE = 5
# Added to the time at which a plan may change (seconds).
_MARGIN = 0.5

# Ansible's forks ask for their hosts in no certain order. The first pass of a play waits for all of them, so that hosts are admitted
# in the order of the plan. It waits at most this long after the last request (seconds).
_GATHER_SECONDS = 2.0


class RunAdmission:
    """Admits the hosts of one run, with one pass for all hosts that wait.

    :param acquire: acquires the lease of a host; returns the other run that has it, or None.
    :param release: releases the leases of hosts.
    :param handover: is told of the passes of a run that waits for hosts which upgrade themselves.
    """

    def __init__(
        self,
        run: PushRun,
        pool: StorePool,
        acquire: Callable[[str], str | None],
        release: Callable[[Collection[str]], None],
        handover: RunHandover,
        queries: BlockingQueries | None = None,
    ) -> None:
        """Keep the arguments."""
        self._run = run
        self._pool = pool
        self._acquire = acquire
        self._release = release
        self._handover = handover
        # All passes read from it, one after the other. Everything else reads from the pool.
        self._store = CachedStore(pool.settings)
        keys = Keys(pool.settings.kv_prefix)
        reports = (keys.job_records,) if run.is_job else (keys.reports, LegacyKeys(keys.prefix).reports)
        self._watcher = Watch(pool.settings, (keys.ledger, keys.holds, keys.leases, *reports), queries)
        self._lock = runtime.rlock()
        self._changed = runtime.condition(self._lock)
        # The hosts that wait -> the decision, None as long as there is none.
        self._waiting: dict[str, Decision | None] = {}
        # The hosts of this run that are neither finished, failed nor refused.
        self._remaining = dict.fromkeys(run.hosts)
        self._of_run = frozenset(run.hosts)
        self._play_of = {host: at for at, hosts in enumerate(run.plays) for host in hosts}
        self._admitted: set[str] = set()
        # Hosts that have gone through their task groups in this run, perhaps without those that tags leave out.
        self._worked: set[str] = set()
        # Hosts of this run's waves that can't be reached.
        self._unreachable: set[str] = set()
        # Broken hosts whose retry could not be written the last time.
        self._not_retried: set[str] = set()
        # Hosts whose admission failed, and so did their tasks.
        self._dropped: set[str] = set()
        self._is_watching = self._is_closed = False
        self._latest: PassView | None = None
        # The newest ledger that this run has read.
        self._ledger: Ledger | None = None
        self._requested: set[str] = set()
        self._last_request = 0.0
        self._gathered_plays: set[int] = set()
        self._has_passed = False
        # The hosts that wait without a fork, and those of them that have been told to begin or to end, and so take one.
        self._queued: set[str] = set()
        self._with_fork: set[str] = set()
        # The hosts whose leases this run has, and why others wait for another run.
        self._leased: set[str] = set()
        self._leased_elsewhere: dict[str, str] = {}
        # Why the last pass failed, if that ends by itself; empty if it did not.
        self._failure = ""
        # Whether a host was admitted, so that a pass was fast enough.
        self._has_admitted = False
        # Why hosts wait, as far as it has not been shown.
        self._new_lines: list[str] = []
        # When a host was last admitted or ended.
        self._moved_at = 0.0
        self._pulled = [host for host, role in run.fleet.items() if not run.is_pushed(role) and host in self._remaining]

    def close(self) -> None:
        """Stop watching Consul."""
        self._is_closed = True
        self._watcher.close()

    def ended(self, host: str, *, has_worked: bool = False) -> None:
        """Remove a host that is finished, failed or refused, and decide on the hosts that wait.

        :param has_worked: whether it has gone through all task groups that tags select.
        """
        with self._lock:
            if has_worked:
                self._worked.add(host)
            self._forget(host)
            self._changed.notify_all()
            if any(decision is None for decision in self._waiting.values()):
                self._try_pass()

    def withdraw(self, host: str) -> bool:
        """Let a host of :meth:`next_hosts` no longer wait; return whether it did, also if it has not asked for a decision that there is."""
        if host not in self._queued:
            # Without the lock, as a pass may hold it for long.
            return False
        with self._lock:
            self._queued.discard(host)
            self._waiting.pop(host, None)
            return True

    def drop(self, hosts: Collection[str]) -> None:
        """Remove hosts whose admission failed. The next pass decides on those that wait."""
        with self._lock:
            self._dropped.update(hosts)
            for host in hosts:
                self._forget(host)
            self._changed.notify_all()

    def next_hosts(self, hosts: Collection[str]) -> tuple[str, ...]:
        """Wait until there is a decision on some of the hosts of a play; return these. :meth:`admit` then returns the decision.

        No more hosts are admitted than Ansible has free forks. Hosts that are not in this run are returned at once. The result is empty if only
        :meth:`new_lines` has something new.
        """
        if others := tuple(host for host in hosts if host not in self._remaining):
            return others
        with self._lock:
            self._gathered_plays.add(self._play(hosts))
            new = [host for host in hosts if host not in self._waiting]
            self._queued.update(new)
            self._waiting.update(dict.fromkeys(new))
            if new:
                self._moved_at = runtime.monotonic()
                self._try_pass()
            self._start_watching()
            while True:
                found = tuple(host for host in hosts if self._waiting.get(host) is not None)
                left = self._moved_at + self._run.wait_timeout - runtime.monotonic()
                if found or self._new_lines or not hosts:
                    return found
                if left <= 0:
                    for host in hosts:
                        self._decide_on(host, self._too_late(host))
                else:
                    self._changed.wait(left)

    def new_lines(self) -> tuple[str, ...]:
        """Return why hosts wait for another run or for Consul, each sentence once."""
        with self._lock:
            found, self._new_lines = tuple(self._new_lines), []
            return found

    def admit(self, host: str) -> Decision:
        """Return the decision on a host. Without one, wait until the host is admitted, or it is clear that it will not be."""
        with self._lock:
            if host in self._queued:
                self._queued.discard(host)
                if (decision := self._waiting.pop(host)) is not None:
                    return decision
        return self._decide([host], as_wave=False)[host]

    def admit_wave(self, hosts: Collection[str], unreachable: Collection[str] = ()) -> dict[str, Decision]:
        """Wait until hosts can be admitted at the same time; return host -> decision.

        If they don't all fit under the caps and no other host is upgrading, admit those that fit.

        :param unreachable: those that are not admitted, because they can't be reached.
        """
        self._unreachable.update(unreachable)
        try:
            return self._decide(hosts, as_wave=True)
        finally:
            with self._lock:
                self._start_watching()

    def settle(self, hosts: Collection[str], seconds: float) -> tuple[bool, bool, PassView]:
        """Admit hosts that upgrade themselves, then wait for a change, for at most some seconds.

        :returns: whether all of the hosts are upgraded and the rollout is not paused or aborted, whether anything can change without an operator,
            and the last pass. A pause can end.
        """
        with self._lock:
            latest = self._make_pass(self._pulled)
            unfinished = [host for host in hosts if latest.hosts[host].state != state_names.UPGRADED]
            is_done = not unfinished and not latest.is_stopped
            if unfinished:
                self._handover.note_pass(latest.outcome)
            if is_done or not (self._can_move(latest, ()) or self._has_another_run(latest, unfinished)):
                return is_done, False, latest
        self._wait(latest, seconds)
        return False, True, latest

    def explain(self, latest: PassView, hosts: Collection[str]) -> list[str]:
        """Return why hosts are not upgraded, as if this run were for the whole fleet: a sentence for each reason."""
        plan = latest.plan_for(None)
        admissible = {one.host for one in plan.admissions}
        leases = latest.outcome.snapshot.leases

        def reason(host: str) -> str:
            view = plan.hosts[host]
            if host in leases and host not in self._remaining:
                return f"{view.reason}; another run holds its lease"
            if unreachable := self._why_unreachable(host):
                return unreachable
            if view.state == state_names.PENDING and (later := self._why_later(host)):
                return later
            if view.state == state_names.PENDING and host in admissible:
                return f"{view.reason}, but no run holds its lease; run the same command again"
            has_its_own_way = view.held or view.unadmitted or view.busy or view.soaking
            is_left = view.state == state_names.UPGRADING and view.started and not (has_its_own_way or host in leases)
            if is_left and host in self._worked:
                return f"{view.reason}; the tags on the command line left out its other steps"
            # A rule may keep its gate closed, so that another run would end in the same way.
            if is_left and not view.cause and self._run.is_pushed(view.role):
                return f"{view.reason}; no run works on it, so run the same command again, without a limit that leaves it out"
            return view.reason

        explained = {host: replace(plan.hosts[host], reason=reason(host)) for host in hosts}
        return blocked_hosts(Plan(unfinished=tuple(hosts)), explained)

    def _decide(self, hosts: Collection[str], *, as_wave: bool) -> dict[str, Decision]:
        decisions: dict[str, Decision] = {}
        deadline = runtime.monotonic() + self._run.wait_timeout
        for host in hosts:
            holder = self._acquire(host)
            if holder is None:
                self._leased.add(host)
            else:
                decisions[host] = Decision(
                    admitted=False, state=LEASED_ELSEWHERE, reason=f"its lease belongs to {holder}"
                )
        leased = [host for host in hosts if host not in decisions]
        with self._lock:
            if as_wave:
                return decisions | self._decide_wave(leased, deadline)
            self._note_request(hosts)
            play = self._play(hosts)
            if not leased:
                return decisions
            for host in leased:
                self._waiting[host] = None
            self._gather(play)
            if not self._has_passed:
                try:
                    self._pass()
                except Exception:
                    # Otherwise later passes would admit hosts that no task waits for.
                    for host in leased:
                        self._waiting.pop(host, None)
                    raise
            self._start_watching()
            while self._waiting[leased[0]] is None:
                left = max(0.0, deadline - runtime.monotonic())
                is_over = not self._changed.wait(timeout=left) and runtime.monotonic() >= deadline
                # A pass may have admitted it in that moment.
                if is_over and self._waiting[leased[0]] is None:
                    self._waiting[leased[0]] = self._too_late(leased[0])
            for host in leased:
                decision = self._waiting.pop(host)
                if decision is not None:
                    decisions[host] = decision
        return decisions

    def _forget(self, host: str) -> None:
        self._moved_at = runtime.monotonic()
        self._remaining.pop(host, None)
        for found in (self._admitted, self._with_fork, self._leased):
            found.discard(host)

    def _too_late(self, host: str) -> Decision:
        state, why = (
            state_names.PENDING,
            f"it was not admitted within {self._run.wait_timeout:.0f} s (upgrade_wait_timeout)",
        )
        if host in self._leased_elsewhere:
            state, why = LEASED_ELSEWHERE, f"{self._leased_elsewhere[host]}; {why}"
        if self._failure:
            why = f"{why}, and the last pass failed: {self._failure}"
        return Decision(admitted=False, state=state, reason=why)

    def _decide_on(self, host: str, decision: Decision | None) -> None:
        self._waiting[host] = decision
        if decision is None:
            return
        if host in self._queued:
            self._with_fork.add(host)
        if decision.admitted:
            self._admitted.add(host)
            self._has_admitted = True
            self._moved_at = runtime.monotonic()

    def _note_request(self, hosts: Collection[str]) -> None:
        self._requested.update(hosts)
        self._last_request = runtime.monotonic()
        self._has_passed = False
        self._changed.notify_all()

    def _play(self, hosts: Iterable[str]) -> int:
        """Return the number of the play that these hosts are in. Only hosts of the current play ask."""
        return next((self._play_of[host] for host in hosts if host in self._play_of), 0)

    def _gather(self, play: int) -> None:
        """Wait until as many hosts have asked as Ansible has forks, or until no further host asks."""
        while play not in self._gathered_plays:
            play_hosts = [host for host in self._remaining if self._play_of.get(host, play) == play]
            pushed = sum(1 for host in play_hosts if self._run.is_pushed(self._run.fleet.get(host, "")))
            left = self._last_request + _GATHER_SECONDS - runtime.monotonic()
            requested = sum(1 for host in self._requested if self._play_of.get(host, play) == play)
            if left <= 0 or requested >= min(self._run.forks, pushed):
                self._gathered_plays.add(play)
            else:
                self._changed.wait(left)

    def _decide_wave(self, hosts: Collection[str], deadline: float) -> dict[str, Decision]:
        while True:
            try:
                latest = self._make_pass(self._pulled)
                # One whose connection failed before would end the run together with its wave.
                unreachable = {host: why for host in hosts if (why := self._why_unreachable(host))}
                # Their mates were in earlier waves. They may still get another slot.
                can_free_slot = latest.outcome.plan.waits or self._are_others_upgrading(latest, hosts)
                has_slot = [host for host in hosts if self._has_slot_of_mates(latest, host)]
                later = {
                    host: why
                    for host in hosts
                    if host not in unreachable
                    and (why := self._why_later(host))
                    and (can_free_slot or host not in has_slot)
                }
                refused = unreachable | later
                latest = self._put_back(latest, [host for host in hosts if host not in refused])
                decisions = {host: decide(self._run, latest, host) for host in hosts if host not in refused}
                waiting = [host for host, found in decisions.items() if found is None]
                # A rollout that began after their start has closed their gates, and only a pass for them opens these again.
                resumed = [host for host, found in decisions.items() if found is not None and found.admitted]
                others = [host for host in hosts if host not in refused]
                plan = latest.plan_for(others)
                admissible = {one.host for one in plan.admissions}
                fits = all(host in admissible for host in waiting)
                can_fit_later = plan.waits or self._are_others_upgrading(latest, others)
                # Another run upgrades their mates, and they can go once it has.
                mates = [mate for host in later for mate in self._first_mates(host)]
                can_go_later = any(host in later for host in has_slot) or self._is_any_active(
                    latest, [one for one in mates if one in latest.upgrading]
                )
                is_settled = not can_go_later and (fits or not can_fit_later)
                if is_settled or runtime.monotonic() >= deadline:
                    if waiting or resumed:
                        latest = self._make_pass([*waiting, *resumed, *self._pulled])
                    return {
                        host: Decision(admitted=False, state=latest.hosts[host].state, reason=refused[host])
                        if host in refused
                        else decide_finally(self._run, latest, host)
                        for host in hosts
                    }
            except Unreachable:
                if runtime.monotonic() >= deadline:
                    raise
                runtime.sleep(1)
                continue
            self._lock.release()
            try:
                self._wait(latest, min(_LONGEST_WAIT, max(0.1, deadline - runtime.monotonic())))
            finally:
                self._lock.acquire()

    def _pass(self) -> None:
        """Make a pass for all hosts that wait, and decide on them."""
        waiting = [host for host, decision in self._waiting.items() if decision is None]
        play = self._play(waiting)
        if not waiting and self._admits_others:
            self._make_pass(self._pulled)
        if not waiting or play not in self._gathered_plays:
            return
        if any(host in self._queued or host in self._run.last or self._may_need_slot(host) for host in waiting):
            # Whether they go last depends on hosts that may have failed since the last pass.
            latest = self._make_pass(self._pulled)
            if latest.outcome.admissions:
                # The snapshot is from before them.
                latest = self._make_pass(())
            latest = self._put_back(latest, [host for host in waiting if not self._why_later(host)])
            later = {host: why for host in waiting if (why := self._why_later(host))}
            chosen = self._choose(latest, [host for host in waiting if host not in later])
        else:
            later, chosen = {}, waiting
        if chosen:
            latest = self._make_pass([*chosen, *self._pulled])
        self._has_passed = True
        for host in chosen:
            self._decide_on(host, decide(self._run, latest, host))
        undecided = [host for host in waiting if self._waiting[host] is None]
        # Hosts of a later play ask only when this play is over, so no host can wait for them.
        to_ask = [
            host
            for host in self._remaining
            if host not in self._admitted and host not in later and self._play_of.get(host, play) == play
        ]
        # Another run with their mates waits for the slots of these.
        has_slot = [host for host in later if self._has_slot_of_mates(latest, host)]
        awaited = [*undecided, *(mate for host in later if host not in has_slot for mate in self._first_mates(host))]
        if undecided and not self._can_move(latest, to_ask) and not self._waits_for_another_run(latest, awaited):
            begun = self._choose(latest, has_slot)
            if begun:
                latest = self._make_pass([*begun, *self._pulled])
            # The pass may have been made for other hosts.
            views = latest.plan_for(waiting).hosts
            for host in begun or undecided:
                view = views[host]
                refusal = Decision(admitted=False, state=view.state, reason=later.get(host, view.reason))
                self._decide_on(host, (decide(self._run, latest, host) if host in begun else None) or refusal)
        self._release_undecided()
        self._changed.notify_all()

    def _choose(self, latest: PassView, hosts: Collection[str]) -> list[str]:
        """Return the waiting hosts to decide on now: those with a fork, and of the others no more than Ansible has free forks."""
        asking = [host for host in hosts if host not in self._queued]
        decided = [host for host in hosts if host in self._queued and decide(self._run, latest, host) is not None]
        queued = [host for host in hosts if host in self._queued]
        while True:
            admissible = [one.host for one in latest.plan_for([*asking, *queued]).admissions if one.host in queued]
            chosen: list[str] = []
            left_out: set[str] = set()
            for host in dict.fromkeys([*decided, *admissible]):
                if len(chosen) == self._free_forks():
                    break
                if self._has_lease(host):
                    chosen.append(host)
                else:
                    left_out.add(host)
            # Others may have the slots of hosts that another run has leased.
            if not left_out or len(chosen) == self._free_forks():
                return [*asking, *chosen]
            decided = [host for host in decided if host not in left_out]
            queued = [host for host in queued if host not in left_out]

    def _free_forks(self) -> int:
        return max(0, self._run.forks - len(self._with_fork))

    def _has_lease(self, host: str) -> bool:
        """Acquire the lease of a host that waits without a fork; return whether no other run has it. Others have theirs."""
        if host not in self._queued:
            return True
        holder = self._acquire(host)
        if holder is None:
            self._leased.add(host)
            self._leased_elsewhere.pop(host, None)
            return True
        self._leased.discard(host)
        if host not in self._leased_elsewhere:
            self._new_lines.append(
                f"{host} is not admitted ({LEASED_ELSEWHERE}): its lease belongs to {holder}. It is admitted once that run has ended with it"
            )
        self._leased_elsewhere[host] = f"its lease belongs to {holder}"
        return False

    def _release_undecided(self) -> None:
        """Release the hosts that go on waiting without a fork. Otherwise, two runs could wait for each other's hosts."""
        with contextlib.suppress(Conflict, Unreachable):
            # The pass itself has succeeded. A lease that can't be released now is released after the next one.
            for host in sorted(host for host in self._leased & self._queued if self._waiting.get(host) is None):
                self._release([host])
                self._leased.discard(host)

    def _waits_for_another_run(self, latest: PassView, hosts: Collection[str]) -> bool:
        """Return whether another run has the lease of one of these hosts. It ends, or is interrupted, without waiting for this run."""
        leases = latest.outcome.snapshot.leases
        return not latest.is_aborted and any(host in leases and host not in self._leased for host in hosts)

    def _why_unreachable(self, host: str) -> str:
        return (
            "an earlier run has begun it, and it could not be reached when its wave began"
            if host in self._unreachable
            else ""
        )

    def _why_later(self, host: str) -> str:
        """Return why a host has to let other hosts of its role go first, empty if it does not. If one of them failed, it waits for an operator."""
        latest = self._latest
        first = (
            [f"{mate} ({latest.hosts[mate].state})" for mate in self._first_mates(host)] if latest is not None else []
        )
        return f"it goes after the other hosts of its role: {listing(first, 3)}" if first else ""

    def _first_mates(self, host: str) -> list[str]:
        """Return the other hosts of a host's role that it has to let go first."""
        run, latest = self._run, self._latest
        if host not in run.last or latest is None:
            return []
        place, is_rollback = latest.hosts[host].stage, bool(latest.outcome.plan.rollback_order)
        return [
            mate
            for mate, role in run.fleet.items()
            if role == run.fleet[host]
            and mate not in run.last
            # A rollback reverses stages, and those of later ones wait for this host. In other rollouts, new rules may have moved them there.
            and (latest.hosts[mate].stage <= place or not is_rollback)
            and self._goes_first(latest, mate)
        ]

    def _goes_first(self, latest: PassView, mate: str) -> bool:
        """Return whether a host has not ended its upgrade, and this run, another one or an operator has to end it."""
        view, is_leased = latest.hosts[mate], mate in latest.outcome.snapshot.leases
        if view.state in state_names.BROKEN:
            return view.blocks
        if view.state == state_names.UPGRADING:
            # Another run may have left it in the middle.
            is_left = view.blocks and not view.soaking and mate not in self._worked
            return is_left or is_leased or mate in self._remaining or mate in self._dropped
        # Also one that this run has refused.
        return view.state == state_names.PENDING and (is_leased or mate in self._of_run)

    def _has_slot_of_mates(self, latest: PassView, host: str) -> bool:
        """Return whether a host has begun, and the hosts that it has to let go first all wait for a slot. Otherwise, none of them could ever go.

        So has one that failed, if this run retries it and it still has its slot.
        """
        view = latest.hosts[host]
        is_retried = self._run.retry_failed and view.state in state_names.BROKEN
        if not view.started and (not is_retried or needs_slot(self._run, latest, host)):
            return False
        mates = self._first_mates(host)
        views = latest.plan_for(mates).hosts
        return all(views[mate].cause in (CAP, SETS) for mate in mates)

    def _may_need_slot(self, host: str) -> bool:
        if not self._run.retry_failed or self._run.phase == POST_UPGRADE_PHASE:
            return False
        return self._latest is None or self._latest.hosts[host].state in state_names.BROKEN

    def _put_back(self, latest: PassView, hosts: Collection[str]) -> PassView:
        """Retry failed hosts whose gates are closed, or that have no slot, as an operator's command does; return the pass after that.

        They are admitted before the other hosts of this run, because they may be down.
        """
        if not to_retry(self._run, latest, hosts):
            return latest
        if latest.outcome.admissions:
            # The snapshot is from before them.
            latest = self._make_pass(())
        chosen = chosen_to_retry(latest, to_retry(self._run, latest, hosts), hosts)
        chosen = [host for host in chosen if self._has_lease(host)]
        if not chosen:
            return latest
        command = Command("-e retry_failed=true", fleet=self._run.fleet)
        try:
            self._pool.with_retries(lambda store: retry(store, command, chosen))
        except UpgradeError as error:
            if isinstance(error, Unreachable):
                raise
            # Such as one that writes its record all the time. The others go on, and the decision on this host says why it waits.
            self._not_retried.update(chosen)
            return latest
        self._not_retried.clear()
        with_fork = [host for host in chosen if host not in self._queued]
        without = [host for host in chosen if host in self._queued]
        return self._make_pass([*with_fork, *without[: self._free_forks()], *self._pulled])

    def _make_pass(self, limit: Collection[str]) -> PassView:
        run = self._run
        request = PassRequest(version=run.version, fleet=run.fleet, limit=[*limit], since=1)
        if self._ledger is not None:
            request = replace(request, epoch=self._ledger.epoch, commit=self._ledger.commit, began=self._ledger.since)
        if run.phase != POST_UPGRADE_PHASE:
            request = replace(request, post_upgrade=tuple(run.roles_with_post_upgrade))
        if self._ledger is None and not run.is_job:
            # Another run may deliver other tasks later, and then its services count.
            request = replace(request, services=run.services)

        before = self._latest.outcome if self._latest is not None else None

        def act(_store: Store) -> PassResult:
            if run.phase == POST_UPGRADE_PHASE:
                return make_post_upgrade_pass(self._store, request, run.roles_with_post_upgrade)
            return make_pass(self._store, request, before=before)

        position = self._watcher.mark()
        outcome = self._pool.with_retries(act)
        if outcome.ledger is not None:
            self._ledger = outcome.ledger
        self._latest = PassView(outcome, outcome.hosts(), position)
        return self._latest

    def _are_others_upgrading(self, latest: PassView, hosts: Collection[str]) -> bool:
        """Return whether other hosts are upgrading, so that their slots can become free."""
        own = set(hosts)
        return not latest.is_aborted and self._is_any_active(
            latest, [host for host in latest.upgrading if host not in own]
        )

    def _can_move(self, latest: PassView, to_ask: Collection[str]) -> bool:
        """Return whether anything can change without an operator.

        :param to_ask: hosts of this run that will still ask to be admitted. Others may be waiting for them.
        """
        if latest.is_aborted:
            return False
        outcome = latest.outcome
        if outcome.admissions or outcome.plan.waits or self._admitted or self._is_any_active(latest, latest.upgrading):
            return True
        if any(self._has_admission(latest, host) for host in to_ask):
            return True
        return bool(to_ask) and bool(latest.plan_for(to_ask, self._to_retry(latest, to_ask)).admissions)

    def _to_retry(self, latest: PassView, hosts: Collection[str]) -> list[str]:
        return [host for host in to_retry(self._run, latest, hosts) if host not in self._not_retried]

    def _has_another_run(self, latest: PassView, hosts: Collection[str]) -> bool:
        """Return whether another run is to upgrade one of these hosts. It has the lease of a host before the host is admitted.

        Only a run without waiting hosts may wait for that. Otherwise, two runs could wait for each other.
        """
        leases = latest.outcome.snapshot.leases
        return not latest.is_aborted and any(host in leases and host not in self._remaining for host in hosts)

    def _has_admission(self, latest: PassView, host: str) -> bool:
        """Return whether a host is admitted as soon as it asks, because it still has its slot."""
        decision = decide(self._run, latest, host)
        return decision is not None and decision.admitted

    def _is_any_active(self, latest: PassView, upgrading: Collection[str]) -> bool:
        """Return whether the upgrade of one of these hosts can end without a new push run.

        A host that upgrades itself, soaks or runs a job is active. A host that Ansible upgrades is active while a run holds its lease.
        """
        leases = latest.outcome.snapshot.leases
        return any(
            not self._run.is_pushed(latest.hosts[host].role)
            or latest.hosts[host].soaking
            or latest.hosts[host].busy
            or (host in leases and host not in self._dropped and not (host in self._waiting and host in self._leased))
            for host in upgrading
        )

    def _start_watching(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            runtime.start_thread(self._watch)

    @property
    def _admits_others(self) -> bool:
        """Whether hosts that upgrade themselves may be admitted while Ansible upgrades others. Once it does not, :meth:`settle` admits them."""
        latest = self._latest
        return (
            latest is not None
            and bool(self._leased)
            and any(latest.hosts[host].state != state_names.UPGRADED for host in self._pulled)
        )

    def _watch(self) -> None:
        """Make a pass after each change in Consul, as long as a host waits or others may be admitted."""
        while True:
            with self._lock:
                is_needed = self._admits_others or any(decision is None for decision in self._waiting.values())
                if self._is_closed or not is_needed:
                    self._is_watching = False
                    return
                latest, seconds = self._latest, _LONGEST_WAIT_AFTER_FAILURE if self._failure else _LONGEST_WAIT
            self._wait(latest, seconds)
            with self._lock:
                self._try_pass()

    def _try_pass(self) -> None:
        """Make a pass. If it fails, no waiting host is admitted; without a decision, they would wait until the timeout.

        After a failure that ends by itself, hosts without a fork wait for the next pass, which the watch makes. A pass that is too slow is one once
        a host was admitted: then the tasks of hosts keep this machine busy. Before that, it ends the run, as it does for pull hosts.
        """
        try:
            self._pass()
            self._failure = ""
        except Exception as error:
            code = error.code if isinstance(error, UpgradeError) else ""
            is_busy = code == "busy" or (code == "too_slow" and self._has_admitted)
            ends_by_itself = is_busy or isinstance(error, (Conflict, Unreachable))
            if ends_by_itself and not self._failure and self._queued:
                what = "Consul can be reached again" if isinstance(error, Unreachable) else "a later pass succeeds"
                self._new_lines.append(f"No further host is admitted until {what}. {error}")
            self._failure = str(error) if ends_by_itself else ""
            for host in [host for host, decision in self._waiting.items() if decision is None]:
                if not (ends_by_itself and host in self._queued):
                    self._decide_on(host, Decision(admitted=False, state=state_names.PENDING, reason=str(error)))
            self._changed.notify_all()

    def _wait(self, latest: PassView | None, seconds: float) -> None:
        wake_at = latest.outcome.plan.wake_at if latest else None
        if wake_at is not None:
            seconds = min(seconds, max(_MARGIN, wake_at - runtime.now() + _MARGIN))
        self._watcher.wait(latest.position if latest else 0, seconds)
