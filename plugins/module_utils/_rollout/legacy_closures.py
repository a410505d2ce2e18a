# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts and roles that somebody closed by hand before a fleet knew of holds: its first rollout holds them, and does not just open them."""

from __future__ import annotations

import time
from dataclasses import replace

from .._common.errors import UpgradeError
from .._common.names import in_order, listing
from .._consul.operations import Change, put
from .._fleet.fleet import Snapshot
from .._fleet.holds import FIRST_ROLLOUT, Hold
from .._state.codec import encode_hold
from .._state.ledger_writer import LedgerWriter
from .lifecycle import LedgerMove

# A transaction takes 64 operations, and the beginning of a rollout needs some of its own: more where old gates are removed along.
_MOST_HELD = 40


def with_holds_for_closed_gates(
    writer: LedgerWriter, snapshot: Snapshot, move: LedgerMove
) -> tuple[LedgerMove, list[str]]:
    """Return the first write of a rollout with holds in place of gates that a hand closed, and what is to be said of them.

    That is for a fleet that never had a ledger: in one that had, the gates of hosts are those of its rollouts. It costs a
    request where there is such a gate.

    :raises UpgradeError: ``closed_by_hand`` where there are more than one transaction can take.
    """
    gates = {"role": snapshot.gates.roles, "host": snapshot.gates.hosts}
    closed = {
        (scope, name): gate
        for scope, named in gates.items()
        for name, gate in named.items()
        if gate.was_closed_by_hand(snapshot.current_version) and snapshot.holds.at(scope, name) is None
    }
    if snapshot.ledger is not None or not closed or writer.next_epoch > 1:
        return move, []
    hosts, roles = (in_order(name for of, name in closed if of == scope) for scope in ("host", "role"))
    told = " and ".join([*([listing(hosts)] if hosts else []), *(f"role {role}" for role in roles)])
    most = min(_MOST_HELD, writer.room(move.operations))
    if len(closed) > most:
        raise UpgradeError(
            "closed_by_hand",
            f"{told} are closed by gates of their own, such as {next(iter(closed.values())).key}, and there never was a rollout that "
            f"could have done that. These would be held, but a transaction has room for {most}. Nothing is written. Hold "
            "them with hold.yml, open them with consul_enable_puppet, or where the keys were never migrated run "
            "playbooks/migrate_state.yml, which makes holds of any number.",
            hosts=hosts,
        )
    at = time.strftime("%Y-%m-%d %H:%M:%S %z")
    keys = writer.store.keys
    holds = {
        (scope, name): Hold(
            keys.hold(scope, name), f"{gate.key} was {gate.display_text()} when it began", FIRST_ROLLOUT, at
        )
        for (scope, name), gate in closed.items()
    }
    texts = [(one.key, encode_hold(one)) for one in holds.values()]
    before = move.after.holds
    after = replace(
        move.after,
        holds=replace(
            before,
            roles={**before.roles, **{name: holds["role", name] for name in roles}},
            hosts={**before.hosts, **{name: holds["host", name] for name in hosts}},
        ),
    )
    held = LedgerMove(
        move.ledger,
        {**move.event, "held": [*hosts, *(f"role {role}" for role in roles)]},
        (*move.operations, *(put(key, text) for key, text in texts)),
        (*move.changes, *(Change(key, None, text) for key, text in texts)),
        after,
    )
    return held, [
        f"{told}: closed by hand before the first rollout, and held from now on. unhold.yml lets them go; their gates are "
        "removed with the hold."
    ]
