# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The push service of a run's daemon: admits the hosts that Ansible upgrades, and records their progress in Consul.

On a pull host, which is admitted already, the host service only records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.watch import BlockingQueries
from ...module_utils._host import leases
from ...module_utils._host_states.state_names import PENDING, UPGRADED
from ...module_utils._state.store_pool import StorePool
from .._observe.progress_lines import PassProgress, running_count, states_of_views
from .._wait.run_handover import RunHandover
from .decision import LEASED_ELSEWHERE, Decision
from .host_runs import HostRuns
from .messages import (
    Admit,
    AdmitWave,
    BeginFailure,
    BeginTaskGroup,
    CloseHosts,
    EndHost,
    FailHost,
    FinishTaskGroup,
    GetNextHosts,
    HostAdmission,
    NextHosts,
    NoteTimeout,
    RefuseStop,
    Settle,
    Settlement,
    TaskGroupStart,
)
from .run import PushRun
from .session import RunSession
from .waiting_hosts import RunAdmission

# The pause between two tries to acquire the lease of a host from a run of its own (seconds).
_LEASE_PAUSE = 0.5
_NO_REPORT = (
    "its tasks ended without a report, so it is unknown how far they are. A meta task such as end_host or end_play in an included role or file ends "
    "them like that. Use a condition (when) there, or let the task fail."
)


class HostService:
    """Answers the messages about the task groups of hosts."""

    def __init__(self, run: PushRun) -> None:
        """Open the Consul session.

        :raises UpgradeError: what :meth:`RunSession` raises.
        """
        self._run = run
        self._pool = StorePool(run.settings, is_job=run.is_job)
        self.session = RunSession(self._pool, self._active_hosts)
        self._host_runs = HostRuns(run, self._pool, self.session)

    def close(self) -> None:
        """End the Consul session, and close the connections."""
        self.session.close()
        self._pool.close()

    def begin_on_host(self) -> None:
        """Begin the only host of a run on a pull host.

        If the host has rebooted in the run before, Consul keeps the session of that run for some seconds, with the lease. So this waits for its end.

        :raises UpgradeError: ``leased``, and what :meth:`HostRuns.begin` raises.
        """
        host = self._run.hosts[0]
        # A session that is not renewed ends after one to two times its time.
        until = runtime.monotonic() + 2 * leases.SESSION_SECONDS
        while (holder := self.session.acquire(host)) is not None:
            is_own = self._pool.with_retries(lambda store: leases.may_be_own(store, host))
            if is_own and runtime.monotonic() < until:
                runtime.sleep(_LEASE_PAUSE)
                continue
            what = (
                "another run on this machine. The next agent run tries again."
                if is_own
                else "which upgrades the host from outside. Remove pull from its role in upgrade_roles, or let only the host run its tasks."
            )
            raise UpgradeError(
                "leased", f"The tasks of {host} don't begin, because its lease belongs to {holder}, {what}"
            )
        self._host_runs.begin(host)

    def begin_task_group(self, message: BeginTaskGroup) -> TaskGroupStart:
        """Answer :class:`BeginTaskGroup`."""
        run, why = self._host_runs.begin_task_group(
            message.host,
            message.task_group,
            chosen=message.chosen,
            whole=message.whole,
            skipped=message.skipped,
            machine=message.machine,
            is_control_node=message.is_control_node,
        )
        return TaskGroupStart(run, why)

    def refuse_stop(self, message: RefuseStop) -> float:
        """Answer :class:`RefuseStop`."""
        return self._host_runs.refuse_stop(message.host, message.task_group, message.error, message.patience)

    def finish_task_group(self, message: FinishTaskGroup) -> None:
        """Answer :class:`FinishTaskGroup`."""
        self._host_runs.finish_task_group(message.host, message.task_group)

    def end_host(self, message: EndHost) -> str:
        """Answer :class:`EndHost`."""
        return "partial" if self._host_runs.end(message.host) else "upgraded"

    def begin_failure(self, message: BeginFailure) -> tuple[str, ...]:
        """Answer :class:`BeginFailure`."""
        return self._host_runs.begin_failure(message.host, message.error)

    def note_timeout(self, message: NoteTimeout) -> None:
        """Answer :class:`NoteTimeout`."""
        self._host_runs.note_timeout(message.host)

    def fail_host(self, message: FailHost) -> tuple[str, str]:
        """Answer :class:`FailHost`."""
        return self._host_runs.fail(message.host, message.error, is_lost=message.is_lost)

    def _active_hosts(self) -> list[str]:
        return self._host_runs.active_hosts()


