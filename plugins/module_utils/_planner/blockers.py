# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a whole rollout from letting anybody through: an operator's word, a spent budget, the hour."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .._fleet.fleet import Snapshot
from .._fleet.ledger import ABORTED, PAUSED, Ledger
from .._host_states.failure_budgets import SpentBudget
from .._rules.instructions import Instructions
from .._rules.windows import outside_hours

PAUSE, ABORT, BUDGET, HOURS, APPROVAL, SOAK = "paused", "aborted", "budget_spent", "hours", "approval", "soak"


@dataclass(frozen=True, slots=True)
class RolloutBlocker:
    """One thing that stops opening.

    :param code: a stable word.
    :param until: when it ends by itself (unix seconds), None where it does not.
    :param rule: the key of the instructions that stops it; empty where an operator's word does.
    :param passes: whether it is worth waiting for its end, by the clock or by a word that somebody is expected to say.
    """

    code: str
    reason: str
    until: float | None = None
    passes: bool = True
    rule: str = ""


def rollout_blocker(snapshot: Snapshot, rules: Instructions, spent: SpentBudget | None) -> RolloutBlocker | None:
    """Return what stops the whole rollout, what only an operator can change before what the clock does."""
    ledger = snapshot.ledger
    if ledger is not None and ledger.version == snapshot.current_version:
        if ledger.state == ABORTED:
            text = f"the rollout was aborted{command_text(ledger)}; begin it anew with -e restart=true, or go back with rollback.yml"
            return RolloutBlocker(ABORT, text, passes=False)
        if ledger.state == PAUSED:
            return RolloutBlocker(PAUSE, f"the rollout is paused{command_text(ledger)}; resume.yml lets it go on")
    if spent is not None:
        return RolloutBlocker(BUDGET, f"nothing opens any more: {spent.reason()}", passes=False, rule=spent.key)
    closed = outside_hours(rules.windows, rules.freezes, snapshot.now)
    if closed is not None:
        return RolloutBlocker(HOURS, closed.reason, closed.until, rule=closed.key)
    return None


def command_text(ledger: Ledger) -> str:
    """Return who paused or aborted a rollout, when and why, as far as that is known: ``by ann at ...: logins fail``."""
    word = ledger.word
    text = f" by {word['by']}" if word.get("by") else ""
    if isinstance(word.get("at"), int):
        text += f" at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(word['at']))}"
    return text + (f": {word['reason']}" if word.get("reason") else "")
