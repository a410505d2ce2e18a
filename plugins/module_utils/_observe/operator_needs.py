# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rollout needs from an operator: in words, since when, and the playbook that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import is_job, job_id, listing, plural, target_text
from .._fleet.fleet import FAILED, REPORTED_LOST, STARTED, HostRecord, Snapshot
from .._fleet.fleet import MAY_START as RECORDED_MAY_START
from .._fleet.holds import HoldOfFormerRole
from .._fleet.host_patterns import select_hosts
from .._fleet.ledger import COMPLETE, SECONDS_TO_ANSWER, Ledger
from .._host_states.host_state import HostState
from .._host_states.state_names import BROKEN, HELD, LOST, NOT_AGAIN, PENDING, UPGRADED, UPGRADING
from .._planner.blocker_codes import ABORT, BUDGET, PAUSE
from .._planner.blockers import command_text, open_in_spite_of_pause
from .._planner.fleet_state import FleetState
from .._planner.plan import Plan
from .._planner.stage_progress import APPROVAL

# Codes of needs that have no blocker of the same name.
BROKEN_HOSTS, UNADMITTED, INTERRUPTED = "broken_hosts", "unadmitted", "interrupted"
STUCK, POST_UPGRADE, NO_PLANNER = "stuck", "post_upgrade", "no_planner"
MAY_START, EARLIER_JOB, GATES_CLOSED = "may_start", "earlier_job", "gates_closed"
# For how long hosts that may start an upgrade keep a job waiting before an operator is needed (seconds). Those that are there start at once.
_SECONDS_TO_START = 300
# More hosts than this are retried together, without their names.
_MOST_NAMED = 10
_MOST_IN_TEXT = 3
_EXHAUSTED = " The failure budget is exhausted, so no more hosts are admitted."


@dataclass(frozen=True, slots=True)
class OperatorNeed:
    """Something that only an operator can do.

    :param code: ``approval``, ``paused``, ``aborted``, ``failure_budget``, ``broken_hosts``, ``unadmitted``, ``interrupted``, ``stuck``,
        ``post_upgrade``, ``no_planner``, ``may_start``, ``earlier_job`` or ``gates_closed``.
    :param text: a sentence.
    :param playbook: the name of the playbook that answers it.
    :param variables: its variables.
    :param otherwise: the name of a playbook for the opposite decision; empty for none.
    :param since: since when it is needed (unix seconds); 0 if unknown.
    """

    code: str
    text: str
    playbook: str
    variables: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""
    since: float = 0.0

    def plain(self) -> dict[str, Any]:
        """Return it as the part of a result."""
        return asdict(self)

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> OperatorNeed:
        """Return it from what :meth:`plain` returned."""
        return OperatorNeed(**data)


