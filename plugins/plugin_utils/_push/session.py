# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's session with Consul: as long as it lives, the run's hosts are its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Unreachable
from ...module_utils._host import leases
from .connections import StorePool


class RunSession:
    """A session that is renewed until it is closed.

    :param taken: the hosts that have to be claimed again when Consul has ended the session, as after being away.
    """

    def __init__(self, pool: StorePool, taken: Callable[[], list[str]]) -> None:
        """Open it."""
        self._pool = pool
        self._taken = taken
        self._closed = threading.Event()
        self._renewed = time.monotonic()
        self.lost: dict[str, str] = {}
        with pool.store() as store:
            self.name = leases.open_session(store)
        threading.Thread(target=self._renew, daemon=True).start()

    def claim(self, host: str) -> str | None:
        """Take a host on; return who has it, None where it is this run's now."""
        with self._pool.store() as store:
            return leases.acquire(store, self.name, host)

    def release(self, host: str) -> None:
        """Let a host go, for other runs to take it on."""
        self._pool.with_retries(lambda store: store.client.write(leases.release(store, [host])))

    def check(self, host: str) -> None:
        """Refuse to go on with a host that another run took while Consul was away.

        :raises UpgradeError: ``taken``.
        """
        if host in self.lost:
            raise UpgradeError(
                "taken",
                f"{host} was taken by {self.lost[host]} while this run's session with Consul was lost. Leave it to that run.",
            )

    def close(self) -> None:
        """End it, and with it all claims."""
        self._closed.set()
        try:
            with self._pool.store() as store:
                store.client.close_session(self.name)
        except UpgradeError:
            # It ends by itself soon.
            pass

    def _renew(self) -> None:
        while not self._closed.wait(leases.RENEW_EVERY):
            try:
                with self._pool.store() as store:
                    if not store.client.renew_session(self.name) and not self._closed.is_set():
                        self._reopen()
            except Unreachable:
                continue
            except UpgradeError as error:
                self.lost |= dict.fromkeys(self._taken(), f"no one knows whom ({error.message})")

    def _reopen(self) -> None:
        with self._pool.store() as store:
            self.name = leases.open_session(store)
            for host in self._taken():
                who = leases.acquire(store, self.name, host)
                if who is not None:
                    self.lost[host] = who
