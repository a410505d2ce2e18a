# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds and approvals whose names fit nobody: a hold with a typo keeps nobody, and an approval with one lets nobody on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .fleet import Snapshot
from .names import in_order, nearest
from .stages import Stage

# More than that are no typos, but hosts that are gone.
_MOST = 5


def fits_nobody(snapshot: Snapshot, members: Mapping[str, str], stages: Iterable[Stage]) -> tuple[str, ...]:
    """Return warnings for holds of hosts and roles that are not known, and for approvals of stages that there are not.

    :param members: host -> role.
    :param stages: of the rules; an approval where there is none was given before they were changed.
    """
    holds, roles = snapshot.holds, set(members.values())
    found = [
        f"{hold.key} holds no host{nearest(host, members)}" for host, hold in holds.hosts.items() if host not in members
    ]
    found += [
        f"{hold.key} holds no role{nearest(role, roles)}" for role, hold in holds.roles.items() if role not in roles
    ]
    names = [stage.name for stage in stages]
    approved = [
        f"The approval of stage {name} is for none of the rules{nearest(name, names)}"
        for name in snapshot.approvals
        if names and name not in names
    ]
    return tuple(_ended(text) for text in (*_some(found), *_some(approved)))


def _some(texts: list[str]) -> list[str]:
    left = len(texts) - _MOST
    shown = in_order(texts)[:_MOST]
    return [*shown, f"Of {left} more the same is to be said"] if left > 0 else shown


def _ended(text: str) -> str:
    return text if text.endswith("?") else f"{text}."
