# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rollback: a new rollout to the version that the fleet had before."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from ..._common.errors import UpgradeError
from ..._common.names import did_you_mean, in_order, is_job, listing
from ..._common.sanitize import option
from ..._fleet.fleet import Snapshot
from ..._fleet.ledger import ABORTED, COMPLETE, PAUSED, Ledger
from ..._passes.planner_pass import PassRequest, make_pass
from ..._rules.instructions import REVERSED, ROLLBACK_ORDER
from ..._state.layout import refuse_to_plan
from ..._state.ledger_writer import job_under_way
from ..._state.store import Store
from .command import Command, CommandResult, ledger_of


def roll_back(
    store: Store, command: Command, version: str | None = None, rollback_order: str | None = None, *, dry: bool = False
) -> CommandResult:
    """Begin a rollout to the previous version, under the rules of the current one. It admits no host yet.

    A second call changes nothing while the rollback is under way, and begins it again if it was aborted. A rollback is not undone by another
    one: an ordinary rollout has the order, the stages and the approvals of an upgrade.

    :param version: the target; None for the ledger's previous version, or for the target of the rollback under way.
    :param rollback_order: ``reversed`` or ``forward``, in place of the value in the rules; None for that value.
    :raises UpgradeError: ``no_rollout``, ``no_previous_version``, ``unknown_version``, ``foreign_version``, ``bad_options``, and what :func:`make_pass`
        raises.
    """
    snapshot = store.snapshot()
    refuse_to_plan(store.keys, snapshot)
    ledger = ledger_of(store.keys, snapshot)
    if ledger.is_job and ledger.is_under_way:
        raise job_under_way(ledger)
    if ledger.is_job:
        # A job can't be rolled back: its command has run. What is rolled back is the last rollout to a version.
        snapshot = store.snapshot(of_job=False)
        ledger = ledger_of(store.keys, snapshot)
    if version is None and snapshot.current_version != ledger.version:
        raise UpgradeError(
            "foreign_version",
            f"{store.keys.current_version} is {snapshot.current_version!r}, but the rollout in {store.keys.ledger} goes to "
            f"{ledger.version!r}: something other than a planner has set it, so the version to go back to is unknown. Give version "
            "(-e version=X).",
        )
    remarks = []
    target = version or ledger.previous_version
    if ledger.rollback and version in (None, ledger.version):
        if ledger.state != ABORTED:
            _refuse_other_order(ledger, rollback_order)
            return CommandResult(ledger, remarks=[_already_rolled_back(ledger)])
        target = ledger.version
        remarks.append(f"The rollback to {target} was aborted, and begins again.")
    elif target is None:
        raise UpgradeError(
            "no_previous_version",
            f"{store.keys.ledger} has no version from before the rollout to {ledger.version}. Give version (-e version=X)."
            f"{_versions_of_hosts(snapshot, ledger)}",
            variables={"version": "X"},
        )
    elif target == ledger.version:
        raise UpgradeError(
            "no_previous_version",
            f"version: {target} is the target of the rollout in {store.keys.ledger}, so a rollback can't go there. Give another "
            "version, or begin that rollout again with ansible-playbook convoy.upgrade.upgrade.",
        )
    elif ledger.rollback and target == ledger.previous_version:
        raise _is_upgrade(ledger, target)
    elif version is None:
        others = _other_versions(snapshot, {ledger.version, target})
        more = (
            f" Hosts have also reported {listing(others)}: to roll back to one of these, give version."
            if others
            else ""
        )
        remarks.append(f"The fleet rolls back to {target}, the version before the rollout to {ledger.version}.{more}")
    if version is not None:
        _refuse_unknown(store, snapshot, ledger, version)
    request = PassRequest(
        target,
        rules={**ledger.instructions, ROLLBACK_ORDER: rollback_order} if rollback_order else ledger.instructions,
        fleet=dict(command.fleet) or None,
        limit=[],
        rolls_back=ledger,
        command=command.plain(),
    )
    outcome = make_pass(store, request, dry=dry)
    return CommandResult(outcome.ledger or ledger, changes=outcome.changes, remarks=[*remarks, *outcome.begin_warnings])


