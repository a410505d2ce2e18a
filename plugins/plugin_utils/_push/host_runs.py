# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the task groups of admitted hosts one after another, and store in each host's record where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from ...module_utils._codecs.job import decode_job_record
from ...module_utils._codecs.record import decode_record, encode_record
from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.sanitize import option
from ...module_utils._consul.client import Operation
from ...module_utils._consul.errors import Unreachable
from ...module_utils._consul.operations import check_lock, compare_and_put
from ...module_utils._fleet.fleet import (
    FAILED,
    LOST_AFTER,
    POST_DONE,
    POST_STARTED,
    STARTED,
    TASKS_FAILED,
    UPGRADED,
    HostRecord,
)
from ...module_utils._host.host_report import HostReport, next_record, truncate_error, write_report
from ...module_utils._host.job_report import write_job_report
from ...module_utils._host.post_upgrade_report import failed_post_upgrade
from ...module_utils._host.start import Start, not_admitted, start
from ...module_utils._state.store import Store
from ...module_utils._state.store_pool import StorePool
from .._services.steps import DRAIN
from .host_run import HostRun, finished_groups, repeated_stops
from .once_groups import OnceGroups
from .providers import BEGUN, LEFT_TO_OTHER, PARTIAL, Providers
from .run import POST_UPGRADE_PHASE, PushRun, RunTaskGroup
from .session import RunSession

# Between two tries to stop a service (seconds). The pause doubles from try to try.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_MOST_DOUBLINGS = 5


