# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which entries of the history are kept. Each planner write adds one entry, and removes older ones as far as it has room.

The removals are part of the transaction that compares and sets the ledger. So they need no request, no lock and no other permission,
and they rest on the ledger of that moment: not on one that a restore of Consul has taken back.
"""

from __future__ import annotations

from dataclasses import replace

from .._fleet.ledger import BEGINNINGS, WITH_RULES, Ledger
from .._rules.history_rules import parse_history_rules


def with_kept_rollouts(before: Ledger | None, ledger: Ledger, what: str) -> Ledger:
    """Return the new ledger with the rollouts that the history keeps after this write.

    Entries before the first rollout in the list count as one rollout more. So a ledger without a list, such as one that an operator
    has deleted, needs no read of the history.

    :param before: the ledger that the new one replaces.
    :param ledger: the new ledger, with its epoch.
    :param what: the kind of its entry.
    :raises UpgradeError: ``bad_instructions``, if the rules of the ledger are written now and are not valid.
    """
    # After a ledger with the highest epoch, epochs continue below it.
    oldest = before.history_from if before is not None and before.history_from <= ledger.epoch else 1
    rollouts = tuple(epoch for epoch in (before.rollouts if before is not None else ()) if epoch < ledger.epoch)
    if what in BEGINNINGS:
        earlier = rollouts or ((oldest,) if oldest < ledger.epoch else ())
        rollouts = (*earlier, ledger.epoch)
    if what in WITH_RULES:
        rollouts = rollouts[-parse_history_rules(ledger.instructions.get("history")).keep_rollouts :]
    return replace(ledger, rollouts=rollouts, history_from=oldest)


def removable_epochs(ledger: Ledger, room: int) -> range:
    """Return the epochs whose entries a write removes: the oldest ones before the first rollout that is kept.

    :param ledger: the new ledger.
    :param room: how many operations the transaction has room for.
    """
    oldest = ledger.history_from
    first_kept = ledger.rollouts[0] if ledger.rollouts else oldest
    return range(oldest, max(oldest, min(first_kept, oldest + room)))
