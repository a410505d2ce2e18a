# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Consul session of a push run, and the leases of its hosts. Other runs can't upgrade these hosts while the session exists."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import TypeVar

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Conflict, SessionEnded
from ...module_utils._consul.operations import check_lock
from ...module_utils._host import leases
from ...module_utils._state.store import Store
from ...module_utils._state.store_pool import StorePool

T = TypeVar("T")


class RunSession:
    """A session that a thread renews until it is closed. ``lost`` is host -> the other run that acquired its lease meanwhile.
    ``regained`` are hosts whose leases were lost and acquired again, so that another run may have worked on them in between.

    :param active_hosts: returns the hosts whose leases are acquired again if the session expires while Consul can't be reached.
    """

    def __init__(self, pool: StorePool, active_hosts: Callable[[], list[str]]) -> None:
        """Open the session."""
        self._pool = pool
        self._active_hosts = active_hosts
        self._closed = runtime.event()
        # Whether active hosts may be without their leases, because the session was opened again.
        self._is_incomplete = False
        # Held while the session is opened again, so that only one thread does it.
        self._lock = runtime.lock()
        self.lost: dict[str, str] = {}
        self.regained: set[str] = set()
        with pool.store() as store:
            self.name = leases.open_session(store)
        runtime.start_thread(self._renew)

    def acquire(self, host: str) -> str | None:
        """Acquire the lease of a host, also if Consul can't be reached for a moment; return None, or a text on the other run that has it."""
        return self.use(lambda store, session: leases.acquire(store, session, host))

    def use(self, act: Callable[[Store, str], T]) -> T:
        """Return the result of a function that locks keys with this session, as :meth:`StorePool.with_retries` does.

        The thread finds out only later that the session has ended. So it is opened again, and the function called again.

        :param act: gets a store and the name of the session.
        :raises UpgradeError: what the function raises.
        """

        def attempt(store: Store) -> T:
            with contextlib.suppress(SessionEnded):
                return act(store, self.name)
            with self._lock:
                self._open_again(store)
            return act(store, self.name)

        return self._pool.with_retries(attempt)

    def release(self, host: str) -> None:
        """Release the lease of a host, unless another run has it."""
        self._pool.with_retries(lambda store: leases.release(store, self.name, host))

    def release_all(self, hosts: Collection[str]) -> None:
        """Release the leases of hosts, unless another run has them. The requests are not repeated, and the session ends with the run anyway.

        :raises UpgradeError: what :func:`leases.release` raises, with the first one that fails.
        """
        with self._pool.store() as store:
            for host in hosts:
                leases.release(store, self.name, host)

    def check(self, host: str) -> None:
        """Raise an error if another run acquired the lease of a host while this run had lost its session.

        :raises UpgradeError: ``leased``.
        """
        if host in self.lost:
            raise UpgradeError(
                "leased",
                f"This run lost its Consul session and with it the lease of {host}, which belongs to {self.lost[host]}. Let that run finish.",
            )

    def confirm(self, host: str) -> None:
        """Make sure that this run has the lease of an active host, and acquire it again if it was lost and no other run has it.

        The thread finds out only later that the session has ended, as after this process was suspended.

        :raises UpgradeError: ``leased``, and what :func:`leases.acquire` raises.
        """
        self._pool.with_retries(lambda store: self._confirm(store, host))
        self.check(host)

    def close(self) -> None:
        """End the session, and with it all leases."""
        self._closed.set()
        try:
            with self._pool.store() as store:
                store.client.close_session(self.name)
        except UpgradeError:
            # It expires soon.
            pass

    def _confirm(self, store: Store, host: str) -> None:
        with contextlib.suppress(Conflict):
            store.client.confirm(check_lock(store.keys.lease(host), self.name))
            return
        with self._lock:
            self._open_again(store)
            holder = leases.acquire(store, self.name, host)
        self._note(host, holder)

    def _note(self, host: str, holder: str | None) -> None:
        if holder is None:
            self.regained.add(host)
        else:
            self.lost[host] = holder

    def _renew(self) -> None:
        while not self._closed.wait(leases.RENEW_EVERY):
            # After a failure, such as while a certificate is replaced, it is tried again. Each write checks the lease of its host.
            with contextlib.suppress(UpgradeError), self._lock, self._pool.store() as store:
                self._open_again(store)

    def _open_again(self, store: Store) -> None:
        """Renew the session. If it has ended, open another one and acquire the leases of all active hosts.

        Leases are acquired again later if Consul can't be reached in between.
        """
        if not store.client.renew_session(self.name) and not self._closed.is_set():
            self.name = leases.open_session(store)
            self._is_incomplete = True
        if not self._is_incomplete:
            return
        for host in self._active_hosts():
            self._note(host, leases.acquire(store, self.name, host))
        self._is_incomplete = False
