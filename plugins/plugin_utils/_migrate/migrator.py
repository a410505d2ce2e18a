# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrates the keys of a fleet from their layout to a newer one, step by step.

Each step copies keys until nothing is left to copy, and then writes the new version of the layout. Legacy keys are kept until no host
needs them, or until an operator removes them. Every write is a transaction that checks the lock and leaves the keys consistent. What is
left to do follows from the keys alone, so a migration that was killed continues with the next run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...module_utils._codecs.event import encode_event
from ...module_utils._codecs.migration import release_number
from ...module_utils._codecs.values import decode_ledger, encode_ledger, text_of
from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.client import Operation
from ...module_utils._consul.errors import Unreachable
from ...module_utils._consul.operations import Change, compare_and_put, put
from ...module_utils._consul.retry import TRIES_OF_LEDGER, retry_on_conflict
from ...module_utils._fleet.migration import KEPT, REMOVING, RUNNING, Migration
from ...module_utils._state.ledger_writer import ledger_for_diff
from ...module_utils._state.store import Store, current_user
from .lock import MigrationLock
from .mover import carry_out
from .outcome import MigrationResult, StepResult
from .preview import preview
from .status import MigrationStatus, read_status
from .step import KeyMove, MigrationStep
from .step_finder import find_steps
from .validate import validate

_MOST_TRIES = 10
# Nodes with old code write legacy keys again. After this many rounds, the removal stops and the result names them.
_MOST_REMOVALS = 10


@dataclass(frozen=True, slots=True)
class _Warning:
    """The operations that make planners retry when a migration begins, and their changes without the entry of the history."""

    operations: tuple[Operation, ...]
    changes: tuple[Change, ...]


