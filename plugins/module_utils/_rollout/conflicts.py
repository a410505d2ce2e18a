# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Conflicts of a request with the rollouts and jobs that are under way, aborted or not quite over: which of these end the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .._codecs.job import Job
from .._codecs.values import ledger_of_versions
from .._common.errors import UpgradeError
from .._common.names import did_you_mean, is_job, job_id, listing, plural, rollout_title
from .._common.sanitize import option
from .._fleet.fleet import POST_FAILED, Snapshot, find_members
from .._fleet.ledger import ABORTED, COMPLETE, PAUSED, RUNNING, Ledger
from .._host_states.admitted import gate_is_open
from .._host_states.states import reported_version
from .._planner.blockers import command_text
from .._planner.post_upgrade import post_upgrade_hosts
from .._state.keys import Keys
from .._state.ledger_writer import job_under_way
from .pass_request import PassRequest


def is_same_rollout(one: Ledger, other: Ledger | None) -> bool:
    """Return whether two ledgers belong to the same rollout."""
    return other is not None and (one.version, one.since) == (other.version, other.since)


def refuse_during_job(snapshot: Snapshot) -> None:
    """Refuse a rollout to a version while a job is under way.

    :raises UpgradeError: ``job_under_way``.
    """
    if snapshot.job is not None and snapshot.job.is_under_way:
        raise job_under_way(snapshot.job)


def refuse_unknown_job(request: PassRequest, keys: Keys) -> None:
    """Refuse to begin a job without its command.

    :raises UpgradeError: ``unknown_job``.
    """
    if request.job is None or request.job.target != request.version:
        raise UpgradeError(
            "unknown_job",
            f"{request.version} is not the job of {keys.ledger}: it is over or never began. Begin a new one with "
            "ansible-playbook convoy.upgrade.command -e run=NAME.",
        )


def refuse_unknown_targets(job: Job, members: Mapping[str, str]) -> None:
    """Refuse a job for roles or hosts that are not in the fleet.

    :raises UpgradeError: ``unknown_limit``.
    """
    roles = set(members.values())
    unknown = [name for name in job.roles if name not in roles] + [name for name in job.hosts if name not in members]
    if unknown:
        raise UpgradeError(
            "unknown_limit",
            f"only: {listing(unknown)} {'is' if len(unknown) == 1 else 'are'} no role or host of this fleet"
            f"{did_you_mean(unknown[0], [*roles, *members]) or '.'} Nothing begins.",
        )


def refuse_outstanding(request: PassRequest, snapshot: Snapshot, version: str) -> None:
    """Refuse to begin a rollout while hosts still have to run the post-upgrade tasks of the last one, also if it was paused or aborted since.

    :raises UpgradeError: ``post_upgrade_pending``.
    """
    old = snapshot.ledger
    if old is not None and snapshot.versions is not None:
        # A job begins. The tasks are those of the last rollout to a version.
        old = ledger_of_versions(old)
        snapshot = replace(snapshot.versions, ledger=old)
    if old is None or not old.was_complete or old.version == version:
        return
    members = find_members(request.fleet, snapshot, old.role_pattern).members
    left = post_upgrade_hosts(snapshot, members)
    if not left:
        return
    what = "job" if is_job(version) else f"rollout to {version}"
    failed = (old.version, POST_FAILED)
    records = [snapshot.records[host] for host in left if host in snapshot.records]
    again = {"retry_failed": "true"} if any((one.version, one.post) == failed for one in records) else {}
    last: tuple[str, dict[str, str]] = ("post_upgrade", {"version": old.version, **again})
    playbook, variables = {
        PAUSED: ("resume", {}),
        ABORTED: old.again(),
    }.get(old.state, last)
    commands = [(playbook, variables), *([last] if playbook != last[0] else [])]
    run = ", then ".join(
        " ".join((f"ansible-playbook convoy.upgrade.{name}", *(option(one, value) for one, value in given.items())))
        for name, given in commands
    )
    without = "" if is_job(version) else " To begin without them, give -e restart=true."
    raise UpgradeError(
        "post_upgrade_pending",
        f"{plural(len(left), 'host')} ({listing(left)}) still {'has' if len(left) == 1 else 'have'} to run the post-upgrade tasks "
        f"of {old.version}, so no {what} begins. Run {run}.{without}",
        hosts=list(left),
        playbook=playbook,
        variables=variables,
    )


def begins_rollout(request: PassRequest, snapshot: Snapshot, version: str, *, begun: bool) -> bool:
    """Return whether a request begins a rollout.

    :raises UpgradeError: ``aborted``, ``overtaken``.
    """
    old = snapshot.ledger
    # An aborted rollout begins again only on request, not by a command that runs every hour, also if something else has set current_version since.
    over = (
        old is not None
        and old.state == ABORTED
        and old.version == request.version
        and request.since is None
        and not begun
    )
    if old is not None and over and old.is_job:
        raise UpgradeError(
            "aborted",
            f"The job {job_id(version)} was aborted{command_text(old)}. No host is admitted, and a job does not begin again. Begin another one "
            "with ansible-playbook convoy.upgrade.command -e run=NAME.",
        )
    if old is not None and over and old.rollback and not request.rolls_back:
        # As an ordinary rollout, it would go on in the order of an upgrade.
        raise UpgradeError(
            "aborted",
            f"The rollback to {version} was aborted{command_text(old)}. No host is admitted. Begin it again with ansible-playbook convoy.upgrade.rollback -e "
            f"version={version}.",
        )
    if old is not None and over and not (request.restart or request.rolls_back):
        raise UpgradeError(
            "aborted",
            f"The rollout to {version} was aborted{command_text(old)}. No host is admitted. Begin it again with restart: true "
            "(-e restart=true), or go back with ansible-playbook convoy.upgrade.rollback.",
        )
    begins = snapshot.current_version != version or over
    if not begins and request.restart and request.since is None and not begun:
        everywhere = snapshot.gates.everywhere
        # Without any gate, every host is admitted too.
        is_open = everywhere is None or gate_is_open(everywhere, version)
        may_begin = old is not None and (old.state == COMPLETE or (old.state == RUNNING and is_open))
        begins = may_begin and _has_others(request, snapshot, version)
    if begins and (request.since is not None or begun):
        raise other_rollout(snapshot)
    if request.began is not None and old is not None and (old.version, old.since) != (version, request.began):
        raise other_rollout(snapshot)
    if begins and request.rolls_back is not None and not is_same_rollout(request.rolls_back, old):
        raise other_rollout(snapshot)
    return begins