def operator_needs(snapshot: Snapshot, plan: Plan) -> tuple[OperatorNeed, ...]:
    """Return what a rollout needs from an operator, the most important first; empty if it goes on by itself. Takes time linear in hosts."""
    ledger, fleet = snapshot.ledger, plan.fleet
    if ledger is None or fleet is None or ledger.version != snapshot.current_version:
        return ()
    found: list[OperatorNeed] = []
    code = plan.blocker.code if plan.blocker is not None else ""
    at = float(ledger.command.get("at") or 0)
    if code == ABORT:
        if ledger.is_job:
            # It does not begin again, and can't be rolled back.
            return ()
        if ledger.rollback:
            text = f"The rollback to {ledger.version} was aborted{command_text(ledger)}. Begin it again."
            return (OperatorNeed(ABORT, text, *ledger.again(), since=at),)
        can_go_back = ledger.previous_version is not None
        text = f"The rollout to {ledger.version} was aborted{command_text(ledger)}. Begin it again{', or roll the fleet back' if can_go_back else ''}."
        return (OperatorNeed(ABORT, text, *ledger.again(), otherwise="rollback" if can_go_back else "", since=at),)
    if code == PAUSE:
        what = f"The {target_text(ledger.version)}" if ledger.is_job else f"The rollout to {ledger.version}"
        text = f"{what} is paused{command_text(ledger)}. {open_in_spite_of_pause(snapshot, ledger)}"
        found.append(OperatorNeed(PAUSE, text.rstrip(), "resume", {}, "abort", at))
    if plan.needs_approval and plan.stage:
        stage = plan.stages.stages[plan.stages.number]
        done_at = float(plan.stage_mark.get("done_at") or 0)
        text = f"Stage {plan.stage} is done and needs an approval."
        since = done_at + stage.soak if done_at else 0.0
        found.append(OperatorNeed(APPROVAL, text, "approve", {"stage": plan.stage}, "abort", since))
    # Once all hosts are upgraded, the command that runs the post-upgrade tasks retries them. Until then, one that failed in them is broken.
    is_upgraded = plan.complete or ledger.state == COMPLETE
    to_run = frozenset(plan.post_upgrade if is_upgraded else ())
    broken = [
        one
        for one in fleet.hosts.values()
        if (one.state in BROKEN or (one.has_failed_after and one.host not in to_run)) and not one.is_excused
    ]
    # A retry helps only where the command of a job may run again.
    if again := [one for one in broken if one.record is None or not one.record.is_final(ledger.version)]:
        found.append(_of_broken(again, ledger, budget=code == BUDGET))
    elif broken:
        goes_on = plan.admissions or plan.waits or any(one.state == UPGRADING for one in fleet.hosts.values())
        found.append(_of_final(broken, ledger, budget=code == BUDGET, goes_on=bool(goes_on)))
    if lost := [one.host for one in fleet.hosts.values() if one.lost_after]:
        found.append(_of_lost_after(lost))
    # Lost ones are among the broken hosts.
    unadmitted = [one.host for one in fleet.hosts.values() if one.is_unadmitted and one.state not in BROKEN]
    if unadmitted:
        found.append(_of_unadmitted(unadmitted))
    reopened = {one.host for one in plan.admissions}
    behind = {one.host: one for one in fleet.hosts.values() if one.needs_its_gate and one.host not in reopened}
    interrupted = [
        one
        for one in fleet.hosts.values()
        if one.state == UPGRADING
        and not (one.is_unadmitted or one.host in behind)
        and is_interrupted(snapshot, one.host)
    ]
    if free := [one.host for one in interrupted if one.hold is None]:
        found.append(_of_interrupted(free, ledger))
    held = [one.host for one in interrupted if one.hold is not None]
    # An operator holds them, so they are a need only once nothing else goes on.
    is_quiet = not plan.admissions and not plan.waits
    if held and is_quiet and len(held) == sum(one.state == UPGRADING for one in fleet.hosts.values()):
        found.append(_of_interrupted_held(held, snapshot, ledger))
    # Hosts that came later keep the others of a complete rollout from their tasks.
    is_open = not plan.complete and (ledger.is_under_way or (ledger.state == COMPLETE and bool(ledger.post_upgrade)))
    uncarried = _of_handover(snapshot, ledger) if is_open else None
    is_stuck = not plan.complete and not plan.can_move and bool(plan.unfinished)
    if plan.post_upgrade and is_upgraded and uncarried is None:
        # The tasks run once all hosts are upgraded, and one that joined may wait for the slot of one that a run has left in its tasks.
        stuck = _of_stuck(snapshot, plan, fleet.hosts) if is_stuck else None
        is_first = stuck is not None and stuck.playbook in ("retry", same_again(ledger)[0])
        found += [stuck] if stuck and is_first else _of_post_upgrade(snapshot, plan, fleet, ledger)
    if plan.unfinished and not plan.admissions and snapshot.now - ledger.since > _SECONDS_TO_START:
        busy = [one for one in fleet.hosts.values() if one.is_busy and one.state == UPGRADING]
        found += (*(_of_idle_hosts(busy) if ledger.is_job else ()), *_of_earlier_jobs(busy, snapshot))
    if not found and not plan.complete and plan.unfinished:
        upgrading = [one for one in fleet.hosts.values() if one.state == UPGRADING]
        # Hosts that were broken before a rollback keep no other from going on.
        left = [fleet.hosts[host] for host in plan.unfinished]
        if is_stuck and all(one.is_excused and one.state in BROKEN for one in left):
            found.append(_of_broken(left, ledger, budget=False))
        elif is_stuck:
            found.append(_of_behind([*behind]) if behind else _of_stuck(snapshot, plan, fleet.hosts))
        elif is_quiet and upgrading and all(one.hold is not None and not one.is_soaking for one in upgrading):
            found.append(_of_held([one.host for one in upgrading], snapshot))
    if uncarried is not None:
        found.append(uncarried)
    if not plan.complete and ledger.is_under_way and (need := _of_limit(snapshot, ledger, fleet)):
        found.append(need)
    if plan.complete and not (found or ledger.post_upgrade):
        found += _of_closed_gates(snapshot, ledger)
    return tuple(found)


