# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detects that Consul was restored to an earlier time, for a caller that reads it more than once."""

from __future__ import annotations

from .._common.errors import UpgradeError
from .._fleet.fleet import Snapshot
from .._fleet.ledger import Ledger
from .._rollout.conflicts import other_rollout
from .._state.keys import Keys
from .._state.store import Store


class RepeatedRead:
    """Reads the keys, and refuses a read in which a write is missing that the caller has seen.

    :param epoch: the newest epoch that the caller has read or written; 0 for none.
    :param commit: the commit of that epoch; empty if the caller does not have it.
    """

    def __init__(self, epoch: int, commit: str) -> None:
        """Begin with what an earlier pass has read."""
        self._epoch, self._commit = epoch, commit

    def read(self, store: Store, of_job: bool | None = None) -> Snapshot:
        """Return the snapshot. One request.

        :param of_job: as for :meth:`Store.snapshot`.
        :raises UpgradeError: ``went_back``, ``overtaken``, and what :meth:`Store.snapshot` raises.
        """
        snapshot = _checked(store, self._epoch, self._commit, of_job)
        self.note(snapshot.ledger)
        return snapshot

    def note(self, ledger: Ledger | None) -> None:
        """Remember a ledger that the caller has written."""
        if ledger is not None:
            self._epoch, self._commit = ledger.epoch, ledger.commit


def _checked(store: Store, epoch: int, commit: str, of_job: bool | None) -> Snapshot:
    snapshot = store.snapshot(epoch if commit else 0, of_job)
    # A job that came before any rollout to a version is the ledger too.
    newest = snapshot.ledger or snapshot.job
    found = newest.epoch if newest is not None else 0
    if found < epoch:
        # A token that may not read the key any more sees none in the snapshot, and is refused here.
        store.client.get(store.keys.ledger)
        raise _went_back(
            store.keys,
            found,
            epoch,
            f"is at epoch {found}, but this run has read epoch {epoch}: Consul was restored to an",
        )
    if commit and snapshot.ledger is not None and epoch < snapshot.ledger.history_from:
        # The history keeps the current rollout and the one before, so at least two have begun since.
        raise other_rollout(snapshot)
    if commit and snapshot.commits.get(epoch) != commit:
        # After a restore, a planner that continues uses the same epochs again.
        raise _went_back(
            store.keys,
            found,
            epoch,
            f"is at epoch {found}, but epoch {epoch} in {store.keys.event(epoch)} is not the one that this run has read: Consul was "
            "restored, and another planner has continued from an",
        )
    return snapshot


def _went_back(keys: Keys, found: int, seen: int, what: str) -> UpgradeError:
    return UpgradeError(
        "went_back",
        f"{keys.ledger} {what} earlier time, such as from a snapshot. Hosts that were admitted since then may be down, and Consul has "
        "no record of that. No host is admitted. Compare the hosts with ansible-playbook convoy.upgrade.status, then "
        "run ansible-playbook convoy.upgrade.upgrade again.",
        found=found,
        seen=seen,
    )
