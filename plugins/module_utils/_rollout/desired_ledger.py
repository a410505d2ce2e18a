# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired ledger: what the ledger should say after a request, such as its version, rules and previous version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._codecs.job import Job
from .._codecs.values import before_job, ledger_of_versions
from .._common.errors import UpgradeError
from .._common.names import check_new_version, did_you_mean, is_job, job_id, listing, plural, rollout_title
from .._common.sanitize import option, sanitize, truncate_middle
from .._fleet.fleet import DEFAULT_ROLE_PATTERN, POST_FAILED, Membership, Snapshot, find_members
from .._fleet.ledger import ABORTED, COMPLETE, PAUSED, RUNNING, Ledger
from .._host_states.admitted import gate_is_open, still_admitted, without_unstarted
from .._host_states.state_names import UPGRADED
from .._host_states.states import read_states, reported_version
from .._planner.blockers import command_text
from .._planner.post_upgrade import post_upgrade_hosts
from .._planner.slots import refuse_uncapped
from .._planner.stage_progress import carried_over
from .._rule_checks.changes import refuse_left_out
from .._rule_checks.unknown_targets import refuse_unknown_holds
from .._rules.instructions import ROLLBACK_ORDER, Instructions, parse
from .._rules.role_order import resolve
from .._rules.unknown_names import refuse_unknown
from .._state.keys import Keys
from .._state.ledger_writer import job_under_way
from .._state.store import current_user
from .pass_request import PassRequest
from .rule_input import effective_rules


def is_same_rollout(one: Ledger, other: Ledger | None) -> bool:
    """Return whether two ledgers belong to the same rollout."""
    return other is not None and (one.version, one.since) == (other.version, other.since)


@dataclass(frozen=True, slots=True)
class DesiredLedger:
    """What the ledger should say after a request.

    :param rules: the parsed rules of that ledger.
    :param membership: the hosts of the whole fleet.
    :param begins: whether the request begins a rollout.
    :param replaces: the rollout under way that this one replaces; None for none, and in a rollback.
    :param warnings: sentences for the caller.
    """

    ledger: Ledger
    rules: Instructions
    membership: Membership
    begins: bool
    replaces: Ledger | None = None
    warnings: tuple[str, ...] = ()

    @property
    def members(self) -> Mapping[str, str]:
        """Host -> role, of the whole fleet."""
        return self.membership.members


def desired_ledger(
    keys: Keys,
    request: PassRequest,
    snapshot: Snapshot,
    now: int,
    *,
    begun: bool,
    before: Membership | None = None,
) -> DesiredLedger:
    """Return what the ledger should say after a request.

    :param now: unix seconds; the beginning of a rollout that begins.
    :param begun: whether an earlier try of this pass has begun the rollout already.
    :param before: the hosts in an earlier pass, which saves time.
    :raises UpgradeError: ``no_rollout``, ``foreign_version``, ``aborted``, ``rollout_under_way``, ``overtaken``, ``rules_left_out``,
        ``post_upgrade_pending``, ``job_under_way``, ``unknown_job``, ``unknown_limit``, ``no_cap``, ``unknown_names``,
        ``bad_instructions``, and what :func:`roles_of_hosts` raises.
    """
    warnings = []
    old = snapshot.ledger
    version = request.version or (old.version if old else None)
    if version is None:
        raise UpgradeError(
            "no_rollout",
            f"version is not given, and {keys.ledger} has no rollout to continue. Give version (-e version=X).",
        )
    if request.version is None and snapshot.current_version != version:
        raise UpgradeError(
            "foreign_version",
            f"{keys.current_version} is {snapshot.current_version!r}, but the rollout in {keys.ledger} goes "
            f"to {version!r}: something other than a planner has set it. Give version (-e version=X) to choose one of the two.",
        )
    _refuse_during_job(snapshot)
    begins = _begins(request, snapshot, version, begun=begun)
    same = old if old is not None and old.version == version and not begins else None
    if same is None and snapshot.is_job:
        _refuse_unknown_job(request, keys)
    elif begins:
        check_new_version(version, "version")
    replaces = _replaced(request, snapshot, version)
    if begins and not begun and not (request.rolls_back or request.restart):
        _refuse_outstanding(request, snapshot, version)
    # A rollout without rules of its own begins with those of the last rollout.
    given = request.given_rules(same)
    plain, rules = effective_rules(given, _rules_in_force(old, same), request.role_order)
    if given is not None and same is not None and same.state in (RUNNING, PAUSED):
        refuse_left_out(same.instructions, given, version, keys.ledger, plain)
    # Two planners may continue a rollout with different patterns. Both use the ledger's.
    pattern = (request.role_pattern if request.since is None else None) or (old.role_pattern if old else None)
    membership = find_members(request.fleet, snapshot, pattern, before)
    members = membership.members
    if not members:
        warnings.append(
            f"No host is known: none has reported under {keys.reports}, and fleet is empty. Check kv_prefix."
        )
    if request.job is not None and same is None:
        _refuse_unknown_targets(request.job, members)
    if same is None:
        refuse_unknown_holds(snapshot, members, rules.optional_names)
    if same is None or plain != same.instructions or _have_moved(request, members, same):
        order = resolve(rules, set(members.values()), members)
        # The rules of a rollback were checked when the first rollout began. Hosts may have been removed since then.
        if request.rolls_back is None or not _are_of(request.rolls_back, plain):
            refuse_unknown(order.unknown, members, request.role_order)
        refuse_uncapped(rules, order, _former_default(snapshot))
    ledger = Ledger(
        epoch=old.epoch if old else 0,
        version=version,
        previous_version=same.previous_version if same else _previous_of(snapshot, version),
        state=same.state if same else RUNNING,
        instructions=plain,
        role_pattern=pattern if pattern != DEFAULT_ROLE_PATTERN else None,
        members=_member_counts(request, members, old),
        who=same.who if same else _who(request),
        since=same.since if same else now,
        command=same.command if same else dict(request.command),
        rollback=same.rollback if same else request.rolls_back is not None,
        stage=_stage(same, rules) if same else {},
        begun_index=same.begun_index if same else _begun_index(snapshot, version),
        all_soak=same.all_soak if same else _all_soak(snapshot, version),
        admitted=_admitted(snapshot, same, members),
        broken=same.broken if same else (),
        stopped=same.stopped if same else (),
        recoveries=same.recoveries if same else 0,
        recovered_at=same.recovered_at if same else 0,
        post_upgrade=() if snapshot.is_job else _post_upgrade(request, same),
        services={} if snapshot.is_job else _services(request, same),
        targets=same.targets if same else request.job.targets() if request.job else {},
        expires=same.expires if same else request.job.expires if request.job else 0,
        by_ansible=same.by_ansible if same else request.job is not None and request.job.by_ansible,
        before=_before(snapshot, same),
    )
    return DesiredLedger(ledger, rules, membership, begins, replaces, tuple(warnings))