def next_need_at(snapshot: Snapshot, plan: Plan) -> float | None:
    """Return when :func:`operator_needs` may have another result though nothing is written (unix seconds); None for never."""
    ledger = snapshot.ledger
    if ledger is None or plan.complete:
        return None
    times = [ledger.since + _SECONDS_TO_START] if ledger.is_job or snapshot.busy else []
    if snapshot.handover is not None and snapshot.handover.is_of(ledger):
        times.append(snapshot.handover.at + SECONDS_TO_ANSWER)
    return min((float(at) for at in times if at >= snapshot.now), default=None)


def _of_lost_after(names: Sequence[str]) -> OperatorNeed:
    what = "is lost in its" if len(names) == 1 else "are lost in their"
    text = (
        f"{plural(len(names), 'host')} {what} post-upgrade tasks: {listing(names, _MOST_IN_TEXT)}. Make sure that nothing runs there, then retry by "
        "name."
    )
    # A retry frees the slot, whatever still runs there. The status names the command.
    return OperatorNeed(BROKEN_HOSTS, text, "status", {"host": names[0]})


def _of_post_upgrade(snapshot: Snapshot, plan: Plan, fleet: FleetState, ledger: Ledger) -> Sequence[OperatorNeed]:
    """Return the need of post-upgrade tasks that are left, unless a run is at work on some, or planner services admit all hosts to them."""
    failed = [host for host in plan.post_upgrade if fleet.hosts[host].has_failed_after]
    handover = snapshot.handover
    behind = [host for host in plan.post_upgrade if is_shut_out(snapshot, fleet.hosts[host])]
    if behind:
        return [_of_shut_out(behind)]
    if snapshot.carriers and handover is not None and handover.limit is None and not failed:
        states = [fleet.hosts[host] for host in plan.post_upgrade]
        held = [one.host for one in states if one.hold is not None and not one.is_in_post_upgrade]
        return [_of_held_after(held, snapshot)] if held else []
    if any(host in snapshot.leases for host in plan.post_upgrade):
        return []
    text = f"Post-upgrade tasks have not run on {plural(len(plan.post_upgrade), 'host')}."
    if not failed:
        return [OperatorNeed(POST_UPGRADE, text, "post_upgrade", {"version": ledger.version})]
    if len(failed) < len(plan.post_upgrade):
        text = f"Post-upgrade tasks failed on {plural(len(failed), 'host')}, and have not run on others"
    else:
        text = f"Post-upgrade tasks failed on {plural(len(failed), 'host')}"
    text += f": {listing(failed, _MOST_IN_TEXT)}. Fix {'it' if len(failed) == 1 else 'them'}, then run them again."
    return [OperatorNeed(POST_UPGRADE, text, "post_upgrade", {"version": ledger.version, "retry_failed": "true"})]


def is_shut_out(snapshot: Snapshot, one: HostState) -> bool:
    """Return whether a host was admitted to its post-upgrade tasks and can't go on with them, because its gate was closed, as when a rollout began again."""
    return (
        one.is_in_post_upgrade and one.gate.is_open is False and one.host not in snapshot.leases and not one.lost_after
    )


def _of_shut_out(names: Sequence[str]) -> OperatorNeed:
    text = (
        f"{plural(len(names), 'host')} stopped in post-upgrade tasks behind a closed gate: {listing(names, _MOST_IN_TEXT)}. Make sure that nothing runs "
        "there, then retry by name."
    )
    # A retry frees the slot, whatever still runs there. The status names the command.
    return OperatorNeed(BROKEN_HOSTS, text, "status", {"host": names[0]})


def _of_held_after(held: Sequence[str], snapshot: Snapshot) -> OperatorNeed:
    text = (
        f"Post-upgrade tasks do not run on {plural(len(held), 'host')} because of holds: {listing(held, _MOST_IN_TEXT)}. End the holds, then planner "
        "services go on there."
    )
    return _end_of_holds(POST_UPGRADE, text, held, snapshot)


