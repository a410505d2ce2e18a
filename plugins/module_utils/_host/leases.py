# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases of hosts: a push run has a Consul session, and locks one key for each host that it works on.

Consul deletes the keys with the session: at once if the run ends it, and after some seconds if the run's machine is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass, fields

from .._codecs.values import decode_data, sanitize_all
from .._common import runtime
from .._common.clock import is_time
from .._common.errors import UpgradeError
from .._common.processes import boot_id, start_ticks
from .._consul.client import ConsulClient, KVEntry, Operation
from .._consul.errors import Conflict
from .._consul.operations import check_lock, lock, remove
from .._consul.retry import retry_on_conflict
from .._consul.settings import Settings
from .._fleet.ledger import is_count
from .._state.store import Store, current_user

# Consul's minimum is 10.
SESSION_SECONDS = 15
RENEW_EVERY = 5
_SESSION = re.compile(r"[0-9A-Za-z-]{1,64}")


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The run that has the lease of a host.

    :param by: user and machine, for messages.
    :param since: unix seconds.
    :param machine: the run's machine, see :func:`~.._common.processes.boot_id`.
    :param pid: the run's process on that machine.
    :param started: when that process started, in clock ticks since boot, in case its PID is reused.
    """

    by: str
    since: int
    session: str
    machine: str
    pid: int
    started: int

    def __str__(self) -> str:
        """Return user, machine and time of day, for messages."""
        return f"{self.by} since {time.strftime('%H:%M:%S', time.localtime(self.since))}"

    @staticmethod
    def of_this_process(session: str) -> LeaseHolder:
        """Return this process as the holder of what a session locks."""
        pid = os.getpid()
        return LeaseHolder(current_user(), int(runtime.now()), session, boot_id(), pid, start_ticks(pid) or 0)

    @property
    def is_dead(self) -> bool:
        """Whether the run is known to have ended, which can be found out only on its own machine, and not if it could not see its own start."""
        is_known = bool(self.machine and self.started) and self.machine == boot_id()
        return is_known and start_ticks(self.pid) != self.started


def open_session(store: Store) -> str:
    """Return the ID of a new session for this run."""
    return store.client.open_session(f"convoy.upgrade of {current_user()}", SESSION_SECONDS)


def renew_session(settings: Settings, session: str, over: runtime.Event) -> None:
    """Renew a session until an event is set or Consul has ended the session. For a thread; the next write shows whether a lock still holds."""
    client: ConsulClient | None = None
    while not over.wait(RENEW_EVERY):
        with contextlib.suppress(UpgradeError):
            # A file with a certificate may be missing for a moment, such as while it is replaced.
            client = client or ConsulClient(settings)
            if not client.renew_session(session):
                return


def check_session(store: Store, host: str) -> None:
    """Check that a host may open a session, which its tasks of services need. Consul attaches a session to the node of the agent that is asked.

    :raises UpgradeError: ``denied``, and what :meth:`ConsulClient.write` raises.
    """
    try:
        session = open_session(store)
    except UpgradeError as error:
        if error.code != "denied":
            raise
        raise UpgradeError(
            "denied",
            f"{host} may open no session in Consul, which the tasks of its services need. Create its token again with runs_services: true, and let it "
            f"ask the Consul agent of its own node (puppet_gate_consul), which must have the name {host}. {error.message}",
        ) from error
    store.client.close_session(session)


def acquire(store: Store, session: str, host: str) -> str | None:
    """Acquire the lease of a host; return None, or a text on the other run that has it.

    If that run was killed on this machine, its session is ended first, so that its leases do not last until the session expires.

    :raises UpgradeError: ``busy``, or what :meth:`ConsulClient.write` raises.
    """
    key = store.keys.lease(host)

    def attempt() -> str | None:
        try:
            store.client.write([_lock(store, session, host)])
        except Conflict:
            entry = store.client.get(key)
            if entry is not None and not end_dead_holder(store, entry):
                return str(decode_holder(entry.value) or "another run")
            raise
        return None

    return retry_on_conflict(attempt, lambda: key, "Run the same command again when fewer runs work on this host.")


def may_be_own(store: Store, host: str) -> bool:
    """Return whether the lease of a host is free now, or belongs to a run on the machine with this name, such as one from before its boot: one request.

    :raises UpgradeError: what :meth:`ConsulClient.read` raises.
    """
    entry = store.client.get(store.keys.lease(host))
    holder = decode_holder(entry.value) if entry is not None else None
    return entry is None or (holder is not None and _machine_of(holder.by) == _machine_of(current_user()))


def _machine_of(user: str) -> str:
    return user.rpartition("@")[2]


def holding_session(store: Store, host: str) -> str:
    """Return the session of the run that has the lease of a host; empty if there is none or it can't be read: one request.

    :raises UpgradeError: what :meth:`ConsulClient.read` raises.
    """
    entry = store.client.get(store.keys.lease(host))
    holder = decode_holder(entry.value) if entry is not None else None
    return holder.session if holder is not None else ""


def release(store: Store, session: str, host: str) -> None:
    """Release the lease of a host, unless another session has it.

    :raises UpgradeError: what :meth:`ConsulClient.write` raises.
    """
    key = store.keys.lease(host)
    with contextlib.suppress(Conflict):
        store.client.write([check_lock(key, session), remove(key)])


def _lock(store: Store, session: str, host: str) -> Operation:
    holder = asdict(LeaseHolder.of_this_process(session))
    return lock(store.keys.lease(host), json.dumps(holder, sort_keys=True), session)


def end_dead_holder(store: Store, entry: KVEntry | None) -> bool:
    """End the session of a lock's holder if that process of this machine is dead, without waiting until it expires; return whether it was.

    :param entry: the locked key; None if there is none.
    :raises UpgradeError: what :meth:`ConsulClient.write` raises.
    """
    holder = decode_holder(entry.value) if entry is not None else None
    if holder is None or not holder.is_dead:
        return False
    store.client.close_session(holder.session)
    return True


def decode_holder(value: bytes) -> LeaseHolder | None:
    """Return the holder of a lease, None if the value can't be read."""
    try:
        data = sanitize_all(decode_data(value))
        holder = LeaseHolder(**{one.name: data[one.name] for one in fields(LeaseHolder)})
    except (ValueError, TypeError, KeyError):
        return None
    texts, counts = (holder.by, holder.machine), (holder.pid, holder.started)
    fits = all(isinstance(one, str) for one in texts) and all(map(is_count, counts)) and is_time(holder.since)
    # The session becomes part of a URL.
    return holder if fits and isinstance(holder.session, str) and _SESSION.fullmatch(holder.session) else None
