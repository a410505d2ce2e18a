# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a run's daemon that admits and records the hosts which Ansible upgrades. It keeps nothing that is not in Consul."""

from __future__ import annotations

from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.watch import BlockingQueries
from ...module_utils._host_states.states import UPGRADED
from .._observe.progress_lines import PassProgress, running_count
from .admission import TAKEN, RunAdmission, Verdict
from .connections import StorePool
from .host_runs import HostRuns
from .messages import (
    Admit,
    AdmitWave,
    BeginTaskGroup,
    EndHost,
    FailHost,
    FinishTaskGroup,
    HostAdmission,
    Settle,
    Settlement,
    TaskGroupStart,
)
from .run import PushRun
from .session import RunSession


class PushService:
    """Answers the messages of one push run."""

    def __init__(self, run: PushRun, queries: BlockingQueries | None = None) -> None:
        """Open the session with Consul.

        :param queries: the blocking queries of this process; None for queries of its own.
        :raises UpgradeError: what :meth:`RunSession` raises.
        """
        self._run = run
        self._pool = StorePool(run.settings)
        self.session = RunSession(self._pool, self._taken)
        self._turns = HostRuns(run, self._pool, self.session)
        self._admission = RunAdmission(run, self._pool, self.session.claim, queries)
        self._progress = PassProgress()
        self._partial: set[str] = set()

    def close(self) -> None:
        """End the session with Consul, and watch no key any more."""
        self._admission.close()
        self.session.close()

    def admit(self, message: Admit) -> HostAdmission:
        """Answer :class:`Admit`."""
        return self._begin(message.host, self._admission.admit(message.host))

    def admit_wave(self, message: AdmitWave) -> dict[str, HostAdmission]:
        """Answer :class:`AdmitWave`."""
        verdicts = self._admission.admit_wave(message.hosts)
        return {host: self._begin(host, verdicts[host], together=True) for host in message.hosts}

    def begin_task_group(self, message: BeginTaskGroup) -> TaskGroupStart:
        """Answer :class:`BeginTaskGroup`."""
        run, why = self._turns.step(
            message.host, message.task_group, chosen=message.chosen, whole=message.whole, skipped=message.skipped
        )
        return TaskGroupStart(run, why)

    def finish_task_group(self, message: FinishTaskGroup) -> None:
        """Answer :class:`FinishTaskGroup`."""
        self._turns.finish(message.host, message.task_group)

    def end_host(self, message: EndHost) -> str:
        """Answer :class:`EndHost`."""
        state = self._turns.end(message.host)
        if state == "partial":
            self._partial.add(message.host)
        self._admission.ended(message.host)
        return state

    def fail_host(self, message: FailHost) -> None:
        """Answer :class:`FailHost`."""
        try:
            self._turns.fail(message.host, message.error)
        finally:
            # A failure that can't be recorded must not keep other hosts waiting for this one.
            self._admission.ended(message.host)

    def settle(self, message: Settle, *, is_shown: bool = False) -> Settlement:
        """Answer :class:`Settle`.

        :param is_shown: whether a live view shows the changes, so that no line is needed.
        """
        done, can_move, look = self._admission.settle(message.hosts, message.seconds)
        shown = {
            "version": self._run.version,
            "hosts": {
                host: {"role": view.role, "state": view.state, "reason": view.reason}
                for host, view in look.hosts.items()
            },
        }
        lines = tuple(self._progress.lines(shown))
        found = Settlement(done, can_move, () if is_shown else lines)
        if done:
            return found
        left = tuple(host for host in message.hosts if look.hosts[host].state != UPGRADED)
        return Settlement(
            done,
            can_move,
            found.lines,
            running_count(shown)[3:],
            tuple(self._admission.explain(look, left)),
            tuple(host for host in left if host in self._partial),
            left,
        )

    def _begin(self, host: str, verdict: Verdict, *, together: bool = False) -> HostAdmission:
        done: tuple[str, ...] = ()
        if verdict.go:
            try:
                done = tuple(self._turns.begin(host, together=together).done)
            except UpgradeError as error:
                if error.code != "not_admitted":
                    raise
                # A hold or an abort may have come since the pass.
                verdict = Verdict(go=False, state=verdict.state, reason=str(error.details["reason"]))
        if not verdict.go:
            if verdict.state != TAKEN:
                self.session.release(host)
            self._admission.ended(host)
        return HostAdmission(verdict.go, verdict.state, verdict.reason, done)

    def _taken(self) -> list[str]:
        return self._turns.taken()