class HostRuns:
    """The admitted hosts of one run."""

    def __init__(self, run: PushRun, pool: StorePool, session: RunSession) -> None:
        """Keep the arguments."""
        self._run = run
        self._pool = pool
        self._session = session
        self._providers = Providers(run, pool, session)
        self._host_runs: dict[str, HostRun] = {}
        self._lock = runtime.lock()
        self._once = OnceGroups(run, pool, session, self._host_runs)

    def active_hosts(self) -> list[str]:
        """Return the hosts that have begun and neither ended nor failed."""
        return list(self._host_runs)

    def begin(self, host: str, *, in_wave: bool = False) -> HostRun:
        """Begin or resume the upgrade of an admitted host.

        An upgrade and post-upgrade tasks start only while the host is still admitted. A pull host has reported the start of its upgrade. A
        host that is active already goes on where it is.

        :raises UpgradeError: ``not_admitted``.
        """
        active = self._host_runs.get(host)
        if active is not None:
            return active
        host_run = HostRun(host, in_wave=in_wave)

        def read(store: Store) -> None:
            entry = store.client.get(store.keys.record(host))
            host_run.record = decode_record(entry.key, entry.value) if entry is not None else None
            host_run.index = entry.modify_index if entry is not None else 0
            host_run.done = finished_groups(self._run, host, host_run.record)

        def started(before: HostRecord | None) -> HostRecord:
            host_run.done = finished_groups(self._run, host, before)
            is_same = before is not None and (before.state, before.version) == (STARTED, self._run.version)
            after = before if before is not None and is_same else self._started(host_run, before)
            was_elsewhere = before is not None and (
                not before.readable or (before.state in (STARTED, FAILED) and before.version != self._run.version)
            )
            host_run.was_midway = was_elsewhere or bool(after.not_ended)
            host_run.begun_on = before.machine if before is not None and before.state == STARTED else None
            return after

        request = Start(host, self._run.fleet[host], self._run.version)
        if self._run.phase == POST_UPGRADE_PHASE:
            request = replace(request, is_post_upgrade=True, has_gate=self._run.on_host)

        def started_post_upgrade(before: HostRecord | None) -> HostRecord:
            if before is None or not before.may_run_post_upgrade(self._run.version):
                raise not_admitted(request, "no planner has admitted it to them")
            host_run.done = finished_groups(self._run, host, before)
            if before.post == POST_STARTED:
                return before
            # Ansible begins failed ones again only if an operator has asked for it, and agents by themselves.
            times = {name: at for name, at in before.times.items() if self._run.on_host or name != TASKS_FAILED}
            return replace(before, post=POST_STARTED, service=None, step=None, error=None, times=times)

        def start_run(store: Store) -> None:
            found = start(store, request, started_post_upgrade if request.is_post_upgrade else started)
            host_run.record, host_run.index = found.record, found.index

        self._pool.with_retries(read if self._run.on_host and not request.is_post_upgrade else start_run)
        host_run.repeated = repeated_stops(self._run, host, host_run.done)
        with self._lock:
            return self._host_runs.setdefault(host, host_run)

    def begin_task_group(
        self,
        host: str,
        name: str,
        *,
        chosen: bool,
        whole: bool,
        skipped: bool,
        machine: str | None = None,
        is_control_node: bool = False,
    ) -> tuple[bool, str]:
        """Finish the host's current task group and begin another; return whether its tasks run on this host, and why not.

        :param machine: the ID of the host's machine; None if it is not known.
        :param is_control_node: whether that machine is the control node.
        :param chosen: whether the tags on the command line select any of its tasks.
        :param whole: whether they select all of them.
        :param skipped: whether what they do not select was left out on purpose (``--skip-tags``).
        :raises UpgradeError: ``not_admitted``, ``leased``, ``unknown_task_group``, ``other_machine``; ``once_gone`` or ``once_failed`` if a task group that
            this host left to another host, or has to wait for, did not succeed there; and what :meth:`Providers.begin` and :meth:`Providers.check` raise.
        """
        host_run = self._active(host)
        host_run.timed_out = False
        self._check_machine(host_run, machine, is_control_node=is_control_node)
        self._close_current(host_run)
        self._wait_for_others(host_run)
        task_group = self._task_group(host, name)
        if task_group is None and self._run.leaves_out(host, name):
            return False, "it is not on the host's upgrade path"
        if task_group is None:
            raise UpgradeError(
                "unknown_task_group",
                f"{host} has no task group {name} in this composition. Compose it again, with the same command.",
            )
        if name in host_run.done and name not in host_run.repeated:
            return False, "an earlier run finished it"
        if not chosen:
            if skipped:
                host_run.done[name] = None
            return False, "the tags on the command line leave it out"
        self._once.wait_before_stop(host_run, task_group)
        host_run.current, host_run.step, host_run.service = name, task_group.step, task_group.service
        host_run.counts_as_done = whole or skipped
        if task_group.once or task_group.provider:
            # Their locks are taken before the record is written.
            self._confirm(host_run)
        if task_group.once and not self._once.begin(host_run, name):
            host_run.current = None
            host_run.left_to_others.append(name)
            return False, "another host runs it for all hosts"
        if task_group.provider and (why := self._begin_for_provider(host_run, task_group)):
            return False, why
        self._write(host_run)
        return True, ""

    def _check_machine(self, host_run: HostRun, machine: str | None, *, is_control_node: bool) -> None:
        """Note which machine the host is; if it is another one than before, it has finished no task group.

        :raises UpgradeError: ``other_machine`` if an upgrade that has not ended began on another one.
        """
        known = host_run.record.machine if host_run.record is not None else None
        if is_control_node and machine != known:
            # It may have the tasks of many hosts, so its ID says nothing, unless a run on another control node has noted it for this host.
            machine = None
        if machine is None and known is not None and host_run.machine is None and not self._run.on_host:
            # It may be another machine, so nothing that one has finished counts.
            host_run.done = {}
            host_run.machine = known
        if machine is None or host_run.machine is not None:
            return
        if host_run.begun_on not in (None, machine):
            host_run.is_other_machine = True
            raise UpgradeError(
                "other_machine",
                f"{host_run.host} is another machine ({machine}) than the one on which its upgrade began ({host_run.begun_on}), so none of its tasks "
                "run. If it was reinstalled, run the same command with -e retry_failed=true, which runs all of them. If two machines have this "
                "name, rename one in the inventory first.",
            )
        if known not in (None, machine):
            host_run.done = {}
        host_run.machine = machine

    def refuse_stop(self, host: str, name: str, error: str, patience: float) -> float:
        """Record that a service may not be stopped on a host yet.

        :param patience: how long it is tried (seconds).
        :returns: how long to wait before the next try (seconds).
        :raises UpgradeError: ``not_admitted``, ``leased``; ``may_not_stop`` if the time is over.
        """
        host_run = self._active(host)
        # A check that takes too long only refuses.
        host_run.timed_out = False
        now = runtime.monotonic()
        began, tries = host_run.refusals.get(name, (now, 0))
        host_run.refusals[name] = (began, tries + 1)
        left = began + patience - now
        if left <= 0:
            raise UpgradeError(
                "may_not_stop",
                f"{host}: {host_run.service} could not be stopped within {patience:.0f} s, and was not: {error.strip().rstrip('.')}. Once "
                f"that is over, run the same command with -e retry_failed=true.{self._hint_on_interrupt(host_run)}",
            )
        return min(left, _SHORTEST_PAUSE * 2.0 ** min(tries, _MOST_DOUBLINGS), _LONGEST_PAUSE)

    def _hint_on_interrupt(self, host_run: HostRun) -> str:
        """Return what to do if the check before a stop can't succeed because an earlier run has stopped something on the host; empty if none has."""
        step = host_run.stopping_step
        if not step or self._run.on_host:
            return ""
        return (
            f" An earlier run was interrupted in the step {step}. If the check fails only because a service of {host_run.host} is down since "
            f"then, add {option('upgrade_limit', host_run.host)} --skip-tags may_stop."
        )

    def finish_task_group(self, host: str, name: str) -> None:
        """Record that a host has finished a task group, if other hosts wait for it or it must not run again.

        :raises UpgradeError: ``not_admitted``, ``leased``, ``once_gone``, ``provider_gone``.
        """
        host_run = self._active(host)
        self._close_current(host_run)
        task_group = self._task_group(host, name)
        if task_group is not None and task_group.provider:
            self._providers.finish(host, task_group, host_run.done)
        elif task_group is not None and task_group.checkpoint:
            self._write(host_run)
        if host_run.running_once == name:
            self._once.end(host_run, name)

    def end(self, host: str) -> tuple[str, ...]:
        """Report that a host is upgraded and release its lease. A pull host still has other steps before it is upgraded.

        :returns: the steps that tags on the command line left out; none if it is upgraded.
        :raises UpgradeError: as :meth:`begin_task_group` does, and what :meth:`Providers.leave` raises.
        """
        host_run = self._active(host)
        self._close_current(host_run)
        self._wait_for_others(host_run)
        self._confirm(host_run)
        self._providers.leave(host, host_run.done)
        missing = dict.fromkeys(one.step for one in self._run.task_groups_of(host) if one.name not in host_run.done)
        host_run.current = host_run.step = host_run.service = None
        if missing or (self._run.on_host and self._run.phase != POST_UPGRADE_PHASE):
            self._write(host_run, next(iter(missing), None))
            self._release(host)
            return tuple(missing)
        if self._run.phase == POST_UPGRADE_PHASE:
            self._change(
                host_run,
                lambda before: replace(
                    before, post=POST_DONE, done=(), service=None, step=None, error=None, next_step=None
                ),
            )
        else:
            self._report(host_run, HostReport(host, self._run.version, UPGRADED))
        self._release(host)
        return ()

    def note_timeout(self, host: str) -> None:
        """Note that a task took too long on a host. If its task group fails, also later and with another error, the host is lost."""
        host_run = self._host_runs.get(host)
        if host_run is not None:
            host_run.timed_out = True

    def begin_failure(self, host: str, error: str) -> tuple[str, ...]:
        """Note why a host fails; return the services to undrain before the failure is recorded.

        They are those whose ``drain`` has begun in this upgrade, in this run or an earlier one. There are none if any service of the host may be
        stopped, or if another run has its lease, or may have it because Consul can't be reached. A task group that one host runs for all drains no host.
        """
        host_run = self._host_runs.get(host)
        if host_run is None:
            return ()
        host_run.failure, host_run.is_left_drained = error, False
        try:
            self._confirm(host_run)
        except UpgradeError as lost:
            # Without Consul, it is unknown whether another run goes on with the host.
            if lost.code == "leased" or isinstance(lost, Unreachable):
                host_run.is_left_drained = isinstance(lost, Unreachable) and bool(self._drained(host_run))
                return ()
            raise
        return self._drained(host_run)

    def _drained(self, host_run: HostRun) -> tuple[str, ...]:
        """Return the services that a host drained before it stopped any; none once it may have stopped one."""
        if host_run.was_midway or host_run.stopping_step or host_run.is_other_machine:
            return ()
        begun = {start.service for start in host_run.begun_steps if start.step == DRAIN}
        return tuple(
            one.service
            for one in self._run.task_groups_of(host_run.host)
            if one.step == DRAIN and one.service in begun and not one.once and not one.provider
        )

    def fail(self, host: str, error: str, *, is_lost: bool = False) -> tuple[str, str]:
        """Record that a host failed and in which step, and release its lease. A host that is not active is ignored.

        A pull host reports the failure of its upgrade itself.

        :param is_lost: whether it no longer answers. Its state is lost then, as after :meth:`note_timeout`.
        :returns: the service and the step that failed, empty if the host is not active or has run nothing.
        :raises UpgradeError: for what can't be recorded. Everything else is recorded, and the lease is released.
        """
        host_run = self._host_runs.get(host)
        if host_run is None:
            return "", ""
        is_lost = is_lost or host_run.timed_out
        if host_run.failure is not None and host_run.failure != error:
            error = f"{host_run.failure} Nothing was stopped, but the host may still be drained: {error}"
        elif host_run.is_left_drained:
            error = f"{error} Nothing was stopped, but the host is still drained, because Consul could not be reached when it failed."
        # Callbacks run in reverse order, each also if another one fails.
        with contextlib.ExitStack() as stack:
            stack.callback(self._release, host)
            stack.callback(self._write_failed, host_run, error, is_lost=is_lost)
            stack.callback(self._providers.fail, host, error)
            stack.callback(self._once.fail, host_run, error)
        return host_run.service or "", host_run.step or ""

    def _active(self, host: str) -> HostRun:
        host_run = self._host_runs.get(host)
        if host_run is None:
            raise UpgradeError(
                "not_admitted",
                f"{host} is not admitted in this run, so none of its tasks run. To upgrade one role, run "
                f"ansible-playbook convoy.upgrade.role -e role=R {option('version', self._run.version)}.",
            )
        self._session.check(host)
        return host_run

    def _confirm(self, host_run: HostRun) -> None:
        """Make sure that this run has the lease of a host, and that no other run has worked on it while the lease was lost.

        :raises UpgradeError: ``leased``, and what :meth:`RunSession.confirm` raises.
        """
        self._session.confirm(host_run.host)
        if host_run.host in self._session.regained:
            self._pool.with_retries(lambda store: self._read_again(store, host_run))
            self._session.regained.discard(host_run.host)

    def _read_again(self, store: Store, host_run: HostRun) -> None:
        """Read the record of a host that another process may have written.

        :raises UpgradeError: ``leased`` if another run may have worked on the host since: the lease was lost meanwhile and the record written, or it is
            not as this run could have left it.
        """
        key, run = store.keys.record(host_run.host), self._run
        entry = store.client.get(key)
        decode = decode_job_record if run.is_job else decode_record
        record = decode(key, entry.value) if entry is not None else None
        expected = UPGRADED if run.phase == POST_UPGRADE_PHASE else STARTED
        index = entry.modify_index if entry is not None else 0
        is_own = entry is not None and (index == host_run.index or entry.value == host_run.sent)
        is_other = host_run.host in self._session.regained and not is_own
        if is_other or record is None or (record.version, record.state) != (run.version, expected):
            self._session.lost.setdefault(host_run.host, "another run, which has worked on it since")
            self._session.check(host_run.host)
        host_run.record, host_run.index = record, index

    def _write_failed(self, host_run: HostRun, error: str, *, is_lost: bool) -> None:
        try:
            self._confirm(host_run)
            if self._run.phase == POST_UPGRADE_PHASE:
                text, now = f"{LOST_AFTER if is_lost else ''}{truncate_error(error) or ''}", int(runtime.now())
                self._change(host_run, lambda before: failed_post_upgrade(before, text, now))
            elif not self._run.on_host:
                where = (host_run.service, host_run.step)
                if (
                    host_run.step is None
                    and host_run.record is not None
                    and host_run.record.version == self._run.version
                ):
                    # It has run nothing, so it is where an earlier run was cut off. Without that step, may_stop and drain would count as finished.
                    where = (host_run.record.service, host_run.record.step)
                report = HostReport(host_run.host, self._run.version, FAILED, *where, error, is_lost=is_lost)
                self._report(host_run, report)
        except UpgradeError as lost:
            # The record says how the host fares in the run that has the lease now.
            if lost.code != "leased":
                raise

    def _report(self, host_run: HostRun, report: HostReport) -> None:
        """Write a report, in one transaction with the check that this run has the host's lease, as :meth:`_put` does.

        :raises UpgradeError: ``leased``.
        """
        run = self._run
        is_first_try = True

        def write(store: Store) -> None:
            def checks() -> list[Operation]:
                nonlocal is_first_try
                if not is_first_try or report.host in self._session.regained:
                    # Another run may have taken over the host since.
                    self._confirm(host_run)
                is_first_try = False
                return [check_lock(store.keys.lease(report.host), self._session.name)]

            if run.is_job:
                write_job_report(store, report, run.command, checks)
            else:
                write_report(store, report, checks)

        self._pool.with_retries(write)

    def _release(self, host: str) -> None:
        with self._lock:
            self._host_runs.pop(host, None)
        self._session.release(host)

    @staticmethod
    def _close_current(host_run: HostRun) -> None:
        if host_run.current is not None and host_run.counts_as_done:
            host_run.done[host_run.current] = None
            host_run.repeated.discard(host_run.current)
        host_run.current = None

    def _task_group(self, host: str, name: str) -> RunTaskGroup | None:
        return next((one for one in self._run.task_groups_of(host) if one.name == name), None)

    def _begin_for_provider(self, host_run: HostRun, task_group: RunTaskGroup) -> str:
        """Begin a provider's task group; return why its tasks do not run on this host, empty if they do."""
        outcome = self._providers.begin(host_run.host, task_group, in_wave=host_run.in_wave)
        if outcome == BEGUN:
            return ""
        host_run.current = None
        if outcome == LEFT_TO_OTHER:
            host_run.left_to_others.append(task_group.name)
            return "another host runs it for the provider"
        if outcome == PARTIAL:
            return "the tags on the command line select a part of it, and another host ran that part"
        host_run.done[task_group.name] = None
        return "it is finished for the provider"

    def _wait_for_others(self, host_run: HostRun) -> None:
        """Wait until the task groups that this host left to others are finished there."""
        while host_run.left_to_others:
            name = host_run.left_to_others[0]
            task_group = self._task_group(host_run.host, name)
            if task_group is not None and task_group.provider:
                if self._providers.check(host_run.host, task_group):
                    host_run.done[name] = None
                host_run.left_to_others.pop(0)
                continue
            self._once.wait(host_run, name)
            host_run.left_to_others.pop(0)
            host_run.done[name] = None

    def _write(self, host_run: HostRun, next_step: str | None = None) -> None:
        """Write to the record where a host is: one request, as the record is known from the last write.

        :param next_step: the first step that is left to a later run. On a pull host, this run has other steps.
        """

        def after(before: HostRecord | None) -> HostRecord:
            left = None if self._run.on_host else next_step
            if self._run.phase != POST_UPGRADE_PHASE:
                return replace(self._started(host_run, before), next_step=left)
            base = before or HostRecord(self._run.version, UPGRADED, reported=self._run.version)
            base = replace(base, done=tuple(host_run.done), error=None, next_step=left)
            return replace(base, post=POST_STARTED, service=host_run.service, step=host_run.step)

        self._put(host_run, after)

    def _started(self, host_run: HostRun, before: HostRecord | None) -> HostRecord:
        """Return the record of a host that is upgrading."""
        report = HostReport(
            host_run.host, self._run.version, STARTED, host_run.service, host_run.step, machine=host_run.machine
        )
        found = next_record(before, report, int(runtime.now()))
        return replace(found, done=tuple(host_run.done), origin=self._run.origins.get(host_run.host) or found.origin)

    def _change(self, host_run: HostRun, change: Callable[[HostRecord], HostRecord]) -> None:
        def changed(before: HostRecord | None) -> HostRecord:
            return change(before or HostRecord(self._run.version, UPGRADED, reported=self._run.version))

        self._put(host_run, changed)

    def _put(self, host_run: HostRun, change: Callable[[HostRecord | None], HostRecord]) -> None:
        """Write a host's record, in one transaction with the check that this run has the host's lease.

        Otherwise, a run that was suspended would go on beside the run that has taken over the host.

        :raises UpgradeError: ``leased``.
        """
        is_first_try = True

        def put(store: Store) -> None:
            nonlocal is_first_try
            key = store.keys.record(host_run.host)
            if not is_first_try:
                # Another process wrote the record, the lease was lost, or the response was lost.
                self._session.confirm(host_run.host)
                self._read_again(store, host_run)
                self._session.regained.discard(host_run.host)
            is_first_try = False
            record = change(host_run.record)
            lease, text = store.keys.lease(host_run.host), encode_record(record)
            host_run.sent = text.encode()
            written = store.client.write(
                [compare_and_put(key, text, host_run.index), check_lock(lease, self._session.name)]
            )
            index = next(int(one["ModifyIndex"]) for one in written if one["Key"] == key)
            host_run.record, host_run.index = record, index

        self._pool.with_retries(put)
