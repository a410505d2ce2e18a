# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every host as an operator sees it: its state, and why it is in it, or why it waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .._fleet.checkpoints import is_checkpoint_group
from .._fleet.fleet import Snapshot
from .._host_states import states
from .._host_states.failure_budgets import SpentBudget
from .._host_states.states import HostState
from .._rules.role_order import RoleOrder
from . import reasons
from .admission import Admissions
from .blockers import RolloutBlocker
from .plan import HostView
from .reasons import Reason
from .stage_progress import StageProgress


@dataclass(frozen=True, slots=True)
class ViewInput:
    """What the reasons are made from."""

    snapshot: Snapshot
    opener: Admissions
    by_role: Mapping[str, list[HostState]]
    chosen: list[tuple[str, list[str]]]
    scope: frozenset[str] | None
    brake: RolloutBlocker | None
    spent: Mapping[str, SpentBudget]
    staging: StageProgress


def host_views(sight: ViewInput, hosts: Mapping[str, HostState], order: RoleOrder) -> dict[str, HostView]:
    """Return every host, as it is before those that are let through now go."""
    current, scope, staging = sight.snapshot.current_version, sight.scope, sight.staging
    occupants = {role: [one.host for one in found if one.takes_a_slot] for role, found in sight.by_role.items()}
    opening = set()
    for role, names in sight.chosen:
        occupants[role] += names
        opening.update(names)
    unfinished = {
        role: [one for one in found if one.is_in_the_way and staging.is_due(one.host)]
        for role, found in sight.by_role.items()
    }
    waiting = reasons.WaitReasons(sight.opener, occupants, unfinished, opening)

    def reason(one: HostState) -> Reason:
        if one.state != states.PENDING:
            return Reason(reasons.reason_for_state(one, current))
        if current is None:
            found = Reason("no version is wanted yet: current_version is not set", reasons.NO_VERSION)
        elif one.host in opening:
            found = Reason("may go now", reasons.MAY_GO)
        elif scope is not None and one.host not in scope:
            found = Reason("outside of this call's limit", reasons.LIMIT)
        elif sight.brake is not None:
            found = Reason(sight.brake.reason, sight.brake.code, sight.brake.rule)
        elif one.role in sight.spent:
            spent = sight.spent[one.role]
            found = Reason(f"no more of role {one.role} go: {spent.reason()}", reasons.ROLE_BUDGET, spent.key)
        elif not staging.is_due(one.host):
            found = Reason(*staging.reason_of(one.host))
        else:
            found = waiting.of_role(one.role)
        if one.gate.scope == "unreadable":
            found = replace(found, text=f"{one.gate.value} {found.text}")
        return found if one.version else replace(found, text=f"never reported; {found.text}")

    stages = staging.of_host or {}
    return {one.host: _view(one, order, reason(one), stages.get(one.host, 0)) for one in hosts.values()}


def _view(one: HostState, order: RoleOrder, reason: Reason, stage: int) -> HostView:
    done = one.record.done if one.record is not None else ()
    return HostView(
        one.role,
        order.group.get(one.role),
        one.state,
        one.version,
        reason.text,
        one.is_soaking,
        one.has_started,
        one.hold is not None,
        reason.cause,
        reason.rule,
        one.record.origin if one.record is not None else None,
        one.begun,
        tuple(filter(is_checkpoint_group, done)),
        one.is_unadmitted,
        stage,
        one.is_in_the_way,
    )
