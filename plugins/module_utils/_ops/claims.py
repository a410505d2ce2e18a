# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who drives a host: a run that has a Consul session, and locks a key for each host that it takes on.

The keys go with the session: at once where the run ends it, and some seconds after the run's machine was lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from .._model.errors import UpgradeError
from .._store.client import Operation
from .._store.errors import Conflict
from .._store.operations import lock, remove
from .._store.store import Store, whoami

# The shortest that Consul takes is 10.
SESSION_SECONDS = 15
RENEW_EVERY = 5


def open_session(store: Store) -> str:
    """Return a new session of this run."""
    return store.client.open_session(f"convoy.upgrade of {whoami()}", SESSION_SECONDS)


def claim(store: Store, session: str, host: str) -> str | None:
    """Take a host on; return who has it where another run does, None where it is ours now.

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
            return _who(entry.value)
        return None
    raise UpgradeError("busy", f"{key} was taken and let go of under each of 10 tries. Are there very many runs?")


def release(store: Store, hosts: Iterable[str]) -> list[Operation]:
    """Return the operations that let hosts go."""
    return [remove(store.keys.driver(host)) for host in hosts]


def _lock(store: Store, session: str, host: str) -> Operation:
    facts = {"by": whoami(), "since": int(time.time())}
    return lock(store.keys.driver(host), json.dumps(facts, sort_keys=True), session)


def _who(value: bytes) -> str:
    try:
        data = json.loads(value)
        return f"{data['by']} since {time.strftime('%H:%M:%S', time.localtime(data['since']))}"
    except (ValueError, TypeError, KeyError):
        return "another run"
