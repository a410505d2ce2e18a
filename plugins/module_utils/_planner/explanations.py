# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explanations: every host with its state and why it is in it or why it waits, in words that an operator can act on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .._common.names import listing, plural
from .._fleet.checkpoints import is_checkpoint_group
from .._host_states import states
from .._host_states.states import HostState
from .admission import Position, Wave
from .blockers import Blockers
from .fleet_state import FleetState
from .plan import HostView

# Why a host waits, as stable words, beside those of rollout blockers and stages.
NO_VERSION, MAY_GO, LIMIT, ROLE_BUDGET = "no_version", "may_go", "limit", "role_budget"
ORDER, CAP, CAP_ZERO, SETS = "order", "cap", "cap_zero", "complete_sets"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a host is in its state, or why it waits.

    :param text: in words that an operator can act on.
    :param cause: as a stable word; empty if the host's state says it all.
    :param rule: the key of the rules behind it; empty for none.
    """

    text: str
    cause: str = ""
    rule: str = ""


def explain_hosts(fleet: FleetState, blockers: Blockers, wave: Wave, after: Position) -> dict[str, HostView]:
    """Return host -> its state before this pass admits anyone, and why. Takes time linear in hosts.

    :param wave: the hosts that this pass admits.
    :param after: the position once they are admitted.
    """
    admitted = {host for hosts in wave.values() for host in hosts}
    waiting = role_reasons(fleet, blockers, wave, after)
    version = fleet.snapshot.current_version

    def reason(one: HostState) -> Reason:
        if one.state != states.PENDING:
            return Reason(state_reason(one, version))
        if one.host in admitted:
            found = Reason("may go now", MAY_GO)
        else:
            found = blocked_reason(one, fleet, blockers) or waiting[one.role]
        if one.gate.scope == "unreadable":
            found = replace(found, text=f"{one.gate.value} {found.text}")
        return found if one.version else replace(found, text=f"never reported; {found.text}")

    groups, stage_of = fleet.order.group, blockers.stages.stage_of
    return {host: _view(one, groups.get(one.role), reason(one), stage_of(host)) for host, one in fleet.hosts.items()}


def blocked_reason(one: HostState, fleet: FleetState, blockers: Blockers) -> Reason | None:
    """Return which blocker or limit keeps a pending host from being admitted; None if only its role's order or caps can."""
    if not blockers.has_version:
        return Reason("no version is wanted yet: current_version is not set", NO_VERSION)
    if not fleet.in_scope(one.host):
        return Reason("outside of this call's limit", LIMIT)
    if blockers.rollout is not None:
        return Reason(blockers.rollout.reason, blockers.rollout.code, blockers.rollout.rule)
    budget = blockers.budgets.by_role.get(one.role)
    if budget is not None:
        return Reason(f"no more of role {one.role} go: {budget.reason()}", ROLE_BUDGET, budget.key)
    if not blockers.stages.is_due(one.host):
        return Reason(*blockers.stages.reason_of(one.host))
    return None


def role_reasons(fleet: FleetState, blockers: Blockers, wave: Wave, after: Position) -> dict[str, Reason]:
    """Return role -> why its next host waits once a pass has admitted its wave, for roles with a host in the queue.

    Each role is explained once, so that a host costs no more than a look-up.

    :param wave: the hosts that this pass admits.
    :param after: the position once they are admitted.
    """
    occupants = {
        role: [*(one.host for one in hosts if one.takes_a_slot), *wave.get(role, ())]
        for role, hosts in fleet.by_role.items()
    }
    unfinished = {
        first: [one for one in fleet.by_role[first] if one.blocks_others and blockers.stages.is_due(one.host)]
        for first in {first for role in after.next for first in after.waits_for(role)}
    }
    awaited = {first: _awaited(first, hosts, wave.get(first, ())) for first, hosts in unfinished.items()}
    holders = _holders(occupants, after)
    otherwise = _set_reason(after, occupants) or Reason("may go in the next pass", MAY_GO)
    return {
        role: _order_reason(role, after, awaited) or _cap_reason(role, after, holders) or otherwise
        for role in after.next
    }


def _order_reason(role: str, after: Position, awaited: Mapping[str, str]) -> Reason | None:
    firsts = after.waits_for(role)
    if not firsts:
        return None
    text = f"waits for {' and '.join(awaited[first] for first in firsts)}, as role_order says"
    if after.order.is_reversed:
        return Reason(f"{text}, reversed in a rollback", ORDER, f"role_order.{firsts[0]}")
    return Reason(text, ORDER, f"role_order.{role}")