def _broken_text(broken: Sequence[HostState]) -> str:
    """Return a sentence, and one more on lost hosts among failed ones."""
    lost = sum(one.state == LOST for one in broken)
    what = "are lost" if lost == len(broken) > 1 else "is lost" if lost == len(broken) else "failed"
    more = f" {lost} of them {'is' if lost == 1 else 'are'} lost." if 0 < lost < len(broken) else ""
    return f"{plural(len(broken), 'host')} {what}: {listing([one.host for one in broken], _MOST_IN_TEXT)}.{more}"


def _of_final(broken: Sequence[HostState], ledger: Ledger, *, budget: bool, goes_on: bool) -> OperatorNeed:
    """Return the need of hosts that do not run the command of the job again.

    :param budget: whether the failure budget is exhausted, so that no other host begins.
    :param goes_on: whether something else of the job does.
    """
    names = [one.host for one in broken]
    text = f"{_broken_text(broken)}{_EXHAUSTED if budget else ''} {NOT_AGAIN}."
    since = min((at for one in broken if (at := _failed_at(one.record))), default=0.0)
    if not ledger.is_under_way:
        return OperatorNeed(BROKEN_HOSTS, f"{text} Begin a new job for what is left.", "status", {"host": names[0]})
    if budget or not goes_on:
        text += (
            " Fix what failed, abort this job, and begin a new one for the hosts that have not run it (-e only=HOSTS)."
        )
        return OperatorNeed(BUDGET if budget else BROKEN_HOSTS, text, "abort", since=since)
    text += " The other hosts go on. After them, abort this job, and begin a new one for what is left (-e only=HOSTS)."
    return OperatorNeed(BROKEN_HOSTS, text, "status", {"host": names[0]}, "abort", since)


def _of_broken(broken: Sequence[HostState], ledger: Ledger, *, budget: bool) -> OperatorNeed:
    is_job = ledger.is_job
    names = [one.host for one in broken]
    text = f"{_broken_text(broken)}{_EXHAUSTED if budget else ''}"
    fix = f"Fix {'it' if len(names) == 1 else 'them'}"
    if not ledger.is_under_way:
        text += f" {fix}. The next run that succeeds there ends this."
        return OperatorNeed(BROKEN_HOSTS, text, "status", {"host": names[0]})
    since = min((at for one in broken if (at := _failed_at(one.record))), default=0.0)
    code = BUDGET if budget else BROKEN_HOSTS
    # A rollback is not undone by another one, and the first rollout of a fleet has no version to go back to.
    otherwise = "abort" if is_job or ledger.rollback or ledger.previous_version is None else "rollback"
    # Also those whose earlier job has not ended.
    silent = [one.host for one in broken if one.record is not None and one.record.state == STARTED]
    if len(silent) == len(names):
        # A retry without names changes none of them.
        text += " What has begun there may still run. Make sure that it does not. The status of the host names the next command."
        return OperatorNeed(code, text, "status", {"host": names[0]}, otherwise, since)
    if not (is_job or silent) and all(_is_continued(one) for one in broken):
        playbook, again = same_again(ledger)
        return OperatorNeed(
            code, f"{text} {fix}, then continue.", playbook, {**again, "retry_failed": "true"}, otherwise, since
        )
    # A host that is named counts as one on which nothing runs, which only an operator can know.
    variables = {"host": ",".join(names)} if len(names) <= _MOST_NAMED and not silent else {}
    return OperatorNeed(code, f"{text} {fix}, then retry.", "retry", variables, otherwise, since)


def _is_continued(one: HostState) -> bool:
    """Return whether the command of the rollout continues a broken host: an Ansible run has begun its upgrade, no agent goes on with it, and no hold
    keeps it from going on.
    """
    record = one.record
    is_by_ansible = record is not None and record.is_by_ansible and record.release is None
    return is_by_ansible and one.hold is None and not one.has_failed_after


