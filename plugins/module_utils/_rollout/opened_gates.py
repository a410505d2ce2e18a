# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Admission: writes the gates that a plan opens, some at a time. Before each write, the windows and the plan's age are checked."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .._common import runtime
from .._common.errors import UpgradeError
from .._consul.client import MOST_OPERATIONS, Operation
from .._consul.errors import Conflict, Unreachable
from .._consul.operations import Change, compare_and_put, put
from .._consul.settings import MOST_PASS_LIMIT
from .._fleet.fleet import Snapshot
from .._fleet.gates import OPEN, GateValue
from .._fleet.ledger import Ledger
from .._planner.plan import Admission, Plan
from .._rules.instructions import Instructions
from .._rules.windows import outside_hours
from .._state.keys import Keys
from .._state.ledger_writer import MOST_GATES, LedgerWriter
from .._state.store import Store

# How many tries in a row may take too long before a pass fails.
MOST_SLOW = 3


# How many hosts one write can admit if each gate is written in one layout: a gate and a wake key each.
MOST_ADMISSIONS = MOST_GATES // 2


@dataclass(frozen=True, slots=True)
class _Gate:
    """A gate to open, of a role or of a host.

    :param index: the key's ModifyIndex when it was read, 0 if it did not exist.
    """

    name: str
    is_role: bool
    change: Change
    index: int

    def operations(self, keys: Keys, at: int) -> list[Operation]:
        """Return the operations that open the gate, store the time, and wake the host. They fail if the gate has changed, such as by an operator.

        :param at: unix seconds.
        """
        opened = compare_and_put(self.change.key, OPEN, self.index, flags=at)
        return [opened] if self.is_role else [opened, put(keys.wake(self.name), str(at))]


class ReadTooOld(Conflict):
    """The snapshot is too old to begin a rollout or to admit a host. A retry reads it again, as after a conflict.

    :param seconds: the age of the snapshot.
    """

    def __init__(self, seconds: float) -> None:
        """Store the age."""
        super().__init__("conflict", f"The snapshot is {seconds:.1f} s old, which is too old.")
        self.seconds = seconds


def refuse_old_read(store: Store, read_at: float) -> None:
    """Refuse a snapshot that is older than ``pass_limit``. The machine may have been suspended since it was read.

    :param read_at: when it was requested, as :func:`runtime.since_boot` counts.
    :raises ReadTooOld: if it is too old.
    """
    seconds = runtime.since_boot() - read_at
    if seconds > store.settings.pass_limit:
        raise ReadTooOld(seconds)


class SlowTries:
    """Counts the tries of a pass in a row that took longer than ``pass_limit``."""

    def __init__(self, limit: float, most: int) -> None:
        """Begin at zero.

        :param limit: ``pass_limit`` (seconds).
        :param most: the number of tries at which the pass fails.
        """
        self._limit = limit
        self._most = most
        self._seconds: list[float] = []

    def add(self, seconds: float, *, got_on: bool = False) -> None:
        """Count a slow try.

        :param seconds: how long it took.
        :param got_on: whether it began the rollout or admitted hosts. Then the count begins again, as the next try has less to do.
        :raises UpgradeError: ``too_slow`` after the last try.
        """
        self._seconds = [] if got_on else [*self._seconds, round(seconds, 1)]
        if len(self._seconds) >= self._most:
            raise _too_slow(self._seconds, self._limit)


def _too_slow(seconds: Sequence[float], limit: float) -> UpgradeError:
    """Return the error for a planner that is too slow, with the seconds of its tries and the variable that raises the limit."""
    took = ", ".join(f"{one:.1f} s" for one in seconds)
    needed = min(MOST_PASS_LIMIT, math.ceil(2 * max(seconds)))
    fixes = {"upgrade_consul_pass_limit": f"{needed:.0f}"} if needed > max(seconds) else {}
    allow = "".join(f", or allow more time: -e {name}={value}" for name, value in fixes.items())
    return UpgradeError(
        "too_slow",
        f"Reading the fleet and planning took {took}, and at most {limit:g} s may pass before hosts are admitted (pass_limit), so no "
        f"host is admitted. Consul, the network or this machine is slow. Run the same command nearer to Consul{allow}.",
        seconds=list(seconds),
        limit=limit,
        variables=fixes,
    )


