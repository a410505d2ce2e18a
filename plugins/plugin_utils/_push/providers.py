# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The upgrades of providers in a run: one host at a time runs a provider's task groups, and others wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from functools import partial
from typing import NoReturn

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._host import once_for_all, provider
from ...module_utils._host.host_report import truncate_error
from ...module_utils._state.store import Store
from ...module_utils._state.store_pool import StorePool
from .run import PushRun, RunTaskGroup
from .session import RunSession

BEGUN, DONE, LEFT_TO_OTHER, PARTIAL = "begun", "done", "left to other", "partial"

# The longest blocking query (seconds).
_LONGEST_QUERY = 600


class Providers:
    """Lets one host at a time run the task groups of a provider."""

    def __init__(self, run: PushRun, pool: StorePool, session: RunSession) -> None:
        """Keep the arguments."""
        self._run = run
        self._pool = pool
        self._session = session
        # Host -> provider -> the task group that it runs, empty between two task groups.
        self._current: dict[str, dict[str, str]] = {}
        self._complete: set[str] = set()
        # Those that failed in this run. None of its hosts tries them again.
        self._failed: set[str] = set()
        self._partial: set[str] = set()
        # Held while a host begins, so that a holder that another thread reads from Consul is in _current too.
        self._lock = runtime.lock()

    def begin(self, host: str, task_group: RunTaskGroup, *, in_wave: bool) -> str:
        """Begin a provider's task group on a host, once no other host upgrades that provider.

        :param in_wave: whether the host runs each task at the same time as the other hosts of its wave. It must not wait for them.
        :returns: :data:`BEGUN`; :data:`DONE` if the task group is finished; :data:`LEFT_TO_OTHER` if another host of the wave runs it;
            :data:`PARTIAL` if another host of this run ran the part that tags select.
        :raises UpgradeError: ``provider_failed``, ``provider_changed``, ``unreadable_provider``, ``overtaken``.
        """
        name, version = task_group.service, self._run.version
        index = 0
        while True:
            found = self._read(name, host)
            if found.has_done(task_group.name, version):
                return DONE
            if task_group.name in self._partial:
                return PARTIAL
            self._upgrade(host, name, "").refuse_to_begin(found)
            holder = found.holder
            if holder is not None and holder.state == once_for_all.FAILED:
                self._refuse_failed(host, name, holder)
            with self._lock:
                has_failed_here = name in self._failed and self._host_at_work(name) is None
                blocking = self._blocking_host(host, name, holder, in_wave=in_wave)
                if blocking is None and not has_failed_here and self._begin(host, task_group, found):
                    if holder is not None and holder.host != host:
                        self._current.get(holder.host, {}).pop(name, None)
                    self._current.setdefault(host, {})[name] = task_group.name
                    return BEGUN
            if has_failed_here:
                # It may have been written since.
                self._refuse_failed_here(host, name)
            if in_wave and blocking is not None and name in self._current.get(blocking, {}):
                return LEFT_TO_OTHER
            # Another host holds the provider or wrote first, or the session of a run that is gone has not expired.
            self._release_others(host, name)
            index = max(index, found.index, holder.index if holder is not None else 0)
            keys = self._keys(name, holder)
            index = self._pool.with_retries(partial(_next_change, since=index, keys=keys))

    def finish(self, host: str, task_group: RunTaskGroup, done: Collection[str]) -> None:
        """Record that a host has finished a provider's task group.

        :param done: the task groups that it has finished. If tags select only a part of this one, it is not among them.
        :raises UpgradeError: ``provider_gone``.
        """
        name = task_group.service
        if self._current.get(host, {}).get(name) != task_group.name:
            return
        if task_group.name not in done:
            self._partial.add(task_group.name)
        try:
            if self._are_done(host, name, done):
                self._complete_provider(host, name, has_begun=True)
            else:
                self._session.use(lambda store, session: self._upgrade(host, name, session).finish(store, done))
        except UpgradeError as error:
            # Otherwise it failed here: no other host may run the task group again.
            if error.code == "provider_gone":
                self._current[host][name] = ""
            raise
        self._current[host][name] = ""

    def check(self, host: str, task_group: RunTaskGroup) -> bool:
        """Return whether a task group that was left to another host of the wave is finished; False if tags selected only a part of it.

        :raises UpgradeError: ``provider_failed``, ``provider_gone``: the other host has not finished it.
        """
        found = self._read(task_group.service, host)
        if found.has_done(task_group.name, self._run.version):
            return True
        if task_group.name in self._partial:
            return False
        if found.holder is not None and found.holder.state == once_for_all.FAILED:
            raise _failed(task_group.service, found.holder)
        raise UpgradeError(
            "provider_gone",
            f"{task_group.name} of the provider {task_group.service} is not finished: another host of the wave than {host} began it and did "
            "not finish. Look at the states of the hosts (ansible-playbook convoy.upgrade.status), fix that, and run "
            "the same command with -e retry_failed=true.",
        )

    def leave(self, host: str, done: Collection[str]) -> None:
        """Record the providers of a host as upgraded if it has finished all their task groups; else release them.

        :param done: the task groups that it has finished.
        :raises UpgradeError: ``provider_gone``, ``provider_changed``.
        """
        held = self._current.pop(host, {})
        for name in self._run.providers_of(host):
            if name not in self._complete and self._are_done(host, name, done):
                self._complete_provider(host, name, has_begun=False)
            elif name in held and name not in self._complete:
                self._release(host, name)

    def fail(self, host: str, error: str) -> None:
        """Record the failure of the provider's task group that a failed host was running, and release its other providers."""
        with contextlib.ExitStack() as stack:
            # The last callback: until the failure is written, the provider counts as busy.
            stack.callback(self._current.pop, host, None)
            for name, task_group in list(self._current.get(host, {}).items()):
                if name in self._complete:
                    continue
                if task_group:
                    self._failed.add(name)
                    why = truncate_error(error) or "it failed without a message"
                    stack.callback(self._fail, host, name, why)
                else:
                    # It failed in another task group, so another host may continue.
                    stack.callback(self._release, host, name)

    def _blocking_host(
        self, host: str, name: str, holder: once_for_all.RunOnceState | None, *, in_wave: bool
    ) -> str | None:
        """Return the other host that prevents a host from beginning a task group of a provider; None if it can try."""
        busy = self._host_at_work(name, host)
        if busy is not None or holder is None or holder.host == host or holder.state != once_for_all.RUNNING:
            return busy
        # The holder is between two task groups. In a wave, Ansible runs the files of one role before those of the next. So a holder with
        # another role is not waited for; one with the same role runs the next task group too.
        is_in_same_wave = in_wave and name in self._current.get(holder.host, {})
        if is_in_same_wave and self._run.fleet.get(holder.host) != self._run.fleet.get(host):
            return None
        return holder.host

    def _host_at_work(self, name: str, but: str = "") -> str | None:
        """Return the host of this run that runs a task group of a provider now. If the session is lost, so is its lock, but it still runs.

        :param but: a host that does not count.
        """
        return next((other for other, held in list(self._current.items()) if other != but and held.get(name)), None)

    def _release_others(self, host: str, name: str) -> None:
        """Release the providers that a host holds between two task groups, before it waits for another. Their next hosts may wait for it."""
        for other, task_group in list(self._current.get(host, {}).items()):
            if other != name and not task_group and other not in self._complete:
                del self._current[host][other]
                self._release(host, other)

    def _keys(self, name: str, holder: once_for_all.RunOnceState | None) -> list[str]:
        """Return the keys of which at least one changes before the host can begin."""
        with self._pool.store() as store:
            lock = store.keys.once(self._run.version, provider.lock_of(name))
            keys = [store.keys.provider(name), lock, store.keys.current_version]
            # A holder of another rollout is known only by the lease of its host.
            return keys if holder is None or holder.index else [*keys, store.keys.lease(holder.host)]

    def _read(self, name: str, host: str) -> provider.ProviderState:
        session, version = self._session.name, self._run.version
        found = self._pool.with_retries(lambda store: provider.read_provider(store, version, name, host, session))
        if not found.provider.readable:
            raise UpgradeError("unreadable_provider", f"The provider {name} can't be upgraded: {found.provider.error}")
        return found

    def _begin(self, host: str, task_group: RunTaskGroup, found: provider.ProviderState) -> bool:
        name = task_group.service
        return self._session.use(
            lambda store, session: self._upgrade(host, name, session).begin(store, task_group.name, found)
        )

    def _complete_provider(self, host: str, name: str, *, has_begun: bool) -> None:
        self._session.use(
            lambda store, session: self._upgrade(host, name, session).complete(store, has_begun=has_begun)
        )
        self._complete.add(name)

    def _fail(self, host: str, name: str, error: str) -> None:
        self._session.use(lambda store, session: self._upgrade(host, name, session).fail(store, error))

    def _release(self, host: str, name: str) -> None:
        self._pool.with_retries(self._upgrade(host, name, "").release)

    def _upgrade(self, host: str, name: str, session: str) -> provider.ProviderUpgrade:
        return provider.ProviderUpgrade(
            name,
            self._run.version,
            host,
            session,
            self._task_groups(host, name),
            self._run.providers.get(name, ""),
        )

    def _task_groups(self, host: str, name: str) -> list[str]:
        return [one.name for one in self._run.task_groups_of(host) if one.provider and one.service == name]

    def _are_done(self, host: str, name: str, done: Collection[str]) -> bool:
        return all(one in done for one in self._task_groups(host, name))

    def _refuse_failed(self, host: str, name: str, holder: once_for_all.RunOnceState) -> None:
        if holder.host != host and (not self._run.retry_failed or name in self._failed):
            raise _failed(name, holder)

    def _refuse_failed_here(self, host: str, name: str) -> NoReturn:
        holder = self._read(name, host).holder
        if holder is not None and holder.state == once_for_all.FAILED:
            raise _failed(name, holder)
        raise UpgradeError(
            "provider_failed",
            f"The provider {name} failed on a host of this run, and that could not be written to Consul. It may be upgraded in part. "
            "Look at it, and run the same command with -e retry_failed=true.",
        )


def _failed(name: str, holder: once_for_all.RunOnceState) -> UpgradeError:
    error = (holder.error or "no error was recorded").rstrip(". ")
    return UpgradeError(
        "provider_failed",
        f"The provider {name}, which {holder.host} upgrades for all hosts, failed there: {error}. "
        "Fix that, and run the same command with -e retry_failed=true.",
    )


def _next_change(store: Store, since: int, keys: Collection[str]) -> int:
    """Return Consul's index once one of the keys has changed, or after 10 minutes."""
    return store.wait_for_change(since, _LONGEST_QUERY, [*keys])