def _of_handover(snapshot: Snapshot, ledger: Ledger) -> OperatorNeed | None:
    """Return the need of a rollout that was handed over and that no planner service carries."""
    handover = snapshot.handover
    if handover is None or not handover.is_of(ledger) or snapshot.carriers:
        return None
    name = target_text(ledger.version) if ledger.is_job else f"rollout to {ledger.version}"
    if not snapshot.answers and snapshot.now - handover.at < SECONDS_TO_ANSWER:
        return None
    refusals = [f"{planner} refuses it: {why}" for planner, why in snapshot.answers.items()]
    # With a limit, a command without it would admit other hosts.
    limit = "" if handover.limit is None else f", with the limit of the handover ({handover.limit_text()})"
    text = (
        f"The {name} was handed over by {handover.by}, and no planner service carries it, so no host is admitted unless a run is under way. "
        f"{' '.join(refusals[:_MOST_IN_TEXT]) or 'None has answered.'} Start one with systemctl start convoy-planner, or let a run carry it{limit}."
    )
    playbook, variables = same_again(ledger) if handover.limit is None else ("status", {})
    return OperatorNeed(NO_PLANNER, text, playbook, variables, since=float(handover.at))


def _of_limit(snapshot: Snapshot, ledger: Ledger, fleet: FleetState) -> OperatorNeed | None:
    """Return the need of a rollout that was handed over with a limit, if all hosts of the limit are done."""
    handover = snapshot.handover
    if handover is None or handover.limit is None or not snapshot.carriers:
        return None
    try:
        hosts = select_hosts(handover.limit, fleet.members, fleet.order.group)
    except UpgradeError:
        # The planner service says what is wrong with it.
        return None
    if any(fleet.hosts[host].state != UPGRADED for host in hosts):
        return None
    text = (
        f"Planner services carry this only for {handover.limit_text()}, which is done, so no other host is admitted unless a run is "
        "under way. Let a run carry the rest, or hand it over again without a limit."
    )
    return OperatorNeed(NO_PLANNER, text, *same_again(ledger), since=float(handover.at))


def _of_closed_gates(snapshot: Snapshot, ledger: Ledger) -> Sequence[OperatorNeed]:
    """Return the need of a fleet whose gates an operator closed after its rollout was complete."""
    gate = snapshot.gates.everywhere
    if (
        ledger.state != COMPLETE
        or ledger.is_job
        or gate is None
        or not gate.was_closed_by_hand(snapshot.current_version)
    ):
        return []
    text = "All gates were closed by hand, as by convoy.upgrade.global_disable, so no pull host runs Puppet. Another run of the rollout opens them."
    return [OperatorNeed(GATES_CLOSED, text, *same_again(ledger))]


def same_again(ledger: Ledger) -> tuple[str, dict[str, str]]:
    """Return the playbook that continues a rollout, and its variables."""
    if ledger.is_job:
        return "command", {"job": job_id(ledger.version)}
    return "rollback" if ledger.rollback else "upgrade", {"version": ledger.version}


def _of_idle_hosts(busy: Sequence[HostState]) -> Sequence[OperatorNeed]:
    """Return the need of a job that waits for hosts which may start an upgrade at any time, and do not."""
    idle = [one for one in busy if one.record is not None and one.record.state == RECORDED_MAY_START]
    if not idle or idle[0].record is None:
        return ()
    names = [one.host for one in idle]
    takes = "host takes a slot" if len(names) == 1 else "hosts take slots"
    text = (
        f"{len(names)} {takes} of the job without working: {listing(names, _MOST_IN_TEXT)}. The gate for the upgrade to {idle[0].record.version} is "
        "open there, so it may start at any time. "
    )
    # A hold does not free the slot of a host that has failed, and may be down.
    away = [one.host for one in idle if not one.is_down]
    if not away:
        failed = "It failed before. Wait until it is" if len(idle) == 1 else "They failed before. Wait until they are"
        return (OperatorNeed(MAY_START, f"{text}{failed} upgraded, or abort the job.", "abort", {}),)
    text += "Hold the hosts that are away, and forget those that are gone."
    variables = {"host": ",".join(away[:_MOST_NAMED]), "reason": "away during a job"}
    return (OperatorNeed(MAY_START, text, "hold", variables, "abort"),)


