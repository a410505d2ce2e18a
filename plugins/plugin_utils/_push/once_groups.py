# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Task groups that one host runs for all hosts: who runs them, and how the others wait for their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.sanitize import option
from ...module_utils._host import once_for_all
from ...module_utils._host.host_report import truncate_error
from ...module_utils._state.store import Store
from ...module_utils._state.store_pool import StorePool
from .._services.steps import REPLACEMENT, numbered_step
from .host_run import HostRun
from .run import PushRun, RunTaskGroup
from .session import RunSession

# A task group that Consul says a host of this run runs, and none does.
_LEFT = "left"
# The longest blocking query (seconds).
_LONGEST_QUERY = 600
# Between two reads of the missing key of a task group that a host still runs for all hosts.
_SECONDS_BETWEEN_READS = 2.0


class OnceGroups:
    """The task groups of one run that one host runs for all.

    :param host_runs: host -> where it is, of the hosts that have begun and neither ended nor failed.
    """

    def __init__(self, run: PushRun, pool: StorePool, session: RunSession, host_runs: Mapping[str, HostRun]) -> None:
        """Keep the arguments."""
        self._run = run
        self._pool = pool
        self._session = session
        self._host_runs = host_runs
        # Held while a host begins a task group for all hosts.
        self._lock = runtime.lock()
        # Those that failed in this run. None of its hosts tries them again.
        self._failed_here: set[str] = set()

    def begin(self, host_run: HostRun, name: str) -> bool:
        """Begin a task group for all hosts; return False if another host runs it, has finished it or failed and is not retried."""
        version = self._run.version

        def begin_at(store: Store, session: str) -> bool:
            found = once_for_all.read_state(store, version, name)
            if found is None and name in self._failed_here:
                # Its failure could not be written, or was lost with the session.
                return False
            if found is not None and found.state == once_for_all.DONE:
                return False
            if found is not None and found.state == once_for_all.RUNNING and found.host != host_run.host:
                is_over = name not in self._failed_here and self._is_left(store, name, found)
                if not is_over:
                    return False
            if found is not None and self._failed_elsewhere(host_run, name, found):
                return False
            return once_for_all.begin_once(store, session, version, name, host_run.host, found.index if found else 0)

        with self._lock:
            if self._other_running(host_run, name) is not None or not self._session.use(begin_at):
                return False
            host_run.running_once = name
        return True

    def end(self, host_run: HostRun, name: str) -> None:
        """Record that a host has finished the task group that it runs for all hosts."""
        session, version = self._session.name, self._run.version
        self._pool.with_retries(lambda store: once_for_all.end_once(store, session, version, name, host_run.host))
        host_run.running_once = None

    def fail(self, host_run: HostRun, error: str) -> None:
        """Record that a host failed in the task group that it runs for all hosts, if it runs one."""
        name = host_run.running_once
        if name is None:
            return
        session, version = self._session.name, self._run.version
        self._failed_here.add(name)
        try:
            self._pool.with_retries(
                lambda store: once_for_all.end_once(store, session, version, name, host_run.host, truncate_error(error))
            )
        finally:
            host_run.running_once = None

    def wait_before_stop(self, host_run: HostRun, task_group: RunTaskGroup) -> None:
        """Let a host whose services all run wait for task groups that another host runs for all hosts now.

        Otherwise it would wait for them later, with its services stopped, and they would stay down if one of them fails. The hosts of a wave are
        stopped at the same time.
        """
        is_stop = numbered_step(task_group.step) in REPLACEMENT and not task_group.once
        if host_run.in_wave or not is_stop or host_run.stopping_step:
            return
        for one in self._run.task_groups_of(host_run.host):
            if not one.once or one.step not in REPLACEMENT or one.name in host_run.done:
                continue
            found = self._end_elsewhere(host_run, one.name)
            if found is not None and self._failed_elsewhere(host_run, one.name, found):
                raise self._failed(host_run, one.name, found)
            if one.name in self._failed_here and (found is None or found.state == _LEFT):
                # It failed, and that could not be written. No host of this run tries it again.
                raise self._left(one.name, found) if found is not None else self._gone(one.name)

    def wait(self, host_run: HostRun, name: str) -> None:
        """Wait until a task group that a host left to another one is finished there.

        :raises UpgradeError: ``once_gone``, ``once_failed``.
        """
        found = self._end_elsewhere(host_run, name)
        if found is not None and found.state == _LEFT:
            raise self._left(name, found)
        # Another run may have begun it under the name of this host.
        if found is None or found.state == once_for_all.RUNNING:
            raise self._gone(name)
        if found.state == once_for_all.FAILED:
            raise self._failed(host_run, name, found)

    def _end_elsewhere(self, host_run: HostRun, name: str) -> once_for_all.RunOnceState | None:
        """Return how a task group for all hosts ended on another host; None if the run of that host is gone.

        What this host ran itself is returned as it is.
        """
        version = self._run.version
        index = 0
        while True:
            running = self._other_running(host_run, name)
            found = self._pool.with_retries(lambda store: once_for_all.read_state(store, version, name))
            if found is None and running is not None and not (host_run.in_wave and running.in_wave):
                # The key was lost with the session of this run. The other host writes it again when it has finished.
                runtime.sleep(_SECONDS_BETWEEN_READS)
                continue
            if found is None or found.state != once_for_all.RUNNING or found.host == host_run.host:
                return found
            # Only a host that has begun it here can be between its write and its note of that, and it has the lock then.
            with self._lock:
                running = self._other_running(host_run, name)
            if running is None and self._pool.with_retries(partial(self._is_left, name=name, found=found)):
                return replace(found, state=_LEFT)
            other = self._host_runs.get(found.host)
            if host_run.in_wave and other is not None and other.in_wave:
                # The hosts of a wave run each task at the same time, so the other host would have finished before.
                error = f"it did not finish; the record of {found.host} says why"
                return replace(found, state=once_for_all.FAILED, error=error)
            since = max(index, found.index)

            def wait(store: Store, since: int = since) -> int:
                return store.wait_for_change(since, _LONGEST_QUERY, [store.keys.once(version, name)])

            index = self._pool.with_retries(wait)

    def _gone(self, name: str) -> UpgradeError:
        return UpgradeError(
            "once_gone",
            f"{name} runs once for all hosts, but the run that began it has ended or lost its Consul session. "
            + (
                "The next host that tries again runs it as a whole."
                if self._run.on_host
                else "Run the same command again: a host of that run runs it as a whole."
            ),
        )

    def _left(self, name: str, found: once_for_all.RunOnceState) -> UpgradeError:
        return UpgradeError(
            "once_gone",
            f"{name} runs once for all hosts. Consul says that {found.host} still runs it, but no host of this run does: an older snapshot of Consul "
            "was restored, or its end could not be written. It may have run already. Run the same command again: a host of that run runs it as a whole.",
        )

    def _is_left(self, store: Store, name: str, found: once_for_all.RunOnceState) -> bool:
        """Return whether Consul says that this run still works on a task group. Call it when none of its hosts does.

        No process will end it: an older snapshot of Consul was restored, or the end could not be written. A host that has just ended has changed the key.
        """
        return once_for_all.is_locked(store, self._session.name, self._run.version, name, found.index)

    def _other_running(self, host_run: HostRun, name: str) -> HostRun | None:
        """Return the other host of this run that runs a task group for all hosts now.

        If the session is lost, so is the key, but the task group still runs.
        """
        return next(
            (one for one in list(self._host_runs.values()) if one is not host_run and one.running_once == name), None
        )

    def _failed_elsewhere(self, host_run: HostRun, name: str, found: once_for_all.RunOnceState) -> bool:
        """Return whether a task group for all hosts failed on another host and is not retried."""
        retries = self._run.retry_failed and name not in self._failed_here
        return found.state == once_for_all.FAILED and not retries and found.host != host_run.host

    def _failed(self, host_run: HostRun, name: str, found: once_for_all.RunOnceState) -> UpgradeError:
        error = (found.error or "no error was recorded").rstrip(". ")
        return UpgradeError(
            "once_failed",
            f"{name}, which {found.host} runs for all hosts, failed there: {error}. Fix that, "
            + (
                f"then ansible-playbook convoy.upgrade.retry {option('host', f'{found.host},{host_run.host}')}."
                if self._run.on_host
                else "and run the same command with -e retry_failed=true."
            ),
        )
