# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planner writes that compare hosts' own records. A host that writes its record all the time is left out, and stops no other host."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .._common.names import in_order, listing
from .._consul.client import Operation
from .._consul.errors import Conflict
from .._consul.operations import Change
from .._state.keys import Keys

# After so many conflicts over its record, a host is left out.
MOST_CONFLICTS = 3
# All hosts together may cost one pass so many writes that were refused; a fleet whose hosts all write all the time would
# use up the time that its admissions need.
_MOST_REFUSED = 30
# In bytes, of the operations of one write. Consul takes 512 KiB, and the ledger and the history need room too.
_MOST_BYTES = 150_000


@dataclass(frozen=True, slots=True)
class HostWrite:
    """What is written for one host, with the comparison of its record, and what that changes."""

    operations: Sequence[Operation]
    changes: Sequence[Change]


def write_hosts(
    keys: Keys,
    hosts: Iterable[str],
    most: int,
    make: Callable[[Sequence[str], Collection[str]], Mapping[str, HostWrite]],
    write: Callable[[Sequence[str], list[Operation], list[Change]], None],
) -> list[str]:
    """Write for hosts, some at a time; return the hosts that were left out, because their records kept changing.

    :param most: how many hosts one write has room for.
    :param make: takes hosts, and those of them whose records have changed since the caller read them; returns what is to be written.
        A host that is not in it any more has nothing to be written.
    :param write: carries out one write for these hosts.
    :raises Conflict: if anything else than a record has changed.
    """
    waiting, refused = deque(hosts), 0
    conflicts: Counter[str] = Counter()
    left_out: list[str] = []
    while waiting:
        piece = [waiting.popleft() for _each in range(min(most, len(waiting)))]
        writes = dict(make(piece, [host for host in piece if conflicts[host]]))
        taken = _that_fit(writes)
        waiting.extendleft(reversed([host for host in writes if host not in taken]))
        if not taken:
            continue
        try:
            write(
                list(taken),
                [operation for host in taken for operation in writes[host].operations],
                [change for host in taken for change in writes[host].changes],
            )
        except Conflict as error:
            changed = [host for host in taken if keys.record(host) in error.details.get("keys", ())]
            if not changed or len(changed) < len(error.details["keys"]):
                raise
            refused += 1
            conflicts.update(changed)
            given_up = [host for host in changed if conflicts[host] >= MOST_CONFLICTS or refused >= _MOST_REFUSED]
            left_out += given_up
            waiting.extendleft(reversed([host for host in taken if host not in changed]))
            # Last, and one write for all of them, so that they cost the others nothing more.
            waiting.extend(host for host in changed if host not in given_up)
    return in_order(left_out)


def left_out_warning(keys: Keys, hosts: Sequence[str], what: str) -> str:
    """Return the sentence that names hosts whose records kept changing.

    :param what: what was not done for them.
    """
    return (
        f"{what} for {listing(hosts)}, because {keys.records}<host> changed during each of {MOST_CONFLICTS} tries. Nothing else waits "
        "for that. If it goes on, something on the host writes its record all the time: stop its agent, and look at the host "
        f"with status.yml -e host={hosts[0]}."
    )


def _that_fit(writes: Mapping[str, HostWrite]) -> list[str]:
    """Return the first hosts whose writes have room in one transaction: one at least."""
    taken: list[str] = []
    size = 0
    for host, one in writes.items():
        size += len(json.dumps(list(one.operations)))
        if taken and size > _MOST_BYTES:
            break
        taken.append(host)
    return taken