def _of_earlier_jobs(busy: Sequence[HostState], snapshot: Snapshot) -> Sequence[OperatorNeed]:
    """Return the need of a rollout that waits for hosts which have not ended an earlier job, and on which no Ansible run works."""
    names = [
        one.host
        for one in busy
        if one.has_started and one.record is not None and is_job(one.record.version) and one.host not in snapshot.leases
    ]
    if not names:
        return ()
    has = "host has" if len(names) == 1 else "hosts have"
    text = (
        f"{len(names)} {has} not ended an earlier job, and {'takes a slot' if len(names) == 1 else 'take slots'}: {listing(names, _MOST_IN_TEXT)}. "
        "Wait for its end. If nothing works there any more, retry by name."
    )
    # A retry frees the slot, whatever still runs there. The status names the command.
    return (OperatorNeed(EARLIER_JOB, text, "status", {"host": names[0]}),)


def _of_unadmitted(names: Sequence[str]) -> OperatorNeed:
    text = (
        f"{plural(len(names), 'host')} reported a start and {'was' if len(names) == 1 else 'were'} not admitted: "
        f"{listing(names, _MOST_IN_TEXT)}. Make sure that nothing runs there, then retry by name."
    )
    # A retry frees the slot, whatever still runs there. The status names the command.
    return OperatorNeed(UNADMITTED, text, "status", {"host": names[0]})


def _of_interrupted(names: Sequence[str], ledger: Ledger) -> OperatorNeed:
    text = _in_the_middle(names, ledger, "no Ansible run works there")
    playbook, variables = same_again(ledger)
    if ledger.is_job:
        # Only the operator knows the file.
        text += " Continue it with the same tasks: put their file in the place of FILE."
        return OperatorNeed(INTERRUPTED, text, playbook, {**variables, "run_tasks": "FILE"}, "abort")
    return OperatorNeed(INTERRUPTED, f"{text} Continue the upgrade.", playbook, variables)


def _of_interrupted_held(names: Sequence[str], snapshot: Snapshot, ledger: Ledger) -> OperatorNeed:
    """Return the need of hosts that no run continues while they are held."""
    text = _in_the_middle(names, ledger, f"{'is' if len(names) == 1 else 'are'} held, so no run continues there")
    return _end_of_holds(INTERRUPTED, f"{text} Nothing else goes on. End the hold, then continue.", names, snapshot)


def _in_the_middle(names: Sequence[str], ledger: Ledger, why: str) -> str:
    what = target_text(ledger.version) if ledger.is_job else "upgrade"
    are = "is" if len(names) == 1 else "are"
    return (
        f"{plural(len(names), 'host')} {are} in the middle of the {what}, and {why}: {listing(names, _MOST_IN_TEXT)}."
    )


def is_interrupted(snapshot: Snapshot, host: str) -> bool:
    """Return whether an Ansible run has begun the upgrade of a host to the target, or a job, and not ended it, and no run has the host's lease.

    A pull host continues the tasks of its services, and the command of a job, by itself. So does a host that reports its steps: only an Ansible run
    notes the origin and the finished task groups.
    """
    record = snapshot.records.get(host)
    if record is None or not record.readable or host in snapshot.leases:
        return False
    is_begun = (record.state, record.version) == (STARTED, snapshot.current_version)
    if snapshot.is_job:
        return is_begun and snapshot.ledger is not None and snapshot.ledger.by_ansible
    return is_begun and record.is_by_ansible


def _failed_at(record: HostRecord | None) -> float:
    if record is None or not record.readable:
        return 0.0
    return float(record.times.get(REPORTED_LOST if record.state == REPORTED_LOST else FAILED) or 0)


def _of_held(held: Sequence[str], snapshot: Snapshot) -> OperatorNeed:
    """Return the need of held hosts that were admitted, beside which nothing goes on. They may have to begin again, which their holds prevent."""
    text = (
        f"Nothing goes on beside {'a held host' if len(held) == 1 else 'held hosts'}: {listing(held, _MOST_IN_TEXT)}. An agent run goes on in spite of "
        "a hold, but if it was ended, such as by a reboot, the next waits for the end of the hold."
    )
    return _end_of_holds(STUCK, text, held, snapshot)


