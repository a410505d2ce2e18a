# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planner writes that compare hosts' own records. A host whose record keeps changing is left out and does not stop the others."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .._common.names import in_order, listing
from .._common.sanitize import option
from .._consul.client import Operation
from .._consul.errors import Conflict
from .._consul.operations import Change
from .._state.keys import Keys

# A host is left out after this many conflicts over its record.
MOST_CONFLICTS = 3
# Refused writes in one pass, for all hosts. Without a limit, a fleet whose records all keep changing would delay its admissions.
_MOST_REFUSED = 30
# The operations of one write in bytes. Consul takes 512 KiB, and the ledger and the history need room too.
_MOST_BYTES = 150_000


@dataclass(frozen=True, slots=True)
class HostWrite:
    """The operations for one host, including the comparison of its record, and the changes that they make."""

    operations: Sequence[Operation]
    changes: Sequence[Change]


def write_hosts(
    keys: Keys,
    hosts: Iterable[str],
    most: int,
    make: Callable[[Sequence[str], Collection[str]], Mapping[str, HostWrite]],
    write: Callable[[Sequence[str], list[Operation], list[Change]], None],
) -> list[str]:
    """Write for hosts, some at a time; return the hosts that were left out because their records kept changing.

    :param most: how many hosts one write has room for.
    :param make: takes hosts, and those of them whose records have changed since the caller read them; returns host -> what to write.
        A host that is missing in the result needs no write.
    :param write: executes one write for these hosts.
    :raises Conflict: if anything but a record has changed.
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
            # They are tried last, in one write, so that they do not delay the others.
            waiting.extend(host for host in changed if host not in given_up)
    return in_order(left_out)


def left_out_warning(keys: Keys, hosts: Sequence[str], what: str) -> str:
    """Return a warning that names hosts whose records kept changing.

    :param what: a clause that says what was not done for them.
    """
    return (
        f"{what} for {listing(hosts)}, because {keys.records}<host> changed during each of {MOST_CONFLICTS} tries. Other hosts are not "
        "affected. If this repeats, something on the host keeps writing its record: stop its agent, and look at the host with "
        f"ansible-playbook convoy.upgrade.status {option('host', hosts[0])}."
    )


def _that_fit(writes: Mapping[str, HostWrite]) -> list[str]:
    """Return the first hosts whose writes fit into one transaction; at least one host."""
    taken: list[str] = []
    size = 0
    for host, one in writes.items():
        size += len(json.dumps(list(one.operations)))
        if taken and size > _MOST_BYTES:
            break
        taken.append(host)
    return taken
