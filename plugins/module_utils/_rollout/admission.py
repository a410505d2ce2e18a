# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Letting hosts through: the gates that a plan opens, written some at a time, each time after another look at the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .._common.errors import UpgradeError
from .._consul.client import Operation
from .._consul.errors import Conflict
from .._consul.operations import Change, put
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

# So many tries in a row may take too long. More would not be quicker.
MOST_SLOW = 3


@dataclass(frozen=True, slots=True)
class _Gate:
    """A gate to open, of a role or of a host."""

    name: str
    is_role: bool
    change: Change

    def operation(self, at: int) -> Operation:
        """Return what opens it, and notes when that was."""
        return put(self.change.key, OPEN, flags=at)


class ReadTooOld(Conflict):
    """What was read is too old to begin a rollout or to admit a host, so it is read again, though no one else wrote.

    :param seconds: how long ago it was read.
    """

    def __init__(self, seconds: float) -> None:
        """Keep the seconds."""
        super().__init__("conflict", f"What was read {seconds:.1f} s ago is too old.")
        self.seconds = seconds


def refuse_old_read(store: Store, read_at: float) -> None:
    """Refuse to go on with what was read too long ago.

    :param read_at: when it was asked for, by the clock that never goes back (seconds).
    :raises TooOld: where that is longer ago than the settings allow.
    """
    seconds = time.monotonic() - read_at
    if seconds > store.settings.pass_limit:
        raise ReadTooOld(seconds)


class SlowTries:
    """The tries of a pass in a row that took longer than ``pass_limit`` allows."""

    def __init__(self, limit: float, most: int) -> None:
        """None yet.

        :param limit: ``pass_limit`` (seconds).
        :param most: how many there may be.
        """
        self._limit = limit
        self._most = most
        self._seconds: list[float] = []

    def add(self, seconds: float, *, got_on: bool = False) -> None:
        """Count a try.

        :param got_on: whether it began the rollout or admitted hosts, so that the next one has less to do.
        :raises UpgradeError: ``too_slow`` where it was the last one.
        """
        self._seconds = [] if got_on else [*self._seconds, round(seconds, 1)]
        if len(self._seconds) >= self._most:
            raise _too_slow(self._seconds, self._limit)


def _too_slow(seconds: Sequence[float], limit: float) -> UpgradeError:
    """Return the error for a planner that is too slow, with the seconds of its tries and the variable that allows them."""
    took = ", ".join(f"{one:.1f} s" for one in seconds)
    needed = min(MOST_PASS_LIMIT, math.ceil(2 * max(seconds)))
    fixes = {"upgrade_consul_pass_limit": f"{needed:.0f}"} if needed > max(seconds) else {}
    allow = "".join(f", or allow more time: -e {name}={value}" for name, value in fixes.items())
    return UpgradeError(
        "too_slow",
        f"Reading the fleet and planning took {took}, and at most {limit:g} s may pass before hosts are admitted (pass_limit), so no "
        f"rollout begins and no host is admitted. Consul, the network or this machine is slow. Run the same command nearer to Consul{allow}.",
        seconds=list(seconds),
        limit=limit,
        variables=fixes,
    )


def may_still_admit(store: Store, rules: Instructions, now: float, read_at: float) -> bool:
    """Return whether hosts may be let through on a plan: time has passed since it was made, for writing and for waiting.

    :param now: unix seconds.
    :param read_at: as for :func:`refuse_old_read`.
    :raises TooOld: where what the plan was made from is too old.
    """
    refuse_old_read(store, read_at)
    return outside_hours(rules.windows, rules.freezes, now) is None


def _gates(keys: Keys, plan: Plan, snapshot: Snapshot) -> list[_Gate]:
    def gate(scope: str, name: str, found: GateValue | None) -> _Gate:
        return _Gate(name, scope == "role", Change(keys.gate(scope, name), found.text if found else None, OPEN))

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
    """Let the hosts of a plan through: a planner write for each 61 gates, half as many where each is set in two places.

    :param ledger: as it should be after each of them.
    :param opened: gets the hosts that were let through, also where a later write fails.
    :param read_at: as for :func:`may_still_admit`.
    :raises Conflict: if somebody else wrote.
    :raises TooOld: if the plan is too old.
    """
    gates = _gates(writer.store.keys, plan, snapshot)
    by_host = {one.host: one for one in plan.admissions}
    by_role: dict[str, list[Admission]] = {}
    own_key = set(plan.host_gates)
    for one in plan.admissions:
        if one.host not in own_key:
            by_role.setdefault(one.role, []).append(one)
    most = MOST_GATES // writer.places
    for at in range(0, len(gates), most):
        now = time.time()
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
        writer.write(ledger, event, [gate.operation(int(now)) for gate in piece], [gate.change for gate in piece])
        opened += [*hosts, *(one for found in roles.values() for one in found)]
