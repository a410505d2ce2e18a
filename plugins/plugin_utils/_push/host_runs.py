# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the task groups of admitted hosts one after another, and store in each host's record where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...module_utils._codecs.job import decode_job_record
from ...module_utils._codecs.record import decode_record, encode_record
from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Unreachable
from ...module_utils._consul.operations import check_lock, compare_and_put
from ...module_utils._fleet.fleet import FAILED, POST_DONE, POST_FAILED, POST_STARTED, STARTED, UPGRADED, HostRecord
from ...module_utils._fleet.step_trail import StepStart
from ...module_utils._host import once_for_all
from ...module_utils._host.host_report import HostReport, next_record, truncate_error, write_report
from ...module_utils._host.job_report import write_job_report
from ...module_utils._host.start import Start, not_admitted, start
from ...module_utils._state.store import Store
from .._services.steps import DRAIN, REPLACEMENT, numbered_step
from .connections import StorePool
from .providers import BEGUN, LEFT_TO_OTHER, PARTIAL, Providers
from .resume_point import finished_groups
from .run import AFTER, PushRun, RunTaskGroup
from .session import RunSession

# The longest blocking query (seconds).
_LONGEST_QUERY = 600
# Between two reads of the missing key of a task group that a host still runs for all hosts.
_SECONDS_BETWEEN_READS = 2.0
# Between two tries to stop a service (seconds). The pause doubles from try to try.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_MOST_DOUBLINGS = 5


