# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stages: the stage of each host, the current stage of a fleet, and what the next stage waits for."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from .._common.names import listing, plural
from .._common.sanitize import option
from .._fleet.fleet import Snapshot
from .._fleet.ledger import Ledger
from .._host_states.host_state import HostState
from .._host_states.soak import soaks_since
from .._host_states.state_names import PENDING
from .._host_states.states import in_rollback
from .._rule_checks.stage_hosts import refuse_empty_stage
from .._rules.caps import Cap
from .._rules.role_order import RoleOrder
from .._rules.stages import Stage

# Codes for why a host of a later stage waits.
STAGE, SOAK, APPROVAL, ROLLBACK = "stage", "soak", "approval", "rollback"


def stage_of_hosts(stages: Sequence[Stage], order: RoleOrder, by_role: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return host -> index of its stage. Takes time linear in hosts for each stage.

    :param by_role: role -> its hosts in natural order. A stage with a cap takes the first hosts that are in no earlier stage.
    """
    found: dict[str, int] = {}
    for at, stage in enumerate(stages):
        # A group and one of its roles may both be named.
        roles = dict.fromkeys(role for name in stage.roles for role in order.roles_of(name))
        for role in roles if stage.roles else order.roles:
            hosts = by_role.get(role, ())
            left = [host for host in hosts if host not in found]
            if isinstance(stage.hosts, Cap):
                left = left[: stage.hosts.hosts_of(len(hosts))]
            elif stage.hosts is not None:
                named = frozenset(stage.hosts)
                left = [host for host in left if host in named]
            found.update(dict.fromkeys(left, at))
    return found


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Where a rollout is in its stages.

    :param stages: in their order; empty if the rules have none.
    :param number: index of the current stage. Hosts of later stages are not admitted. In a rollback, the index after the last stage is
        that of hosts that were broken before the rollback; they are admitted last.
    :param of_host: host -> index of its stage; None without stages.
    :param reason: why hosts of later stages wait.
    :param until: when that ends without an operator (unix seconds); None if it does not.
    :param waits: whether the current stage is done, and only its soak or an approval is missing.
    :param mark: the value of ``stage`` to write to the ledger: ``number``, and once the stage is done ``done_at`` (unix seconds), with
        ``done_at_behind`` if that was in the future for a planner, as in a health mark.
    :param in_rollback: whether the rollout is a rollback.
    """

    stages: tuple[Stage, ...] = ()
    number: int = 0
    of_host: Mapping[str, int] | None = None
    reason: str = ""
    until: float | None = None
    waits: bool = False
    mark: Mapping[str, int] | None = None
    in_rollback: bool = False

    @property
    def name(self) -> str | None:
        """Name of the current stage; None without stages, and in a rollback after the last one."""
        return self.stages[self.number].name if self.number < len(self.stages) else None

    def reason_of(self, host: str) -> tuple[str, str, str]:
        """Return why a host of a later stage waits: a sentence, a code, and the key in the rules that causes it."""
        if self.of_host is not None and self.of_host[host] >= len(self.stages):
            return "was broken before this rollback, and is admitted after all other hosts", ROLLBACK, ""
        cause = STAGE if not self.waits else APPROVAL if self.until is None else SOAK
        number = len(self.stages) - 1 - self.number if self.in_rollback else self.number
        return self.reason, cause, f"stages[{number}]" + {APPROVAL: ".approve", SOAK: ".soak"}.get(cause, "")

    @property
    def needs_approval(self) -> bool:
        """Whether the current stage is done and waits for an operator's approval."""
        return self.waits and self.until is None

    def stage_of(self, host: str) -> int:
        """Return the index of a host's stage; 0 without stages."""
        return self.of_host[host] if self.of_host is not None else 0

    @property
    def last(self) -> int:
        """Index of the last stage that has a host."""
        return max(self.of_host.values(), default=0) if self.of_host is not None else 0

    def is_due(self, host: str) -> bool:
        """Return whether a host's stage has begun."""
        return self.stage_of(host) <= self.number


def stage_progress(
    snapshot: Snapshot,
    stages: tuple[Stage, ...],
    order: RoleOrder,
    by_role: Mapping[str, Sequence[HostState]],
    optional_names: Collection[str] = (),
) -> StageProgress:
    """Return the progress of the stages. The current stage is the first that has a host to upgrade, a soak or a missing approval.

    :param by_role: role -> its hosts in natural order.
    :param optional_names: names in the stages that the fleet may lack.
    :raises UpgradeError: ``bad_instructions`` if the current or a later stage has no host in this fleet.
    """
    if in_rollback(snapshot):
        return _rollback_progress(stages if order.is_reversed else (), order, by_role)
    if not stages or snapshot.current_version is None:
        return StageProgress()
    names = {role: [one.host for one in hosts] for role, hosts in by_role.items()}
    of_host = stage_of_hosts(stages, order, names)
    left: dict[int, list[str]] = {}
    for hosts in by_role.values():
        for one in hosts:
            if one.blocks_others:
                left.setdefault(of_host[one.host], []).append(one.host)
    kept = _kept(snapshot.ledger, snapshot.current_version)
    last = len(stages) - 1
    number = min(kept.get("number", 0), last)
    if left:
        refuse_empty_stage(stages, order, names, optional_names, first=number)
    is_kept = number == kept.get("number")
    done_at, behind = (kept.get("done_at"), kept.get("done_at_behind")) if is_kept else (None, None)
    again = {"again": 1} if is_kept and "again" in kept else {}
    while True:
        unfinished = [host for at in range(number + 1) for host in left.get(at, ())]
        stage = stages[number]
        if unfinished:
            again = {"again": 1} if done_at is not None else again
            return StageProgress(
                stages, number, of_host, _waits_for(stage, unfinished), mark={"number": number, **again}
            )
        if number == last:
            return StageProgress(stages, number, of_host, mark={"number": number})
        stored = int(snapshot.now) if done_at is None else done_at
        done_at, behind = soaks_since(stored, behind, snapshot.now)
        ready = done_at + stage.soak
        mark = {"number": number, "done_at": stored, **({} if behind is None else {"done_at_behind": behind}), **again}
        if snapshot.now < ready:
            shown = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(ready))
            return StageProgress(stages, number, of_host, f"stage {stage.name} soaks until {shown}", ready, True, mark)
        if done_at != stored:
            mark = {"number": number, "done_at": done_at, **again}
        if stage.approve and stage.name not in snapshot.approvals:
            reason = f"waits for an approval after stage {stage.name}: ansible-playbook convoy.upgrade.approve {option('stage', stage.name)}"
            return StageProgress(stages, number, of_host, reason, None, True, mark)
        number, done_at, behind, again = number + 1, None, None, {}


