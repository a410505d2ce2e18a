# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gates that were closed by hand before the first rollout of a fleet: the rollout replaces them with holds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from .._codecs.values import encode_hold
from .._common import runtime
from .._common.errors import UpgradeError
from .._common.names import in_order, listing
from .._consul.operations import Change, put
from .._fleet.fleet import Snapshot
from .._fleet.holds import FIRST_ROLLOUT, Hold
from .._rule_checks.unknown_targets import lost_hosts
from .._state.ledger_writer import LedgerWriter
from .lifecycle import LedgerMove

# A transaction takes 64 operations. The beginning of a rollout needs some of them, and more if it removes legacy gates.
_MOST_HELD = 40


def with_holds_for_closed_gates(
    writer: LedgerWriter, snapshot: Snapshot, move: LedgerMove, members: Mapping[str, str]
) -> tuple[LedgerMove, list[str]]:
    """Return the first write of a rollout with holds for gates that were closed by hand, and warnings on them.

    This applies only to a fleet that has never had a rollout to a version. In other fleets, planners wrote the gates. If there is such a
    gate, it costs one request, unless the ledger is that of a job.

    :param members: host -> role.
    :raises UpgradeError: ``closed_by_hand`` if there are more such gates than one transaction can hold, or if the hold of a gate would not hold its hosts.
    """
    gates = {"role": snapshot.gates.roles, "host": snapshot.gates.hosts}
    closed = {
        (scope, name): gate
        for scope, named in gates.items()
        for name, gate in named.items()
        if gate.was_closed_by_hand(snapshot.current_version) and snapshot.holds.at(scope, name) is None
    }
    if snapshot.ledger is not None or not closed:
        return move, []
    # A job counts epochs too, and changes no such gate.
    if snapshot.job is None and writer.next_epoch > 1:
        return move, []
    hosts, roles = (in_order(name for of, name in closed if of == scope) for scope in ("host", "role"))
    names = " and ".join([*([listing(hosts)] if hosts else []), *(f"role {role}" for role in roles)])
    most = min(_MOST_HELD, writer.room(move.operations))
    if len(closed) > most:
        raise UpgradeError(
            "closed_by_hand",
            f"{names} are closed by gates of their own, such as {next(iter(closed.values())).key}. No rollout has closed them, so they "
            f"should be held, but one transaction has room for {most} holds. Nothing is written. Hold them with "
            "ansible-playbook convoy.upgrade.hold, or open them "
            "with consul_enable_puppet. If the keys were never migrated, run ansible-playbook convoy.upgrade.migrate_state, which holds any number.",
            hosts=hosts,
        )
    at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(runtime.now()))
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
    if (lost := lost_hosts(after, members)) is not None:
        raise UpgradeError(
            "closed_by_hand",
            f"{closed[lost.scope, lost.name].key} was closed by hand, which {lost.text()}, or open the gate with consul_enable_puppet.",
            hosts=list(lost.hosts),
        )
    held = LedgerMove(
        move.ledger,
        {**move.event, "held": [*hosts, *(f"role {role}" for role in roles)]},
        (*move.operations, *(put(key, text) for key, text in texts)),
        (*move.changes, *(Change(key, None, text) for key, text in texts)),
        after,
    )
    return held, [
        f"{names}: closed by hand before the first rollout, and held from now on. End the hold with ansible-playbook convoy.upgrade.unhold, which removes the "
        "gate too."
    ]