def _have_moved(request: PassRequest, members: Mapping[str, str], same: Ledger) -> bool:
    """Return whether hosts seem to have another role than before: one of the ledger has none left, and the fleet has not become smaller by these.

    With another inventory, the names in the rules may not fit any more, and neither caps nor order would hold.
    """
    gone = sum(count for role, count in same.members.items() if role not in members.values())
    return bool(request.fleet) and gone > 0 and len(members) > sum(same.members.values()) - gone


def _admitted(snapshot: Snapshot, same: Ledger | None, members: Mapping[str, str]) -> Mapping[str, int]:
    if same is not None:
        return without_unstarted(snapshot, same.admitted)
    # No host has been admitted to a job that begins. One that works on an earlier job is busy.
    return {} if snapshot.is_job else still_admitted(snapshot, members)


def _begun_index(snapshot: Snapshot, version: str) -> int | None:
    """Return Consul's index at the beginning of a rollout, from which on reports have to soak.

    One to the same version that begins again, as after an abort, has that of the first beginning: the soaks of its hosts are not over.
    """
    old = snapshot.ledger
    goes_on = old is not None and not (old.is_job or old.was_complete) and old.version == version
    return old.begun_index if goes_on and old is not None else snapshot.index


def _all_soak(snapshot: Snapshot, version: str) -> bool:
    """Return whether hosts soak that reported the version before the rollout begins.

    Another rollout was cut short, and an earlier one to this version may have been too. It is known only of the version before that one that the
    fleet ran it.
    """
    old = snapshot.ledger
    if old is None or old.is_job or old.was_complete or version == old.previous_version:
        return False
    return old.all_soak if old.version == version else True


def _refuse_during_job(snapshot: Snapshot) -> None:
    """Refuse a rollout to a version while a job is under way.

    :raises UpgradeError: ``job_under_way``.
    """
    if snapshot.job is not None and snapshot.job.is_under_way:
        raise job_under_way(snapshot.job)


def _refuse_unknown_job(request: PassRequest, keys: Keys) -> None:
    """Refuse to begin a job without its command.

    :raises UpgradeError: ``unknown_job``.
    """
    if request.job is None or request.job.target != request.version:
        raise UpgradeError(
            "unknown_job",
            f"{request.version} is not the job of {keys.ledger}: it is over or never began. Begin a new one with "
            "ansible-playbook convoy.upgrade.command -e run=NAME.",
        )


def _refuse_unknown_targets(job: Job, members: Mapping[str, str]) -> None:
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


def _who(request: PassRequest) -> str:
    by = request.job.by if request.job is not None else request.command.get("by") or request.by
    return truncate_middle(sanitize(str(by))) if by else current_user()


def _rules_in_force(old: Ledger | None, same: Ledger | None) -> Mapping[str, Any]:
    """Return the rules that a request without rules has: those of the last rollout to a version, or of the job that it continues."""
    if old is None:
        return {}
    if not old.is_job or same is not None:
        return old.instructions
    found = old.before.get("instructions", {})
    return found if isinstance(found, Mapping) else {}


