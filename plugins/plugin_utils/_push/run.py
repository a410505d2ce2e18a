# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A push run: its hosts, their task groups and where they come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils._consul.settings import Settings
from ...module_utils._fleet.checkpoints import checkpoint_name

UPGRADE, AFTER = "upgrade", "after"


@dataclass(frozen=True, slots=True)
class RunTaskGroup:
    """A unit of the composition, as far as its record goes.

    :param point: what it belongs to on a path, such as ``nginx@2.4``; empty for what every host goes through.
    :param provider: whether it belongs to a provider.
    """

    name: str
    step: str
    service: str
    once: bool
    point: str = ""
    provider: bool = False


@dataclass(frozen=True, slots=True)
class PushRun:
    """A run that drives hosts.

    :param phase: upgrade, or after for the tasks after it.
    :param fleet: host -> role, of the whole fleet.
    :param units: role -> its units, for the roles that have services; those of others upgrade themselves.
    :param scope: the hosts that this run is for, in the order in which they go.
    :param ways: host -> the points on its way, such as ``nginx@2.4``. It goes through no others.
    :param origins: host -> the version that it comes from.
    :param providers: provider -> the version that it comes from.
    :param retry_failed: whether failed hosts are tried again.
    :param patience: seconds for which a host waits to be let through.
    :param plays: the hosts of each play of the run; empty for one play with all of them.
    :param forks: how many hosts Ansible has at work at once, so how many ask before the first one is let through.
    """

    settings: Settings
    version: str
    phase: str
    fleet: Mapping[str, str]
    units: Mapping[str, tuple[RunTaskGroup, ...]]
    scope: tuple[str, ...]
    retry_failed: bool = False
    patience: float = 14400.0
    forks: int = 1
    ways: Mapping[str, Collection[str]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    providers: Mapping[str, str] = field(default_factory=dict)
    plays: tuple[tuple[str, ...], ...] = ()

    def is_pushed(self, role: str) -> bool:
        """Return whether Ansible upgrades the hosts of a role; others do it themselves."""
        return role in self.units

    def units_of(self, host: str) -> tuple[RunTaskGroup, ...]:
        """Return a host's units of this phase, without those that are not on its way."""
        after, way = self.phase == AFTER, self.ways.get(host, ())
        return tuple(
            unit
            for unit in self.units.get(self.fleet.get(host, ""), ())
            if (unit.step == "post_upgrade") == after and (not unit.point or unit.point in way)
        )

    def providers_of(self, host: str) -> tuple[str, ...]:
        """Return the providers that a host upgrades in this phase, also those that have nothing to do on its way."""
        if self.phase == AFTER:
            return ()
        units = self.units.get(self.fleet.get(host, ""), ())
        return tuple(dict.fromkeys(unit.service for unit in units if unit.provider))

    def leaves_out(self, host: str, unit: str) -> bool:
        """Return whether a unit is one of the host's role, and not on its way."""
        return any(one.name == unit and one.point for one in self.units.get(self.fleet.get(host, ""), ()))

    @property
    def roles_with_after(self) -> set[str]:
        """Return the roles that have tasks after the upgrade."""
        return {role for role, units in self.units.items() if any(unit.step == "post_upgrade" for unit in units)}


def _unit(one: Mapping[str, Any]) -> RunTaskGroup:
    point = checkpoint_name(one["service"], one["point"]) if one.get("point") else ""
    return RunTaskGroup(one["name"], one["step"], one["service"], bool(one["once"]), point, bool(one.get("provider")))


def task_groups_from(composition: Mapping[str, Any]) -> dict[str, tuple[RunTaskGroup, ...]]:
    """Return role -> units from a composition as data; the step validate is not recorded, so it is left out."""
    return {
        role: tuple(_unit(one) for one in what["units"] if one["step"] != "validate")
        for role, what in composition["roles"].items()
    }