def may_still_admit(store: Store, rules: Instructions, now: float, read_at: float) -> bool:
    """Return whether the windows still allow admissions, as time has passed since the plan was made.

    :param now: unix seconds.
    :param read_at: as for :func:`refuse_old_read`.
    :raises ReadTooOld: if the plan's snapshot is too old.
    """
    refuse_old_read(store, read_at)
    return outside_hours(rules.windows, rules.freezes, now) is None


def _gates(keys: Keys, plan: Plan, snapshot: Snapshot) -> list[_Gate]:
    def gate(scope: str, name: str, found: GateValue | None) -> _Gate:
        change = Change(keys.gate(scope, name), found.text if found else None, OPEN)
        return _Gate(name, scope == "role", change, found.index if found else 0)

    roles = [gate("role", name, snapshot.gates.roles.get(name)) for name in plan.role_gates]
    return roles + [gate("host", name, snapshot.gates.hosts.get(name)) for name in plan.host_gates]


def admit_hosts(
    writer: LedgerWriter,
    plan: Plan,
    snapshot: Snapshot,
    ledger: Ledger,
    rules: Instructions,
    opened: list[Admission],
    *,
    read_at: float,
) -> None:
    """Admit the hosts of a plan: one planner write for each 30 gates, or for 20 if each gate is written in two layouts.

    Each write also wakes the agents of its hosts. The agents of a role whose own gate opens are woken after the write, some at a time.

    :param ledger: the ledger after each write.
    :param opened: the admitted hosts are appended here, even if a later write fails.
    :param read_at: as for :func:`refuse_old_read`.
    :raises Conflict: if another process wrote the ledger or one of the gates.
    :raises ReadTooOld: if the plan's snapshot is too old.
    """
    gates = _gates(writer.store.keys, plan, snapshot)
    by_host = {one.host: one for one in plan.admissions}
    by_role: dict[str, list[Admission]] = {}
    own_key = set(plan.host_gates)
    for one in plan.admissions:
        if one.host not in own_key:
            by_role.setdefault(one.role, []).append(one)
    most = MOST_GATES // (writer.places + 1)
    for at in range(0, len(gates), most):
        now = runtime.now()
        if not may_still_admit(writer.store, rules, now, read_at):
            return
        piece = gates[at : at + most]
        hosts = [by_host[gate.name] for gate in piece if not gate.is_role]
        roles = {gate.name: by_role.get(gate.name, []) for gate in piece if gate.is_role}
        event = {
            "what": "open",
            "hosts": {one.host: one.reason for one in hosts},
            "roles": {
                role: {"hosts": len(found), "reason": f"nothing limits role {role}"} for role, found in roles.items()
            },
        }
        keys = writer.store.keys
        operations = [operation for gate in piece for operation in gate.operations(keys, int(now))]
        writer.write(ledger, event, operations, [gate.change for gate in piece])
        by_role_gate = [one for found in roles.values() for one in found]
        opened += [*hosts, *by_role_gate]
        if not writer.dry:
            wake(writer.store, [one.host for one in by_role_gate], str(int(now)))


def wake(store: Store, hosts: Sequence[str], text: str) -> None:
    """Wake the agents of hosts: one request for each 64. A host that is not woken reads its gate some minutes later.

    :param text: what is written. A key that has this text already wakes no agent.
    """
    for first in range(0, len(hosts), MOST_OPERATIONS):
        with contextlib.suppress(Unreachable, Conflict):
            store.client.write([put(store.keys.wake(host), text) for host in hosts[first : first + MOST_OPERATIONS]])