class Migrator:
    """One run of a migration.

    :param target: the layout to migrate to; None for the newest.
    :param remove_legacy: whether to remove legacy keys even if hosts still need them.
    """

    def __init__(self, store: Store, *, target: int | None = None, remove_legacy: bool = False) -> None:
        """Check the target, and keep the arguments.

        :raises UpgradeError: ``missing_step``, ``unknown_layout``.
        """
        self._store = store
        self._keys = store.keys
        self._steps = find_steps()
        self._remove_legacy = remove_legacy
        newest = self._steps[-1].number
        self._target = newest if target is None else target
        if not 1 <= self._target <= newest:
            raise UpgradeError(
                "unknown_layout",
                f"to: there is no layout {target}. This release of convoy.upgrade knows 1 to {newest}.",
            )

    def run(self, *, dry: bool = False) -> MigrationResult:
        """Migrate the keys.

        :param dry: write nothing, and return what would be done.
        :raises UpgradeError: ``in_the_way``, ``newer_schema``, ``no_older_layout``, ``migrating``, ``lost_lock``, ``busy``,
            and what :meth:`ConsulClient.read` and :meth:`ConsulClient.write` raise.
        """
        return retry_on_conflict(
            lambda: self._attempt(dry=dry),
            lambda: f"{self._keys.migration} or {self._keys.ledger}",
            "Nothing was changed. If a rollout is running, pause it (ansible-playbook convoy.upgrade.pause), then run the same command again.",
            TRIES_OF_LEDGER,
        )

    def _attempt(self, *, dry: bool) -> MigrationResult:
        """Migrate the keys as they are read now.

        :raises Conflict: if a planner wrote the ledger after that and before the lock was taken.
        """
        status = self._read()
        ahead = self._ahead(status)
        removes = self._removes(status)
        if not ahead and not removes and not status.is_under_way:
            return self._nothing(status)
        for step in ahead[:1]:
            validate(step, status.found, is_midway=status.is_under_way)
        if dry:
            outcome = preview(status, ahead, remove_legacy=self._remove_legacy, nothing=self._nothing_there(status))
            outcome.changes += self._warning(status, ahead).changes
            return outcome
        with MigrationLock(self._store) as lock:
            migration = self._begun(status, ahead, removes=removes)
            warning = self._warning(status, ahead)
            lock.take(migration, status.found.index(self._keys.migration), warning.operations)
            outcome = self._go(lock, migration, status, ahead)
            outcome.changes += warning.changes
            return outcome

    def _read(self) -> MigrationStatus:
        return read_status(self._store, self._steps)

    def _ahead(self, status: MigrationStatus) -> list[MigrationStep]:
        if status.schema > self._target:
            raise UpgradeError(
                "no_older_layout",
                f"{self._keys.schema} is {status.schema}, and there is no way back to layout {self._target}. To go back, restore a "
                "snapshot of Consul from before the migration.",
            )
        return [step for step in self._steps if status.schema < step.number <= self._target]

    def _removes(self, status: MigrationStatus) -> bool:
        """Return whether to remove legacy keys that an earlier run has kept, or that were written again since."""
        if status.migration is None:
            return self._remove_legacy and bool(status.legacy_keys(status.schema))
        return self._remove_legacy or status.is_over(status.schema)

    def _nothing(self, status: MigrationStatus) -> MigrationResult:
        outcome = MigrationResult(
            status.schema, status.schema, status.steps[-1].number, nothing=self._nothing_there(status)
        )
        if status.migration is not None:
            outcome.keep(status, status)
        return outcome

    def _nothing_there(self, status: MigrationStatus) -> str:
        """Return a sentence on where no key of a fleet was found; empty if there are keys."""
        if status.is_of_fleet:
            return ""
        settings = self._store.settings
        where = f"below {settings.kv_prefix}" if settings.kv_prefix else "and no kv_prefix is given"
        return (
            f"Nothing of a fleet was found: Consul at {settings.url}, {where}, has no report, gate, record, ledger or version. Check "
            "that this is the Consul of the fleet as seen from the control node, and that kv_prefix is right."
        )

    def _begun(self, status: MigrationStatus, ahead: Sequence[MigrationStep], *, removes: bool) -> Migration:
        before = status.migration
        if ahead:
            return Migration(RUNNING, status.origin, self._target)
        is_removing = removes or (before is not None and before.state == REMOVING)
        return Migration(REMOVING if is_removing else RUNNING, status.origin, status.schema)

    def _warning(self, status: MigrationStatus, ahead: Sequence[MigrationStep]) -> _Warning:
        """Return the write that makes planners retry that have read before the migration.

        Each planner compares the ledger, or the key of the folder of holds if there is no ledger. A migration that continues has written
        that when it began.
        """
        if status.is_under_way:
            return _Warning((), ())
        keys, entry = self._keys, status.found.entries.get(self._keys.ledger)
        what = f"the keys leave layout {status.schema}" if ahead else "the legacy keys are removed"
        if entry is None:
            # Consul ignores a write that changes nothing, so the text has to be unique. The index makes it so.
            index = status.found.index(keys.holds)
            text, before = f"{what}, after {index}" if index else what, status.found.entries.get(keys.holds)
            change = Change(keys.holds, text_of(before.value) or "" if before is not None else None, text)
            return _Warning((compare_and_put(keys.holds, text, index),), (change,))
        former = decode_ledger(entry.key, entry.value)
        ledger = replace(former, epoch=self._store.epoch_after(former), commit=runtime.new_id())
        fields = {"epoch": ledger.epoch, "at": int(runtime.now()), "who": current_user(), "commit": ledger.commit}
        event = {**fields, "version": ledger.version, "what": "migrate", "reason": what}
        return _Warning(
            (
                compare_and_put(keys.ledger, encode_ledger(ledger), entry.modify_index),
                put(keys.event(ledger.epoch), encode_event(event)),
            ),
            (Change(keys.ledger, ledger_for_diff(former), ledger_for_diff(ledger)),),
        )

    def _go(
        self, lock: MigrationLock, migration: Migration, status: MigrationStatus, ahead: Sequence[MigrationStep]
    ) -> MigrationResult:
        outcome = MigrationResult(
            status.schema, status.schema, status.steps[-1].number, nothing=self._nothing_there(status)
        )
        for step in ahead:
            done = StepResult(step)
            outcome.steps.append(done)
            try:
                phase = f"copying to layout {step.number}"
                carry_out(lock, replace(migration, phase=phase), done, outcome, partial(self._to_copy, status, step))
            except UpgradeError as error:
                if error.code == "in_the_way":
                    self._end_if_whole(lock, status)
                raise
            migration = self._switch(lock, migration, step, outcome, is_last=step is ahead[-1])
        if not ahead and migration.state == RUNNING:
            # An earlier run has gone beyond the target of this one.
            lock.end(replace(migration, state=KEPT), [])
        if migration.state == REMOVING:
            self._remove(lock, migration, outcome)
        outcome.keep(status, self._read())
        return outcome

    def _to_copy(self, before: MigrationStatus, step: MigrationStep) -> list[KeyMove]:
        now = self._read()
        found = replace(now.found, begun=True)
        validate(step, found, is_midway=self._is_midway(before, now))
        return step.moves(found)

    def _end_if_whole(self, lock: MigrationLock, before: MigrationStatus) -> None:
        """End the migration if it stopped before its first step or between two steps."""
        now = self._read()
        if not self._is_midway(before, now):
            kept = Migration(KEPT, before.origin, now.schema) if now.legacy_keys(now.schema) else None
            lock.end(kept, [])

    def _is_midway(self, before: MigrationStatus, now: MigrationStatus) -> bool:
        """Return whether a step has begun to move keys: each of its writes stores the number of moves."""
        return before.is_under_way or (now.migration is not None and now.migration.total > 0)

    def _switch(
        self, lock: MigrationLock, migration: Migration, step: MigrationStep, outcome: MigrationResult, *, is_last: bool
    ) -> Migration:
        """Write the version of the layout. After the last step, only the removal of legacy keys is left."""
        text: str | None = None
        for attempt in range(_MOST_TRIES):
            status = self._read()
            text = status.schema_text if attempt == 0 else text
            if status.schema >= step.number:
                # An earlier try has written it, and its reply was lost.
                after = status.migration or replace(migration, state=KEPT)
            else:
                after = self._after_switch(migration, status, step) if is_last else migration
                try:
                    self._write_schema(lock, after, step, status)
                except Unreachable:
                    continue
            outcome.changes.append(Change(self._keys.schema, text, str(step.number)))
            outcome.schema = step.number
            return after
        raise UpgradeError(
            "busy", f"{self._keys.schema} could not be written in {_MOST_TRIES} tries. Run the same command again."
        )

    def _after_switch(self, migration: Migration, status: MigrationStatus, step: MigrationStep) -> Migration:
        removes = status.legacy_keys(step.number) and (self._remove_legacy or status.is_over(step.number))
        return replace(migration, state=REMOVING if removes else KEPT)

    def _write_schema(
        self, lock: MigrationLock, after: Migration, step: MigrationStep, status: MigrationStatus
    ) -> None:
        operations = [put(self._keys.schema, str(step.number), release_number(step.release))]
        if after.state == KEPT:
            lock.end(after if status.legacy_keys(step.number) else None, operations)
        else:
            lock.write(replace(after, phase=f"layout {step.number}"), operations)

    def _remove(self, lock: MigrationLock, migration: Migration, outcome: MigrationResult) -> None:
        for step in self._steps[: outcome.schema]:
            done = StepResult(step)
            outcome.removed.append(done)
            phase = f"removing layout {step.number - 1}"
            noted = replace(migration, phase=phase)
            if not carry_out(lock, noted, done, outcome, partial(self._to_remove, step), _MOST_REMOVALS):
                found = self._read().found
                left = step.waiting(found)
                outcome.left += left
                # No host is to blame for these keys, so ``left`` does not name one.
                outcome.gave_up |= not left and bool(step.removals(found))
        after = replace(migration, state=KEPT) if outcome.gave_up else None
        for _try in range(_MOST_TRIES):
            try:
                lock.end(after, [])
            except Unreachable:
                now = self._read().migration
                if now is not None and now.is_under_way:
                    continue
            return
        raise UpgradeError(
            "busy", f"{self._keys.migration} could not be removed in {_MOST_TRIES} tries. Run the same command again."
        )

    def _to_remove(self, step: MigrationStep) -> list[KeyMove]:
        found = replace(self._read().found, begun=True, switched=True)
        # Legacy keys that were written since then are copied before they are removed.
        return step.moves(found) or step.removals(found)
