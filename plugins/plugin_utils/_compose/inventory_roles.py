# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet from the inventory: `upgrade_roles` names the roles, and groups of the same names have their hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import did_you_mean, in_order, listing
from .._services.planes import CONTROL_PLANE, DATA_PLANE, PLANES

_KEYS = ("plane", "services", "pull")


def fleet_of(upgrade_roles: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return host -> role.

    :param upgrade_roles: role -> its plane and services.
    :param groups: Ansible's ``groups``.
    :raises UpgradeError: ``bad_upgrade_roles`` for a host in two of the roles, for a role that is probably a misspelt group, or if no role has a
        host.
    """
    check_roles(upgrade_roles)
    fleet: dict[str, str] = {}
    for role in upgrade_roles:
        for host in groups.get(role, ()):
            if host in fleet:
                raise UpgradeError(
                    "bad_upgrade_roles",
                    f"upgrade_roles: the host {host!r} is in the groups {fleet[host]!r} and {role!r} of the inventory. "
                    "A host has one role. Remove it from one of them.",
                )
            fleet[host] = role
    if not fleet and upgrade_roles:
        known = [name for name in in_order(groups) if name not in ("all", "ungrouped")]
        fix = "It has no groups. Give an inventory with -i."
        if known:
            fix = f"Its groups are {listing(known, 10)}. Name one of them in upgrade_roles."
        raise UpgradeError(
            "bad_upgrade_roles",
            f"upgrade_roles: no host of the inventory is in a group named {' or '.join(upgrade_roles)}. {fix}",
        )
    _refuse_misspelt(upgrade_roles, groups, fleet)
    return fleet


def _refuse_misspelt(
    upgrade_roles: Mapping[str, Any], groups: Mapping[str, Sequence[str]], fleet: Mapping[str, str]
) -> None:
    """Refuse a role that is no group, and whose name is like that of a group whose hosts have no role.

    Other roles may be absent from an inventory, such as that of another cloud.
    """
    left_out = [name for name, hosts in groups.items() if hosts and not any(host in fleet for host in hosts)]
    for role in upgrade_roles:
        hint = did_you_mean(role, left_out) if role not in groups else ""
        if hint:
            raise UpgradeError(
                "bad_upgrade_roles",
                f"upgrade_roles: {role!r} is no group of the inventory{hint} Nothing was done: the hosts of that group would not be upgraded as "
                "their role says. Correct the name, or rename one of the two.",
            )


def plane_order(upgrade_roles: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the ``role_order`` from the planes: roles of the data plane wait for all roles of the control plane.

    :raises UpgradeError: ``bad_upgrade_roles``.
    """
    check_roles(upgrade_roles)
    first = [name for name, what in upgrade_roles.items() if (what or {}).get("plane") == CONTROL_PLANE]
    return {
        name: list(first) for name, what in upgrade_roles.items() if first and (what or {}).get("plane") == DATA_PLANE
    }


def roles_of_plane(upgrade_roles: Mapping[str, Any], plane: str) -> list[str]:
    """Return the roles of a plane. Roles without a plane belong to the data plane.

    :raises UpgradeError: ``bad_upgrade_roles``.
    """
    check_roles(upgrade_roles)
    control = [name for name, what in upgrade_roles.items() if (what or {}).get("plane") == CONTROL_PLANE]
    return control if plane == CONTROL_PLANE else [name for name in upgrade_roles if name not in control]


def pushed_roles(upgrade_roles: Mapping[str, Any]) -> list[str]:
    """Return the roles whose hosts Ansible upgrades: those with services and without ``pull``. ``upgrade_roles`` has to be checked already."""
    return [
        name for name, what in upgrade_roles.items() if (what or {}).get("services") and not (what or {}).get("pull")
    ]


def check_roles(upgrade_roles: object) -> None:
    """Check that ``upgrade_roles`` maps roles to their plane, their services, and whether their hosts run these themselves.

    :raises UpgradeError: ``bad_upgrade_roles``.
    """
    if not isinstance(upgrade_roles, Mapping):
        raise UpgradeError(
            "bad_upgrade_roles", f"upgrade_roles: {upgrade_roles!r} does not map roles to their plane and services."
        )
    for role, what in upgrade_roles.items():
        where = f"upgrade_roles.{role}"
        if what is not None and not isinstance(what, Mapping):
            raise UpgradeError("bad_upgrade_roles", f"{where}: {what!r} is not a mapping with a plane and services.")
        for key in what or ():
            if key not in _KEYS:
                raise UpgradeError(
                    "bad_upgrade_roles",
                    f"{where}.{key}: unknown key{did_you_mean(str(key), _KEYS) or '.'} Known are: {', '.join(_KEYS)}.",
                )
        plane = (what or {}).get("plane")
        if plane is not None and plane not in PLANES:
            raise UpgradeError(
                "bad_upgrade_roles",
                f"{where}.plane: {plane!r} is not a plane{did_you_mean(str(plane), PLANES) or '.'} Planes are: {', '.join(PLANES)}.",
            )
        pull = (what or {}).get("pull")
        if pull is not None and not isinstance(pull, bool):
            raise UpgradeError("bad_upgrade_roles", f"{where}.pull: {pull!r} is neither true nor false.")
