# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator takes a rollout back: another one begins, to where the fleet was."""

from __future__ import annotations

from dataclasses import replace

from ..._common.errors import UpgradeError
from ..._fleet.ledger import ABORTED, COMPLETE, PAUSED, Ledger
from ..._rules.instructions import REVERSED, ROLLBACK_ORDER
from ..._state.layout import refuse_to_plan
from ..._state.store import Store
from ..planner_pass import PassRequest, make_pass
from .command import Command, CommandResult, ledger_of


def roll_back(
    store: Store, word: Command, version: str | None = None, rollback_order: str | None = None, *, dry: bool = False
) -> CommandResult:
    """Begin a rollout to where the fleet was, under the rules of the one that it takes back. It opens nothing yet.

    Said again it goes on with the same rollback, and begins it again where it was aborted. To turn round once more, the
    version has to be given.

    :param version: where to; None for the ledger's previous version, which is the last one that was completed, or for
        where a rollback goes already.
    :param rollback_order: reversed or forward, in place of what the rules say; None for what they say.
    :raises UpgradeError: ``no_rollout``, ``no_previous_version``, ``foreign_version``, ``bad_options``, and what :func:`make_pass` raises.
    """
    snapshot = store.snapshot()
    refuse_to_plan(store.keys, snapshot)
    ledger = ledger_of(store.keys, snapshot)
    if version is None and snapshot.current_version != ledger.version:
        raise UpgradeError(
            "foreign_version",
            f"{store.keys.current_version} is {snapshot.current_version!r}, but the rollout in {store.keys.ledger} goes to "
            f"{ledger.version!r}: something else has set it, so no one knows where the fleet was before. Give version.",
        )
    remarks = []
    target = version or ledger.previous_version
    if ledger.rollback and version in (None, ledger.version):
        if ledger.state != ABORTED:
            _refuse_other_order(ledger, rollback_order)
            return CommandResult(ledger, remarks=[_taken_back_already(ledger)])
        target = ledger.version
        remarks.append(f"Taking the fleet back to {target} was aborted, and begins again.")
    elif target is None:
        raise UpgradeError(
            "no_previous_version",
            f"{store.keys.ledger} does not say where the fleet was before {ledger.version}. Give version.",
        )
    elif target == ledger.version:
        raise UpgradeError(
            "no_previous_version",
            f"version: {target} is where the rollout in {store.keys.ledger} goes, so it can't be taken back to that. Give "
            "another version, or restart it with upgrade.yml.",
        )
    elif version is None:
        remarks.append(
            f"The fleet goes back to {target}, which is where the rollout to {ledger.version} came from. Versions whose rollouts "
            "were begun in between and not completed are passed over; to go to one of these, give version."
        )
    request = PassRequest(
        target,
        rules={**ledger.instructions, ROLLBACK_ORDER: rollback_order} if rollback_order else ledger.instructions,
        fleet=dict(word.fleet) or None,
        limit=[],
        takes_back=ledger,
        word=word.plain(),
    )
    outcome = make_pass(store, request, dry=dry)
    return CommandResult(outcome.ledger or ledger, changes=outcome.changes, remarks=remarks)


def _refuse_other_order(ledger: Ledger, rollback_order: str | None) -> None:
    held = ledger.instructions.get(ROLLBACK_ORDER, REVERSED)
    if rollback_order not in (None, held):
        raise UpgradeError(
            "bad_options",
            f"{ROLLBACK_ORDER}: {rollback_order} is given, and the rollback to {ledger.version} is under way with {held}. Leave it "
            f"out, or change the rules: run upgrade.yml -e version={ledger.version} with all instructions and {ROLLBACK_ORDER}: "
            f"{rollback_order}.",
        )


def as_rollback(store: Store, request: PassRequest) -> PassRequest:
    """Return a request that begins its version as the rollback of the rollout that there is, or goes on with that rollback.

    :param request: its version has to be given; without rules, it takes those of the rollout that it takes back.
    :raises UpgradeError: ``no_rollout``, ``unreadable_ledger``.
    """
    ledger = ledger_of(store.keys, store.snapshot())
    if ledger.rollback and ledger.version == request.version and ledger.state != ABORTED:
        return request
    return replace(request, takes_back=ledger, rules=ledger.instructions if request.rules is None else request.rules)


def _taken_back_already(ledger: Ledger) -> str:
    if ledger.state == COMPLETE:
        return f"The fleet was taken back to {ledger.version} already. To go elsewhere, give version."
    paused = ", and that is paused: resume.yml lets it go on" if ledger.state == PAUSED else ""
    return f"The fleet is being taken back to {ledger.version} already{paused}."
