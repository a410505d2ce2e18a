# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Blockers of a fleet, a role or a stage: an operator's command, a failure budget, a window, a stage."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .._common.sanitize import option
from .._fleet.fleet import Snapshot
from .._fleet.ledger import ABORTED, PAUSED, Ledger
from .._host_states.failure_budgets import ExhaustedBudget, ExhaustedBudgets, exhausted_budgets
from .._rules.instructions import Instructions
from .._rules.windows import outside_hours
from .blocker_codes import ABORT, BUDGET, EXPIRED, HOURS, PAUSE
from .fleet_state import FleetState
from .stage_progress import StageProgress, stage_progress

# The beginning of the reason for an exhausted budget, which is left out after words that say the same.
NO_MORE_HOSTS = "no more hosts are admitted: "


@dataclass(frozen=True, slots=True)
class RolloutBlocker:
    """Why no host of the whole rollout is admitted.

    :param code: a stable code: ``paused``, ``aborted``, ``expired``, ``failure_budget`` or ``hours``.
    :param until: when it ends without an operator (unix seconds); None if it does not.
    :param is_temporary: whether it is expected to end, by the clock or by a command.
    :param rule: the key in the rules that causes it; empty for an operator's command.
    """

    code: str
    reason: str
    until: float | None = None
    is_temporary: bool = True
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Blockers:
    """Everything that keeps hosts from being admitted, apart from caps and the order between roles.

    :param has_version: whether there is a version to upgrade to.
    :param rollout: what blocks every host; None for nothing.
    :param budgets: the exhausted failure budgets. The budget of a role or group blocks only that role or group.
    :param stages: the current stage. It blocks the hosts of later stages.
    """

    has_version: bool = True
    rollout: RolloutBlocker | None = None
    budgets: ExhaustedBudgets = field(default_factory=ExhaustedBudgets)
    stages: StageProgress = field(default_factory=StageProgress)

    @property
    def allow_admissions(self) -> bool:
        """Whether this pass may admit hosts at all."""
        return self.has_version and self.rollout is None

    @property
    def allow_forecast(self) -> bool:
        """Whether the forecast may admit hosts."""
        return self.has_version and (self.rollout is None or self.rollout.is_temporary)

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused the rollout."""
        return self.rollout is not None and self.rollout.code == PAUSE

    @property
    def is_aborted(self) -> bool:
        """Whether an operator has aborted the rollout."""
        return self.rollout is not None and self.rollout.code == ABORT

    @property
    def end_by_waiting(self) -> bool:
        """Whether only time, an approval or a command is missing."""
        return self.stages.waits if self.rollout is None else self.rollout.is_temporary


def find_blockers(fleet: FleetState) -> Blockers:
    """Return the blockers of a fleet.

    :raises UpgradeError: ``bad_instructions`` if the current or a later stage has no host in this fleet.
    """
    snapshot, rules = fleet.snapshot, fleet.rules
    budgets = exhausted_budgets(rules.failures, fleet.order, fleet.sizes, fleet.broken)
    rollout = rollout_blocker(snapshot, rules, budgets.fleet)
    stages = stage_progress(snapshot, rules.stages, fleet.order, fleet.by_role, rules.optional_names)
    return Blockers(snapshot.current_version is not None, rollout, budgets, stages)


def rollout_blocker(
    snapshot: Snapshot, rules: Instructions, exhausted: ExhaustedBudget | None
) -> RolloutBlocker | None:
    """Return what blocks the whole rollout; None for nothing. What only an operator can end comes before closed windows.

    :param exhausted: the fleet's failure budget if it is exhausted; None otherwise.
    """
    ledger = snapshot.ledger
    if ledger is not None and ledger.version == snapshot.current_version:
        if ledger.state == ABORTED:
            back = (
                ", or go back with ansible-playbook convoy.upgrade.rollback"
                if ledger.previous_version is not None
                else ""
            )
            again = f"ansible-playbook convoy.upgrade.upgrade {option('version', ledger.version)} -e restart=true"
            text = f"the rollout was aborted{command_text(ledger)}; restart it with {again}{back}"
            if ledger.rollback:
                text = (
                    f"the rollback was aborted{command_text(ledger)}; begin it again with ansible-playbook "
                    f"convoy.upgrade.rollback {option('version', ledger.version)}"
                )
            if ledger.is_job:
                text = f"the job was aborted{command_text(ledger)}; begin a new one with ansible-playbook convoy.upgrade.command"
            return RolloutBlocker(ABORT, text, is_temporary=False)
        kind = "job" if ledger.is_job else "rollout"
        if ledger.state == PAUSED:
            return RolloutBlocker(
                PAUSE,
                f"the {kind} is paused{command_text(ledger)}; continue with ansible-playbook convoy.upgrade.resume",
            )
        if ledger.is_job and ledger.expires <= snapshot.now:
            at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(ledger.expires))
            text = (
                f"the job expired at {at}, so no node begins it any more; end it with ansible-playbook "
                "convoy.upgrade.abort, and begin a new one with ansible-playbook convoy.upgrade.command"
            )
            return RolloutBlocker(EXPIRED, text, is_temporary=False)
    if exhausted is not None:
        text = f"{NO_MORE_HOSTS}{exhausted.reason()}"
        return RolloutBlocker(BUDGET, text, is_temporary=False, rule=exhausted.key)
    closed = outside_hours(rules.windows, rules.freezes, snapshot.now)
    if closed is not None:
        return RolloutBlocker(HOURS, closed.reason, closed.until, rule=closed.key)
    return None


def open_in_spite_of_pause(snapshot: Snapshot, ledger: Ledger) -> str:
    """Return a sentence on the global gate, which stays open if a complete rollout is paused; empty if it is not open."""
    everywhere = snapshot.gates.everywhere
    if not ledger.was_complete or ledger.is_job or everywhere is None or not everywhere.is_true:
        return ""
    return (
        "The rollout is complete, so the global gate is open, and hosts that join upgrade in spite of a pause. To close all gates, run ansible-playbook "
        "convoy.upgrade.global_disable."
    )


def command_text(ledger: Ledger) -> str:
    """Return who paused or aborted a rollout, when and why, as far as the ledger has it: ``by ann at ...: logins fail``."""
    command = ledger.command
    text = f" by {command['by']}" if command.get("by") else ""
    if isinstance(command.get("at"), int):
        text += f" at {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(command['at']))}"
    return text + (f": {command['reason']}" if command.get("reason") else "")
