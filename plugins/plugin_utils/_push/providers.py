# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The providers of a run: which of its hosts is at one, and who waits for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from functools import partial

from ...module_utils._common.errors import UpgradeError
from ...module_utils._host import once_for_all, provider
from ...module_utils._host.host_report import truncate_error
from ...module_utils._state.store import Store
from .connections import StorePool
from .run import PushRun, RunTaskGroup
from .session import RunSession

BEGUN, DONE, PASSED, IN_PART = "begun", "done", "passed", "in part"

# Seconds that one question takes at most.
_LONG = 600


class Providers:
    """What the hosts of one run do for providers."""

    def __init__(self, run: PushRun, pool: StorePool, session: RunSession) -> None:
        """No one is at any."""
        self._run = run
        self._pool = pool
        self._session = session
        # Host -> provider -> the unit that it is at, empty between two.
        self._at: dict[str, dict[str, str]] = {}
        self._complete: set[str] = set()
        self._in_part: set[str] = set()
        # Held while a host begins, so that whoever sees in Consul who is at a provider finds it here too.
        self._lock = threading.Lock()

    def begin(self, host: str, unit: RunTaskGroup, *, together: bool) -> str:
        """Begin a unit of a provider on a host, once no other host is at that provider.

        :param together: whether hosts take each task together, so that this one must not wait for one of them: then the unit
            is passed.
        :returns: :data:`BEGUN`; :data:`DONE` where nothing is left to do; :data:`PASSED`; :data:`IN_PART` where another host
            of this run did what tags chose of it.
        :raises UpgradeError: ``provider_failed``, ``provider_moved``, ``unreadable_provider``, ``overtaken``.
        """
        name, version = unit.service, self._run.version
        index = 0
        while True:
            found = self._look(name, host)
            if found.has_done(unit.name, version):
                return DONE
            if unit.name in self._in_part:
                return IN_PART
            self._upgrade(host, name).refuse_to_begin(found)
            holder = found.holder
            if holder is not None and holder.state == once_for_all.FAILED:
                self._refuse_failed(host, name, holder)
            with self._lock:
                at_it = self._who_is_at(host, name, holder, together=together)
                if at_it is None and self._begin(host, unit, found):
                    if holder is not None and holder.host != host:
                        self._at.get(holder.host, {}).pop(name, None)
                    self._at.setdefault(host, {})[name] = unit.name
                    return BEGUN
            if together and at_it is not None and name in self._at.get(at_it, {}):
                return PASSED
            # Another run has it; or another one was faster; or a run that is gone had it, and its session is still to end.
            self._let_go_of_others(host, name)
            index = max(index, found.index, holder.index if holder is not None else 0)
            keys = self._keys(name, holder)
            index = self._pool.with_retries(partial(_next_change, since=index, keys=keys))

    def finish(self, host: str, unit: RunTaskGroup, done: Collection[str]) -> None:
        """Say that a host is through a unit of a provider.

        :param done: the units that it has finished; without this one, where tags chose only some of it.
        :raises UpgradeError: ``provider_gone``.
        """
        name = unit.service
        if self._at.get(host, {}).get(name) != unit.name:
            return
        if unit.name not in done:
            self._in_part.add(unit.name)
        try:
            upgrade = self._upgrade(host, name)
            if self._are_done(host, name, done):
                self._complete_provider(upgrade, has_begun=True)
            else:
                self._pool.with_retries(lambda store: upgrade.finish(store, done))
        finally:
            self._at[host][name] = ""

    def check(self, host: str, unit: RunTaskGroup) -> bool:
        """Refuse to go on where a unit was passed that another host of the wave has not finished.

        :returns: whether the unit is done; not so where tags chose only some of it.
        :raises UpgradeError: ``provider_failed``, ``provider_gone``.
        """
        found = self._look(unit.service, host)
        if found.has_done(unit.name, self._run.version):
            return True
        if unit.name in self._in_part:
            return False
        if found.holder is not None and found.holder.state == once_for_all.FAILED:
            raise _failed(unit.service, found.holder)
        raise UpgradeError(
            "provider_gone",
            f"{unit.name} of the provider {unit.service} was begun by another host of the wave than {host}, and that did not "
            "end it; its own record says why. Fix that, and run the same command with -e retry_failed=true.",
        )

    def leave(self, host: str, done: Collection[str]) -> None:
        """End what a host has to do with providers, as its turn ends: complete what is complete, and let go of the rest.

        :param done: the units that it has finished.
        :raises UpgradeError: ``provider_gone``, ``provider_moved``.
        """
        mine = self._at.pop(host, {})
        for name in self._run.providers_of(host):
            if name not in self._complete and self._are_done(host, name, done):
                self._complete_provider(self._upgrade(host, name), has_begun=False)
            elif name in mine and name not in self._complete:
                self._release(host, name)

    def fail(self, host: str, error: str) -> None:
        """End what a host has to do with providers, as its turn failed."""
        with contextlib.ExitStack() as all_of_them:
            for name, unit in self._at.pop(host, {}).items():
                if name in self._complete:
                    continue
                if unit:
                    why = truncate_error(error) or "it failed without a message"
                    all_of_them.callback(self._fail, self._upgrade(host, name), why)
                else:
                    # It failed elsewhere, so another host may go on.
                    all_of_them.callback(self._release, host, name)

    def _who_is_at(
        self, host: str, name: str, holder: once_for_all.RunOnceState | None, *, together: bool
    ) -> str | None:
        """Return the host that keeps another one from beginning a unit of a provider, None where that may try."""
        # A lock goes with its session, and what runs under it goes on.
        busy = next((other for other, at in list(self._at.items()) if other != host and at.get(name)), None)
        if busy is not None or holder is None or holder.host == host or holder.state != once_for_all.RUNNING:
            return busy
        # It is between two units then. Of a wave, the files of one role come after those of another, so its host is not
        # waited for; those of its own role leave the next unit to it.
        is_passed_by = together and name in self._at.get(holder.host, {})
        if is_passed_by and self._run.fleet.get(holder.host) != self._run.fleet.get(host):
            return None
        return holder.host

    def _let_go_of_others(self, host: str, name: str) -> None:
        """Let go of the providers that a host is at between two units, before it waits for another: their hosts may wait for it."""
        for other, unit in list(self._at.get(host, {}).items()):
            if other != name and not unit and other not in self._complete:
                del self._at[host][other]
                self._release(host, other)

    def _keys(self, name: str, holder: once_for_all.RunOnceState | None) -> list[str]:
        """Return the keys of which one changes before a host may begin that could not now."""
        with self._pool.store() as store:
            held = store.keys.once(self._run.version, provider.lock_of(name))
            keys = [store.keys.provider(name), held, store.keys.current_version]
            # What another rollout's host is at is known by its claim.
            return keys if holder is None or holder.index else [*keys, store.keys.driver(holder.host)]

    def _look(self, name: str, host: str) -> provider.ProviderState:
        session, version = self._session.name, self._run.version
        found = self._pool.with_retries(lambda store: provider.read_provider(store, version, name, host, session))
        if not found.provider.readable:
            raise UpgradeError("unreadable_provider", f"The provider {name} can't be upgraded: {found.provider.error}")
        return found

    def _begin(self, host: str, unit: RunTaskGroup, found: provider.ProviderState) -> bool:
        upgrade = self._upgrade(host, unit.service)
        return self._pool.with_retries(lambda store: upgrade.begin(store, unit.name, found))

    def _complete_provider(self, upgrade: provider.ProviderUpgrade, *, has_begun: bool) -> None:
        self._pool.with_retries(lambda store: upgrade.complete(store, has_begun=has_begun))
        self._complete.add(upgrade.name)

    def _fail(self, upgrade: provider.ProviderUpgrade, error: str) -> None:
        self._pool.with_retries(lambda store: upgrade.fail(store, error))

    def _release(self, host: str, name: str) -> None:
        self._pool.with_retries(self._upgrade(host, name).release)

    def _upgrade(self, host: str, name: str) -> provider.ProviderUpgrade:
        return provider.ProviderUpgrade(
            name,
            self._run.version,
            host,
            self._session.name,
            self._units(host, name),
            self._run.providers.get(name, ""),
        )

    def _units(self, host: str, name: str) -> list[str]:
        return [unit.name for unit in self._run.units_of(host) if unit.provider and unit.service == name]

    def _are_done(self, host: str, name: str, done: Collection[str]) -> bool:
        return all(unit in done for unit in self._units(host, name))

    def _refuse_failed(self, host: str, name: str, holder: once_for_all.RunOnceState) -> None:
        if holder.host != host and not self._run.retry_failed:
            raise _failed(name, holder)


def _failed(name: str, holder: once_for_all.RunOnceState) -> UpgradeError:
    return UpgradeError(
        "provider_failed",
        f"The provider {name}, which {holder.host} upgrades for all hosts, failed there: {holder.error or 'without a word'} "
        "Fix that, and run the same command with -e retry_failed=true.",
    )


def _next_change(store: Store, since: int, keys: Collection[str]) -> int:
    """Return Consul's index once one of the keys has changed, or after a while."""
    return store.wait_for_change(since, _LONG, [*keys])
