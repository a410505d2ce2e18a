# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds and approvals whose names fit no one: a hold with a typo keeps no one, and an approval with one lets no one on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .._common.names import did_you_mean, in_order, listing
from .._fleet.fleet import Snapshot
from .._rules.stages import Stage

# More than that are no typos, but hosts that are gone.
_MOST = 5


def unknown_targets(snapshot: Snapshot, members: Mapping[str, str], stages: Iterable[Stage]) -> tuple[str, ...]:
    """Return warnings for holds of hosts and roles that are not known, and for approvals of stages that there are not.

    :param members: host -> role.
    :param stages: of the rules; an approval where there is none was given before they were changed.
    """
    holds, roles = snapshot.holds, set(members.values())
    found = [
        f"{hold.key} holds no host{did_you_mean(host, members)}"
        for host, hold in holds.hosts.items()
        if host not in members
    ]
    found += [
        f"{hold.key} holds no role{did_you_mean(role, roles)}"
        for role, hold in holds.roles.items()
        if role not in roles
    ]
    names = [stage.name for stage in stages]
    approved = [
        f"The approval of stage {name} is for none of the rules{did_you_mean(name, names)}"
        for name in snapshot.approvals
        if names and name not in names
    ]
    return tuple(_ended(text) for text in (*_some(found), *_some(approved)))


def duplicate_machines(snapshot: Snapshot, members: Iterable[str]) -> tuple[str, ...]:
    """Return warnings for names under which two machines have reported, and for machines that have reported under two names."""
    hosts = list(members)
    texts = [text for host in hosts if (text := other_machine(snapshot, host))]
    names = [text for one in _of_machines(snapshot, hosts).values() if (text := _renamed(snapshot, one))]
    return tuple(_ended(text) for text in (*_some(texts), *_some(names)))


def other_name(snapshot: Snapshot, host: str) -> str:
    """Return a sentence on a host whose machine has reported under another name too, without its end; empty for other hosts."""
    return next(
        (_renamed(snapshot, one) for one in _of_machines(snapshot, snapshot.records).values() if host in one), ""
    )


def _of_machines(snapshot: Snapshot, hosts: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for host in hosts:
        record = snapshot.records.get(host)
        if record is not None and record.machine is not None:
            found.setdefault(record.machine, []).append(host)
    return found


def _renamed(snapshot: Snapshot, hosts: list[str]) -> str:
    if len(hosts) < 2:
        return ""
    first = min(hosts, key=lambda host: snapshot.records[host].index)
    machine = snapshot.records[first].machine
    return (
        f"{listing(in_order(hosts))} have reported from one machine, {machine}. If they are clones, give each an /etc/machine-id of its own. "
        f"If a host was renamed, remove its former name: forget.yml -e host={first}"
    )


def other_machine(snapshot: Snapshot, host: str) -> str:
    """Return a sentence on a host of whose name two machines have reported, without its end; empty for other hosts."""
    record = snapshot.records.get(host)
    if record is None or record.other_machine is None or not record.readable:
        return ""
    return (
        f"{host}: two machines have reported under this name, {record.machine} and {record.other_machine}. If both are there, rename one. "
        f"If the host was reinstalled, this warning ends with its next upgrade, or with forget.yml -e host={host}"
    )


def _some(texts: list[str]) -> list[str]:
    left = len(texts) - _MOST
    shown = in_order(texts)[:_MOST]
    return [*shown, f"Of {left} more the same is to be said"] if left > 0 else shown


def _ended(text: str) -> str:
    return text if text.endswith("?") else f"{text}."
