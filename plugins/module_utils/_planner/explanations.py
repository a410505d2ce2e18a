# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explanations: the state of every host, and why it is in that state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .._common.lazy import LazyMapping
from .._common.names import is_job, listing, plural, target_text
from .._common.sanitize import option
from .._fleet.checkpoints import is_checkpoint_group
from .._fleet.holds import PUPPET, SETTINGS
from .._host_states import state_names
from .._host_states.host_state import HostState
from .admission import Position, Wave
from .blockers import Blockers
from .fleet_state import FleetState
from .plan import HostView

# Codes for why a host waits. Rollout blockers and stages have codes of their own.
NO_VERSION, ADMISSIBLE, LIMIT, ROLE_BUDGET = "no_version", "admissible", "limit", "role_budget"
OTHER_SERVICES = "other_services"
OTHER_ROLE = "other_role"
# Hosts with the same text are listed together.
_NO_SERVICES = "it has no tasks of services, or not those of this rollout: enroll it again (ansible-playbook convoy.upgrade.enroll --limit HOST)"
ORDER, CAP, CAP_ZERO, SETS = "order", "cap", "cap_zero", "complete_sets"
# Of a host that is upgraded, and takes a slot nevertheless.
POST_UPGRADE_FAILED = "post_upgrade_failed"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a host is in its state.

    :param text: for operators, with what they can do.
    :param cause: a stable code; empty if the state says it all.
    :param rule: the key in the rules that causes it; empty for none.
    """

    text: str
    cause: str = ""
    rule: str = ""


def explain_hosts(fleet: FleetState, blockers: Blockers, wave: Wave, after: Position) -> Mapping[str, HostView]:
    """Return host -> its state before this pass admits any host, and the reason. A host is explained when it is looked up.

    Takes time linear in hosts for all of them.

    :param wave: the hosts that this pass admits.
    :param after: the position once they are admitted.
    """
    admitted = {host for hosts in wave.values() for host in hosts}
    groups, stage_of = fleet.order.group, blockers.stages.stage_of
    version = fleet.snapshot.current_version
    waiting: dict[str, Reason] = {}

    def of_role(role: str) -> Reason:
        if not waiting:
            waiting.update(role_reasons(fleet, blockers, wave, after))
        return waiting[role]

    gates: dict[str, Reason | None] = {}

    def of_gate(one: HostState) -> Reason | None:
        """Return why this pass does not open the gate of a host again that has started; None if it does."""
        if not fleet.in_scope(one.host):
            return Reason("excluded by this run's limit", LIMIT)
        if blockers.rollout is not None:
            return Reason(blockers.rollout.reason, blockers.rollout.code, blockers.rollout.rule)
        if not gates:
            gates.update(gate_reasons(fleet, blockers, wave, after))
        return gates[one.role]

    def reason(one: HostState) -> Reason:
        if one.state != state_names.PENDING:
            text = state_reason(one, version)
            if one.needs_its_gate and fleet.lacks_services(one):
                return Reason(f"{text}, because {_NO_SERVICES}", OTHER_SERVICES)
            if one.needs_its_gate and one.state == state_names.UPGRADING and (found := of_gate(one)):
                return replace(found, text=f"{text}: {found.text}")
            return Reason(text, POST_UPGRADE_FAILED if one.has_failed_after else "")
        if one.host in admitted:
            found = Reason("can be admitted now", ADMISSIBLE)
        else:
            found = blocked_reason(one, fleet, blockers) or of_role(one.role)
        if one.is_down and fleet.snapshot.is_job:
            found = replace(found, text=f"has not finished an upgrade, and keeps its slot; {found.text}")
        elif one.is_down and one.record is not None:
            what = f"is in the post-upgrade tasks of {one.record.version}"
            if not one.is_in_post_upgrade:
                what = one.down_because
            found = replace(found, text=f"{what}, and keeps its slot; {found.text}")
        if one.gate.scope == "unreadable":
            found = replace(found, text=f"{one.gate.value} {found.text}")
        is_known = one.version or fleet.snapshot.is_job
        return found if is_known else replace(found, text=f"never reported; {found.text}")

    def view(host: str) -> HostView:
        one = fleet.hosts[host]
        return _view(one, version, groups.get(one.role), reason(one), stage_of(host))

    return LazyMapping(fleet.hosts, view)


def blocked_reason(one: HostState, fleet: FleetState, blockers: Blockers) -> Reason | None:
    """Return why a pending host is not admitted, apart from the order between roles and caps; None for no such reason."""
    if not blockers.has_version:
        return Reason("there is no version to upgrade to: current_version is not set", NO_VERSION)
    if not fleet.in_scope(one.host):
        return Reason("excluded by this run's limit", LIMIT)
    if blockers.rollout is not None:
        return Reason(blockers.rollout.reason, blockers.rollout.code, blockers.rollout.rule)
    budget = _budget_reason(one.role, blockers)
    if budget is not None:
        return budget
    if fleet.lacks_services(one):
        return Reason(_NO_SERVICES, OTHER_SERVICES)
    if fleet.reads_other_role(one):
        return Reason(
            f"its settings have the role {fleet.role_in_settings(one)} (puppet_gate_role), and the fleet has {one.role}: correct one of them, then enroll it "
            "again (ansible-playbook convoy.upgrade.enroll --limit HOST)",
            OTHER_ROLE,
        )
    if not blockers.stages.is_due(one.host):
        return Reason(*blockers.stages.reason_of(one.host))
    return None


def role_reasons(fleet: FleetState, blockers: Blockers, wave: Wave, after: Position) -> dict[str, Reason]:
    """Return role -> why its next host waits after a pass has admitted its wave, for roles with a host in the queue.

    Each role is explained once, so a host costs one look-up.

    :param wave: the hosts that this pass admits.
    :param after: the position once they are admitted.
    """
    occupants = {
        role: [*dict.fromkeys((*(one.host for one in hosts if one.takes_a_slot), *wave.get(role, ())))]
        for role, hosts in fleet.by_role.items()
    }
    awaited = _awaited_roles(fleet, blockers, wave, after, after.next)
    holders = _holders(occupants, after)
    otherwise = _set_reason(after, occupants) or Reason("can be admitted in the next pass", ADMISSIBLE)
    return {
        role: _order_reason(role, after, awaited) or _cap_reason(role, after, holders) or otherwise
        for role in after.next
    }


def gate_reasons(fleet: FleetState, blockers: Blockers, wave: Wave, after: Position) -> dict[str, Reason | None]:
    """Return role -> why its hosts that have started get no gate again, for every role; None if they do. They have their slots, so free ones do not matter.

    :param wave: the hosts that this pass admits.
    :param after: the position once they are admitted.
    """
    awaited = _awaited_roles(fleet, blockers, wave, after, fleet.by_role)
    return {
        role: _budget_reason(role, blockers) or _order_reason(role, after, awaited) or _zero_reason(role, after)
        for role in fleet.by_role
    }


def _budget_reason(role: str, blockers: Blockers) -> Reason | None:
    budget = blockers.budgets.by_role.get(role)
    if budget is None:
        return None
    return Reason(f"no more hosts of role {role} are admitted: {budget.reason()}", ROLE_BUDGET, budget.key)


def _awaited_roles(
    fleet: FleetState, blockers: Blockers, wave: Wave, after: Position, roles: Iterable[str]
) -> dict[str, str]:
    """Return the text for each role that some of these roles wait for."""
    unfinished = {
        first: [one for one in fleet.by_role[first] if one.blocks_others and blockers.stages.is_due(one.host)]
        for first in {first for role in roles for first in after.waits_for(role)}
    }
    of_job = fleet.snapshot.is_job
    return {first: _awaited(first, hosts, wave.get(first, ()), of_job) for first, hosts in unfinished.items()}


def _order_reason(role: str, after: Position, awaited: Mapping[str, str]) -> Reason | None:
    firsts = after.waits_for(role)
    if not firsts:
        return None
    text = f"waits for {' and '.join(awaited[first] for first in firsts)}, as role_order says"
    if after.order.is_reversed:
        return Reason(f"{text}, reversed in a rollback", ORDER, f"role_order.{firsts[0]}")
    return Reason(text, ORDER, f"role_order.{role}")


def _awaited(role: str, hosts: Sequence[HostState], admitted: Collection[str], of_job: bool) -> str:
    """Return the text for a role that others wait for: its name and its hosts, or more than 3 as counts for each state."""
    of_wave = frozenset(admitted)
    found = {
        one.host: "can be admitted now" if one.host in of_wave else state_names.state_text(one.state, of_job=of_job)
        for one in hosts
    }
    if len(found) <= 3:
        shown = listing([f"{host} {state}" for host, state in found.items()])
    else:
        shown = _counted(found.values())
    done = state_names.state_text(state_names.UPGRADED, of_job=of_job)
    return f"role {role} ({plural(len(found), 'host is', 'hosts are')} not {done}: {shown})"


def _counted(found: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for state in found:
        counts[state] = counts.get(state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _zero_reason(role: str, after: Position) -> Reason | None:
    for cap in after.slots.full_caps(role):
        if cap.is_missing:
            text = f"no cap limits {cap.what}: set {cap.key} to a number or unlimited"
            return Reason(text, CAP_ZERO, cap.key)
        if cap.slots == 0:
            text = f"the cap of {cap.what} is 0: raise {cap.key}"
            return Reason(text, CAP_ZERO, cap.key)
    return None


def _cap_reason(role: str, after: Position, holders: Mapping[str, Sequence[str]]) -> Reason | None:
    full = after.slots.full_caps(role)
    if not full:
        return None
    if zero := _zero_reason(role, after):
        return zero
    cap = full[0]
    slots = f"{cap.key} admits {cap.slots} of {cap.what} at once"
    return Reason(f"waits for a slot: {slots}; slots are taken by {listing(holders[cap.what], 3)}", CAP, cap.key)


def _holders(occupants: Mapping[str, Sequence[str]], after: Position) -> dict[str, list[str]]:
    """Return ``what`` of each cap -> the hosts that take its slots."""
    found: dict[str, list[str]] = {}
    for role in after.order.roles:
        for cap in after.slots.caps[role]:
            found.setdefault(cap.what, []).extend(occupants[role])
    return found


def _set_reason(after: Position, occupants: Mapping[str, Sequence[str]]) -> Reason | None:
    if not (after.slots.complete_sets and after.slots.busy):
        return None
    holders = [host for hosts in occupants.values() for host in hosts]
    text = f"waits until the current set is done, as complete_sets says: {listing(holders, 3)}"
    return Reason(text, SETS, "rolling_rules.complete_sets")


def state_reason(host: HostState, version: str | None) -> str:
    """Return why a host is in its state, for every state but pending. A hold on the host is part of the text.

    :param version: the target version of the rollout.
    """
    text = _of_state(host, version)
    if host.hold is None or host.hold.text() in text:
        return text
    return f"{text}; {host.hold.text()}"


def _of_state(host: HostState, version: str | None) -> str:
    if host.state == state_names.UPGRADED and not host.is_target:
        return "the job is not for it"
    if host.has_failed_after and host.record is not None:
        error = host.record.error or "no error was given"
        return f"its post-upgrade tasks failed{host.record.where()}: {error}"
    if host.state == state_names.UPGRADED:
        return f"has run the {target_text(version)}" if version and is_job(version) else f"runs {version}"
    if host.state == state_names.LOST and host.needs_its_gate:
        return f"{host.trouble}; its gate was closed after its start; it continues when hosts of its role are admitted again"
    if host.trouble:
        return host.trouble
    if host.state in state_names.BROKEN and host.record is not None:
        error = host.record.error or "no error was given"
        tries = f" (attempt {host.record.attempt})" if host.record.attempt > 1 else ""
        return f"{host.state}{host.record.where()}{tries}: {error}"
    if host.state == state_names.HELD and host.hold is not None:
        return host.hold.text()
    return _upgrading(host, version)


def _upgrading(host: HostState, version: str | None) -> str:
    if host.is_busy and not host.has_started and host.record is not None:
        # A hold frees the slot of a host only if it has not failed.
        otherwise = (
            ""
            if host.is_down
            else f", or hold it (ansible-playbook convoy.upgrade.hold {option('host', host.host)} -e reason=away)"
        )
        return (
            f"its gate is open for {host.record.version}, so it may start at any time, and takes a slot without being admitted: wait for "
            f"it{otherwise}"
        )
    if host.record is not None and host.has_started:
        if host.is_busy:
            what = (
                f"the {target_text(host.record.version)}"
                if is_job(host.record.version)
                else f"an upgrade to {host.record.version}"
            )
            text = f"has not finished {what}{host.record.where()}, so it takes a slot and is not admitted"
            if is_job(host.record.version):
                # Only the run that began it, or the host's agent, reports its end, and the run may be gone.
                text += f". If nothing works on it any more, run ansible-playbook convoy.upgrade.retry {option('host', host.host)}"
            return text
        target = "" if host.record.version == version else f" {target_text(host.record.version)}"
        if host.is_unadmitted:
            return (
                f"reported the start of its upgrade{target and ' to' + target} but was not admitted; it keeps a slot and its gate stays "
                f"closed: make sure that no upgrade runs there, then run ansible-playbook convoy.upgrade.retry {option('host', host.host)}"
            )
        text = f"started{target}{host.record.where()}"
        return text if host.gate.is_open else f"{text}; its gate is closed"
    if host.gate.key:
        text = f"admitted by gate {host.gate.key} ({host.gate.value}), not started yet"
    else:
        text = "no gate is set, so every host is admitted; not started yet"
    return f"{text}: {host.hold.text()}" if host.hold else text


def _finished_groups(one: HostState, version: str | None) -> tuple[str, ...]:
    """Return the task groups that a host has finished: on the way to the target all of them, otherwise those of checkpoints."""
    record = one.record
    if record is None or not record.done:
        return ()
    if record.version == version and one.state != state_names.UPGRADED:
        return record.done
    return tuple(filter(is_checkpoint_group, record.done))


def _begun_steps(one: HostState, version: str | None) -> tuple[str, ...]:
    """Return the steps that a host has begun on the way to the target, in any attempt; none once it is upgraded.

    Those of an upgrade to another version that has not ended belong to them: what it stopped may be stopped still.
    """
    record = one.record
    if record is None or one.state == state_names.UPGRADED:
        return ()
    if record.version != version and one.begun is None:
        return ()
    found = [start.step for each in (*record.not_ended, record) for start in each.trail_since_upgraded]
    return tuple(dict.fromkeys(step for step in (*found, record.step) if step))


def is_outside(one: HostState) -> bool:
    """Return whether a host counts as upgraded only because a job is not for it."""
    return not one.is_target and one.state == state_names.UPGRADED


def _view(one: HostState, version: str | None, group: str | None, reason: Reason, stage: int) -> HostView:
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
        holds_itself=one.hold is not None and one.hold.by in (PUPPET, SETTINGS),
        cause=reason.cause,
        rule=reason.rule,
        origin=record.origin if record is not None else None,
        begun=one.begun,
        done=_finished_groups(one, version),
        steps=_begun_steps(one, version),
        unadmitted=one.is_unadmitted,
        busy=one.is_busy,
        stage=stage,
        blocks=one.blocks_others,
        services=record.services if record is not None else None,
        release=record.release if record is not None else None,
        outside=is_outside(one),
    )
