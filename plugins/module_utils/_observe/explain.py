# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explains one host in sentences: its state and since when, the reason, the rule, how an operator can change it, what comes next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._common.names import is_job, job_id, listing, plural, target_text
from .._common.sanitize import limit_to, option
from .._fleet.fleet import FAILED, RETRIED, STARTED, UPGRADED, Snapshot
from .._fleet.holds import SETTINGS, Hold, HoldOfFormerRole
from .._fleet.ledger import WITH_RULES
from .._host_states import state_names
from .._planner import blocker_codes, explanations, stage_progress
from .._planner.plan import HostView, Plan
from .._rule_checks.rule_text import rule_line
from .._rule_checks.unknown_targets import other_machine, other_name
from .operator_needs import is_interrupted, is_shut_out, same_again

# Steps between which services are out of use, and those in which they may be stopped.
_DRAIN, _UNDRAIN, _STOPPING = "drain", "undrain", ("stop", "upgrade", "start")
# The role that uses Consul's maintenance, by whose end an operator can put a service back.
_CONSUL_SERVICE = "consul_service"

_NO_AGENT = "Its gate is closed, so its agent does not try again."
# What an operator can do, by the cause for which a host waits. {rule} is the key in the instructions.
_ORDER_AGAIN = "To change this: run ansible-playbook convoy.upgrade.upgrade again, with all rules and another {rule}."
_CHANGES: Mapping[str, str] = {
    explanations.NO_VERSION: "To change this: begin a rollout with ansible-playbook convoy.upgrade.upgrade -e version=X.",
    explanations.ADMISSIBLE: "",
    explanations.OTHER_SERVICES: "To change this: run ansible-playbook convoy.upgrade.enroll {limit}.",
    explanations.OTHER_ROLE: "To change this: correct puppet_gate_role or the inventory, then run ansible-playbook convoy.upgrade.enroll {limit}.",
    blocker_codes.PAUSE: "To change this: run ansible-playbook convoy.upgrade.resume.",
    blocker_codes.ABORT: "Only an operator can change this.",
    blocker_codes.EXPIRED: "To change this: run ansible-playbook convoy.upgrade.abort, then ansible-playbook convoy.upgrade.command -e run=NAME.",
    blocker_codes.BUDGET: "To change this: fix those hosts, then run ansible-playbook convoy.upgrade.retry.",
    explanations.ROLE_BUDGET: "To change this: fix those hosts, then run ansible-playbook convoy.upgrade.retry.",
    blocker_codes.HOURS: _ORDER_AGAIN,
    stage_progress.STAGE: _ORDER_AGAIN,
    stage_progress.SOAK: _ORDER_AGAIN,
    stage_progress.APPROVAL: "To change this: run ansible-playbook convoy.upgrade.approve.",
    stage_progress.ROLLBACK: "",
    explanations.ORDER: _ORDER_AGAIN,
    explanations.CAP: "To change this: run ansible-playbook convoy.upgrade.upgrade again, with all rules and a higher {rule}.",
    explanations.CAP_ZERO: "To change this: run ansible-playbook convoy.upgrade.upgrade again, with all rules and {rule} above 0.",
    explanations.SETS: _ORDER_AGAIN,
}


