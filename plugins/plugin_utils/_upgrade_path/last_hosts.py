# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that go after the other hosts of their roles, such as the primary of a database, and what would let them go before these."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._fleet.host_patterns import select_hosts
from ...module_utils._host_states.state_names import PENDING
from ...module_utils._rules.stages import parse_stages


@dataclass(frozen=True, slots=True)
class PendingHosts:
    """The hosts that are still to begin, when a run is prepared. Only its validation finds out which hosts go last, so no planner knows.

    :param roles: host -> role, for all hosts of the fleet.
    :param stages: host -> index of its stage, for all hosts of the fleet.
    :param names: the names of the stages; empty without stages, and in a rollback, which reverses them.
    :param pending: the hosts that are still to begin.
    :param left_out: those of them that ``upgrade_limit`` leaves out.
    """

    roles: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()

    def refuse_in_earlier_stage(self, last: Collection[str]) -> None:
        """Refuse hosts that go last and are in an earlier stage than other hosts of their roles.

        :raises UpgradeError: ``bad_instructions``.
        """
        for at, stage in enumerate(self.names):
            found = {
                host: mates
                for host in sorted(last)
                if self.stages[host] == at
                and (mates := [mate for mate in self._mates(host, last, left_out=False) if self.stages[mate] > at])
            }
            if not found:
                continue
            chosen = [host for host, number in self.stages.items() if number == at and host not in found]
            for role in dict.fromkeys(self.roles[host] for host in found):
                of_role = [host for host in found if self.roles[host] == role]
                chosen += found[of_role[0]][: len(of_role)]
            first = listing([*dict.fromkeys(mate for mates in found.values() for mate in mates)], 3)
            raise UpgradeError(
                "bad_instructions",
                f"instructions: stages[{at}].hosts: {listing([*found], 3)} would go in stage {stage!r}, before {first} of a later stage. "
                "They go last in their roles (upgrade_goes_last), as the primary of a database does. Nothing was touched: name the hosts of this "
                f"stage in the rules, hosts: [{', '.join(chosen)}]; then run the same command again.",
                key=f"stages[{at}].hosts",
                stage=stage,
            )

    def lines(self, last: Collection[str]) -> list[str]:
        """Return a sentence for each host that goes before other hosts of its role, because ``upgrade_limit`` leaves them out."""
        found = {host: self._mates(host, last, left_out=True) for host in sorted(last)}
        return [
            f"upgrade_limit leaves out {listing(mates, 3)}, which should go before {host} (upgrade_goes_last), as the replicas of a database before "
            "its primary. It does not wait for them."
            for host, mates in found.items()
            if mates
        ]

    def _mates(self, host: str, last: Collection[str], *, left_out: bool) -> list[str]:
        """Return the other pending hosts of a host's role that should go first: those that the limit leaves out, or those that it does not."""
        return [
            mate
            for mate in self.pending
            if self.roles[mate] == self.roles[host] and mate not in last and (mate in self.left_out) == left_out
        ]


def pending_hosts(plan: Mapping[str, Any], limit: Collection[str]) -> PendingHosts:
    """Return the hosts that are still to begin.

    :param plan: a result of ``consul_upgrade_plan``, in check mode.
    :param limit: host patterns; empty for all.
    """
    views: Mapping[str, Mapping[str, Any]] = plan["hosts"]
    roles = {host: view["role"] for host, view in views.items()}
    groups = {view["role"]: view["group"] for view in views.values() if view["group"]}
    scope = select_hosts(limit, roles, groups) if limit else frozenset(roles)
    fresh = {one["host"] for one in plan["transitions"] if one["from"] == PENDING}
    pending = tuple(host for host, view in views.items() if view["state"] == PENDING or host in fresh)
    stages = () if plan.get("rollback_order") else parse_stages(plan.get("instructions", {}).get("stages"))
    return PendingHosts(
        roles,
        {host: view["stage"] for host, view in views.items()},
        tuple(stage.name for stage in stages),
        pending,
        frozenset(host for host in pending if host not in scope),
    )