class PushService(HostService):
    """Answers the messages of one push run."""

    def __init__(self, run: PushRun, queries: BlockingQueries | None = None) -> None:
        """Open the Consul session.

        :param queries: the blocking queries of this process; None for queries of its own.
        :raises UpgradeError: what :class:`RunHandover` and :meth:`RunSession` raise.
        """
        # Before the session, which would stay open.
        self._handover = RunHandover(
            run.settings, run.limit, run.excluded, is_job=run.is_job, needs_ansible=run.needs_ansible
        )
        super().__init__(run)
        self._admission = RunAdmission(
            run, self._pool, self.session.acquire, self.session.release_all, self._handover, queries
        )
        self._progress = PassProgress()
        self._partial: dict[str, tuple[str, ...]] = {}

    def close(self) -> None:
        """End the Consul session, and stop watching keys."""
        self._admission.close()
        super().close()

    def admit(self, message: Admit) -> HostAdmission:
        """Answer :class:`Admit`."""
        with self._released_on_error([message.host]):
            return self._begin(message.host, self._admission.admit(message.host))

    def next_hosts(self, message: GetNextHosts) -> NextHosts:
        """Answer :class:`GetNextHosts`."""
        return NextHosts(self._admission.next_hosts(message.hosts), self._admission.new_lines())

    def admit_wave(self, message: AdmitWave) -> dict[str, HostAdmission]:
        """Answer :class:`AdmitWave`."""
        self._fail_unreported(message.others)
        begun: dict[str, HostAdmission] = {}
        with self._released_on_error(message.hosts):
            decisions = self._admission.admit_wave(message.hosts, message.unreachable)
            try:
                for host in message.hosts:
                    begun[host] = self._begin(host, decisions[host], in_wave=True)
            except Exception as error:
                # The task that asked for all of them fails, so those that have begun run nothing either.
                for host, admission in begun.items():
                    if admission.admitted:
                        with contextlib.suppress(UpgradeError):
                            self.fail_host(FailHost(host, f"its wave could not begin: {error}"))
                raise
        return begun

    def end_host(self, message: EndHost) -> str:
        """Answer :class:`EndHost`."""
        left = self._host_runs.end(message.host)
        if left:
            self._partial[message.host] = left
        self._admission.ended(message.host, has_worked=True)
        return "partial" if left else "upgraded"

    def fail_host(self, message: FailHost) -> tuple[str, str]:
        """Answer :class:`FailHost`."""
        try:
            return self._host_runs.fail(message.host, message.error, is_lost=message.is_lost)
        finally:
            # A failure that can't be recorded must not keep other hosts waiting for this one.
            self._admission.ended(message.host)

    def close_hosts(self, message: CloseHosts) -> None:
        """Answer :class:`CloseHosts`."""
        self._fail_unreported(message.hosts)
        # All of them first, so that no pass admits one of them.
        without_work = [host for host in message.hosts if self._admission.withdraw(host)]
        with contextlib.suppress(UpgradeError):
            self.session.release_all(without_work)
        for host in without_work:
            self._admission.ended(host)

    def settle(self, message: Settle, *, is_shown: bool = False) -> Settlement:
        """Answer :class:`Settle`.

        :param is_shown: whether a live view shows the changes, so that the answer has no lines.
        """
        self._fail_unreported(message.hosts)
        done, can_move, latest = self._admission.settle(message.hosts, message.seconds)
        states = states_of_views(self._run.version, latest.hosts)
        changes = tuple(self._progress.lines(states))
        lines = () if is_shown else changes
        if done:
            return Settlement(done, can_move, lines)
        handover = self._handover.current
        unfinished = tuple(host for host in message.hosts if latest.hosts[host].state != UPGRADED)
        reasons = self._admission.explain(latest, unfinished)
        if not unfinished and latest.outcome.plan.blocker is not None:
            reasons = [latest.outcome.plan.blocker.reason]
        return Settlement(
            done,
            can_move,
            lines,
            running_count(states)[3:],
            tuple(reasons),
            {host: self._partial[host] for host in unfinished if host in self._partial},
            bool(self._partial)
            and latest.outcome.plan.blocker is None
            and all(host in self._partial or latest.hosts[host].state == PENDING for host in unfinished),
            unfinished,
            handover.id,
            handover.planners,
            self._handover.take_warning(),
        )

    def _fail_unreported(self, hosts: Collection[str]) -> None:
        """Fail hosts that have no tasks left and have not reported how they ended. Otherwise, they would keep their slots, and the run would wait."""
        active = set(self._active_hosts())
        with contextlib.ExitStack() as stack:
            for host in hosts:
                if host in active:
                    stack.callback(self.fail_host, FailHost(host, _NO_REPORT))

    @contextlib.contextmanager
    def _released_on_error(self, hosts: Collection[str]) -> Iterator[None]:
        """Let no other host and no other run wait for hosts whose admission failed."""
        try:
            yield
        except Exception:
            failed = sorted(set(hosts).difference(self._active_hosts()))
            self._admission.drop(failed)
            with contextlib.suppress(UpgradeError):
                self.session.release_all(failed)
            raise

    def _begin(self, host: str, decision: Decision, *, in_wave: bool = False) -> HostAdmission:
        done: tuple[str, ...] = ()
        if decision.admitted:
            # The host may have waited for hours, and the session, with all leases, may have been lost meanwhile.
            holder = self.session.acquire(host)
            if holder is not None:
                decision = Decision(admitted=False, state=LEASED_ELSEWHERE, reason=f"its lease belongs to {holder}")
        if decision.admitted:
            try:
                done = tuple(self._host_runs.begin(host, in_wave=in_wave).done)
            except UpgradeError as error:
                if error.code != "not_admitted":
                    raise
                # An operator may have added a hold or aborted the rollout since the pass.
                decision = Decision(admitted=False, state=decision.state, reason=str(error.details["reason"]))
        if not decision.admitted:
            if decision.state != LEASED_ELSEWHERE:
                self.session.release(host)
            self._admission.ended(host)
        return HostAdmission(decision.admitted, decision.state, decision.reason, done)
