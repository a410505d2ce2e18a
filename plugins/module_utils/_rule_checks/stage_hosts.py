# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stages`` that have no host in a fleet: without these checks, a typo would silently skip a canary."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .._common.errors import UpgradeError
from .._common.names import did_you_mean, listing
from .._rules.role_order import RoleOrder
from .._rules.stages import Stage


def refuse_empty_stage(
    stages: Sequence[Stage],
    order: RoleOrder,
    by_role: Mapping[str, Sequence[str]],
    optional_names: Collection[str] = (),
    first: int = 0,
) -> None:
    """Raise an error for a stage whose roles and hosts match no host of the fleet.

    It is no error if an earlier stage has taken the hosts, or if all the stage's roles, or all its hosts, are optional names.

    :param by_role: role -> its hosts.
    :param optional_names: names that the fleet need not have.
    :param first: the index of the current stage; stages before it are not checked.
    :raises UpgradeError: ``bad_instructions``.
    """
    for at, stage in enumerate(stages[first:], first):
        named = frozenset(stage.hosts) if isinstance(stage.hosts, tuple) else None
        roles = [role for name in stage.roles for role in order.roles_of(name)] if stage.roles else order.roles
        if any(named is None or not named.isdisjoint(by_role.get(role, ())) for role in roles):
            continue
        absent = stage.roles if not roles else stage.hosts if isinstance(stage.hosts, tuple) else ()
        if absent and all(name in optional_names for name in absent):
            continue
        key, why = _why(stage, order, {host for hosts in by_role.values() for host in hosts}, has_roles=bool(roles))
        raise UpgradeError(
            "bad_instructions",
            f"instructions: stages[{at}].{key}: stage {stage.name!r} has no host in this fleet, so the next one would begin "
            f"at once: {why} Correct {key}, or leave the stage out.",
            key=f"stages[{at}].{key}",
            stage=stage.name,
        )


def stage_without_followers(stages: Sequence[Stage], of_host: Mapping[str, int]) -> tuple[str, ...]:
    """Return warnings for stages whose soak or approval has no effect, because no host comes after them.

    :param of_host: host -> index of its stage.
    """
    last = max(of_host.values(), default=len(stages))
    return tuple(
        f"instructions: stages[{at}]: no host of this fleet comes after stage {stage.name!r}, so its soak and approve have "
        "no effect."
        for at, stage in enumerate(stages)
        if at >= last and (stage.soak or stage.approve)
    )


def _why(stage: Stage, order: RoleOrder, hosts: set[str], *, has_roles: bool) -> tuple[str, str]:
    if not has_roles:
        known = {*order.roles, *order.group.values()}
        return "roles", (
            f"{listing(stage.roles)} {_are_not(stage.roles, 'a role or group', 'roles or groups')} of it"
            f"{did_you_mean(stage.roles[0], known) or '.'} Its roles are {listing(list(order.roles), 10)}."
        )
    named = stage.hosts if isinstance(stage.hosts, tuple) else ()
    if any(host in hosts for host in named):
        return "hosts", f"none of {listing(named)} has a role of {listing(stage.roles)}."
    return "hosts", (
        f"{listing(named)} {_are_not(named, 'a host', 'hosts')} of it{did_you_mean(named[0], hosts) or '.'} "
        "Hosts that never reported are known only if fleet names them."
    )


def _are_not(names: Sequence[str], one: str, several: str) -> str:
    return f"is not {one}" if len(names) == 1 else f"are not {several}"
