# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications of a rollout: the events, which of them were sent, and the payload of each."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._common.names import is_job, listing, plural, target_text
from .._common.sanitize import option, sanitize, truncate_middle
from .._fleet.fleet import FAILED, Snapshot
from .._fleet.ledger import ABORTED, BEGINNINGS, COMPLETE, RUNNING, Ledger, is_count, names_that_fit
from .._host_states.state_names import BROKEN, STATES, UPGRADED, UPGRADING
from .._planner.blocker_codes import BUDGET
from .._planner.blockers import NO_MORE_HOSTS
from .._planner.explanations import POST_UPGRADE_FAILED
from .._planner.plan import HostView, Plan
from .operator_needs import BROKEN_HOSTS, NO_PLANNER, POST_UPGRADE, OperatorNeed, operator_needs, same_again

BEGIN, STAGE, PAUSE, RESUME = "begin", "stage", "pause", "resume"
FAILURE, APPROVAL_NEEDED, APPROVED, END = "failure", "approval_needed", "approved", "end"
EVENTS = (BEGIN, STAGE, PAUSE, RESUME, FAILURE, APPROVAL_NEEDED, APPROVED, END)

# How many failed hosts the payload has with their errors, and how many its sentence has. Other failed hosts are only counted.
MOST_FAILURES = 50
_MOST_IN_TEXT = 3
_MOST_ERROR = 1000
# Of the names that are stored. Consul takes 512 KiB in base64.
_MOST_BYTES = 300_000
_GOES_ON = (
    "Nothing: the {what} continues by itself. Watch it with ansible-playbook convoy.upgrade.status -e follow=true."
)
# It is not known whether a run is in progress.
_IF_NONE_RUNS = "If no run is in progress"

# Fields that an event of an earlier rollout does not have.
_OF_CURRENT = ("hosts", "upgraded", "broken", "counts")
_ENDS = ("complete", "converge")
# The key of the failure budget that stops all hosts. Others stop those of a role or a group.
_OF_FLEET = "failure_rules.fleet"