def _refuse_other_order(ledger: Ledger, rollback_order: str | None) -> None:
    current = ledger.instructions.get(ROLLBACK_ORDER, REVERSED)
    if rollback_order not in (None, current):
        raise UpgradeError(
            "bad_options",
            f"{ROLLBACK_ORDER}: {rollback_order} is given, but the rollback to {ledger.version} is under way with {current}. Leave it "
            f"out, or change the rules: run ansible-playbook convoy.upgrade.upgrade {option('version', ledger.version)} with all instructions and "
            f"{ROLLBACK_ORDER}: {rollback_order}.",
            variables={},
            without=[ROLLBACK_ORDER],
        )


def as_rollback(store: Store, request: PassRequest) -> PassRequest:
    """Return a request that rolls the current rollout back to its version, or continues that rollback.

    :param request: needs a version; without rules, it takes those of the current rollout.
    :raises UpgradeError: ``no_rollout``, ``no_previous_version``, ``unknown_version``, ``unreadable_ledger``.
    """
    snapshot = store.snapshot(of_job=False)
    ledger = ledger_of(store.keys, snapshot)
    if ledger.rollback and ledger.version == request.version and ledger.state != ABORTED:
        return request
    if ledger.rollback and request.version is not None and request.version == ledger.previous_version:
        raise _is_upgrade(ledger, request.version)
    if request.version is not None:
        _refuse_unknown(store, snapshot, ledger, request.version)
    return replace(request, rolls_back=ledger, rules=ledger.instructions if request.rules is None else request.rules)


def _versions_of_hosts(snapshot: Snapshot, ledger: Ledger) -> str:
    """Return a sentence with the other versions that hosts run; empty if there are none."""
    found = _other_versions(snapshot, {ledger.version})
    return f" Hosts have also reported {listing(found)}." if found else ""


def _other_versions(snapshot: Snapshot, known: Set[str]) -> list[str]:
    return in_order({report.version for report in snapshot.reports.values()} - known)


def _refuse_unknown(store: Store, snapshot: Snapshot, ledger: Ledger, version: str) -> None:
    """Refuse to go back to a version that the fleet never had, such as one with a typo. The history is read only for one that no host names.

    :raises UpgradeError: ``unknown_version``.
    """
    known = {ledger.version, ledger.previous_version}
    known.update(report.version for report in snapshot.reports.values())
    known.update(one.version for record in snapshot.records.values() for one in (record, *record.former))
    if version in known:
        return
    for event in store.history(ledger):
        known.update((event["version"], event.get("from")))
    if version in known:
        return
    names = in_order(one for one in known if one and not is_job(one))
    raise UpgradeError(
        "unknown_version",
        f"version: neither a host nor the history has {version!r}{did_you_mean(version, names) or '.'} A rollback goes to a version that the fleet had: "
        f"{listing(names)}. Nothing was done. To go to another one, run ansible-playbook convoy.upgrade.upgrade {option('version', version)}.",
        variables={"version": "X"},
    )


def _is_upgrade(ledger: Ledger, version: str) -> UpgradeError:
    """Return the error for a rollback to the version that the last rollback went back from."""
    replaced = f" {option('replace', ledger.version)}" if ledger.is_under_way else ""
    return UpgradeError(
        "no_previous_version",
        f"version: {version} is what the rollback to {ledger.version} goes back from, so to go there is an upgrade, with the order, the stages and the "
        f"approvals of one. Nothing was done. Run ansible-playbook convoy.upgrade.upgrade {option('version', version)}{replaced}.",
    )


def _already_rolled_back(ledger: Ledger) -> str:
    if ledger.state == COMPLETE:
        return f"The rollback to {ledger.version} is complete already. To roll back to another version, give version."
    paused = (
        ", and it is paused: continue with ansible-playbook convoy.upgrade.resume" if ledger.state == PAUSED else ""
    )
    return f"The rollback to {ledger.version} is under way already{paused}."
