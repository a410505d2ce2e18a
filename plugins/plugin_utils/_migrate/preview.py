# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Previews a migration by executing it on a copy of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...module_utils._consul.client import KVEntry
from ...module_utils._consul.operations import Change
from ...module_utils._fleet.migration import REMOVING
from .outcome import MigrationResult, StepResult
from .status import MigrationStatus
from .step import KeyMove, KeysFound, MigrationStep
from .validate import validate


def preview(
    status: MigrationStatus, ahead: Sequence[MigrationStep], *, remove_legacy: bool, nothing: str
) -> MigrationResult:
    """Return the result that a run would have.

    :param ahead: the steps to execute; the first one has been validated.
    :param nothing: a sentence on where no key of a fleet was found; empty if there are keys.
    :raises UpgradeError: ``in_the_way``.
    """
    outcome = MigrationResult(status.schema, status.schema, status.steps[-1].number, nothing=nothing)
    # A run reads the keys with ``begun`` set, because it has written its beginning.
    found = replace(status.found, begun=True)
    for step in ahead:
        validate(step, found, is_midway=status.is_under_way)
        done = StepResult(step)
        outcome.steps.append(done)
        found = _copied(step, found, done, outcome)
        written = Change(
            found.keys.schema, status.schema_text if step is ahead[0] else str(step.number - 1), str(step.number)
        )
        outcome.changes.append(written)
        outcome.schema = step.number
    after = replace(status, found=found, schema=outcome.schema)
    is_removing = status.migration is not None and status.migration.state == REMOVING
    if is_removing or remove_legacy or after.is_over(outcome.schema):
        for step in status.steps[: outcome.schema]:
            done, switched = StepResult(step), replace(found, begun=True, switched=True)
            outcome.removed.append(done)
            found = _copied(step, switched, done, outcome)
            removed = step.removals(found)
            outcome.add(done, removed)
            found = after_moves(found, removed)
        after = replace(after, found=found)
    outcome.keep(status, after)
    return outcome


def _copied(step: MigrationStep, found: KeysFound, done: StepResult, outcome: MigrationResult) -> KeysFound:
    """Return the keys after all moves of a step."""
    while moves := step.moves(found):
        outcome.add(done, moves)
        found = after_moves(found, moves)
    return found


def after_moves(found: KeysFound, moves: Sequence[KeyMove]) -> KeysFound:
    """Return the keys after moves."""
    entries = dict(found.entries)
    newest = max((entry.modify_index for entry in entries.values()), default=0) + 1
    for move in moves:
        for change in move.changes:
            if change.after is None:
                entries.pop(change.key, None)
            else:
                entries[change.key] = KVEntry(change.key, change.after.encode(), newest)
    return replace(found, entries=dict(sorted(entries.items())))
