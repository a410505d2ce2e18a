# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The writes of planners: each is one transaction that begins with a compare-and-set of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._codecs.event import encode_event
from .._codecs.values import decode_ledger, encode_ledger
from .._common import runtime
from .._common.errors import UpgradeError
from .._common.names import job_id
from .._consul.client import MOST_OPERATIONS, Operation
from .._consul.errors import Conflict, Unreachable
from .._consul.operations import Change, compare, compare_and_put, put, remove
from .._fleet.fleet import Snapshot
from .._fleet.ledger import PAUSED, Ledger
from .gate_copies import GateCopies
from .history_retention import removable_epochs, with_kept_rollouts
from .store import Store

# Besides gates, a transaction has the ledger, a check of current_version, the entry of the history, and perhaps a check of the handover.
_OWN_OPERATIONS = 4
MOST_GATES = MOST_OPERATIONS - _OWN_OPERATIONS


class HandoverChanged(UpgradeError):
    """The handover that a planner service works under was replaced or ended. Nothing was written."""


class LedgerWriter:
    """Writes on top of a snapshot, then on top of its own writes.

    If another process writes the ledger or ``current_version`` meanwhile, the next write raises :class:`Conflict`, and the
    caller has to read and plan again. So planners need no lock, and a stale planner can't write.

    As long as nodes may read the legacy layout, each gate is written to both layouts in the same transaction.

    A rollout to a version and a job have one ledger. Neither writes over the other while that is under way.

    :param who: the author of the entries in the history.
    :param clock: the time in the entries of the history (unix seconds).
    :param dry: check mode: send nothing, and do everything else.
    :param handover: the ModifyIndex of the handover that the writes are made under; 0 for none. If it changes, nothing is written.
    """

    def __init__(
        self, store: Store, snapshot: Snapshot, who: str, clock: int, *, dry: bool = False, handover: int = 0
    ) -> None:
        """Begin on top of a snapshot."""
        self.store = store.of(snapshot)
        self._job = snapshot.job
        self.ledger = snapshot.ledger
        self.changes: list[Change] = []
        self._index = snapshot.ledger_index
        self._version_index = snapshot.version_index
        self._who = who
        self.clock = clock
        self.dry = dry
        self._handover = handover
        self._copies = GateCopies(self.store.keys, snapshot)

    @property
    def places(self) -> int:
        """How many of the :data:`MOST_GATES` operations one gate takes, as it may be set in both layouts."""
        return self._copies.places

    def room(self, operations: Sequence[Operation]) -> int:
        """Return how many operations a write has room for besides these."""
        return MOST_GATES - len(self._copies.operations(operations))

    @property
    def next_epoch(self) -> int:
        """The epoch of the next write."""
        return self.store.epoch_after(self.ledger)

    def write(
        self,
        ledger: Ledger,
        event: Mapping[str, Any],
        operations: Sequence[Operation] = (),
        changes: Sequence[Change] = (),
    ) -> None:
        """Write a ledger, its entry in the history and further operations, all or nothing; remove entries that are not kept.

        :param ledger: the new ledger; its epoch, its commit and what the history keeps are set here.
        :param event: what happened and why, for the history.
        :param changes: the changes of ``operations``, for diff mode.
        :raises Conflict: if another process wrote the ledger or ``current_version``.
        :raises HandoverChanged: if the handover was replaced or ended.
        :raises UpgradeError: ``job_under_way``.
        """
        if self._job is not None and self._job.is_under_way:
            raise job_under_way(self._job)
        self._make_room(operations)
        operations = self._copies.operations(operations)
        key, before = self.store.keys.ledger, self.ledger
        ledger = replace(ledger, epoch=self.next_epoch, commit="" if self.dry else runtime.new_id())
        ledger = with_kept_rollouts(before, ledger, str(event["what"]))
        room = MOST_GATES + (0 if self._handover else 1)
        old = removable_epochs(ledger, room - len(operations))
        ledger = replace(ledger, history_from=old.stop)
        if not self.dry:
            self._send(ledger, event, [*operations, *(remove(self.store.keys.event(epoch)) for epoch in old)])
        self.ledger = ledger
        self.changes.append(Change(key, ledger_for_diff(before) if before else None, ledger_for_diff(ledger)))
        self.changes.extend(self._copies.changes(changes))
        if any(map(self._copies.wipes, operations)):
            self.changes.extend(self._copies.wiped())

    def _make_room(self, operations: Sequence[Operation]) -> None:
        """Write the operations for legacy gates that the transaction has no room for.

        If this process ends before the transaction itself, the next planner simply goes on from there.
        """
        keys = self.store.keys
        for piece in () if self.dry else self._copies.ahead(operations):
            checks = [compare(keys.ledger, self._index), compare(keys.current_version, self._version_index)]
            try:
                self._write([*checks, *piece.operations])
            except Unreachable as error:
                # The caller reads again, and so finds out whether it was applied.
                raise Conflict("conflict", f"{error.message} Legacy gates may or may not have been removed.") from None
            self.changes.extend(piece.changes)

    def _send(self, ledger: Ledger, event: Mapping[str, Any], operations: Sequence[Operation]) -> None:
        keys, commit = self.store.keys, ledger.commit
        entry = {
            "epoch": ledger.epoch,
            "at": self.clock,
            "who": self._who,
            "commit": commit,
            "version": ledger.version,
        }
        head = [
            compare_and_put(keys.ledger, encode_ledger(ledger), self._index),
            compare(keys.current_version, self._version_index),
            put(keys.event(ledger.epoch), encode_event({**entry, **event})),
        ]
        try:
            written = self._write([*head, *operations])
            indexes = {one["Key"]: one["ModifyIndex"] for one in written}
        except Unreachable:
            indexes = {keys.ledger: self._index_if_done(ledger.epoch, commit)}
        self._index = indexes[keys.ledger]
        self._version_index = indexes.get(keys.current_version, self._version_index)

    def _write(self, operations: Sequence[Operation]) -> list[dict[str, Any]]:
        key = self.store.keys.handover
        check = [compare(key, self._handover)] if self._handover else []
        try:
            return self.store.client.write([*operations, *check])
        except Conflict as error:
            if check and key in error.details.get("keys", ()):
                raise HandoverChanged(
                    "overtaken",
                    f"{key} was replaced or deleted while a pass was made, so the pass wrote nothing more. Look at the rollout with "
                    "ansible-playbook convoy.upgrade.status.",
                ) from None
            raise

    def _index_if_done(self, epoch: int, commit: str) -> int:
        # The answer was lost. A read shows whether the write was applied. If it still arrives after the read, the compare-and-set
        # accepts either it or the next write, never both.
        entry = self.store.client.get(self.store.keys.ledger)
        found = decode_ledger(entry.key, entry.value).epoch if entry is not None else 0
        if entry is not None and found >= epoch and any(e.get("commit") == commit for e in self.store.events([epoch])):
            # If others have written since, index 0 makes the next write a conflict.
            return entry.modify_index if found == epoch else 0
        raise Conflict("conflict", "The answer to a write was lost, and the write was not applied.")


def ledger_for_diff(ledger: Ledger) -> str:
    """Return a ledger for diff mode: without its commit, which check mode does not have."""
    return encode_ledger(replace(ledger, commit=""))


def job_under_way(job: Ledger) -> UpgradeError:
    """Return the error for a write to a rollout to a version, while a job is under way."""
    return UpgradeError(
        "job_under_way",
        f"The job {job_id(job.version)} is under way: it was begun by {job.who} and is {job.state}. So nothing is changed: one job or "
        "rollout moves the fleet at a time. "
        f"{'Continue it with ansible-playbook convoy.upgrade.resume and wait' if job.state == PAUSED else 'Wait'} until it is "
        "complete (-e wait_for_other=true waits by itself), or end it with ansible-playbook convoy.upgrade.abort. Then "
        "run the same command again. If it is a job "
        "of yours that was interrupted, continue it with ansible-playbook convoy.upgrade.command -e "
        f"job={job_id(job.version)}{' -e run_tasks=FILE' if job.by_ansible else ''}.",
        job=job_id(job.version),
        state=job.state,
    )