def explain(
    host: str,
    plan: Plan,
    snapshot: Snapshot,
    events: Iterable[Mapping[str, Any]] = (),
    refusals: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return sentences that explain one host of a plan. Takes time linear in hosts.

    :param plan: the current plan without a limit.
    :param snapshot: what the plan was made from.
    :param events: the history of the rollout, the newest first. It contains who gave the rules.
    :param refusals: why passes admit no host, though the plan does.
    """
    view = _with_rule(plan.hosts[host], snapshot)
    return tuple(
        sentence
        for sentence in (
            _where(host, view, snapshot),
            _since(host, view, snapshot),
            _why(view),
            _rule(view, snapshot, events),
            _who(host, view, snapshot, plan),
            _still_drained(host, snapshot),
            _machines(host, snapshot),
            _next(host, view, plan, _job_command(snapshot), refusals),
        )
        if sentence
    )


def _machines(host: str, snapshot: Snapshot) -> str:
    return " ".join(f"{text}." for text in (other_machine(snapshot, host), other_name(snapshot, host)) if text)


def _with_rule(view: HostView, snapshot: Snapshot) -> HostView:
    """Return the view with the rule's key in the instructions: an order may be set for the host's group instead of its role."""
    rules = snapshot.ledger.instructions if snapshot.ledger is not None else {}
    if view.cause == explanations.ORDER and view.group and not rule_line(rules, view.rule):
        return replace(view, rule=f"role_order.{view.group}")
    return view


def time_ago(seconds: float) -> str:
    """Return how long ago something was, in the largest unit that fits: ``12 minutes ago``."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return f"{plural(int(seconds // size), unit)} ago"
    return f"{plural(max(0, int(seconds)), 'second')} ago"


def _when(at: float, now: float) -> str:
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    # A host's clock may be ahead.
    return f"{shown} ({time_ago(now - at)})" if at <= now else shown


def _where(host: str, view: HostView, snapshot: Snapshot) -> str:
    target = snapshot.current_version
    if _is_left_out(host, view, snapshot):
        nothing = "" if view.busy else f", so {host} does nothing and takes no slot"
        return f"The {target_text(str(target))} is not for {host}{nothing}."
    if snapshot.is_job:
        done = view.version == target
        return (
            f"{host} {'has run' if done else 'has not run'} the {target_text(target)}."
            if target
            else "There is no job."
        )
    report = snapshot.reports.get(host)
    runs = f"{host} runs {view.version}" if view.version else f"{host} has never reported a version"
    if view.version and report is not None and report.version == view.version and report.at:
        runs += f", as it reported at {_when(report.at, snapshot.now)}"
    if target is None:
        return f"{runs}."
    return (
        f"{runs}. The target version is {target}." if view.version != target else f"{runs}. That is the target version."
    )


def _is_left_out(host: str, view: HostView, snapshot: Snapshot) -> bool:
    """Return whether the rollout is a job that is for other hosts."""
    ledger = snapshot.ledger
    return snapshot.is_job and ledger is not None and not ledger.is_for(host, view.role)


def _since(host: str, view: HostView, snapshot: Snapshot) -> str:
    if _is_left_out(host, view, snapshot):
        return ""
    found = _beginning(host, view, snapshot)
    state = state_names.state_text(view.state, of_job=snapshot.is_job)
    if found is None:
        return f"It is {state}."
    at, what = found
    return f"It has been {state} since {at if isinstance(at, str) else _when(at, snapshot.now)}, when {what}."


def _beginning(host: str, view: HostView, snapshot: Snapshot) -> tuple[float | str, str] | None:
    """Return when a host entered its state, and by which event; None if that is not stored."""
    record, ledger = snapshot.records.get(host), snapshot.ledger
    current = snapshot.current_version
    times = record.times if record is not None and record.version == current else {}
    if view.state == state_names.HELD:
        hold = snapshot.hold_of(host, view.role)
        return (hold.at, "the hold was set") if hold is not None and hold.at else None
    if view.state in state_names.BROKEN and record is not None and record.state == FAILED and FAILED in times:
        return times[FAILED], "its run lost it" if record.is_lost else "it reported the failure"
    if view.state in (state_names.UPGRADED, state_names.UPGRADING) and view.version == current and UPGRADED in times:
        return times[UPGRADED], "it reported the end of the command" if snapshot.is_job else "it reported the version"
    if view.state == state_names.UPGRADING and view.started and record is not None and STARTED in record.times:
        return record.times[STARTED], "it reported its start"
    gate = snapshot.gates.hosts.get(host) or snapshot.gates.roles.get(view.role)
    if view.state == state_names.UPGRADING and gate is not None and gate.at:
        return gate.at, "its gate was opened"
    if view.state == state_names.PENDING and record is not None and record.state == RETRIED and RETRIED in times:
        return times[RETRIED], "an operator retried it"
    if view.state == state_names.PENDING and ledger is not None and ledger.version == current and ledger.since:
        return (
            ledger.since,
            f"the {target_text(current)} began" if snapshot.is_job else f"the rollout to {current} began",
        )
    return None


def _why(view: HostView) -> str:
    if view.state == state_names.UPGRADED and view.cause != explanations.POST_UPGRADE_FAILED:
        return ""
    reason = view.reason.rstrip()
    return f"Why: {reason}" if reason.endswith((".", "?", "!")) else f"Why: {reason}."


def _rule(view: HostView, snapshot: Snapshot, events: Iterable[Mapping[str, Any]]) -> str:
    if not view.rule or snapshot.ledger is None:
        return ""
    line = rule_line(snapshot.ledger.instructions, view.rule)
    if not line:
        return ""
    for event in events:
        if event.get("what") in WITH_RULES:
            who, at = event.get("by") or event.get("who"), event.get("at")
            given = f" by {who}" if who else ""
            given += f" at {_when(at, snapshot.now)}" if isinstance(at, (int, float)) else ""
            return f"The rule is {line}, given{given}." if given else f"The rule is {line}."
    return f"The rule is {line}."


def _job_command(snapshot: Snapshot) -> str:
    """Return the playbook that continues the job, with its variables; empty if there is no job."""
    if not snapshot.is_job or not snapshot.current_version:
        return ""
    # Only the operator knows the file with the tasks.
    tasks = " -e run_tasks=FILE" if snapshot.ledger is not None and snapshot.ledger.by_ansible else ""
    return f"convoy.upgrade.command -e job={job_id(snapshot.current_version)}{tasks}"


def _of_other_work(host: str, snapshot: Snapshot) -> str:
    """Return what changes the state of a lost host that has started other work than the rollout's and not reported its end."""
    version = snapshot.busy[host].version
    if is_job(version):
        return (
            f"To change this: make sure that nothing of the job {job_id(version)} runs there any more, then run ansible-playbook "
            f"convoy.upgrade.retry {option('host', host)}."
        )
    return (
        f"To change this: the host has to report the end of its upgrade to {version}. If it is gone, run ansible-playbook convoy.upgrade.forget "
        f"{option('host', host)} -e force=true."
    )


def _is_beyond_retry(snapshot: Snapshot, plan: Plan) -> bool:
    """Return whether none of the failed and lost hosts of a job runs its command again."""
    broken = [snapshot.records.get(host) for host, view in plan.hosts.items() if view.state in state_names.BROKEN]
    return (
        snapshot.is_job
        and bool(broken)
        and all(one is not None and one.is_final(snapshot.current_version) for one in broken)
    )


def _who(host: str, view: HostView, snapshot: Snapshot, plan: Plan) -> str:
    if view.state == state_names.PENDING or (view.state == state_names.UPGRADING and view.cause):
        if view.cause in (blocker_codes.BUDGET, explanations.ROLE_BUDGET) and _is_beyond_retry(snapshot, plan):
            return (
                f"{state_names.NOT_AGAIN}. To change this: fix those hosts, run ansible-playbook convoy.upgrade.abort, and begin a new job for what is left "
                "(-e only=HOSTS)."
            )
        text = _CHANGES.get(view.cause, "").format(rule=view.rule, host=host, limit=limit_to([host]))
        if view.state == state_names.UPGRADING and view.cause in (explanations.ORDER, explanations.CAP_ZERO):
            text += f" To free its slot, make sure that nothing runs there, then run ansible-playbook convoy.upgrade.retry {option('host', host)}."
        if snapshot.is_job and snapshot.current_version:
            return text.replace("convoy.upgrade.upgrade", _job_command(snapshot))
        return text
    if view.cause == explanations.POST_UPGRADE_FAILED and snapshot.ledger is not None:
        again = f"ansible-playbook convoy.upgrade.post_upgrade {option('version', snapshot.ledger.version)} -e retry_failed=true"
        what = f"Once all hosts are upgraded, run {again}"
        if view.services is not None:
            if _is_gate_closed(host, plan):
                return f"To change this: fix the host, then run ansible-playbook convoy.upgrade.retry {option('host', host)}. {_NO_AGENT}"
            what = "Its agent tries again by itself"
        return f"To change this: fix the host. {what}. To free its slot before, run ansible-playbook convoy.upgrade.retry {option('host', host)}."
    if (
        view.unadmitted
        or _lost_after(host, plan)
        or (plan.fleet is not None and is_shut_out(snapshot, plan.fleet.hosts[host]))
    ):
        return f"To change this: make sure that nothing runs there, then run ansible-playbook convoy.upgrade.retry {option('host', host)}."
    hold = snapshot.hold_of(host, view.role)
    # A soak goes on behind a hold.
    if hold is not None and view.state != state_names.UPGRADED and not view.soaking:
        if hold.by == SETTINGS:
            return "To change this: run 'convoy-node check' on the host, and correct what it names. Its agent then ends the hold."
        if view.holds_itself:
            return "To change this: run 'puppet agent --enable' on the host. Its next run ends the hold."
        return f"To change this: run ansible-playbook convoy.upgrade.unhold{_held_by(host, hold, snapshot)}."
    if view.state in (state_names.FAILED, state_names.LOST):
        if snapshot.ledger is None or not snapshot.ledger.is_under_way:
            return "To change this: fix the host. The next run that succeeds there ends this."
        if host in snapshot.busy:
            return _of_other_work(host, snapshot)
        record = snapshot.records.get(host)
        is_silent = record is not None and record.state == STARTED
        sure = "make sure that nothing runs there, then " if is_silent else ""
        if record is not None and record.is_final(snapshot.current_version):
            return (
                f"To change this: fix the host. {state_names.NOT_AGAIN}. After the other hosts, run "
                f"ansible-playbook convoy.upgrade.abort, and begin a new job with {option('only', host)}."
            )
        if snapshot.is_job:
            return f"To change this: fix the host, {sure or 'then '}run ansible-playbook convoy.upgrade.retry {option('host', host)}."
        slot = "To free its slot" if _takes_a_slot(host, plan) else "To let planners admit it again"
        if view.release is not None and _is_gate_closed(host, plan):
            # A rollout that began again has removed the gate of a failed host.
            return f"To change this: fix the host, {sure or 'then '}run ansible-playbook convoy.upgrade.retry {option('host', host)}. {_NO_AGENT}"
        if view.release is not None:
            text = f"To change this: fix the host. Its agent tries again by itself. {slot}"
        elif view.steps or view.origin:
            playbook, variables = same_again(snapshot.ledger)
            again = " ".join(option(name, value) for name, value in {**variables, "retry_failed": "true"}.items())
            text = f"To change this: fix the host, then run ansible-playbook convoy.upgrade.{playbook} {again}. {slot} instead"
        else:
            text = f"To change this: fix the host. Its next report ends this. {slot}"
        return f"{text}, {sure}run ansible-playbook convoy.upgrade.retry {option('host', host)}."
    if view.state == state_names.UPGRADING and not view.soaking:
        if is_interrupted(snapshot, host):
            again = "the command of its rollout again"
            if snapshot.ledger is not None:
                playbook, variables = same_again(snapshot.ledger)
                options = " ".join(option(name, value) for name, value in variables.items())
                more = " -e run_tasks=FILE, with its file" if snapshot.is_job else ""
                again = f"ansible-playbook convoy.upgrade.{playbook} {options}{more}"
            return f"No rule keeps it waiting, but no Ansible run works on it now: run {again}."
        return "No rule keeps it waiting: the host or the Ansible run that upgrades it has to finish."
    return ""


def _still_drained(host: str, snapshot: Snapshot) -> str:
    """Return which services of a host are still out of use because no run works on it now, and how to put them back; empty for none."""
    record = snapshot.records.get(host)
    if record is None or not record.readable or record.state == UPGRADED or host in snapshot.leases:
        return ""
    trail = record.trail_since_upgraded
    was_stopped = any(start.step in _STOPPING for start in trail)
    if record.state == FAILED and not record.is_lost and not was_stopped:
        # Its run has put them back, or the error says that it could not.
        return ""
    out: dict[str, None] = {}
    for position, start in enumerate(trail, 1):
        if start.step == _DRAIN:
            out[start.service] = None
        elif start.step == _UNDRAIN and position < len(trail):
            out.pop(start.service, None)
    if not out:
        return ""
    by_hand = "as their README says"
    if any(name.rpartition(".")[2] == _CONSUL_SERVICE for name in out):
        by_hand += ", for Consul's maintenance with consul maint -disable -service=ID there"
    return f"It is still drained ({listing(list(out), 5)}) until an upgrade of it succeeds. To end that without one, undo the step drain {by_hand}."


def _is_gate_closed(host: str, plan: Plan) -> bool:
    return plan.fleet is not None and plan.fleet.hosts[host].gate.is_open is False


def _takes_a_slot(host: str, plan: Plan) -> bool:
    return plan.fleet is None or plan.fleet.hosts[host].takes_a_slot


def _lost_after(host: str, plan: Plan) -> str:
    return plan.fleet.hosts[host].lost_after if plan.fleet is not None else ""


def _held_by(host: str, hold: Hold, snapshot: Snapshot) -> str:
    if isinstance(hold, HoldOfFormerRole):
        return f" {option('host', host)}"
    for name, found in snapshot.holds.hosts.items():
        if found is hold:
            return f" {option('host', name)}"
    for name, found in snapshot.holds.roles.items():
        if found is hold:
            return f" {option('role', name)}"
    return " -e everything=true"


def _next(host: str, view: HostView, plan: Plan, job: str, refusals: Sequence[str]) -> str:
    if view.cause == explanations.POST_UPGRADE_FAILED:
        return "Until then it keeps its slot, so that failures do not spread."
    if view.state == state_names.UPGRADED and plan.fleet is not None and plan.fleet.hosts[host].is_in_post_upgrade:
        is_there = "in its post-upgrade tasks, or was admitted to them"
        return f"It is {_lost_after(host, plan) or is_there}, and keeps its slot until they are done or it is retried."
    if view.state == state_names.UPGRADED and host in plan.post_upgrade:
        return "Its post-upgrade tasks follow once every host is upgraded."
    if view.state == state_names.UPGRADED:
        return "It is done."
    if view.state == state_names.UPGRADING:
        if view.soaking:
            return f"Once the soak is over, it counts as {'done' if job else 'upgraded'}, and its slot is free."
        if view.unadmitted or view.cause:
            return "Until then it keeps its slot."
        if view.held and not view.started:
            return "Until then it keeps its slot, because it was admitted."
        if plan.fleet is not None and is_interrupted(plan.fleet.snapshot, host):
            return "Until then it keeps its slot."
        if view.busy:
            return "It takes a slot until it has finished its work."
        if job:
            report = "reports the end of the command" if view.started else "starts, runs the command and reports"
        else:
            report = "reports the end of its upgrade" if view.started else "starts, upgrades and reports"
        return f"Next, it {report}. Until then it keeps its slot."
    if view.state in (state_names.FAILED, state_names.LOST):
        if not _takes_a_slot(host, plan):
            return "It takes no slot, because it was broken before the rollback. That is complete once the host is upgraded, or forgotten."
        return "Until then it keeps its slot, so that failures do not spread."
    if view.state == state_names.HELD and plan.fleet is not None and plan.fleet.hosts[host].is_down:
        if host in plan.fleet.snapshot.leases:
            return "It keeps its slot until the run that works on it ends."
        if job:
            return "It keeps its slot until it is upgraded, because it has not finished an earlier upgrade."
        return f"It keeps its slot until it is retried, because it {plan.fleet.hosts[host].down_because}."
    if view.state == state_names.HELD:
        return "Until then it waits, and takes no slot."
    if refusals:
        return "It waits until this is corrected: " + " ".join(refusals)
    if plan.missing:
        return "It waits until the whole fleet is given: " + "; ".join(plan.missing) + "."
    return _wave_text(host, view, plan.waves, plan.hosts, job)


def _wave_text(
    host: str, view: HostView, waves: Sequence[Sequence[str]], hosts: Mapping[str, HostView], job: str
) -> str:
    before = 0
    for number, wave in enumerate(waves):
        if host in wave:
            if number == 0:
                return f"The next pass of ansible-playbook {job or 'convoy.upgrade.upgrade'} admits it. If no run is active, start one."
            return (
                f"If all {'commands' if job else 'upgrades'} succeed, it is admitted in wave {number + 1} of {len(waves)}, after "
                f"{plural(before, 'host')} of role {view.role} and the hosts being upgraded."
            )
        before += sum(1 for one in wave if hosts[one].role == view.role)
    return "Until that changes, it waits. It is in no wave of the forecast."
