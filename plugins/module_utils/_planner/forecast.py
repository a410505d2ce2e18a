# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The forecast: the waves that follow if every upgrade succeeds, and how long each wave may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from .._fleet.fleet import STARTED, UPGRADED, HostRecord, Snapshot
from .admission import Position, Wave, admit, begin_stage


def forecast(position: Position, in_flight: Mapping[str, int], wave: Wave) -> tuple[tuple[str, ...], ...]:
    """Return the waves that follow if all hosts in flight, and then all hosts of each wave, are upgraded.

    Hosts that failed, are lost or are held do not recover in a forecast. A stage begins when all hosts of earlier stages are
    upgraded; soaks and approvals of stages take no time.
    Takes time linear in hosts, and in waves times roles.

    :param in_flight: role -> number of hosts, of any stage, that are upgrading and expected to finish.
    :param wave: the hosts that are admitted at this position.
    """
    position = _after_hosts_in_flight(position, in_flight)
    waves: list[tuple[str, ...]] = []
    while True:
        wave, position = next_wave(finish(position, {role: len(hosts) for role, hosts in wave.items()}))
        if not wave:
            return tuple(waves)
        waves.append(tuple(host for hosts in wave.values() for host in hosts))


def _after_hosts_in_flight(position: Position, in_flight: Mapping[str, int]) -> Position:
    """Return the position after all hosts in flight are upgraded. New rules may have put them into a later stage."""
    stages = tuple(
        replace(one, unfinished=_less(one.unfinished, one.in_flight), in_flight={}) for one in position.stages
    )
    unfinished = _less(position.unfinished, position.stages[0].in_flight)
    slots = position.slots.release(in_flight)
    return replace(position, stages=stages, unfinished=unfinished, slots=slots)


def _less(counts: Mapping[str, int], fewer: Mapping[str, int]) -> dict[str, int]:
    return {role: count - fewer.get(role, 0) for role, count in counts.items()}


def next_wave(position: Position) -> tuple[Wave, Position]:
    """Return the hosts that are admitted next, and the position after that. Begins later stages if the current one has no host left."""
    while True:
        wave, after = admit(position)
        if wave or after.is_last_stage or any(after.unfinished.values()):
            return wave, after
        position = begin_stage(after.order, after.stages[1:], after.slots)


def finish(position: Position, hosts: Mapping[str, int]) -> Position:
    """Return the position after hosts are upgraded and their slots are free.

    :param hosts: role -> number of hosts.
    """
    return replace(position, unfinished=_less(position.unfinished, hosts), slots=position.slots.release(hosts))


def wave_seconds(
    snapshot: Snapshot, members: Mapping[str, str], waves: Sequence[Sequence[str]], soak: int = 0
) -> tuple[float, ...]:
    """Return how many seconds each wave may take; 0 if no host is known to have finished. Takes time linear in hosts.

    A host takes the median time of its role, from start to end; without one, the median of all hosts. A wave takes as long as its
    slowest role. A host that is done counts with its time in this rollout, any other host with its last upgrade.

    :param members: host -> role.
    :param soak: seconds for which a host has to be healthy before it counts as upgraded.
    """
    took: dict[str, list[int]] = {}
    for host, role in members.items():
        seconds = _seconds(snapshot.records.get(host))
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


def _seconds(record: HostRecord | None) -> int | None:
    if record is None or not record.readable or record.state != UPGRADED:
        return None
    began, ended = record.times.get(STARTED), record.times.get(UPGRADED)
    return ended - began if began is not None and ended is not None and ended >= began else None