@dataclass(slots=True)
class HostRun:
    """Where an admitted host is in its task groups.

    :param record: the host's record as it was last read or written, None if there is none.
    :param index: the record's ModifyIndex, 0 if there is none.
    :param done: the task groups that it has finished, in this run or an earlier one.
    :param current: the task group that it runs.
    :param counts_as_done: whether the current task group is done when the next one begins. If tags select only a part of it, it is not.
    :param running_once: the task group that it runs for all hosts now.
    :param left_to_others: task groups that another host runs, and that this one still has to wait for.
    :param refusals: task group -> when it first refused the stop of its service (monotonic seconds), and how often it did.
    :param in_wave: whether it runs each task at the same time as the other hosts of its wave.
    :param failure: why it fails, while its drained services are undrained.
    :param was_midway: whether it had begun an upgrade to another version and not ended it, so that it counts as one whose services may be stopped.
    """

    host: str
    record: HostRecord | None = None
    index: int = 0
    done: dict[str, None] = field(default_factory=dict)
    current: str | None = None
    step: str | None = None
    service: str | None = None
    counts_as_done: bool = True
    running_once: str | None = None
    left_to_others: list[str] = field(default_factory=list)
    refusals: dict[str, tuple[float, int]] = field(default_factory=dict)
    in_wave: bool = False
    failure: str | None = None
    was_midway: bool = False


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
        # Held while a host begins a task group for all hosts.
        self._once_lock = runtime.lock()
        # The task groups for all hosts that failed in this run. None of its hosts tries them again.
        self._failed_once: set[str] = set()

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
            return after

        request = Start(host, self._run.fleet[host], self._run.version)
        if self._run.phase == AFTER:
            request = replace(request, is_post_upgrade=True, has_gate=self._run.on_host)

        def started_post_upgrade(before: HostRecord | None) -> HostRecord:
            if before is None or not before.may_run_post_upgrade(self._run.version):
                raise not_admitted(request, "no planner has admitted it to them")
            host_run.done = finished_groups(self._run, host, before)
            is_same = before.post == POST_STARTED
            return before if is_same else replace(before, post=POST_STARTED, service=None, step=None, error=None)

        def start_run(store: Store) -> None:
            found = start(store, request, started_post_upgrade if request.is_post_upgrade else started)
            host_run.record, host_run.index = found.record, found.index

        self._pool.with_retries(read if self._run.on_host and not request.is_post_upgrade else start_run)
        with self._lock:
            return self._host_runs.setdefault(host, host_run)

    def begin_task_group(self, host: str, name: str, *, chosen: bool, whole: bool, skipped: bool) -> tuple[bool, str]:
        """Finish the host's current task group and begin another; return whether its tasks run on this host, and why not.

        :param chosen: whether the tags on the command line select any of its tasks.
        :param whole: whether they select all of them.
        :param skipped: whether what they do not select was left out on purpose (``--skip-tags``).
        :raises UpgradeError: ``not_admitted``, ``leased``, ``unknown_task_group``; ``once_gone`` or ``once_failed`` if a task group that this
            host left to another host, or has to wait for, did not succeed there; and what :meth:`Providers.begin` and :meth:`Providers.check` raise.
        """
        host_run = self._active(host)
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
        if name in host_run.done:
            return False, "an earlier run finished it"
        if not chosen:
            if skipped:
                host_run.done[name] = None
            return False, "the tags on the command line leave it out"
        self._wait_before_stop(host_run, task_group)
        host_run.current, host_run.step, host_run.service = name, task_group.step, task_group.service
        host_run.counts_as_done = whole or skipped
        if task_group.once or task_group.provider:
            # Their locks are taken before the record is written.
            self._confirm(host_run)
        if task_group.once and not self._begin_once(host_run, name):
            host_run.current = None
            host_run.left_to_others.append(name)
            return False, "another host runs it for all hosts"
        if task_group.provider and (why := self._begin_for_provider(host_run, task_group)):
            return False, why
        self._write(host_run)
        return True, ""

    def refuse_stop(self, host: str, name: str, error: str, patience: float) -> float:
        """Record that a service may not be stopped on a host yet.

        :param patience: how long it is tried (seconds).
        :returns: how long to wait before the next try (seconds).
        :raises UpgradeError: ``not_admitted``, ``leased``; ``may_not_stop`` if the time is over.
        """
        host_run = self._active(host)
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
        step = _stopping_step(host_run.record)
        if not step or self._run.on_host:
            return ""
        return (
            f" An earlier run was interrupted in the step {step}. If the check fails only because a service of {host_run.host} is down since "
            f"then, add -e upgrade_limit={host_run.host} --skip-tags may_stop."
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
            self._pool.with_retries(
                lambda store: once_for_all.end_once(store, self._session.name, self._run.version, name, host)
            )
            host_run.running_once = None

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
        if missing or (self._run.on_host and self._run.phase != AFTER):
            self._write(host_run, next(iter(missing), None))
            self._release(host)
            return tuple(missing)
        if self._run.phase == AFTER:
            self._change(
                host_run, lambda before: replace(before, post=POST_DONE, done=(), service=None, step=None, error=None)
            )
        else:
            self._report(HostReport(host, self._run.version, UPGRADED))
        self._release(host)
        return ()

    def begin_failure(self, host: str, error: str) -> tuple[str, ...]:
        """Note why a host fails; return the services to undrain before the failure is recorded.

        They are those whose ``drain`` has begun in this upgrade, in this run or an earlier one. There are none if any service of the host may be
        stopped, or if another run has its lease, or may have it because Consul can't be reached. A task group that one host runs for all drains no host.
        """
        host_run = self._host_runs.get(host)
        if host_run is None:
            return ()
        host_run.failure = error
        try:
            self._confirm(host_run)
        except UpgradeError as lost:
            # Without Consul, it is unknown whether another run goes on with the host.
            if lost.code == "leased" or isinstance(lost, Unreachable):
                return ()
            raise
        if host_run.was_midway or _stopping_step(host_run.record):
            return ()
        begun = {start.service for start in _trail(host_run.record) if start.step == DRAIN}
        return tuple(
            one.service
            for one in self._run.task_groups_of(host)
            if one.step == DRAIN and one.service in begun and not one.once and not one.provider
        )

    def fail(self, host: str, error: str) -> tuple[str, str]:
        """Record that a host failed and in which step, and release its lease. A host that is not active is ignored.

        A pull host reports the failure of its upgrade itself.

        :returns: the service and the step that failed, empty if the host is not active or has run nothing.
        :raises UpgradeError: for what can't be recorded. Everything else is recorded, and the lease is released.
        """
        host_run = self._host_runs.get(host)
        if host_run is None:
            return "", ""
        if host_run.failure is not None and host_run.failure != error:
            error = f"{host_run.failure} Nothing was stopped, but the host may still be drained: {error}"
        # Callbacks run in reverse order, each also if another one fails.
        with contextlib.ExitStack() as stack:
            stack.callback(self._release, host)
            stack.callback(self._write_failed, host_run, error)
            stack.callback(self._providers.fail, host, error)
            stack.callback(self._fail_once, host_run, error)
        return host_run.service or "", host_run.step or ""

    def _active(self, host: str) -> HostRun:
        host_run = self._host_runs.get(host)
        if host_run is None:
            raise UpgradeError(
                "not_admitted",
                f"{host} is not admitted in this run, so none of its tasks run. To upgrade one role, run convoy.upgrade.role -e role=R.",
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

        :raises UpgradeError: ``leased`` if it is not as this run could have left it: another run has worked on the host since.
        """
        key, run = store.keys.record(host_run.host), self._run
        entry = store.client.get(key)
        decode = decode_job_record if run.is_job else decode_record
        record = decode(key, entry.value) if entry is not None else None
        expected = UPGRADED if run.phase == AFTER else STARTED
        if record is None or (record.version, record.state) != (run.version, expected):
            self._session.lost.setdefault(host_run.host, "another run, which has worked on it since")
            self._session.check(host_run.host)
        host_run.record, host_run.index = record, entry.modify_index if entry is not None else 0

    def _fail_once(self, host_run: HostRun, error: str) -> None:
        name = host_run.running_once
        if name is None:
            return
        session, version = self._session.name, self._run.version
        self._failed_once.add(name)
        try:
            self._pool.with_retries(
                lambda store: once_for_all.end_once(store, session, version, name, host_run.host, truncate_error(error))
            )
        finally:
            host_run.running_once = None

    def _write_failed(self, host_run: HostRun, error: str) -> None:
        try:
            self._confirm(host_run)
        except UpgradeError as lost:
            if lost.code == "leased":
                # The record says how the host fares in the run that has the lease now.
                return
            raise
        if self._run.phase == AFTER:
            self._change(host_run, lambda before: replace(before, post=POST_FAILED, error=truncate_error(error)))
        elif not self._run.on_host:
            self._report(HostReport(host_run.host, self._run.version, FAILED, host_run.service, host_run.step, error))

    def _report(self, report: HostReport) -> None:
        run = self._run
        if run.is_job:

            def write(store: Store) -> None:
                # Another run may have taken over the host since.
                lease = check_lock(store.keys.lease(report.host), self._session.name)
                write_job_report(store, report, run.command, [lease])

            self._pool.with_retries(write)
        else:
            self._pool.with_retries(lambda store: write_report(store, report))

    def _release(self, host: str) -> None:
        with self._lock:
            self._host_runs.pop(host, None)
        self._session.release(host)

    @staticmethod
    def _close_current(host_run: HostRun) -> None:
        if host_run.current is not None and host_run.counts_as_done:
            host_run.done[host_run.current] = None
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

    def _begin_once(self, host_run: HostRun, name: str) -> bool:
        """Begin a task group for all hosts; return False if another host runs it, has finished it or failed and is not retried."""
        version = self._run.version

        def begin(store: Store) -> bool:
            found = once_for_all.read_state(store, version, name)
            if found is not None and (
                found.state == once_for_all.DONE
                or (found.state == once_for_all.RUNNING and found.host != host_run.host)
            ):
                return False
            if found is not None and self._failed_elsewhere(host_run, name, found):
                return False
            return once_for_all.begin_once(
                store, self._session.name, version, name, host_run.host, found.index if found else 0
            )

        with self._once_lock:
            if self._other_running_once(host_run, name) is not None or not self._pool.with_retries(begin):
                return False
            host_run.running_once = name
        return True

    def _failed_elsewhere(self, host_run: HostRun, name: str, found: once_for_all.RunOnceState) -> bool:
        """Return whether a task group for all hosts failed on another host and is not retried."""
        retries = self._run.retry_failed and name not in self._failed_once
        return found.state == once_for_all.FAILED and not retries and found.host != host_run.host

    def _wait_before_stop(self, host_run: HostRun, task_group: RunTaskGroup) -> None:
        """Let a host whose services all run wait for task groups that another host runs for all hosts now.

        Otherwise it would wait for them later, with its services stopped, and they would stay down if one of them fails. The hosts of a wave are
        stopped at the same time.
        """
        is_stop = numbered_step(task_group.step) in REPLACEMENT and not task_group.once
        if host_run.in_wave or not is_stop or _stopping_step(host_run.record):
            return
        for one in self._run.task_groups_of(host_run.host):
            if not one.once or one.step not in REPLACEMENT or one.name in host_run.done:
                continue
            found = self._wait_for_once(host_run, one.name)
            if found is not None and self._failed_elsewhere(host_run, one.name, found):
                raise self._once_failed(host_run, one.name, found)

    def _other_running_once(self, host_run: HostRun, name: str) -> HostRun | None:
        """Return the other host of this run that runs a task group for all hosts now.

        If the session is lost, so is the key, but the task group still runs.
        """
        return next(
            (one for one in list(self._host_runs.values()) if one is not host_run and one.running_once == name), None
        )

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
            found = self._wait_for_once(host_run, name)
            # Another run may have begun it under the name of this host.
            if found is None or found.state == once_for_all.RUNNING:
                raise UpgradeError(
                    "once_gone",
                    f"{name} runs once for all hosts, but the run that began it has ended or lost its Consul session. "
                    + (
                        "The next host that tries again runs it as a whole."
                        if self._run.on_host
                        else "Run the same command again: a host of that run runs it as a whole."
                    ),
                )
            if found.state == once_for_all.FAILED:
                raise self._once_failed(host_run, name, found)
            host_run.left_to_others.pop(0)
            host_run.done[name] = None

    def _once_failed(self, host_run: HostRun, name: str, found: once_for_all.RunOnceState) -> UpgradeError:
        error = (found.error or "no error was recorded").rstrip(". ")
        return UpgradeError(
            "once_failed",
            f"{name}, which {found.host} runs for all hosts, failed there: {error}. Fix that, "
            + (
                f"then convoy.upgrade.retry -e host={found.host},{host_run.host}."
                if self._run.on_host
                else "and run the same command with -e retry_failed=true."
            ),
        )

    def _wait_for_once(self, host_run: HostRun, name: str) -> once_for_all.RunOnceState | None:
        """Return how a task group for all hosts ended on another host; None if the run of that host is gone.

        What this host ran itself is returned as it is.
        """
        version = self._run.version
        index = 0
        while True:
            running = self._other_running_once(host_run, name)
            found = self._pool.with_retries(lambda store: once_for_all.read_state(store, version, name))
            if found is None and running is not None and not (host_run.in_wave and running.in_wave):
                # The key was lost with the session of this run. The other host writes it again when it has finished.
                runtime.sleep(_SECONDS_BETWEEN_READS)
                continue
            if found is None or found.state != once_for_all.RUNNING or found.host == host_run.host:
                return found
            other = self._host_runs.get(found.host)
            if host_run.in_wave and other is not None and other.in_wave:
                # The hosts of a wave run each task at the same time, so the other host would have finished before.
                error = f"it did not finish; the record of {found.host} says why"
                return replace(found, state=once_for_all.FAILED, error=error)
            since = max(index, found.index)

            def wait(store: Store, since: int = since) -> int:
                return store.wait_for_change(since, _LONGEST_QUERY, [store.keys.once(version, name)])

            index = self._pool.with_retries(wait)

    def _write(self, host_run: HostRun, next_step: str | None = None) -> None:
        """Write to the record where a host is: one request, as the record is known from the last write.

        :param next_step: the first step that is left to a later run. On a pull host, this run has other steps.
        """

        def after(before: HostRecord | None) -> HostRecord:
            if self._run.phase != AFTER:
                left = None if self._run.on_host else next_step
                return replace(self._started(host_run, before), next_step=left)
            base = before or HostRecord(self._run.version, UPGRADED, reported=self._run.version)
            done = tuple(host_run.done)
            return replace(base, post=POST_STARTED, service=host_run.service, step=host_run.step, done=done, error=None)

        self._put(host_run, after)

    def _started(self, host_run: HostRun, before: HostRecord | None) -> HostRecord:
        """Return the record of a host that is upgrading."""
        report = HostReport(host_run.host, self._run.version, STARTED, host_run.service, host_run.step)
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
            is_first_try = False
            record = change(host_run.record)
            lease = store.keys.lease(host_run.host)
            written = store.client.write(
                [compare_and_put(key, encode_record(record), host_run.index), check_lock(lease, self._session.name)]
            )
            index = next(int(one["ModifyIndex"]) for one in written if one["Key"] == key)
            host_run.record, host_run.index = record, index

        self._pool.with_retries(put)


def _trail(record: HostRecord | None) -> tuple[StepStart, ...]:
    return record.trail if record is not None else ()


def _stopping_step(record: HostRecord | None) -> str:
    """Return the first step of this upgrade that stops or replaces services and that a host has begun, in any run; empty for none."""
    return next((start.step for start in _trail(record) if start.step in REPLACEMENT), "")
