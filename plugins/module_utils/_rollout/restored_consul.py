# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A caller that goes on notices when Consul was put back to an earlier time."""

from __future__ import annotations

from .._common.errors import UpgradeError
from .._fleet.fleet import Snapshot
from .._state.keys import Keys
from .._state.store import Store


def read_again(store: Store, epoch: int, commit: str) -> Snapshot:
    """Return what there is now, to a caller that has been here before: one request.

    :param epoch: the newest epoch that the caller has seen, 0 for none.
    :param commit: the commit of that epoch, empty where the caller does not know it.
    :raises UpgradeError: ``went_back``, and what :meth:`Store.snapshot` raises.
    """
    snapshot = store.snapshot(epoch if commit else 0)
    found = snapshot.ledger.epoch if snapshot.ledger is not None else 0
    if found < epoch:
        raise _went_back(
            store.keys,
            found,
            epoch,
            f"is at epoch {found}, and this call has seen epoch {epoch}: Consul was put back to an",
        )
    if commit and snapshot.commits.get(epoch) != commit:
        # Numbers are used again by whoever goes on after a restore.
        raise _went_back(
            store.keys,
            found,
            epoch,
            f"is at epoch {found}, and epoch {epoch} in {store.keys.event(epoch)} is not the one that this call has seen: "
            "Consul was put back and somebody has gone on from an",
        )
    return snapshot


def _went_back(keys: Keys, found: int, seen: int, what: str) -> UpgradeError:
    return UpgradeError(
        "went_back",
        f"{keys.ledger} {what} earlier time, as by restoring a snapshot. What was let through since then is forgotten there "
        "and may be down. Nothing is opened; compare the hosts with status.yml, then begin again with upgrade.yml.",
        found=found,
        seen=seen,
    )
