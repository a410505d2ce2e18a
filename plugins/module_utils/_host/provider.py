# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The upgrade of a provider: one host at a time runs it under a lock, and stores its progress in the provider's key.

The lock is deleted with the session of the run, and when another rollout begins. The provider's key stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from .._codecs.provider import decode_provider, encode_provider
from .._codecs.values import decode_version
from .._common import runtime
from .._common.errors import UpgradeError
from .._consul.errors import Conflict
from .._consul.operations import compare, compare_and_put, lock, remove, unlock
from .._fleet.checkpoints import is_checkpoint_group
from .._fleet.providers import UPGRADED, Provider
from .._state.store import Store
from . import leases, once_for_all


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider, and the host that upgrades it or upgraded it last.

    :param index: the ModifyIndex of its key, 0 if there is none.
    :param fleet_target: the version that the fleet should run, None if none is set.
    :param fleet_target_index: the ModifyIndex of ``current_version``, 0 if it is not set.
    """

    provider: Provider
    index: int = 0
    holder: once_for_all.RunOnceState | None = None
    fleet_target: str | None = None
    fleet_target_index: int = 0

    def has_done(self, task_group: str, version: str) -> bool:
        """Return whether a task group is finished in the upgrade to a version."""
        if self.provider.is_at(version):
            return True
        is_done = task_group in self.provider.done
        return is_done and (self.provider.target == version or is_checkpoint_group(task_group))


@dataclass(frozen=True, slots=True)
class ProviderUpgrade:
    """The upgrade of a provider by one host of a run.

    :param version: the target of the host's rollout.
    :param session: the run's Consul session.
    :param task_groups: the provider's task groups on its upgrade path.
    :param origin: the version before the upgrade, empty if it is not known. After an unfinished rollback, it differs from the
        version in the provider's key.
    """

    name: str
    version: str
    host: str
    session: str
    task_groups: Collection[str] = ()
    origin: str = ""

    def refuse_to_begin(self, found: ProviderState) -> None:
        """Raise an error if the fleet has another target, or the provider another version than this upgrade begins at.

        :raises UpgradeError: ``overtaken``, ``provider_changed``.
        """
        if found.fleet_target != self.version:
            raise UpgradeError(
                "overtaken",
                f"The fleet should now run {found.fleet_target!r} instead of {self.version!r}, so {self.host} does not continue with the "
                f"provider {self.name}.",
            )
        self._refuse_moved(found.provider)

    def begin(self, store: Store, task_group: str, found: ProviderState) -> bool:
        """Begin a task group; return False if a key has changed since ``found`` was read, as when another host began it first.

        :param found: the result of :func:`read_provider`, checked by :meth:`refuse_to_begin`.
        """
        before = found.provider
        after = Provider(
            self.origin or before.version,
            self.version,
            self.host,
            task_group,
            self._kept(before),
            at=int(runtime.now()),
        )
        lock_key = self._lock_key(store)
        operations = [
            compare(store.keys.current_version, found.fleet_target_index),
            compare(lock_key, found.holder.index if found.holder else 0),
            lock(lock_key, once_for_all.value(once_for_all.RUNNING, self.host), self.session),
            compare_and_put(store.keys.provider(self.name), encode_provider(after), found.index),
        ]
        try:
            store.client.write(operations)
        except Conflict:
            return False
        return True

    def finish(self, store: Store, done: Collection[str]) -> None:
        """Record further task groups that the host has finished.

        :raises UpgradeError: ``provider_gone``.
        :raises Conflict: if another process wrote in between; retry. The methods below raise the same.
        """
        self._record(store, partial(self._further, done=done), has_begun=True)

    def complete(self, store: Store, *, has_begun: bool) -> None:
        """Record that the provider runs the version.

        :param has_begun: whether the host has begun a task group. If it has not, and the fleet's target has changed, nothing is
            recorded.
        :raises UpgradeError: ``provider_gone``, ``provider_changed``.
        """
        self._record(
            store, lambda _before: Provider(self.version, host=self.host, at=int(runtime.now())), has_begun=has_begun
        )

    def fail(self, store: Store, error: str) -> None:
        """Record why the current task group failed.

        :raises UpgradeError: ``provider_gone``.
        """
        self._record(store, partial(self._further, error=error), has_begun=True)

    def release(self, store: Store) -> None:
        """Release the lock, so that another host can run the next task group."""
        found = read_provider(store, self.version, self.name)
        if found.holder is not None and (found.holder.state, found.holder.host) == (once_for_all.RUNNING, self.host):
            store.client.write([compare(self._lock_key(store), found.holder.index), remove(self._lock_key(store))])

    def _record(self, store: Store, change: Callable[[Provider], Provider], *, has_begun: bool) -> None:
        found = read_provider(store, self.version, self.name, self.host, self.session)
        before, holder = found.provider, found.holder
        if holder is not None and holder.state == once_for_all.RUNNING and holder.host != self.host:
            raise self._gone()
        if before.is_at(self.version):
            return
        if has_begun and (before.target, before.host) != (self.version, self.host):
            # Another rollout began to upgrade it meanwhile, and may have finished.
            raise self._gone()
        if not has_begun:
            if found.fleet_target != self.version:
                return
            self._refuse_moved(before)
        after = change(before)
        lock_key = self._lock_key(store)
        state = once_for_all.FAILED if after.error else once_for_all.DONE if not after.target else once_for_all.RUNNING
        # The session may have been lost and the lock with it: take the lock again in the same transaction.
        operations = [
            compare(lock_key, holder.index if holder else 0),
            lock(lock_key, once_for_all.value(state, self.host, after.error), self.session),
            compare_and_put(store.keys.provider(self.name), encode_provider(after), found.index),
        ]
        if not has_begun:
            operations.append(compare(store.keys.current_version, found.fleet_target_index))
        if state != once_for_all.RUNNING:
            operations.append(unlock(lock_key, once_for_all.value(state, self.host, after.error), self.session))
        store.client.write(operations)

    def _further(self, before: Provider, done: Collection[str] = (), error: str = "") -> Provider:
        finished = (one for one in done if one in self.task_groups)
        return replace(
            before,
            target=self.version,
            host=self.host,
            task_group=before.task_group if error else "",
            done=tuple(dict.fromkeys((*self._kept(before), *finished))),
            error=error,
            at=int(runtime.now()),
        )

    def _kept(self, before: Provider) -> tuple[str, ...]:
        """Return the finished task groups that stay finished: all for the same target, else those of checkpoints on this path."""
        if before.target == self.version:
            return before.done
        return tuple(one for one in before.done if is_checkpoint_group(one) and one in self.task_groups)

    def _lock_key(self, store: Store) -> str:
        return store.keys.once(self.version, lock_of(self.name))

    def _refuse_moved(self, provider: Provider) -> None:
        if self.origin and provider.state == UPGRADED and provider.version not in ("", self.origin):
            raise UpgradeError(
                "provider_changed",
                f"The provider {self.name} is at {provider.version} now, but the upgrade path of this run begins at {self.origin}. Run the "
                "same command again with -e retry_failed=true; its upgrade path begins at the new version.",
            )

    def _gone(self) -> UpgradeError:
        return UpgradeError(
            "provider_gone",
            f"{self.host} was upgrading the provider {self.name}, and another host has taken it over, because this run lost its Consul "
            "session or another rollout began. Run the same command again; it runs again what is not recorded.",
        )


def lock_of(name: str) -> str:
    """Return the name of the provider's lock among the locks of run-once task groups."""
    return f"provider/{name}"


