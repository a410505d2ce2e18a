# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that somebody closed by hand before a fleet knew of holds: its first rollout holds them, and does not just open them."""

from __future__ import annotations

import time
from dataclasses import replace

from .._model.errors import UpgradeError
from .._model.fleet import Snapshot
from .._model.holds import FIRST_ROLLOUT, Hold
from .._model.names import in_order, some
from .._store.codec import encode_hold
from .._store.ledger_writer import LedgerWriter
from .._store.operations import Change, put
from .rollout import Move

# A transaction takes 64 operations, and the beginning of a rollout needs some of its own: more where old gates are removed along.
_MOST_HELD = 40


def spare(writer: LedgerWriter, snapshot: Snapshot, move: Move) -> tuple[Move, list[str]]:
    """Return the first write of a rollout with holds in place of gates that a hand closed, and what is to be said of them.

    That is for a fleet that never had a ledger: in one that had, the gates of hosts are those of its rollouts. It costs a
    request where there is such a gate.

    :raises UpgradeError: ``closed_by_hand`` where there are more than one transaction can take.
    """
    closed = {
        host: gate
        for host, gate in snapshot.gates.hosts.items()
        if gate.was_closed_by_hand(snapshot.current_version) and host not in snapshot.holds.hosts
    }
    if snapshot.ledger is not None or not closed or writer.next_epoch > 1:
        return move, []
    hosts = in_order(closed)
    most = min(_MOST_HELD, writer.room(move.operations))
    if len(hosts) > most:
        raise UpgradeError(
            "closed_by_hand",
            f"{some(hosts)} are closed by gates of their own, such as {closed[hosts[0]].key}, and there never was a rollout that "
            f"could have done that. These would be held, but a transaction has room for {most}. Nothing is written. Hold "
            "them with hold.yml, open them with consul_enable_puppet, or where the keys were never migrated run "
            "playbooks/migrate_state.yml, which makes holds of any number.",
            hosts=hosts,
        )
    at = time.strftime("%Y-%m-%d %H:%M:%S %z")
    keys = writer.store.keys
    holds = {
        host: Hold(
            keys.hold("host", host),
            f"{closed[host].key} was {(closed[host].text or '').strip()} when it began",
            FIRST_ROLLOUT,
            at,
        )
        for host in hosts
    }
    texts = [(one.key, encode_hold(one)) for one in holds.values()]
    after = replace(move.after, holds=replace(move.after.holds, hosts={**move.after.holds.hosts, **holds}))
    held = Move(
        move.ledger,
        {**move.event, "held": hosts},
        (*move.operations, *(put(key, text) for key, text in texts)),
        (*move.changes, *(Change(key, None, text) for key, text in texts)),
        after,
    )
    return held, [
        f"{some(hosts)}: closed by hand before the first rollout, and held from now on. unhold.yml lets them go; their gates are "
        "removed with the hold."
    ]