def carried_over(before: Sequence[Stage], after: Sequence[Stage], kept: Mapping[str, int]) -> dict[str, int]:
    """Return the value of ``stage`` in the ledger after the rules got other stages.

    The first stage that has changed and all stages after it count as not done: they soak and need their approvals again.

    :param kept: the value before that.
    """
    same = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), None)
    if same is None:
        same = min(len(before), len(after))
    number = kept.get("number", 0)
    if number < same:
        return dict(kept)
    return {"number": same} if same else {}


def _rollback_progress(
    stages: Sequence[Stage], order: RoleOrder, by_role: Mapping[str, Sequence[HostState]]
) -> StageProgress:
    """Return the stages of a rollback: the last one goes first, and hosts that were broken before the rollback go last.

    Stages neither soak nor need an approval, because the fleet has run the target of a rollback before.
    """
    every = [one for hosts in by_role.values() for one in hosts]
    if not stages and not any(one.is_excused for one in every):
        return StageProgress()
    turned = tuple(replace(stage, soak=0, approve=False) for stage in reversed(stages))
    forward = stage_of_hosts(stages, order, {role: [one.host for one in hosts] for role, hosts in by_role.items()})
    last = max(0, len(turned) - 1)
    broken = last + 1 if turned else 1
    of_host = {one.host: broken if one.is_excused else last - forward.get(one.host, last) for one in every}
    left: dict[int, list[str]] = {}
    for one in every:
        if one.blocks_others:
            left.setdefault(of_host[one.host], []).append(one.host)
    if not any(one.state == PENDING and not one.is_excused for one in every):
        return StageProgress(
            turned, broken if any(at == broken for at in of_host.values()) else last, of_host, in_rollback=True
        )
    number = min(left)
    reason = f"{_waits_for(turned[number], left[number])}, as stages are reversed in a rollback" if turned else ""
    return StageProgress(turned, number, of_host, reason, in_rollback=True)


def _waits_for(stage: Stage, hosts: Sequence[str]) -> str:
    return f"waits for stage {stage.name} ({plural(len(hosts), 'host')} to go: {listing(hosts, 3)})"


def _kept(ledger: Ledger | None, version: str) -> Mapping[str, int]:
    return ledger.stage if ledger is not None and ledger.version == version else {}