def read_provider(store: Store, version: str, name: str, host: str = "", session: str = "") -> ProviderState:
    """Return a provider and the host that upgrades it: one request, two if that host no longer has its lock.

    Locks belong to one rollout and are deleted when the next begins. A host without a lock still holds the provider while
    another run has a lease on that host. The holder's ``index`` is 0 then.

    :param host: the host that asks, which its own upgrade does not block; empty to only read the keys.
    :param session: the Consul session of the run that asks.
    """
    key, held = store.keys.provider(name), store.keys.once(version, lock_of(name))
    current = store.keys.current_version
    entries = {entry.key: entry for entry in store.client.read((key, held, current))}
    found, entry, target = entries.get(key), entries.get(held), entries.get(current)
    provider = decode_provider(key, found.value) if found is not None else Provider()
    holder = once_for_all.decode(entry, lock_of(name)) if entry is not None else None
    is_midway = bool(provider.target and provider.task_group and not provider.error)
    if holder is None and host and is_midway and provider.host not in ("", host):
        lease_session = leases.holding_session(store, provider.host)
        if lease_session not in ("", session):
            holder = once_for_all.RunOnceState(once_for_all.RUNNING, provider.host)
    return ProviderState(
        provider,
        found.modify_index if found is not None else 0,
        holder,
        decode_version(current, target.value) if target is not None else None,
        target.modify_index if target is not None else 0,
    )
