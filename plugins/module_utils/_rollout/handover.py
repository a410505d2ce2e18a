# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The handover of a rollout to planner services: a run begins the rollout and ends, and they carry it to its end.

A planner service admits no host of a rollout that was not handed over, because only the run that began it knows which hosts may be
admitted, and which hosts Ansible upgrades.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .._codecs.values import decode_data, sanitize_all
from .._common import runtime
from .._common.clock import is_time
from .._common.errors import UpgradeError
from .._common.names import is_valid_target
from .._consul.operations import Change, put, remove
from .._fleet.ledger import Ledger
from .._state.store import Store, current_user


@dataclass(frozen=True, slots=True)
class Handover:
    """A rollout that planner services carry to its end.

    :param version: the target of the rollout.
    :param since: when the rollout began (unix seconds). Together with the version, it identifies the rollout.
    :param limit: host patterns of the hosts that may be admitted; None for all.
    :param id: a random ID of this handover.
    :param by: who handed it over.
    :param at: when (unix seconds).
    """

    version: str
    since: int
    limit: tuple[str, ...] | None
    id: str
    by: str
    at: int

    def is_of(self, ledger: Ledger) -> bool:
        """Return whether it is the handover of the rollout of a ledger."""
        return (self.version, self.since) == (ledger.version, ledger.since)


def decode_handover(value: bytes) -> Handover:
    """Return a handover.

    :raises ValueError: if it can't be read, or has a field that this release does not know and that may forbid an admission. Its text is
        the end of a sentence.
    """
    data: Any = sanitize_all(decode_data(value))
    if not isinstance(data, dict):
        raise ValueError("it is not a mapping of names to values")
    known = [one.name for one in fields(Handover)]
    odd = sorted(set(data) ^ set(known))
    if odd:
        raise ValueError(f"it {'has the unknown field' if odd[0] in data else 'lacks the field'} {odd[0]}")
    limit = data["limit"]
    fits = (
        isinstance(data["version"], str)
        and is_valid_target(data["version"])
        and is_time(data["since"])
        and is_time(data["at"])
        and isinstance(data["id"], str)
        and isinstance(data["by"], str)
        and (limit is None or (isinstance(limit, list) and bool(limit) and all(isinstance(one, str) for one in limit)))
    )
    if not fits:
        raise ValueError("it has a field with an unknown value")
    return Handover(**{**data, "limit": None if limit is None else tuple(limit)})


def encode_handover(handover: Handover) -> str:
    """Return a handover as it is stored."""
    return json.dumps(asdict(handover), sort_keys=True)


def require_planner(store: Store) -> tuple[str, ...]:
    """Return the names of the planner services that run: one request.

    :raises UpgradeError: ``no_planner`` if there is none, and what :meth:`ConsulClient.read` raises.
    """
    names = tuple(store.client.names(store.keys.planners))
    if not names:
        raise UpgradeError(
            "no_planner",
            f"No planner service runs ({store.keys.planners} has no key), so no one would carry the rollout to its end. Nothing was done. "
            "Install one with the role convoy.upgrade.planner, or start it: systemctl start convoy-planner. To let this run carry the "
            "rollout, leave -e wait=false out.",
        )
    return names


def hand_over(store: Store, ledger: Ledger, limit: Sequence[str] | None, *, dry: bool) -> list[Change]:
    """Hand a rollout over to planner services; return the change, none if it was handed over with the same limit before.

    :param limit: as for :class:`Handover`. It replaces the one of an earlier handover.
    :param dry: write nothing.
    :raises UpgradeError: what :meth:`ConsulClient.write` raises.
    """
    key = store.keys.handover
    entry = store.client.get(key)
    wanted = Handover(
        ledger.version,
        ledger.since,
        None if limit is None else tuple(limit),
        runtime.new_id(),
        current_user(),
        int(runtime.now()),
    )
    if not dry:
        # Also if nothing else changes: after a restore of Consul, planner services wait for a new one.
        store.client.write([put(key, encode_handover(wanted))])
    before = None
    if entry is not None:
        try:
            before = decode_handover(entry.value)
        except ValueError:
            return [Change(key, entry.value.decode(errors="replace"), encode_handover(wanted))]
        if (before.version, before.since, before.limit) == (wanted.version, wanted.since, wanted.limit):
            return []
    return [Change(key, None if before is None else encode_handover(before), encode_handover(wanted))]


def take_back(store: Store) -> None:
    """End a handover, if there is one: from now on, planner services admit no host.

    :raises UpgradeError: what :meth:`ConsulClient.write` raises.
    """
    store.client.write([remove(store.keys.handover)])
