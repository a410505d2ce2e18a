# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Consul session of a push run, and the leases of its hosts. Other runs can't upgrade these hosts while the session exists."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Unreachable
from ...module_utils._host import leases
from .connections import StorePool


class RunSession:
    """A session that a thread renews until it is closed. ``lost`` is host -> the other run that acquired its lease meanwhile.

    :param active_hosts: returns the hosts whose leases are acquired again if the session expires while Consul can't be reached.
    """

    def __init__(self, pool: StorePool, active_hosts: Callable[[], list[str]]) -> None:
        """Open the session."""
        self._pool = pool
        self._active_hosts = active_hosts
        self._closed = runtime.event()
        # Whether active hosts may be without their leases, because the session was opened again.
        self._is_incomplete = False
        self.lost: dict[str, str] = {}
        with pool.store() as store:
            self.name = leases.open_session(store)
        runtime.start_thread(self._renew)

    def acquire(self, host: str) -> str | None:
        """Acquire the lease of a host, also if Consul can't be reached for a moment; return None, or a text on the other run that has it."""
        return self._pool.with_retries(lambda store: leases.acquire(store, self.name, host))

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

    def close(self) -> None:
        """End the session, and with it all leases."""
        self._closed.set()
        try:
            with self._pool.store() as store:
                store.client.close_session(self.name)
        except UpgradeError:
            # It expires soon.
            pass

    def _renew(self) -> None:
        while not self._closed.wait(leases.RENEW_EVERY):
            try:
                with self._pool.store() as store:
                    if not store.client.renew_session(self.name) and not self._closed.is_set():
                        self.name = leases.open_session(store)
                        self._is_incomplete = True
                if self._is_incomplete:
                    self._acquire_again()
            except Unreachable:
                continue
            except UpgradeError as error:
                self.lost |= dict.fromkeys(self._active_hosts(), f"an unknown run ({error.message})")

    def _acquire_again(self) -> None:
        """Acquire the leases of all active hosts. It is repeated if Consul can't be reached in between."""
        with self._pool.store() as store:
            for host in self._active_hosts():
                holder = leases.acquire(store, self.name, host)
                if holder is not None:
                    self.lost[host] = holder
        self._is_incomplete = False
