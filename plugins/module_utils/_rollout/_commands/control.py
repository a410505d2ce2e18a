# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operators' commands on a rollout: pause, resume and approve are here; abort, retry, rollback and forget are imported."""

from __future__ import annotations

import time
from dataclasses import replace

from ..._codecs.values import encode_approval
from ..._common.errors import UpgradeError
from ..._common.names import did_you_mean, listing
from ..._common.sanitize import truncated_repr
from ..._consul.operations import Change, put
from ..._fleet.fleet import Snapshot
from ..._fleet.ledger import COMPLETE, PAUSED, RUNNING, WAS, Ledger
from ..._host_states.state_names import UPGRADED, state_text
from ..._passes.closed_gates import close_role_gates
from ..._planner.admission import open_role_gates
from ..._planner.blockers import open_in_spite_of_pause
from ..._planner.plan import Plan
from ..._rules.instructions import parse
from ..._state.ledger_writer import LedgerWriter
from ..._state.store import Store
from .abort import abort
from .command import Command, CommandResult, command_fields, members_of, plan_of, refuse_unless, write_command
from .forget import forget
from .retry import retry
from .rollback import roll_back

__all__ = ["CommandResult", "Command", "abort", "approve", "forget", "pause", "resume", "retry", "roll_back"]


def pause(store: Store, command: Command, *, dry: bool = False) -> CommandResult:
    """Pause a rollout: no host is admitted until it is resumed. Hosts that have begun continue.

    A complete rollout can be paused too. That affects the post-upgrade tasks, and hosts that join the fleet unless the global gate is open already. A
    rollout that is paused is paused again only for another reason.

    Gates of roles that a rollout has opened are closed after that, because hosts that join read them. Hosts that have begun under them get gates of
    their own.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``overtaken``, ``busy``.
    """

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> CommandResult:
        # What can fail on bad input runs before the first write.
        members = members_of(snapshot, ledger, command.fleet)
        given = command.plain()
        has_other_reason = "reason" in given and given["reason"] != ledger.command.get("reason")
        if ledger.state != PAUSED or has_other_reason:
            refuse_unless(ledger, (RUNNING, COMPLETE, PAUSED), "paused")
            event = {"what": "pause", **command_fields(given)}
            if ledger.was_complete:
                given = {**given, WAS: COMPLETE}
            ledger = replace(ledger, state=PAUSED, command=given)
            writer.write(ledger, event)
        roles = [] if ledger.was_complete else open_role_gates(snapshot)
        if roles:
            close_role_gates(writer, snapshot, writer.ledger or ledger, members, roles)
        still_open = open_in_spite_of_pause(snapshot, ledger)
        return CommandResult(writer.ledger or ledger, remarks=[still_open] if still_open else [])

    return write_command(store, act, dry=dry)


def resume(store: Store, command: Command, *, dry: bool = False) -> CommandResult:
    """Resume a paused rollout. One that was complete before is complete again.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``overtaken``, ``busy``.
    """

    def act(writer: LedgerWriter, _snapshot: Snapshot, ledger: Ledger) -> CommandResult:
        if ledger.state != RUNNING:
            refuse_unless(ledger, (PAUSED,), "resumed")
            event = {"what": "resume", **command_fields(command.plain())}
            state = COMPLETE if ledger.was_complete else RUNNING
            writer.write(replace(ledger, state=state, command={}), event)
        return CommandResult(writer.ledger or ledger)

    return write_command(store, act, dry=dry)


def approve(store: Store, command: Command, stage: str | None = None, *, dry: bool = False) -> CommandResult:
    """Approve a stage, so that the next one can begin.

    :param stage: its name; None for the stage that waits for an approval.
    :raises UpgradeError: ``no_rollout``, ``not_running``, ``nothing_to_approve``, ``fleet_too_small``, ``overtaken``,
        ``busy``.
    """

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> CommandResult:
        refuse_unless(ledger, (RUNNING, PAUSED), "approved")
        approval = snapshot.approvals.get(stage) if stage is not None else None
        if approval is not None:
            return CommandResult(ledger, remarks=[f"Stage {stage} was approved by {approval.by} already."])
        plan = plan_of(writer.store, snapshot, ledger, command.fleet)
        if not _can_be_approved(plan, snapshot, ledger) or (stage is not None and stage != plan.stage):
            raise _nothing_to_approve(plan, ledger, stage)
        given = command.plain()
        key = writer.store.keys.approval(str(plan.stage))
        text = encode_approval(given)
        event = {"what": "approve", "stage": plan.stage, **command_fields(given)}
        writer.write(ledger, event, [put(key, text)], [Change(key, None, text)])
        return CommandResult(writer.ledger or ledger)

    return write_command(store, act, dry=dry)


def _can_be_approved(plan: Plan, snapshot: Snapshot, ledger: Ledger) -> bool:
    """Return whether the current stage waits for an approval.

    If a planner's clock is ahead of this one, this process can't tell when the soak ends. The approval is accepted then: the stage still
    waits for the soak, which planners measure.
    """
    mark, kept = plan.stage_mark, ledger.stage
    # A rollback has no mark: its stages need no approval.
    if plan.needs_approval or "done_at" not in mark or mark["number"] != kept.get("number"):
        return plan.needs_approval
    return parse(ledger.instructions).stages[mark["number"]].approve and kept.get("done_at", 0) > snapshot.now


def _nothing_to_approve(plan: Plan, ledger: Ledger, stage: str | None) -> UpgradeError:
    stages = parse(ledger.instructions).stages
    names = [one.name for one in stages]
    if stage is not None and names and stage not in names:
        return UpgradeError(
            "nothing_to_approve",
            f"The rules have no stage {truncated_repr(stage)}{did_you_mean(stage, names) or '.'} Their stages are {listing(names, 10)}. Nothing is approved.",
        )
    whom = f"stage {stage}" if stage is not None else "the current stage"
    kind, done = "job" if ledger.is_job else "rollout", state_text(UPGRADED, of_job=ledger.is_job)
    now = f"the {kind} is in stage {plan.stage}" if plan.stage else "the rules have no stages"
    why = "it waits for approval" if plan.needs_approval else "nothing waits for approval now"
    hint = f"Look at it with ansible-playbook convoy.upgrade.status, and approve once its hosts are {done}."
    # done_at is set once all hosts of the stage are upgraded.
    done_at = plan.stage_mark.get("done_at")
    if done_at is not None and not plan.needs_approval and stage in (None, plan.stage):
        one = stages[plan.stage_mark["number"]]
        until = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(plan.stages.until or done_at + one.soak))
        why = f"its hosts are {done}, and it soaks until {until}"
        hint = "Approve it after that." if one.approve else "It needs no approval: the next stage begins then."
    return UpgradeError("nothing_to_approve", f"{whom} can't be approved: {now}; {why}. {hint}")