@dataclass(frozen=True, slots=True)
class SentNotifications:
    """What was sent so far.

    :param epoch: the newest entry of the history that was sent.
    :param broken: the failed or lost hosts that were sent, until they are upgraded or retried.
    :param approval: the stage whose missing approval was sent; empty if no approval is missing.
    :param stage: the stage that was sent last; empty for none.
    :param ended: whether the end of the current rollout was sent.
    :param exhausted: the keys of the exhausted failure budgets that were sent.
    :param before: during a job, what was sent of the rollout to a version before it; None for a rollout to a version.
    """

    epoch: int = 0
    broken: tuple[str, ...] = ()
    approval: str = ""
    stage: str = ""
    ended: bool = False
    exhausted: tuple[str, ...] = ()
    before: SentNotifications | None = None

    @property
    def of_versions(self) -> SentNotifications:
        """What was sent of the rollout to a version, which a job does not end."""
        return self.before or self

    def plain(self) -> dict[str, Any]:
        """Return it as it is stored. Of more failed hosts than fit into a key, a later run sends those again that are left out."""
        if self.before is None:
            return self._plain(_MOST_BYTES)
        return {**self._plain(_MOST_BYTES // 2), "before": self.before._plain(_MOST_BYTES // 2)}

    def _plain(self, room: int) -> dict[str, Any]:
        return {**asdict(replace(self, before=None)), "broken": names_that_fit(self.broken, room)}

    def after_job(self) -> SentNotifications:
        """Return it once the rollout to a version goes on, as if the job had not been there."""
        return replace(self.of_versions, epoch=self.epoch)

    def without(self, hosts: Container[str]) -> SentNotifications:
        """Return it without these hosts in ``broken``."""
        return replace(self, broken=tuple(host for host in self.broken if host not in hosts))

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> SentNotifications:
        """Return it from what :meth:`plain` returned.

        :raises KeyError, ValueError, TypeError: for any other data.
        """
        sent = SentNotifications(data["epoch"], tuple(data["broken"]), data["approval"], data["stage"], data["ended"])
        # An older release has written neither of these.
        before = data.get("before")
        sent = replace(
            sent,
            exhausted=tuple(data.get("exhausted", ())),
            before=SentNotifications.from_plain({**before, "before": None}) if before is not None else None,
        )
        texts = (*sent.broken, sent.approval, sent.stage, *sent.exhausted)
        if (
            not is_count(sent.epoch)
            or not isinstance(sent.ended, bool)
            or not all(isinstance(one, str) for one in texts)
        ):
            raise ValueError("it is not what was written")
        return sent


@dataclass(frozen=True, slots=True)
class Notification:
    """An event to send.

    :param at: when it happened (unix seconds).
    :param after: what has been sent once this event is sent.
    :param outcome: how the rollout ended: ``complete`` or ``aborted``; empty for other events.
    :param cause: what paused or resumed it: ``command`` for an operator's command, or ``budget``; empty for other events.
    :param hosts: the hosts that failed or are lost, for a failure.
    """

    event: str
    at: float
    version: str
    after: SentNotifications
    by: str = ""
    reason: str = ""
    stage: str = ""
    outcome: str = ""
    cause: str = ""
    hosts: tuple[str, ...] = ()


def everything_sent(snapshot: Snapshot, plan: Plan, hosts: Mapping[str, HostView]) -> SentNotifications:
    """Return the state in which everything has been sent. The first run with a hook begins with it.

    :param hosts: what :func:`~.progress.watched_hosts` returns.
    """
    ledger = snapshot.ledger or snapshot.job
    over = ledger is not None and ledger.state in (COMPLETE, ABORTED)
    return SentNotifications(
        ledger.epoch if ledger is not None else 0,
        _broken(hosts),
        _stage_to_approve(plan),
        plan.stage or "",
        over,
        ledger.stopped if ledger is not None else (),
        _before_job(snapshot.versions) if snapshot.versions is not None else None,
    )


def _before_job(versions: Snapshot) -> SentNotifications:
    """Return the state in which everything has been sent of the rollout to a version before a job, as far as the records of hosts tell it."""
    failed = (host for host, one in versions.records.items() if one.state == FAILED)
    return SentNotifications(broken=tuple(failed), ended=True)


def caught_up(ledger: Ledger | None, entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the entries that a new run still has to send: those of the rollout under way.

    Nothing is sent for a rollout that began and ended without a hook.

    :param entries: the entries that were not sent, the oldest first.
    """
    begun = [at for at, entry in enumerate(entries) if entry.get("what") in BEGINNINGS]
    if not begun:
        return entries
    over = ledger is not None and ledger.state in (COMPLETE, ABORTED)
    return [] if over else entries[begun[-1] :]


def pending_notifications(
    snapshot: Snapshot,
    plan: Plan,
    hosts: Mapping[str, HostView],
    entries: Sequence[Mapping[str, Any]],
    sent: SentNotifications,
) -> tuple[list[Notification], SentNotifications]:
    """Return the events to send now, in order, and the state after the last one. Takes time linear in hosts and entries.

    The history has what operators and planners did. It has no entry for a failed host or a missing approval, so these come from the
    plan.

    :param hosts: what :func:`~.progress.watched_hosts` returns.
    :param entries: entries of the history after ``sent.epoch``, the oldest first.
    """
    notifications: list[Notification] = []
    all_upgraded = all(view.state == UPGRADED for view in hosts.values())
    last_admission = max((int(entry["epoch"]) for entry in entries if entry.get("what") == "open"), default=0)
    for entry in entries:
        if sent.ended and not is_job(entry.get("version")):
            sent = sent.after_job()
        exhausted = sent.exhausted
        sent = replace(_known_after(sent, entry), epoch=max(sent.epoch, int(entry["epoch"])))
        notification = _of_entry(entry, sent, exhausted)
        if notification is not None:
            sent = notification.after
            # A stage whose hosts are all in earlier stages has nothing to do, so its beginning is not sent.
            if notification.event != STAGE or not all_upgraded or sent.epoch < last_admission:
                notifications.append(notification)
    if not snapshot.is_job:
        sent = sent.after_job()
    at, version = snapshot.now, plan.version or ""
    broken = _broken(hosts)
    known = set(sent.broken)
    updates = tuple(host for host in broken if host not in known)
    # A failed host that starts again by itself stays in the list.
    kept = tuple(host for host in sent.broken if host in hosts and hosts[host].state in (*BROKEN, UPGRADING))
    sent = replace(sent, broken=(*kept, *updates))
    if updates:
        notifications.append(Notification(FAILURE, at, version, sent, hosts=updates))
    stage = _stage_to_approve(plan)
    is_new = stage not in ("", sent.approval)
    sent = replace(sent, approval=stage)
    if is_new:
        notifications.append(Notification(APPROVAL_NEEDED, at, version, sent, stage=stage))
    return notifications, sent


def _known_after(sent: SentNotifications, entry: Mapping[str, Any]) -> SentNotifications:
    """Return what was sent, without what has to be sent again after an entry, and with its failure budgets."""
    what = entry.get("what")
    if what in BEGINNINGS:
        return SentNotifications(sent.epoch, before=sent.of_versions if is_job(entry.get("version")) else None)
    if what in ("retry", "forget"):
        hosts = entry.get("hosts")
        return sent.without(hosts) if isinstance(hosts, Mapping) else sent
    if what == "budget":
        keys = entry.get("keys")
        return replace(sent, exhausted=tuple(map(str, keys)) if isinstance(keys, list) else ())
    return replace(sent, ended=False) if what == "open" else sent


def _of_entry(entry: Mapping[str, Any], sent: SentNotifications, exhausted: Collection[str]) -> Notification | None:
    """Return the event for an entry of the history; None if no event is sent for it.

    :param sent: what counts as sent after the entry, apart from its event.
    :param exhausted: the keys of the failure budgets that were exhausted before it.
    """
    what = entry.get("what")
    reason = str(entry.get("reason") or "")
    plain = Notification(
        "", float(entry.get("at") or 0), str(entry.get("version") or ""), sent, by=_who(entry), reason=reason
    )
    if what in BEGINNINGS:
        return replace(plain, event=BEGIN)
    if what == "stage" and (stage := str(entry.get("stage") or "")) not in ("", sent.stage):
        return replace(plain, event=STAGE, stage=stage, reason="", after=replace(sent, stage=stage))
    if what in ("pause", "resume"):
        return replace(plain, event=PAUSE if what == "pause" else RESUME, cause="command")
    if what == "budget":
        keys = sent.exhausted
        if keys and set(keys) <= set(exhausted) and (_OF_FLEET in keys) == (_OF_FLEET in exhausted):
            # One of several has recovered, and the others were sent.
            return None
        return replace(plain, event=PAUSE if keys else RESUME, cause="budget")
    if what == "approve":
        return replace(plain, event=APPROVED, stage=str(entry.get("stage") or ""))
    # A complete rollout can be paused, and aborted after that.
    if what == "abort" or (what in _ENDS and not sent.ended):
        outcome = ABORTED if what == "abort" else COMPLETE
        return replace(plain, event=END, outcome=outcome, after=replace(sent, ended=True))
    return None


def _who(entry: Mapping[str, Any]) -> str:
    return str(entry.get("by") or entry.get("who") or "")


def _broken(hosts: Mapping[str, HostView]) -> tuple[str, ...]:
    return tuple(host for host, view in hosts.items() if view.state in BROKEN)


def _stage_to_approve(plan: Plan) -> str:
    return str(plan.stage or "") if plan.needs_approval else ""


def payload(
    notification: Notification, snapshot: Snapshot, plan: Plan, hosts: Mapping[str, HostView]
) -> dict[str, Any]:
    """Return the payload for a hook, as plain data. Texts are one line each and have no terminal control characters.

    :param hosts: what :func:`~.progress.watched_hosts` returns. They are sent in their current state, even for an older event.
    """
    ledger = snapshot.ledger
    is_current = ledger is not None and ledger.version == notification.version
    counts: dict[str, dict[str, int]] = {}
    for view in hosts.values():
        if view.outside:
            continue
        of_role = counts.setdefault(view.role, dict.fromkeys(STATES, 0))
        of_role[view.state] += 1
    failures = [
        {
            "host": host,
            "role": hosts[host].role,
            "state": hosts[host].state,
            "error": truncate_middle(sanitize(hosts[host].reason), _MOST_ERROR),
        }
        for host in notification.hosts[:MOST_FAILURES]
    ]
    found = {
        "event": notification.event,
        "version": notification.version,
        "from_version": (ledger.previous_version if ledger is not None and is_current else None) or "",
        "rollback": bool(ledger is not None and is_current and ledger.rollback),
        "begun_at": _utc(ledger.since) if ledger is not None and is_current else "",
        "begun_by": ledger.who if ledger is not None and is_current else "",
        "epoch": notification.after.epoch,
        "at": _utc(notification.at),
        "by": notification.by,
        "reason": notification.reason,
        "stage": notification.stage or (plan.stage or "" if is_current else ""),
        "outcome": notification.outcome,
        "cause": notification.cause,
        "hosts": sum(sum(of_role.values()) for of_role in counts.values()),
        "upgraded": sum(of_role[UPGRADED] for of_role in counts.values()),
        "broken": sum(of_role[state] for of_role in counts.values() for state in BROKEN),
        "counts": counts,
        "failures": failures,
        "more_failures": len(notification.hosts) - len(failures),
    }
    if not is_current:
        # The hosts are in the states of another rollout.
        found = {name: value for name, value in found.items() if name not in _OF_CURRENT}
    found = {name: sanitize(value) if isinstance(value, str) else value for name, value in found.items()}
    only_after = all(host in hosts and hosts[host].cause == POST_UPGRADE_FAILED for host in notification.hosts)
    needs = operator_needs(snapshot, plan) if is_current else ()
    is_over = ledger is not None and is_current and not ledger.is_under_way
    again = _again(found, needs, only_after=only_after and plan.complete, is_over=is_over)
    back = ledger is not None and is_current and ledger.previous_version is not None
    text, following = _text(found, notification.after.exhausted), _next(found, again, can_go_back=back)
    by_operator = notification.event == APPROVED or (notification.event == RESUME and notification.cause == "command")
    if by_operator and ledger is not None and is_current and ledger.state == RUNNING and not snapshot.carriers:
        following = f"{_IF_NONE_RUNS}, start one: {_same_again(ledger)}."
    if notification.outcome == COMPLETE and is_current and plan.post_upgrade:
        text += f" Post-upgrade tasks have not run on {plural(len(plan.post_upgrade), 'host')}."
        need = next((one for one in needs if one.code in (POST_UPGRADE, BROKEN_HOSTS, NO_PLANNER)), None)
        following = _next_after(need) if need is not None else _GOES_ON.format(what="rollout")
    return {**found, "text": text, "next": following}


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _text(found: Mapping[str, Any], exhausted: Collection[str]) -> str:
    """Return the sentence for an event.

    :param exhausted: the keys of the exhausted failure budgets.
    """
    event, version = found["event"], found["version"]
    of = f"The {'rollback' if found['rollback'] else 'rollout'} to {version}"
    if is_job(version):
        of = f"The {target_text(version)}"
    why = f": {found['reason']}" if found["reason"] else ""
    by = f" by {found['by']}" if found["by"] else ""
    if event == BEGIN:
        came = f" from {found['from_version']}" if found["from_version"] else ""
        hosts = f", for {plural(found['hosts'], 'host')}" if "hosts" in found else ""
        return f"{of}{came} was begun{by}{hosts}."
    if event == STAGE:
        return f"{of}: stage {found['stage']} begins."
    if event == PAUSE and found["cause"] == "command":
        return f"{of} was paused{by}{why}."
    if event == PAUSE and _OF_FLEET in exhausted:
        # The reason begins with the same words.
        return f"{of} admits no more hosts{why.replace(NO_MORE_HOSTS, '', 1)}."
    if event == PAUSE:
        return f"A failure budget of t{of[1:]} is exhausted{why}."
    if event == RESUME:
        return f"{of} was resumed{by}{why}." if found["cause"] == "command" else f"{of} continues{why}."
    if event == FAILURE:
        first = "; ".join(f"{one['host']} {one['error']}" for one in found["failures"][:_MOST_IN_TEXT])
        count = len(found["failures"]) + found["more_failures"]
        rest = f"; and {count - _MOST_IN_TEXT} more" if count > _MOST_IN_TEXT else ""
        return f"{of}: {plural(count, 'host')} failed or lost: {first}{rest}."
    if event == APPROVAL_NEEDED:
        return f"{of}: stage {found['stage']} is done and needs an approval."
    if event == APPROVED:
        return f"{of}: stage {found['stage']} was approved{by}{why}."
    how = f"was aborted{by}{why}" if found["outcome"] == ABORTED else "is complete"
    end = "done" if is_job(version) else "upgraded"
    counts = f"; {found['upgraded']} of {plural(found['hosts'], 'host')} {end}" if "hosts" in found else ""
    return f"{of} {how}{counts}."


def _again(found: Mapping[str, Any], needs: Sequence[OperatorNeed], *, only_after: bool, is_over: bool) -> str:
    """Return how hosts that failed are tried again, as the end of a sentence after "fix what is broken".

    :param needs: what the rollout needs from an operator.
    :param only_after: whether hosts failed only in their post-upgrade tasks, and all hosts are upgraded.
    :param is_over: whether nothing is under way, so that a retry is refused.
    """
    if only_after:
        version = option("version", found["version"])
        return f", and run ansible-playbook convoy.upgrade.post_upgrade {version} -e retry_failed=true."
    need = next((one for one in needs if one.code in (BUDGET, BROKEN_HOSTS)), None)
    if is_over and need is None:
        return ". The next run that succeeds there ends this."
    if need is not None and need.playbook != "retry":
        # Some hosts are not tried again, or not before an operator has looked at them.
        return f". {need.text}"
    return ", and run ansible-playbook convoy.upgrade.retry."


def _next(found: Mapping[str, Any], again: str, *, can_go_back: bool) -> str:
    """Return what the operator can do next; empty for nothing.

    :param again: how hosts that failed are tried again.
    :param can_go_back: whether there is a version to roll back to.
    """
    event = found["event"]
    if event == FAILURE:
        one = listing([failure["host"] for failure in found["failures"]])
        return f"Look at {one} with ansible-playbook convoy.upgrade.status -e host=HOST, fix what is broken{again}"
    if event == PAUSE:
        return (
            "Run ansible-playbook convoy.upgrade.resume to continue it, or ansible-playbook convoy.upgrade.abort to end it."
            if found["cause"] == "command"
            else f"Fix what is broken on the hosts that failed{again} Or give all rules again with a higher budget."
        )
    if event == APPROVAL_NEEDED:
        return (
            "Look at the hosts with ansible-playbook convoy.upgrade.status, then run ansible-playbook "
            f"convoy.upgrade.approve {option('stage', found['stage'])} or ansible-playbook convoy.upgrade.abort."
        )
    if event == END and found["outcome"] == ABORTED and is_job(found["version"]):
        return "A job does not begin again. Begin another one with ansible-playbook convoy.upgrade.command -e run=NAME."
    if event == END and found["outcome"] == ABORTED and found["rollback"]:
        return f"Begin it again with ansible-playbook convoy.upgrade.rollback {option('version', found['version'])}."
    if event == END and found["outcome"] == ABORTED:
        restart = f"ansible-playbook convoy.upgrade.upgrade {option('version', found['version'])} -e restart=true"
        back = ", or go back with ansible-playbook convoy.upgrade.rollback" if can_go_back else ""
        return f"Begin it again with {restart}{back}."
    what = "job" if is_job(found["version"]) else "rollout"
    return "" if event == END else _GOES_ON.format(what=what)


def _same_again(ledger: Ledger) -> str:
    """Return the command of another run of a rollout."""
    playbook, variables = same_again(ledger)
    # Only a run with the tasks of the job admits hosts to it.
    tasks = " -e run_tasks=FILE, with the file of its tasks" if ledger.by_ansible else ""
    return _command(playbook, variables) + tasks


def _next_after(need: OperatorNeed) -> str:
    # The run that sends this may be about to run them.
    what = f"{_IF_NONE_RUNS}, run them with" if need.playbook == "post_upgrade" else f"{need.text} Run"
    return f"{what} {_command(need.playbook, need.variables)}."


def _command(playbook: str, variables: Mapping[str, str]) -> str:
    return " ".join((f"ansible-playbook convoy.upgrade.{playbook}", *(option(*one) for one in variables.items())))