def _end_of_holds(code: str, text: str, held: Sequence[str], snapshot: Snapshot) -> OperatorNeed:
    """Return a need that the end of the hosts' own holds meets; of other holds, the status names the command."""
    if len(held) <= _MOST_NAMED and all(host in snapshot.holds.hosts for host in held):
        return OperatorNeed(code, text, "unhold", {"host": ",".join(held)})
    # The hold may be on a role or on the whole fleet, or be set on the host itself.
    return OperatorNeed(code, text, "status", {"host": held[0]})


def _of_behind(hosts: Sequence[str]) -> OperatorNeed:
    """Return the need of a rollout in which nothing goes on beside hosts that have started, and whose gates rules keep closed."""
    are, keep = ("is", "keeps its slot") if len(hosts) == 1 else ("are", "keep their slots")
    text = (
        f"No host can be admitted. {listing(hosts, _MOST_IN_TEXT)} {are} in the middle of an upgrade behind a closed gate and {keep}. Make sure that "
        "nothing runs there, then retry, so that others go first."
    )
    return OperatorNeed(STUCK, text, "retry", {"host": ",".join(hosts[:_MOST_NAMED])})


def _of_stuck(snapshot: Snapshot, plan: Plan, hosts: Mapping[str, HostState]) -> OperatorNeed:
    down = [one.host for one in hosts.values() if one.is_down and one.host not in snapshot.leases]
    waiting = [host for host in plan.unfinished if hosts[host].state == PENDING]
    if down and not snapshot.is_job and snapshot.ledger is not None and snapshot.ledger.state == COMPLETE:
        # A retry in a complete rollout is only for hosts that it has upgraded.
        of_tasks = [host for host in down if hosts[host].state == UPGRADED]
        if not of_tasks:
            are = "host is" if len(plan.unfinished) == 1 else "hosts are"
            text = f"{len(plan.unfinished)} {are} not upgraded: {listing(list(plan.unfinished), _MOST_IN_TEXT)}. Continue the rollout."
            return OperatorNeed(STUCK, text, *same_again(snapshot.ledger))
        down = of_tasks
    if down and any(snapshot.is_job or not hosts[host].is_down for host in waiting):
        keep = "keeps its slot" if len(down) == 1 else "keep their slots"
        if snapshot.is_job:
            text = (
                f"No host can be admitted. {listing(down, _MOST_IN_TEXT)} {'has' if len(down) == 1 else 'have'} not finished an upgrade and {keep}. "
                f"Abort the job, and finish that first, or give the job higher caps."
            )
            return OperatorNeed(STUCK, text, "status", {"host": down[0]})
        text = (
            f"No host can be admitted. {listing(down, _MOST_IN_TEXT)} failed or stopped in an earlier upgrade and {keep}. Fix "
            f"{'it' if len(down) == 1 else 'them'}, then retry."
        )
        if any(hosts[host].is_in_post_upgrade for host in down):
            text = (
                f"No host can be admitted. {listing(down, _MOST_IN_TEXT)} {keep}, because of post-upgrade tasks that failed or have not run. Make sure "
                "that nothing runs there, then retry."
            )
        return OperatorNeed(STUCK, text, "retry", {"host": ",".join(down[:_MOST_NAMED])})
    # A waiting host may wait for one that is out of scope, or that was admitted and is held before its start.
    held = [
        one.host
        for one in hosts.values()
        if one.hold is not None and one.state in (HELD, UPGRADING) and (waiting or one.host in plan.unfinished)
    ]
    first = (held or waiting or list(plan.unfinished))[0]
    if not held:
        return OperatorNeed(STUCK, f"No host can be admitted. See what {first} waits for.", "status", {"host": first})
    if waiting:
        are = "is held, and others may wait for it" if len(held) == 1 else "are held, and others may wait for them"
        text = f"No host can be admitted. {listing(held, _MOST_IN_TEXT)} {are}."
    else:
        text = f"Only held hosts are left: {listing(held, _MOST_IN_TEXT)}."
    ends_by_name = [host in snapshot.holds.hosts or isinstance(hosts[host].hold, HoldOfFormerRole) for host in held]
    if len(held) <= _MOST_NAMED and all(ends_by_name):
        return OperatorNeed(STUCK, text, "unhold", {"host": ",".join(held)})
    # The hold may be on a role or on the whole fleet, or be set on the host itself.
    return OperatorNeed(STUCK, text, "status", {"host": first})