def _awaited(role: str, hosts: Sequence[HostState], admitted: Collection[str]) -> str:
    """Return a role that others wait for, in words: its name and its hosts, or how many there are in each state."""
    of_wave = frozenset(admitted)
    found = {one.host: "may go now" if one.host in of_wave else one.state for one in hosts}
    if len(found) <= 3:
        shown = listing([f"{host} {state}" for host, state in found.items()])
    else:
        shown = _counted(found.values())
    return f"role {role} ({plural(len(found), 'host is', 'hosts are')} not upgraded: {shown})"


def _counted(found: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for state in found:
        counts[state] = counts.get(state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _cap_reason(role: str, after: Position, holders: Mapping[str, Sequence[str]]) -> Reason | None:
    full = after.slots.full_limits(role)
    for limit in full:
        if limit.is_missing:
            text = f"no cap limits {limit.what}: give {limit.key}, a number or unlimited, to let it go on"
            return Reason(text, CAP_ZERO, limit.key)
        if limit.slots == 0:
            text = f"the cap of {limit.what} is 0: raise {limit.key} to let it go on"
            return Reason(text, CAP_ZERO, limit.key)
    if not full:
        return None
    limit = full[0]
    slots = f"{limit.key} lets {limit.slots} of {limit.what} go at once"
    return Reason(f"waits for a slot: {slots}, taken by {listing(holders[limit.what], 3)}", CAP, limit.key)


def _holders(occupants: Mapping[str, Sequence[str]], after: Position) -> dict[str, list[str]]:
    """Return what a limit is over -> the hosts that have its slots."""
    found: dict[str, list[str]] = {}
    for role in after.order.roles:
        for limit in after.slots.limits[role]:
            found.setdefault(limit.what, []).extend(occupants[role])
    return found


def _set_reason(after: Position, occupants: Mapping[str, Sequence[str]]) -> Reason | None:
    if not (after.slots.complete_sets and after.slots.busy):
        return None
    holders = [host for hosts in occupants.values() for host in hosts]
    text = f"waits until the set under way is done, as complete_sets says: {listing(holders, 3)}"
    return Reason(text, SETS, "rolling_rules.complete_sets")


def state_reason(host: HostState, version: str | None) -> str:
    """Return why a host is in its state, for every state but pending, with the hold over it if there is one.

    :param version: the version to which the fleet is upgraded.
    """
    text = _of_state(host, version)
    if host.hold is None or host.hold.words() in text:
        return text
    return f"{text}; {host.hold.words()}"


def _of_state(host: HostState, version: str | None) -> str:
    if host.state == states.UPGRADED:
        return f"runs {version}"
    if host.trouble:
        return host.trouble
    if host.state == states.FAILED and host.record is not None:
        error = host.record.error or "no error was given"
        tries = f" (attempt {host.record.attempt})" if host.record.attempt > 1 else ""
        return f"failed{host.record.where()}{tries}: {error}"
    if host.state == states.HELD and host.hold is not None:
        return host.hold.words()
    return _upgrading(host, version)


def _upgrading(host: HostState, version: str | None) -> str:
    if host.record is not None and host.has_started:
        target = "" if host.record.version == version else f" {host.record.version}"
        if host.is_unadmitted:
            return (
                f"says that it has started{target}, and was not admitted; it keeps a slot and gets no gate: make sure that nothing "
                f"is at work there, then -e hosts={host.host} with retry.yml"
            )
        text = f"started{target}{host.record.where()}, has not ended"
        return text if host.gate.is_open else f"{text}; its gate is closed"
    open_by = f"the gate {host.gate.key} is {host.gate.value}" if host.gate.key else "no gate is set, so it is open"
    return f"{open_by}; it has not started" + (f" and can't: {host.hold.words()}" if host.hold else "")


def _view(one: HostState, group: str | None, reason: Reason, stage: int) -> HostView:
    record = one.record
    return HostView(
        role=one.role,
        group=group,
        state=one.state,
        version=one.version,
        reason=reason.text,
        soaking=one.is_soaking,
        started=one.has_started,
        held=one.hold is not None,
        cause=reason.cause,
        rule=reason.rule,
        origin=record.origin if record is not None else None,
        begun=one.begun,
        done=tuple(filter(is_checkpoint_group, record.done if record is not None else ())),
        unadmitted=one.is_unadmitted,
        stage=stage,
        blocks=one.blocks_others,
    )
