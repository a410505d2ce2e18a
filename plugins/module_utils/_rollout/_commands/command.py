# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all commands of operators share: who gives them and why, and one write to the ledger of one rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..._common import runtime
from ..._common.errors import UpgradeError
from ..._common.names import target_text
from ..._common.sanitize import option, sanitize, truncate_middle
from ..._consul.operations import Change, net_changes
from ..._consul.retry import TRIES_OF_LEDGER, retry_on_conflict
from ..._fleet.fleet import Snapshot, find_members
from ..._fleet.ledger import ABORTED, COMPLETE, Ledger
from ..._planner.plan import Plan
from ..._planner.reconcile import make_plan
from ..._rules.instructions import parse
from ..._state.keys import Keys
from ..._state.layout import refuse_to_plan
from ..._state.ledger_writer import LedgerWriter
from ..._state.store import Store, current_user
from ..conflicts import is_same_rollout
from ..host_health_notes import with_checks


@dataclass(frozen=True, slots=True)
class Command:
    """Who gives a command, and why.

    :param by: the operator; empty for the user of this process.
    :param fleet: host -> role, as for a plan.
    """

    reason: str = ""
    by: str = ""
    fleet: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return it in the ledger's form: ``by``, ``at`` (unix seconds), and ``reason`` if there is one."""
        fields = {"by": truncate_middle(sanitize(self.by or current_user())), "at": int(runtime.now())}
        return {**fields, "reason": truncate_middle(sanitize(self.reason))} if self.reason else {**fields}


@dataclass(slots=True)
class CommandResult:
    """The result of a command.

    :param ledger: the ledger after the command; None if there is no rollout.
    :param hosts: the hosts that an abort closed, a retry reset, or forget removed.
    :param remarks: sentences for the operator.
    """

    ledger: Ledger | None
    changes: list[Change] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def write_command(
    store: Store, act: Callable[[LedgerWriter, Snapshot, Ledger], CommandResult], *, dry: bool
) -> CommandResult:
    """Read the keys and let ``act`` write a command; retry on conflict.

    :param act: takes a writer, the snapshot and its ledger. Any exception but a conflict passes through.
    :param dry: write nothing, and return what would be written.
    :raises UpgradeError: ``no_rollout``, ``busy``, ``overtaken`` if another rollout begins between two tries, and what ``act`` raises.
    """
    changes: list[Change] = []
    intended: Ledger | None = None

    def attempt() -> CommandResult:
        nonlocal intended
        snapshot = store.snapshot()
        refuse_to_plan(store.keys, snapshot)
        ledger = ledger_of(store.keys, snapshot)
        if intended is not None and not is_same_rollout(intended, ledger):
            raise UpgradeError(
                "overtaken",
                f"Another rollout, to {ledger.version}, was begun by {ledger.who} in place of the one to {intended.version} during this "
                "command. It is not changed. Look at it with ansible-playbook convoy.upgrade.status, and run the "
                "command again if it should apply to that rollout.",
            )
        intended = ledger
        # Its store has the keys of the rollout, which may be a job.
        writer = LedgerWriter(store, snapshot, current_user(), int(runtime.now()), dry=dry)
        try:
            done = act(writer, snapshot, ledger)
        finally:
            changes.extend(writer.changes)
        done.changes = net_changes(changes)
        return done

    return retry_on_conflict(attempt, lambda: store.keys.ledger, tries=TRIES_OF_LEDGER)


def ledger_of(keys: Keys, snapshot: Snapshot) -> Ledger:
    """Return the ledger of the current rollout.

    :raises UpgradeError: ``no_rollout``.
    """
    if snapshot.ledger is None:
        raise UpgradeError(
            "no_rollout",
            f"There is no rollout{' to a version besides the job, which is over' if snapshot.job is not None else f': {keys.ledger} does not exist'}. "
            "Begin one with ansible-playbook convoy.upgrade.upgrade.",
        )
    return snapshot.ledger


def refuse_unless(ledger: Ledger, allowed: Iterable[str], what: str) -> None:
    """Refuse a command that the rollout's state does not allow.

    :param allowed: the states that allow it.
    :param what: the command as a participle for the message, such as ``paused``.
    :raises UpgradeError: ``not_running``.
    """
    if ledger.state in allowed:
        return
    rollout = target_text(ledger.version) if ledger.is_job else f"rollout to {ledger.version}"
    raise UpgradeError(
        "not_running",
        f"The {rollout} is {ledger.state}, so it can't be {what}. {_what_next(ledger)}",
        state=ledger.state,
    )


def _what_next(ledger: Ledger) -> str:
    if ledger.is_job:
        return "It is over, and a job does not begin again; ansible-playbook convoy.upgrade.command -e run=NAME begins another one."
    other = "ansible-playbook convoy.upgrade.upgrade -e version=X begins another one"
    if ledger.state == COMPLETE:
        return f"It is over; {other}."
    if ledger.state != ABORTED:
        return "Look at it with ansible-playbook convoy.upgrade.status."
    playbook, variables = ledger.again()
    again = " ".join(
        (f"ansible-playbook convoy.upgrade.{playbook}", *(option(name, value) for name, value in variables.items()))
    )
    return f"It is over. {again} begins it again, and {other}."


def command_fields(command: Mapping[str, object]) -> dict[str, object]:
    """Return who gave a command and why, as fields of a history entry.

    :param command: what :meth:`Command.plain` returns.
    """
    return {"by": command["by"], "reason": command.get("reason", "")}


def members_of(snapshot: Snapshot, ledger: Ledger, fleet: Mapping[str, str]) -> Mapping[str, str]:
    """Return host -> role of the fleet and of all hosts that ever reported. Names give roles by the ledger's role pattern."""
    return find_members(fleet, snapshot, ledger.role_pattern).members


def plan_of(store: Store, snapshot: Snapshot, ledger: Ledger, fleet: Mapping[str, str]) -> Plan:
    """Return the plan for all hosts under the rules of the ledger.

    :raises UpgradeError: ``fleet_too_small`` if the ledger counts more hosts than are known here.
    """
    rules = parse(ledger.instructions)
    plan = make_plan(with_checks(store, snapshot, rules), members_of(snapshot, ledger, fleet), rules)
    if plan.missing:
        raise UpgradeError("fleet_too_small", f"Nothing is written: {'; '.join(plan.missing)}.")
    return plan
