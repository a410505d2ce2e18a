# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Letting hosts through: the gates that a plan opens, written some at a time, each time after another look at the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .._model.fleet import Snapshot
from .._model.gates import OPEN, GateValue
from .._model.instructions import Instructions
from .._model.ledger import Ledger
from .._model.planner import Opening, Plan
from .._model.windows import shut
from .._store.client import Operation
from .._store.errors import Conflict
from .._store.keys import Keys
from .._store.ledger_writer import MOST_GATES, LedgerWriter
from .._store.operations import Change, put


@dataclass(frozen=True, slots=True)
class _Gate:
    """A gate to open, of a role or of a host."""

    name: str
    is_role: bool
    change: Change

    def operation(self, at: int) -> Operation:
        """Return what opens it, and notes when that was."""
        return put(self.change.key, OPEN, flags=at)


def may_still_open(rules: Instructions, now: float, good_until: float) -> bool:
    """Return whether hosts may be let through on a plan: time has passed since it was made, for writing and for waiting.

    :param now: unix seconds.
    :param good_until: by the clock that never goes back (seconds).
    :raises Conflict: where what the plan was made from is too old.
    """
    if time.monotonic() > good_until:
        raise Conflict("conflict", "What the plan was made from is too old to let anybody through on it.")
    return shut(rules.windows, rules.freezes, now) is None


def _gates(keys: Keys, plan: Plan, snapshot: Snapshot) -> list[_Gate]:
    def gate(scope: str, name: str, found: GateValue | None) -> _Gate:
        return _Gate(name, scope == "role", Change(keys.gate(scope, name), found.text if found else None, OPEN))

    roles = [gate("role", name, snapshot.gates.roles.get(name)) for name in plan.open_roles]
    return roles + [gate("host", name, snapshot.gates.hosts.get(name)) for name in plan.open_hosts]


def open_gates(
    writer: LedgerWriter,
    plan: Plan,
    snapshot: Snapshot,
    ledger: Ledger,
    rules: Instructions,
    opened: list[Opening],
    *,
    good_until: float,
) -> None:
    """Let the hosts of a plan through: a planner write for each 61 gates, half as many where each is set in two places.

    :param ledger: as it should be after each of them.
    :param opened: gets the hosts that were let through, also where a later write fails.
    :param good_until: as for :func:`may_still_open`.
    :raises Conflict: if somebody else wrote, or the plan is too old.
    """
    gates = _gates(writer.store.keys, plan, snapshot)
    by_host = {one.host: one for one in plan.openings}
    by_role: dict[str, list[Opening]] = {}
    own_key = set(plan.open_hosts)
    for one in plan.openings:
        if one.host not in own_key:
            by_role.setdefault(one.role, []).append(one)
    most = MOST_GATES // writer.places
    for at in range(0, len(gates), most):
        now = time.time()
        if not may_still_open(rules, now, good_until):
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
