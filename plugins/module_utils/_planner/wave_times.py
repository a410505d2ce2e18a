# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long each wave of a plan may take, judged by what every host took the last time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from .._fleet.fleet import STARTED, UPGRADED, HostRecord, Snapshot


def wave_seconds(
    snapshot: Snapshot, members: Mapping[str, str], waves: Sequence[Sequence[str]], soak: int = 0
) -> tuple[float, ...]:
    """Return how many seconds each wave may take, 0 where no host has told yet. Takes time linear in hosts.

    A host takes as long as the middle one of its role did, from its start to its end, or of all hosts where none of its role
    has told; a wave takes as long as its slowest role. A host's record is that of its last move, so it is this rollout that
    counts for those that are done, and the one before it for the others.

    :param members: host -> role.
    :param soak: seconds that a host has to be well before it counts.
    """
    took: dict[str, list[int]] = {}
    for host, role in members.items():
        seconds = _took(snapshot.records.get(host))
        if seconds is not None:
            took.setdefault(role, []).append(seconds)
    if not took:
        return (0.0,) * len(waves)
    of_all = float(median(seconds for found in took.values() for seconds in found))
    typical = {role: float(median(found)) for role, found in took.items()}
    return tuple(
        max((typical.get(members[host], of_all) for host in wave), default=0.0) + (soak if wave else 0)
        for wave in waves
    )


def _took(record: HostRecord | None) -> int | None:
    if record is None or not record.readable or record.state != UPGRADED:
        return None
    began, ended = record.times.get(STARTED), record.times.get(UPGRADED)
    return ended - began if began is not None and ended is not None and ended >= began else None