def _previous_of(snapshot: Snapshot, version: str) -> str | None:
    return None if snapshot.is_job else previous_of(snapshot, version)


def _before(snapshot: Snapshot, same: Ledger | None) -> Mapping[str, Any]:
    """Return the last rollout to a version as a job keeps it."""
    if not snapshot.is_job or snapshot.ledger is None:
        return {}
    if same is not None:
        return same.before
    old = snapshot.ledger
    if not old.is_job:
        # Hosts that have started are busy. Those that have not can't start any more.
        old = replace(old, admitted={host: at for host, at in old.admitted.items() if host in snapshot.busy})
    return before_job(old)


def _member_counts(request: PassRequest, members: Mapping[str, str], old: Ledger | None) -> Mapping[str, int]:
    """Return role -> number of hosts. A caller without a fleet does not know them all."""
    if request.fleet and not (request.keeps_members and old is not None and old.members):
        return dict(Counter(members.values()))
    return dict(old.members if old is not None else {})


def _post_upgrade(request: PassRequest, same: Ledger | None) -> tuple[str, ...]:
    # A complete rollout keeps its roles: hosts that join the fleet later are not part of it.
    if same is not None and (request.post_upgrade is None or same.state == COMPLETE):
        return same.post_upgrade
    return tuple(sorted(request.post_upgrade or ()))


def _services(request: PassRequest, same: Ledger | None) -> Mapping[str, str]:
    if same is not None and request.services is None:
        return same.services
    return dict(request.services or {})


def _refuse_outstanding(request: PassRequest, snapshot: Snapshot, version: str) -> None:
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


def _begins(request: PassRequest, snapshot: Snapshot, version: str, *, begun: bool) -> bool:
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


def _replaced(request: PassRequest, snapshot: Snapshot, version: str) -> Ledger | None:
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
        f"{command_text(old) if old.state == PAUSED else ''}. So no rollout to {version} begins, and nothing is changed. Finish it with "
        f"ansible-playbook convoy.upgrade.upgrade {option('version', old.version)}, wait for its end (-e wait_for_other=true), "
        f"or replace it ({option('replace', old.version)}).",
        under_way=old.version,
        state=old.state,
    )


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
        f"begin, and nothing is changed: one of the two moves the fleet at a time. Finish it with ansible-playbook convoy.upgrade.upgrade -e "
        f"version={old.version}, or end it with ansible-playbook convoy.upgrade.abort. Then run the same command again. With -e wait_for_other=true it waits "
        "by itself.",
        under_way=old.version,
        state=old.state,
    )


def _are_of(ledger: Ledger, plain: Mapping[str, Any]) -> bool:
    """Return whether rules are those of a rollout, apart from the order in a rollback."""
    return {**plain, ROLLBACK_ORDER: ""} == {**ledger.instructions, ROLLBACK_ORDER: ""}


def _former_default(snapshot: Snapshot) -> str:
    """Return a sentence on caps for a fleet that has never had a ledger; empty for other fleets."""
    if snapshot.ledger is not None or snapshot.current_version is None:
        return ""
    return "The code that set current_version before had no cap by default. Keep that with global: unlimited, or begin with global: 1."


def _stage(same: Ledger, rules: Instructions) -> Mapping[str, int]:
    """Return the value of ``stage`` for a rollout that continues under these rules."""
    before = parse(same.instructions).stages
    return same.stage if before == rules.stages else carried_over(before, rules.stages, same.stage)


def previous_of(snapshot: Snapshot, version: str) -> str | None:
    """Return the version before a rollout: that of the last complete rollout, or the one that all hosts run; None if unknown.

    The version of an incomplete rollout may be bad, so its own previous version is returned instead. The target of a rollback counts
    as good even if the rollback is not complete.
    """
    old, passed_over = snapshot.ledger, {version}
    known = [snapshot.current_version]
    if old is not None and old.version == snapshot.current_version != version and _is_cut_short(old, snapshot):
        known = [old.version] if old.previous_version == version else [old.previous_version]
        passed_over |= {old.version} - set(known)
    elif old is not None:
        # A rollout that begins again after an abort has the previous version of the aborted one.
        known += [old.version, old.previous_version]
    for one in known:
        if one is not None and one != version:
            return one
    running = {report.version for report in snapshot.reports.values()} - passed_over
    return running.pop() if len(running) == 1 else None


def _is_cut_short(ledger: Ledger, snapshot: Snapshot) -> bool:
    if ledger.rollback or (ledger.was_complete and ledger.state != ABORTED):
        return False
    if ledger.state != RUNNING:
        return True
    # All hosts may have reported since the last pass. Then the rollout is complete, though no planner has written that.
    health = parse(ledger.instructions).health
    states = read_states(snapshot, dict.fromkeys((*snapshot.reports, *snapshot.records), ""), health)
    return any(one.state != UPGRADED for one in states.values())


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