def _has_others(request: PassRequest, snapshot: Snapshot, version: str) -> bool:
    """Return whether hosts do not run a version, such as those that joined after its rollout was complete. They are no part of it."""
    hosts = {*snapshot.reports, *(request.fleet or ())}
    return any(reported_version(snapshot, host) != version for host in hosts)


def replaced_rollout(request: PassRequest, snapshot: Snapshot, version: str) -> Ledger | None:
    """Return the rollout under way that a request replaces; None for none.

    If something other than a planner has set ``current_version`` to the requested version, the request replaces the rollout of the
    ledger too. A paused rollout does not begin again, because it would lose its pause.

    :raises UpgradeError: ``rollout_under_way``, ``foreign_version``.
    """
    old = snapshot.ledger
    if old is None or old.state not in (RUNNING, PAUSED) or request.rolls_back is not None:
        return None
    if old.version == version:
        if old.state == PAUSED and snapshot.current_version != version:
            raise _paused_elsewhere(old, snapshot.current_version)
        return None
    if request.replace == old.version:
        return old
    if snapshot.is_job or old.is_job:
        raise other_under_way(old, version)
    named = f"replace names {request.replace}, but the" if request.replace else "The"
    raise UpgradeError(
        "rollout_under_way",
        f"{named} rollout under way goes to {old.version}: it was begun by {old.who} and is {old.state}"
        f"{command_text(old) if old.state == PAUSED else ''}. So no rollout to {version} begins, and nothing is changed. {_finish_it(old)} "
        f"ansible-playbook convoy.upgrade.upgrade {option('version', old.version)}, wait for its end (-e wait_for_other=true), "
        f"or replace it ({option('replace', old.version)}).",
        under_way=old.version,
        state=old.state,
    )


def _finish_it(old: Ledger) -> str:
    """Return the beginning of a sentence with the command that finishes a rollout."""
    if old.state == PAUSED:
        return "End the pause with ansible-playbook convoy.upgrade.resume, and finish it with"
    return "Finish it with"


def _paused_elsewhere(old: Ledger, current: str | None) -> UpgradeError:
    """Return the error for a paused rollout whose target is not the current one any more."""
    target = "missing" if current is None else repr(current)
    # Not rollout_under_way: no other rollout is there, whose end a run could wait for.
    return UpgradeError(
        "foreign_version",
        f"{rollout_title(old.version)} is paused{command_text(old)}, but its target in Consul is {target} now: something other than a planner has "
        "changed it. So it does not begin again, and nothing is changed. End the pause with ansible-playbook "
        "convoy.upgrade.resume. Then run the same command again.",
        playbook="resume",
        variables={},
    )


def other_under_way(old: Ledger, version: str) -> UpgradeError:
    """Return the error for a job that would begin while another job or a rollout to a version is under way."""
    if old.is_job:
        return job_under_way(old)
    paused = command_text(old) if old.state == PAUSED else ""
    return UpgradeError(
        "rollout_under_way",
        f"The rollout under way goes to {old.version}: it was begun by {old.who} and is {old.state}{paused}. So the job {job_id(version)} does not "
        f"begin, and nothing is changed: one of the two moves the fleet at a time. {_finish_it(old)} ansible-playbook convoy.upgrade.upgrade -e "
        f"version={old.version}, or end it with ansible-playbook convoy.upgrade.abort. Then run the same command again. With -e wait_for_other=true it waits "
        "by itself.",
        under_way=old.version,
        state=old.state,
    )


def other_rollout(snapshot: Snapshot) -> UpgradeError:
    """Return the error for a caller whose rollout is not the current one."""
    who = f", begun by {snapshot.ledger.who}" if snapshot.ledger else ""
    if snapshot.is_job and snapshot.ledger is not None:
        what = (
            f"The job {job_id(snapshot.ledger.version)}"
            if snapshot.ledger.is_job
            else f"The rollout to {snapshot.ledger.version}"
        )
        return UpgradeError(
            "overtaken",
            f"{what}{who}, came first. This run ends. Look at it with ansible-playbook convoy.upgrade.status, and run "
            "ansible-playbook convoy.upgrade.command again after it.",
        )
    return UpgradeError(
        "overtaken",
        f"Another rollout is under way, to {snapshot.current_version!r}{who}. This run ends. Look at it with "
        "ansible-playbook convoy.upgrade.status. To replace it "
        f"with yours, run ansible-playbook convoy.upgrade.upgrade again with {option('replace', snapshot.current_version)}.",
    )
