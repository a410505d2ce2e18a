# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a rollout: how far each one is, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._fleet.fleet import Snapshot
from .._host_states.state_names import BROKEN, UPGRADED, UPGRADING
from .._planner.plan import Plan
from .._rules.caps import Cap
from .._rules.stages import Stage

# The states of a stage, in their order. In SOAK and APPROVAL, all of its hosts are upgraded.
DONE, CURRENT, SOAK, APPROVAL, WAITING = STAGE_STATES = ("done", "current", "soak", "approval", "waiting")


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A stage of the rollout under way.

    :param state: one of ``STAGE_STATES``.
    :param selects: which hosts it has, as the rules say: ``10% of each role``.
    :param hosts: number of its hosts; ``upgraded``, ``upgrading`` and ``failed`` (or lost) of them.
    :param soak: seconds to wait after its last host was upgraded.
    :param approve: whether an operator has to approve before the next stage begins.
    :param until: when its soak ends (unix seconds); 0 if it does not soak now.
    :param approved_by: who approved it; empty if no one has.
    """

    name: str
    state: str
    selects: str
    hosts: int
    upgraded: int
    upgrading: int
    failed: int
    soak: int
    approve: bool
    until: float
    approved_by: str


def stage_summaries(snapshot: Snapshot, plan: Plan) -> tuple[StageSummary, ...]:
    """Return the stages of a rollout, in the order in which they are upgraded; empty without stages. Takes time linear in hosts."""
    progress, fleet = plan.stages, plan.fleet
    if not progress.stages or fleet is None:
        return ()
    counts: list[dict[str, int]] = [{} for _stage in progress.stages]
    for host, one in fleet.hosts.items():
        at = progress.stage_of(host)
        # In a rollback, hosts that were broken before come after all stages.
        if at < len(counts):
            what = "failed" if one.state in BROKEN else one.state
            counts[at][what] = counts[at].get(what, 0) + 1
    return tuple(
        StageSummary(
            name=stage.name,
            state=_state(at, plan),
            selects=selection(stage, is_last=at == len(progress.stages) - 1),
            hosts=sum(found.values()),
            upgraded=found.get(UPGRADED, 0),
            upgrading=found.get(UPGRADING, 0),
            failed=found.get("failed", 0),
            soak=stage.soak,
            approve=stage.approve,
            until=(progress.until or 0) if at == progress.number else 0,
            approved_by=snapshot.approvals[stage.name].by if stage.name in snapshot.approvals else "",
        )
        for at, (stage, found) in enumerate(zip(progress.stages, counts, strict=True))
    )


def _state(at: int, plan: Plan) -> str:
    progress = plan.stages
    if at < progress.number or (plan.complete and at <= progress.number):
        return DONE
    if at > progress.number:
        return WAITING
    if not progress.waits:
        return CURRENT
    return APPROVAL if progress.needs_approval else SOAK


def selection(stage: Stage, *, is_last: bool = False) -> str:
    """Return which hosts a stage has, in words."""
    of = f"of {', '.join(stage.roles)}" if stage.roles else "of each role"
    if isinstance(stage.hosts, Cap):
        return f"{stage.hosts.plain()} {of}"
    if stage.hosts is not None:
        return ", ".join(stage.hosts)
    return f"all {of}" if stage.roles else "the rest" if is_last else "all hosts"


def as_plain(stages: tuple[StageSummary, ...]) -> list[dict[str, Any]]:
    """Return stages as the part of a result."""
    return [{name: getattr(one, name) for name in StageSummary.__slots__} for one in stages]
