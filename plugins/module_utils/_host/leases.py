# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who drives a host: a run that has a Consul session, and locks a key for each host that it takes on.

The keys go with the session: at once where the run ends it, and some seconds after the run's machine was lost.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from .._common.clock import is_time
from .._common.errors import UpgradeError
from .._common.processes import start_of, this_machine
from .._consul.client import Operation
from .._consul.errors import Conflict
from .._consul.operations import lock, remove
from .._fleet.ledger import is_count
from .._state.codec import all_printable, decode_data
from .._state.store import Store, whoami

# The shortest that Consul takes is 10.
SESSION_SECONDS = 15
RENEW_EVERY = 5
_SESSION = re.compile(r"[0-9A-Za-z-]{1,64}")


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that has a host.

    :param by: for people: user and machine.
    :param since: unix seconds.
    :param machine: as :func:`~.._processes.this_machine` tells.
    :param pid: the run's process on that machine.
    :param started: when that process started, in the kernel's ticks: a number that is used again is not the same.
    """

    by: str
    since: int
    session: str
    machine: str
    pid: int
    started: int

    def __str__(self) -> str:
        """Tell who it is."""
        return f"{self.by} since {time.strftime('%H:%M:%S', time.localtime(self.since))}"

    @property
    def is_dead(self) -> bool:
        """Whether it is known that the run is gone, which can be told on its own machine alone."""
        return bool(self.machine) and self.machine == this_machine() and start_of(self.pid) != self.started


def open_session(store: Store) -> str:
    """Return a new session of this run."""
    return store.client.open_session(f"convoy.upgrade of {whoami()}", SESSION_SECONDS)


def claim(store: Store, session: str, host: str) -> str | None:
    """Take a host on; return who has it where another run does, None where it is ours now.

    A run that was killed on this machine lets go of its hosts now, and not only when its session has run out.

    :raises UpgradeError: what :meth:`ConsulClient.write` raises.
    """
    key = store.keys.driver(host)
    for _try in range(10):
        try:
            store.client.write([_lock(store, session, host)])
        except Conflict:
            entry = store.client.get(key)
            if entry is None:
                continue
            holder = holder_in(entry.value)
            if holder is None or not holder.is_dead:
                return str(holder) if holder else "another run"
            store.client.close_session(holder.session)
            continue
        return None
    raise UpgradeError("busy", f"{key} was taken and let go of under each of 10 tries. Are there very many runs?")


def session_of(store: Store, host: str) -> str:
    """Return the session of the run that drives a host, empty where none does or where that can't be told: one request.

    :raises UpgradeError: what :meth:`ConsulClient.read` raises.
    """
    entry = store.client.get(store.keys.driver(host))
    holder = holder_in(entry.value) if entry is not None else None
    return holder.session if holder is not None else ""


def release(store: Store, hosts: Iterable[str]) -> list[Operation]:
    """Return the operations that let hosts go."""
    return [remove(store.keys.driver(host)) for host in hosts]


def _lock(store: Store, session: str, host: str) -> Operation:
    pid = os.getpid()
    holder = Holder(whoami(), int(time.time()), session, this_machine(), pid, start_of(pid) or 0)
    return lock(store.keys.driver(host), json.dumps(asdict(holder), sort_keys=True), session)


def holder_in(value: bytes) -> Holder | None:
    """Return the run that a key tells of, None where it tells of none that could be one."""
    try:
        data = all_printable(decode_data(value))
        holder = Holder(**{one.name: data[one.name] for one in fields(Holder)})
    except (ValueError, TypeError, KeyError):
        return None
    texts, counts = (holder.by, holder.machine), (holder.pid, holder.started)
    fits = all(isinstance(one, str) for one in texts) and all(map(is_count, counts)) and is_time(holder.since)
    # It becomes a part of the address that is asked.
    return holder if fits and isinstance(holder.session, str) and _SESSION.fullmatch(holder.session) else None
